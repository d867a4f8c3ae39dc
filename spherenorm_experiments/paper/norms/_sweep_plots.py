"""Pictures of sweeps: curves over steps, and numbers over learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spherenorm_experiments.analysis import Grid, Sample, mean
from spherenorm_experiments.report.pictures import (
    Picture,
    add_band,
    color_of,
    empty_figure,
    rounded,
)

__all__ = ["Curve", "over_rates", "over_steps"]


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
            line = {"color": colors.get(name)}
            figure.add_scatter(
                x=rounded(known), y=rounded(known.values()), name=name, mode="lines+markers",
                line=line,
            )  # fmt: skip
    if rates and log_y:
        line = {"color": "#888", "dash": "dash"}
        figure.add_scatter(x=[rates[0], rates[-1]], y=[1, 1], name="equal", line=line)
    return Picture(figure, caption)
