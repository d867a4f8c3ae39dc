"""Curves: metrics against steps, and named lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from spherenorm_experiments.analysis import Results, smoothed
from spherenorm_experiments.report.pictures._figures import (
    Picture,
    add_band,
    empty_figure,
    line_styles,
    rounded,
)

__all__ = ["curves", "lines"]


def curves(
    results: Results,
    key: str,
    y: str,
    caption: str,
    *,
    log_y: bool = False,
    smooth: int = 1,
    points: int = 160,
) -> Picture:
    """Draw a metric against steps.

    Each arm has the mean over its seeds, and a band from the lowest to the highest seed.

    Args:
        key: the metric's.
        y: the axis' title.
        smooth: average over this many steps.
        points: thin a curve out to about so many points.
    """
    figure = empty_figure("step", y, log_y=log_y)
    styles = line_styles(arm.recipe for arm in results.arms)
    for arm, (color, dash) in zip(results.arms, styles, strict=True):
        times, values = results.arm(arm).curves(key)
        if not values.size:
            continue
        count = values.shape[1]
        values = smoothed(values, smooth)
        kept = np.unique(np.linspace(0, count - 1, min(points, count)).astype(int))
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
    mode: str = "lines",
) -> Picture:
    """Draw named lines, one pair of x and y each."""
    figure = empty_figure(x, y, log_x=log_x, log_y=log_y)
    for name, (xs, ys) in series.items():
        line = {"color": colors.get(name), "dash": (dashes or {}).get(name, "solid"), "width": 2}
        figure.add_scatter(x=rounded(xs), y=rounded(ys), name=name, mode=mode, line=line)
    return Picture(figure, caption)
