"""Sweeps of the small network: their points, sides of claims about them, and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spherenorm_experiments.analysis import Arm, Grid, Results, Sample, Side, derive, grid_of, mean
from spherenorm_experiments.report.pictures import (
    Picture,
    add_band,
    color_of,
    empty_figure,
    rounded,
)

NESTEROV: dict[str, Any] = {"momentum": 0.9, "nesterov": True}
"""The momentum of SGD and SGDP."""

STEP = "effective step ‖Δŵ‖"
"""The label of an axis."""


def columns(names: str, rows: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The hyper-parameters of a sweep, of its points.

    >>> columns("lr momentum", [(0.1, 0.5), (0.1, 0.9)])
    {'lr': [0.1, 0.1], 'momentum': [0.5, 0.9]}
    """
    return dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))


def decayed(
    optimizer: str, rates: Sequence[float], decays: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """The points at all rates of pairs of a weight decay and its ratio, a projected optimizer's."""
    rows = [(rate, *pair) for rate in rates for pair in decays]
    points = columns("lr weight_decay wd_ratio", rows)
    if not optimizer.endswith("P"):
        del points["wd_ratio"]
    return points | (NESTEROV if optimizer.startswith("SGD") else {})


def at_rate_of(arm: Arm, best: Mapping[str, Any], key: str, **point: float) -> Side:
    """The number at a point, at the rate that tuning chooses among the points that have `best`."""

    def side(results: Results) -> Sample:
        grid = grid_of(results, arm)
        return grid.sample(key, grid.at(lr=grid.tuned(**best).rate, **point))

    return side


def of_all(function: Callable[..., Sample], sides: Sequence[Side], *more: Any) -> Side:
    """A function of the numbers of several sides, such as their spread."""
    return derive(lambda *parts: function(parts, *more), *sides)


@dataclass(frozen=True)
class Curve:
    """A point of a sweep, to be drawn under a name."""

    label: str
    grid: Grid
    index: int | None
    dash: str = "solid"


def over_steps(
    curves: Sequence[Curve], key: str, y: str, caption: str, *, log_y: bool = False
) -> Picture:
    """Draw a metric against steps: the mean over seeds, and a band from lowest to highest."""
    figure = empty_figure("step", y, log_y=log_y)
    for curve in curves:
        steps, values = curve.grid.curve(key, curve.index)
        if len(values):
            color = color_of(curve.grid.items[0].spec.recipe)
            add_band(figure, steps, values, curve.label, color, curve.dash)
    return Picture(figure, caption)


def over_rates(
    series: Mapping[str, Mapping[float, Sample]],
    y: str,
    caption: str,
    colors: Mapping[str, str],
    *,
    log_y: bool = True,
) -> Picture:
    """Draw means over seeds against the learning rate, with a line where two arms are equal."""
    figure = empty_figure("learning rate", y, log_x=True, log_y=log_y)
    rates = sorted({rate for samples in series.values() for rate, s in samples.items() if s})
    for name, samples in series.items():
        known = {rate: mean(sample.values()) for rate, sample in samples.items() if sample}
        if known:
            style = {"mode": "lines+markers", "line": {"color": colors.get(name)}}
            figure.add_scatter(x=rounded(known), y=rounded(known.values()), name=name, **style)
    if rates and log_y:
        line = {"color": "#888", "dash": "dash"}
        figure.add_scatter(x=[rates[0], rates[-1]], y=[1, 1], name="equal", line=line)
    return Picture(figure, caption)
