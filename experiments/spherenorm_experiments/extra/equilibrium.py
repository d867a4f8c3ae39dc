"""A study of our own: where weight decay holds the norm, and how far weights then turn per step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm import Bound
from spherenorm_experiments.claims import Claim, Statement, slug
from spherenorm_experiments.pictures import Picture, color_of, drawn, empty_figure, points, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.runs import Place, Result, Runs, Trial, across, number
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, Table

MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.99]}
SGD_POINTS = ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))
OPTIMIZERS: dict[str, tuple[Mapping[str, Any], Sequence[tuple[float, float]]]] = {
    "SGD": (MOMENTUM, SGD_POINTS),
    "SGDP": (MOMENTUM, SGD_POINTS),
    "AdamW": (BETAS, ((0.01, 1.0), (0.02, 1.0), (0.01, 3.0), (0.02, 3.0))),
    "AdamP": (BETAS, ((0.01, 10.0), (0.02, 10.0), (0.01, 30.0), (0.02, 30.0))),
}
"""Fixed hyper-parameters, and pairs of learning rate and weight decay, by the recipes' names."""

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

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials = []
        for name, (fixed, pairs) in OPTIMIZERS.items():
            rates, decays = (list(column) for column in zip(*pairs, strict=True))
            setting = {**fixed, "lr": rates, "weight_decay": decays}
            trials += self.seeded(
                plan, Place("", name), "mlp", name.lower(), setting, schedule="constant", probes=()
            )
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows = [
            _row(name, own)
            for name in _ran(runs)
            for _, own in runs.every("", name).groupby("point", sort=False)
        ]
        columns = ["optimizer", "lr", "weight decay"]
        for name in ("step", "norm"):
            columns += [f"predicted {name}", "measured", "off by %"]
        columns.append("still drifting %")
        title = "Effective step and norm in equilibrium"
        return [Table(title, columns, rows, NOTE)] if rows else []

    def pictures(self, runs: Runs) -> list[Picture]:
        step, norm = QUANTITIES
        return drawn(
            [
                _against(runs, step, "The effective step, a point per learning rate and decay."),
                _against(runs, norm, "The norm at the same points."),
                _over_time(runs),
            ]
        )

    @property
    def claims(self) -> Sequence[Claim]:
        return [
            Claim(
                f"{slug(quantity.name)}.{slug(name)}", f"< {ALLOWED:g}",
                partial(_off, name=name, quantity=quantity),
                f"{name}: the measured {quantity.name} in equilibrium is within 15 % of the "
                "prediction, at the worst of four points",
                Statement("ours", "ours; Kosson et al. 2023"), unit="% off",
            )
            for quantity in QUANTITIES
            for name in OPTIMIZERS
        ]  # fmt: skip


class Prediction(NamedTuple):
    """Step and norm of a weight in equilibrium, as the theory derives them from a recipe's code.

    For a small product of learning rate and weight decay the step is

        sqrt(2 eta lambda / (1 + beta))               for SGD with momentum,
        sqrt(2 eta lambda (1 - beta) / (1 + beta))    for AdamW (Kosson et al. 2023),
        sqrt(2 eta lambda')                           for a projected step,

    as a projected step adds only its own square. lambda' is the decay that reaches an invariant
    weight: ratio lambda / (1 - beta) for SGDP and ratio lambda for AdamP.

    Attributes:
        step: the root mean square of the effective step.
        fourth_power: |w|^4 is this times what `scale` names.
        scale: an entry of the task's summary: gamma_squared for a step in proportion to the
            gradient, whose size gamma at |w| = 1 is the task's; dimension_squared for one whose
            size only depends on the number of entries.
    """

    step: float
    fourth_power: float
    scale: str

    def norm(self, item: Result) -> float | None:
        """The norm of a run, as the fourth root of the mean of |w|^4; None if it diverged."""
        scale = item.summary[self.scale]
        return None if scale is None else _fourth_root(self.fourth_power * scale)


def _fourth_root(value: float | None) -> float | None:
    return None if value is None else float(value**0.25)


