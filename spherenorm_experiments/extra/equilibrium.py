"""A study of our own: where weight decay holds the norm, and how far weights then turn per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Claim,
    Grid,
    Result,
    Results,
    Sample,
    Statement,
    Table,
    Trial,
    grid_of,
    mean,
    slug,
    worst_of,
)
from spherenorm_experiments.core import Spec
from spherenorm_experiments.extra._laws import Prediction, predict
from spherenorm_experiments.report.pictures import Picture, color_of, drawn, empty_figure, rounded
from spherenorm_experiments.study import Plan, Study

__all__ = ["EquilibriumStudy"]


@dataclass(frozen=True)
class Optimizer:
    """Fixed hyper-parameters, and the points: pairs of learning rate and weight decay."""

    fixed: Mapping[str, Any]
    points: Sequence[tuple[float, float]]


MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.99]}
SGD_POINTS = ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))
OPTIMIZERS = {
    "SGD": Optimizer(MOMENTUM, SGD_POINTS),
    "SGDP": Optimizer(MOMENTUM, SGD_POINTS),
    "AdamW": Optimizer(BETAS, ((0.01, 1.0), (0.02, 1.0), (0.01, 3.0), (0.02, 3.0))),
    "AdamP": Optimizer(BETAS, ((0.01, 10.0), (0.02, 10.0), (0.01, 30.0), (0.02, 30.0))),
}
"""The recipes have the names of the optimizers."""

ALLOWED = 15.0
"""Percent by which a prediction may be off."""

NOTE = (
    "Step: root mean square. Norm: fourth root of the mean of ‖w‖⁴; its law needs how large "
    "gradients are at ‖w‖ = 1 (SGD, SGDP) or how many weights a unit has (AdamW, AdamP), both "
    "measured at the end. Drift: the norm over the last quarter of the steps against the quarter "
    "before. No law: the theory has none for the recipe, or none with these settings."
)


class EquilibriumStudy(Study):
    """Equilibrium: weight decay and step size alone decide how far weights turn

    A network of scale-invariant weights only, half of its labels random, constant learning rate:
    the norm settles where decay and steps balance, and the effective step there follows from the
    hyper-parameters alone; the norm does too, up to the size of the gradients. The laws are those
    that `spherenorm_theory` derives from the code of each recipe, for gradients that are random and
    orthogonal to the weight. All points of an optimizer train at once. Averages are over the second
    half of the steps.
    """

    name = "equilibrium"
    seeds = {"smoke": 1, "small": 3, "full": 10}  # noqa: RUF012

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        common: dict[str, Any] = {
            "epochs": self.budget(plan, "mlp").epochs,
            "schedule": "constant",
            "probes": (),
            "seeds": tuple(self.chosen_seeds(plan)),
        }
        trials = []
        for name, optimizer in OPTIMIZERS.items():
            rates, decays = (list(column) for column in zip(*optimizer.points, strict=True))
            setting = {**optimizer.fixed, "lr": rates, "weight_decay": decays}
            arm = Arm(name, name.lower())
            trials.append(Trial(arm, Spec("mlp", arm.recipe, setting, **common)))
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = [
            _row(arm, grid, index)
            for arm, grid in _grids(results).items()
            for index in range(len(grid.points))
        ]
        columns = ["optimizer", "lr", "weight decay"]
        for name in ("step", "norm"):
            columns += [f"predicted {name}", "measured", "off by %"]
        columns.append("still drifting %")
        title = "Effective step and norm in equilibrium"
        return [Table(title, columns, rows, NOTE)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        step, norm = QUANTITIES
        return drawn(
            [
                _against(results, step, "The effective step, a point per learning rate and decay."),
                _against(results, norm, "The norm at the same points."),
                _over_time(results),
            ]
        )

    @property
    def claims(self) -> Sequence[Claim]:
        return [
            Claim(
                f"{slug(quantity.name)}.{slug(name)}",
                f"{name}: the measured {quantity.name} in equilibrium is within 15 % of the "
                "prediction, at the worst of four points",
                partial(_off, arm=Arm(name, name.lower()), quantity=quantity), "<", ALLOWED,
                cites=Statement("ours", "ours; Kosson et al. 2023"), unit="% off",
            )
            for quantity in QUANTITIES
            for name in OPTIMIZERS
        ]  # fmt: skip


Number = Callable[[Result], float | None]
"""A number of a run."""


@dataclass(frozen=True)
class Quantity:
    """A number that the law predicts and the run measures."""

    name: str
    predicted: Number
    measured: Number


def _prediction(item: Result) -> Prediction | None:
    return predict(item.spec.recipe, item.spec.hyper_parameters)


def _predicted_step(item: Result) -> float | None:
    found = _prediction(item)
    return None if found is None else found.step


def _predicted_norm(item: Result) -> float | None:
    found = _prediction(item)
    return None if found is None else found.norm(item)


def _measured_step(item: Result) -> float | None:
    step: float | None = item.summary["effective_step_rms"]
    return step


def _measured_norm(item: Result) -> float | None:
    found = item.summary["fourth_power_late"]
    return None if found is None else float(found**0.25)


QUANTITIES = (
    Quantity("effective step", _predicted_step, _measured_step),
    Quantity("norm", _predicted_norm, _measured_norm),
)


def _grids(results: Results) -> dict[Arm, Grid]:
    return {arm: grid_of(results, arm) for arm in results.arms}


def _mean(grid: Grid, number: Number, index: int) -> float:
    return mean(grid.sample_of(number, index).values())


def _row(arm: Arm, grid: Grid, index: int) -> list[Cell]:
    """An arm at one point: for each quantity the law, the measured number, and the difference."""
    point = grid.points[index]
    row = [Cell(arm.label), *(Cell(point.get(name), "g") for name in ("lr", "weight_decay"))]
    for quantity in QUANTITIES:
        law = _mean(grid, quantity.predicted, index)
        found = _mean(grid, quantity.measured, index)
        row += [
            Cell(law, ".4f", missing="no law"),
            Cell(found, ".4f", missing="diverged"),
            Cell(100 * (found / law - 1), "+.1f", missing=""),
        ]
    return [*row, Cell(100 * _mean(grid, lambda item: item.summary["norm_drift"], index), "+.1f")]


def _off(results: Results, arm: Arm, quantity: Quantity) -> Sample:
    return _worst(grid_of(results, arm), quantity)


def _worst(grid: Grid, quantity: Quantity) -> Sample:
    """By how many percent the prediction is off at its worst point; empty if one has no law."""

    def off(item: Result) -> float | None:
        law, found = quantity.predicted(item), quantity.measured(item)
        return None if found is None or law is None else 100 * abs(found / law - 1)

    ended = [x for x in grid.items if quantity.measured(x) is not None]
    if not grid.items or any(quantity.predicted(item) is None for item in ended):
        return Sample({})
    return worst_of(max, [grid.sample_of(off, index) for index in range(len(grid.points))])


def _against(results: Results, quantity: Quantity, caption: str) -> Picture:
    """Draw measured against predicted, and the line where they agree."""
    figure = empty_figure(f"predicted {quantity.name}", "measured", log_x=True, log_y=True)
    ends: list[float] = []
    for arm, grid in _grids(results).items():
        pairs = [
            [_mean(grid, number, index) for number in (quantity.predicted, quantity.measured)]
            for index in range(len(grid.points))
        ]
        known = [pair for pair in pairs if not any(map(math.isnan, pair))]
        if known:
            xs, ys = (rounded(numbers) for numbers in zip(*known, strict=True))
            ends += xs
            marker = {"color": color_of(arm.recipe), "size": 10}
            figure.add_scatter(x=xs, y=ys, name=arm.label, mode="markers", marker=marker)
    if ends:
        diagonal, line = [min(ends), max(ends)], {"color": "#888", "dash": "dash"}
        figure.add_scatter(x=diagonal, y=diagonal, name="prediction", line=line)
    return Picture(figure, caption)


def _over_time(results: Results) -> Picture:
    """Draw the norm of the first seed against steps, at every point."""
    figure = empty_figure("step", "norm ‖w‖")
    for arm, grid in _grids(results).items():
        for index in range(len(grid.points)):
            steps, values = grid.curve("norm", index)
            figure.add_scatter(
                x=steps.tolist(),
                y=rounded(values[0]) if len(values) else [],
                name=arm.label,
                legendgroup=arm.label,
                showlegend=index == 0,
                line={"color": color_of(arm.recipe), "width": 1.5},
            )
    caption = (
        "The norm on its way to equilibrium (first seed, every learning rate and weight decay)."
    )
    return Picture(figure, caption)
