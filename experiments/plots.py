"""Pictures: plotly figures of results. Colors of text, grid and background are left to the page, which knows light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from experiments.results import Results

__all__ = [
    "Picture",
    "bars",
    "best_of_k",
    "color_of",
    "crosses",
    "curves",
    "lines",
    "profile",
    "sensitivity",
]

COLORS = {
    "sgd": "#4c78a8",
    "sgdw": "#1b9e9e",
    "sgdp": "#e4572e",
    "adam": "#7a8c3c",
    "adamw": "#2e8b57",
    "adamp": "#d6279a",
    "sgdg": "#8e6bbf",
    "adamg": "#a9744f",
    "rmsprop": "#777777",
}
OTHERS = ("#0099c6", "#dd8800", "#66aa00", "#b82e2e", "#316395", "#994499")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        figure: plotly's.
        caption: what it shows, and the paper's figure that it stands for.
        height: in pixels.
        wide: takes the page's whole width.
    """

    figure: go.Figure
    caption: str
    height: int = 380
    wide: bool = False


def color_of(recipe: str) -> str:
    """The recipe's color, the same in every picture."""
    return COLORS.get(recipe) or OTHERS[sum(map(ord, recipe)) % len(OTHERS)]


def base(x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        margin={"l": 60, "r": 15, "t": 15, "b": 45},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(title=x, type="log" if log_x else "linear", exponentformat="power")
    figure.update_yaxes(title=y, type="log" if log_y else "linear", exponentformat="power")
    return figure


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
    """A metric against steps: for each arm the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        smooth: average over this many steps.
        points: thin a curve out to about so many points.
    """
    figure = base("step", y, log_y=log_y)
    seen: dict[str, int] = {}
    for arm in results.arms:
        chosen = results.arm(arm)
        times, values = chosen.curves(key)
        if not values.size:
            continue
        recipe = chosen.items[0].spec.recipe
        values = _smooth(values, smooth)
        kept = np.unique(
            np.linspace(0, values.shape[1] - 1, min(points, values.shape[1])).astype(int)
        )
        dash = DASHES[seen.setdefault(recipe, 0) % len(DASHES)]
        seen[recipe] += 1
        band(figure, times[kept], values[:, kept], arm, color_of(recipe), dash)
    return Picture(figure, caption)


def band(
    figure: go.Figure, x: Any, values: np.ndarray, name: str, color: str, dash: str = "solid"
) -> None:
    """A line for the mean over rows, and a band from their lowest to their highest."""
    x = np.asarray(x)
    if len(values) > 1:
        figure.add_scatter(
            x=short(np.concatenate([x, x[::-1]])),
            y=short(np.concatenate([values.max(0), values.min(0)[::-1]])),
            fill="toself",
            fillcolor=_with_alpha(color, 0.15),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=name,
        )
    figure.add_scatter(
        x=short(x),
        y=short(values.mean(0)),
        name=name,
        legendgroup=name,
        line={"color": color, "dash": dash, "width": 2},
    )


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
    """Named lines, one (x, y) pair each."""
    figure = base(x, y, log_x=log_x, log_y=log_y)
    for name, (xs, ys) in series.items():
        line = {"color": colors.get(name), "dash": (dashes or {}).get(name, "solid"), "width": 2}
        figure.add_scatter(x=short(xs), y=short(ys), name=name, mode=mode, line=line)
    return Picture(figure, caption)


def sensitivity(
    results: Results, hyper_parameter: str, y: str, caption: str, key: str = "validation"
) -> Picture:
    """Score against a hyper-parameter: for each recipe the mean with a band over seeds; crosses on top count runs that diverged."""
    figure = base(hyper_parameter, y, log_x=True)
    failed: list[tuple[float, str, int, str]] = []
    for recipe in dict.fromkeys(item.spec.recipe for item in results):
        color = color_of(recipe)
        by_value: dict[float, list[float]] = {}
        for item in results.where(lambda item, recipe=recipe: item.spec.recipe == recipe):  # type: ignore[misc]
            value = float(item.spec.hyper_parameters[hyper_parameter])
            by_value.setdefault(value, [])
            if not item.diverged:
                by_value[value].append(item.summary[key])
            else:
                failed.append((value, recipe, item.summary["diverged_at"], color))
        xs = [value for value in sorted(by_value) if by_value[value]]
        if not xs:
            continue  # its crosses are drawn
        width = max(len(by_value[value]) for value in xs)
        rows = np.array([np.resize(sorted(by_value[value]), width) for value in xs]).T
        band(figure, xs, rows, recipe, color)
    crosses(figure, failed)
    return Picture(figure, caption)


def crosses(figure: go.Figure, failed: Sequence[tuple[float, str, int, str]]) -> None:
    """On top of the figure a cross for each run or point that diverged: where on the x axis, what, at which step, its color."""
    if not failed:
        return
    figure.add_scatter(
        x=short(value for value, *_ in failed),
        y=[1.0] * len(failed),
        yaxis="y2",
        mode="markers",
        name="diverged",
        marker={"symbol": "x", "size": 9, "color": [color for *_, color in failed]},
        text=[f"{what} diverged at step {step}" for _, what, step, _ in failed],
    )
    figure.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1.04], "visible": False, "fixedrange": True}
    )