def predict(recipe: str, hyper_parameters: Mapping[str, Any]) -> Prediction | None:
    """The prediction at these hyper-parameters.

    None for a recipe that has no law, such as one that keeps the norm constant, and for
    hyper-parameters without an equilibrium.

    Raises:
        RecipeError: there is no such recipe.
    """
    from spherenorm_theory.algebra import DIMENSION  # sympy takes a second to import
    from spherenorm_theory.laws import GAMMA

    bound, law = _law_of(recipe)
    if law is None:
        return None
    values = {**bound.defaults, **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    fourth_power = law.fourth_power.subs({GAMMA: 1, DIMENSION: 1})
    step, norm = (
        formula.subs({symbol: values.get(symbol.name, symbol) for symbol in formula.free_symbols})
        for formula in (law.squared_rotation, fourth_power)
    )
    if any(number.free_symbols or not number.is_positive for number in (step, norm)):
        return None  # a case left open, or no decay
    scale = "gamma_squared" if law.fourth_power.has(GAMMA) else "dimension_squared"
    return Prediction(math.sqrt(float(step)), float(norm), scale)


@functools.cache
def _law_of(recipe: str) -> tuple[Bound, Any]:
    """The recipe and its law, in symbols; None for a recipe that has none."""
    from spherenorm_theory import equilibrium

    bound = load_recipe(recipe)
    # The closed form of a preconditioned recipe needs eps = 0, that of SGD no Nesterov step.
    given = {"eps": 0.0} if "betas" in bound.defaults else {}
    try:
        return bound, equilibrium(bound.recipe, **given)
    except Exception:  # NoEquilibriumError, or the trace of a recipe of one's own failed
        return bound, None


Number = Callable[[Result], float | None]
"""A number of a run; None if it diverged."""


class Quantity(NamedTuple):
    """A number that the law predicts and the run measures."""

    name: str
    predicted: Number
    measured: Number


def _by_law(number: Callable[[Prediction, Result], float | None]) -> Number:
    """A number of the law of a run; None without a law."""

    def predicted(item: Result) -> float | None:
        law = predict(item.spec.recipe, item.spec.hyper_parameters)
        return None if law is None else number(law, item)

    return predicted


QUANTITIES = (
    Quantity(
        "effective step",
        _by_law(lambda law, _: law.step),
        lambda item: item.summary["effective_step_rms"],
    ),
    Quantity(
        "norm",
        _by_law(Prediction.norm),
        lambda item: _fourth_root(item.summary["fourth_power_late"]),
    ),
)


def _ran(runs: Runs) -> list[str]:
    """The optimizers with runs."""
    return [place.arm for place in runs.places]


def _mean(own: pd.DataFrame, key: Number) -> float:
    """The mean over the runs that have a number; nan without one."""
    return float(number(own, key).mean())


def _row(name: str, own: pd.DataFrame) -> list[Cell]:
    """An optimizer at one point: of each quantity the law, the measured number, the difference."""
    point = own.run.iloc[0].spec.hyper_parameters
    row = [Cell(name), *(Cell(point.get(key), "g") for key in ("lr", "weight_decay"))]
    for quantity in QUANTITIES:
        law, ours = (_mean(own, key) for key in quantity[1:])
        row += [
            Cell(law, ".4f", missing="no law"),
            Cell(ours, ".4f", missing="diverged"),
            Cell(100 * (ours / law - 1), "+.1f", missing=""),
        ]
    return [*row, Cell(100 * _mean(own, lambda item: item.summary["norm_drift"]), "+.1f")]


def _off(runs: Runs, name: str, quantity: Quantity) -> pd.Series:
    """By how many percent the prediction is off at its worst point; empty if one has no law."""

    def off(item: Result) -> float | None:
        law, ours = quantity.predicted(item), quantity.measured(item)
        return None if ours is None or law is None else 100 * abs(ours / law - 1)

    every = runs.every("", name)
    if number(every, quantity.predicted, worst=0.0).isna().any():
        return pd.Series(dtype=float)
    points = every.groupby("point", sort=False)
    return across(
        number(own.set_index("seed"), off, worst=math.inf) for _, own in points
    ).max(axis=1)  # fmt: skip


def _against(runs: Runs, quantity: Quantity, caption: str) -> Picture:
    """Draw measured against predicted, and the line where they agree."""
    series: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for name in _ran(runs):
        groups = runs.every("", name).groupby("point", sort=False)
        pairs = np.array([[_mean(own, key) for key in quantity[1:]] for _, own in groups])
        known = pairs[~np.isnan(pairs).any(axis=1)]
        if len(known):
            series[name] = known[:, 0].tolist(), known[:, 1].tolist()
    colors = {name: color_of(name.lower()) for name in _ran(runs)}
    words = f"predicted {quantity.name}", "measured"
    return points(series, *words, caption, colors, log_x=True, log_y=True, diagonal=True)


def _over_time(runs: Runs) -> Picture:
    """Draw the norm of the first seed against steps, at every point."""
    figure = empty_figure("step", "norm ‖w‖")
    for name in _ran(runs):
        firsts = runs.every("", name).drop_duplicates("point").run
        for index, first in enumerate(firsts):
            curve = {} if first.diverged else first.curve("norm")
            figure.add_scatter(
                x=list(curve), y=rounded(curve.values()), name=name,
                legendgroup=name, showlegend=index == 0,
                line={"color": color_of(name.lower()), "width": 1.5},
            )  # fmt: skip
    caption = (
        "The norm on its way to equilibrium (first seed, every learning rate and weight decay)."
    )
    return Picture(figure, caption)
