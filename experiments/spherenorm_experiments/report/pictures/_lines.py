"""Lines: metrics against steps, scores against a hyper-parameter, best of k trials, named lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from spherenorm_experiments.analysis import Arm, Results, Tried, best_of_k
from spherenorm_experiments.report.pictures._figures import (
    Picture,
    add_band,
    add_crosses,
    empty_figure,
    line_styles,
    rounded,
)

POINTS = 160
"""A curve of more is thinned out to about so many."""


def curves(
    results: Results,
    key: str,
    y: str,
    caption: str,
    *,
    log_y: bool = False,
) -> Picture:
    """Draw a metric against steps.

    Each arm has the mean over its seeds, and a band from the lowest to the highest seed.

    Args:
        key: the metric's.
        y: the axis' title.
    """
    figure = empty_figure("step", y, log_y=log_y)
    styles = line_styles(arm.recipe for arm in results.arms)
    for arm, (color, dash) in zip(results.arms, styles, strict=True):
        times, values = results.arm(arm).curves(key)
        if not values.size:
            continue
        count = values.shape[1]
        kept = np.unique(np.linspace(0, count - 1, min(POINTS, count)).astype(int))
        add_band(figure, times[kept], values[:, kept], arm.label, color, dash)
    return Picture(figure, caption)


def lines(
    series: Mapping[str, tuple[Iterable[float], Iterable[float]]],
    x: str,
    y: str,
    caption: str,
    colors: Mapping[str, str],
    *,
    log_x: bool = False,
    log_y: bool = False,
    dashes: Mapping[str, str] | None = None,
) -> Picture:
    """Draw named lines, one pair of x and y each."""
    figure = empty_figure(x, y, log_x=log_x, log_y=log_y)
    for name, (xs, ys) in series.items():
        line = {"color": colors.get(name), "dash": (dashes or {}).get(name, "solid"), "width": 2}
        figure.add_scatter(x=rounded(xs), y=rounded(ys), name=name, mode="lines", line=line)
    return Picture(figure, caption)


def tried(searches: Mapping[Arm, Tried], hyper_parameter: str, y: str, caption: str) -> Picture:
    """Draw the score of every trial against a hyper-parameter; each arm's best mark is large.

    Crosses on top are trials without a score.
    """
    figure = empty_figure(hyper_parameter, y, log_x=True)
    lost: list[tuple[float, str, None, str]] = []
    styles = line_styles(arm.recipe for arm in searches)
    for (arm, made), (color, dash) in zip(searches.items(), styles, strict=True):
        pairs = sorted(
            (point[hyper_parameter], score, i == made.best)
            for i, (point, score) in enumerate(zip(made.points, made.scores, strict=True))
        )
        known = [pair for pair in pairs if math.isfinite(pair[1])]
        lost += [
            (value, arm.label, None, color) for value, score, _ in pairs if not math.isfinite(score)
        ]
        if known:
            figure.add_scatter(
                x=rounded(value for value, *_ in known),
                y=rounded(score for _, score, _ in known),
                name=arm.label,
                mode="markers" if len(made.points[0]) > 1 else "lines+markers",
                line={"color": color, "dash": dash},
                marker={"color": color, "size": [15 if chosen else 7 for *_, chosen in known]},
            )
    add_crosses(figure, lost)
    return Picture(figure, caption)


def best_scores(scores: Mapping[Arm, Sequence[float]], y: str, caption: str) -> Picture:
    """Draw the expected best score of k trials of a random search, for each arm.

    See `spherenorm_experiments.analysis.best_of_k`.
    """
    figure = empty_figure("trials k", y)
    styles = line_styles(arm.recipe for arm in scores)
    for (arm, values), (color, dash) in zip(scores.items(), styles, strict=True):
        expected = rounded(best_of_k(values))
        figure.add_scatter(
            x=list(range(1, len(expected) + 1)),
            y=expected,
            name=arm.label,
            mode="lines+markers",
            line={"color": color, "dash": dash},
        )
    return Picture(figure, caption)


def points(
    series: Mapping[str, tuple[Iterable[float], Iterable[float]]],
    x: str,
    y: str,
    caption: str,
    colors: Mapping[str, str],
    *,
    log_x: bool = False,
    log_y: bool = False,
    diagonal: bool = False,
) -> Picture:
    """Draw named clouds of points, one pair of x and y each.

    Args:
        diagonal: also draw the line on which x and y are equal.
    """
    figure = empty_figure(x, y, log_x=log_x, log_y=log_y)
    ends: list[float] = []
    for name, (xs, ys) in series.items():
        across, up = rounded(xs), rounded(ys)
        marker = {"color": colors.get(name), "size": 6, "opacity": 0.6}
        figure.add_scatter(x=across, y=up, name=name, mode="markers", marker=marker)
        ends += across
    if diagonal and ends:
        both, line = [min(ends), max(ends)], {"color": "#888888", "dash": "dash"}
        figure.add_scatter(x=both, y=both, name="equal", mode="lines", line=line)
    return Picture(figure, caption)