def best_of_k(scores: Mapping[str, Sequence[float]], y: str, caption: str) -> Picture:
    """The expected best score after k trials of a random search, for each recipe: k trials drawn from those that were made.

    Exact: the j-th smallest of n is the best of k with probability C(j - 1, k - 1) / C(n, k) (Dodge et al. 2019).
    """
    figure = base("trials k", y)
    for recipe, values in scores.items():
        ordered = np.sort(np.asarray(values, dtype=float))
        n = len(ordered)
        ks = np.arange(1, n + 1)
        # P(best of k is among the j smallest), without replacement.
        expected = [_expected_best(ordered, int(k)) for k in ks]
        figure.add_scatter(
            x=ks.tolist(),
            y=short(expected),
            name=recipe,
            mode="lines+markers",
            line={"color": color_of(recipe)},
        )
    return Picture(figure, caption)


def _expected_best(ordered: np.ndarray, k: int) -> float:
    from scipy.special import comb

    n = len(ordered)
    weights = np.array([comb(j - 1, k - 1, exact=False) for j in range(1, n + 1)]) / comb(n, k)
    return float(weights @ ordered)


def profile(steps_to_target: Mapping[str, Sequence[float]], caption: str) -> Picture:
    """Performance profile: the share of problems that a recipe solves within a factor tau of the fastest recipe's steps.

    Args:
        steps_to_target: for each recipe its steps on each problem, in one common order; inf where the target was missed.
    """
    figure = base("factor τ of the fastest", "share of problems solved", log_x=True)
    table = np.array(list(steps_to_target.values()), dtype=float)
    fastest = table.min(axis=0, initial=np.inf)
    with np.errstate(invalid="ignore"):
        ratios = np.where(np.isfinite(table), table / fastest, np.inf)
    limit = max(4.0, 1.1 * ratios[np.isfinite(ratios)].max(initial=1.0))
    for name, row in zip(steps_to_target, ratios, strict=True):
        jumps = np.sort(row[np.isfinite(row)])
        x = np.concatenate([[1.0], np.repeat(jumps, 2), [limit]])
        share = np.arange(len(jumps) + 1) / len(row)
        y = np.repeat(share, 2)
        figure.add_scatter(
            x=short(x),
            y=short(y),
            name=name,
            mode="lines",
            line={"color": color_of(name), "width": 2},
        )
    return Picture(figure, caption)


def bars(
    groups: Mapping[str, Mapping[str, float]],
    x: str,
    y: str,
    caption: str,
    colors: Mapping[str, str],
) -> Picture:
    """Grouped bars: for each name a value for each category."""
    figure = base(x, y)
    for name, values in groups.items():
        figure.add_bar(
            x=list(values),
            y=short(list(values.values())),
            name=name,
            marker={"color": colors.get(name)},
        )
    figure.update_layout(barmode="group")
    return Picture(figure, caption)


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Each step's mean over the last `window` steps (fewer at the start)."""
    if window <= 1:
        return values
    total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    ends = np.arange(1, values.shape[1] + 1)
    starts = np.maximum(ends - window, 0)
    smoothed: np.ndarray = (total[:, ends] - total[:, starts]) / (ends - starts)
    return smoothed


def short(values: Iterable[float]) -> list[float]:
    """Five digits are more than a screen shows, and keep the page small."""
    return [float(f"{value:.5g}") for value in values]


def _with_alpha(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
