"""A study of our own: where weight decay holds the norm, and how far the weights then turn per step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from experiments.claims import Claim, sample
from experiments.plots import Picture, base, color_of, short
from experiments.results import Result, Results, Trial
from experiments.spec import Spec, load_recipe
from experiments.study import Plan, Study, Table, cell
from spherenorm.registry import defaults

__all__ = ["Equilibrium", "Law", "predicted"]

POINTS: dict[str, tuple[str, dict[str, Any], tuple[tuple[float, float], ...]]] = {
    "SGD": ("sgd", {"momentum": 0.9}, ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))),
    "SGDP": ("sgdp", {"momentum": 0.9}, ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))),
    "AdamW": (
        "adamw",
        {"betas": [0.9, 0.99]},
        ((0.01, 1.0), (0.02, 1.0), (0.01, 3.0), (0.02, 3.0)),
    ),
    "AdamP": (
        "adamp",
        {"betas": [0.9, 0.99]},
        ((0.01, 10.0), (0.02, 10.0), (0.01, 30.0), (0.02, 30.0)),
    ),
}
"""Recipe, fixed hyper-parameters, and pairs of learning rate and weight decay."""


@dataclass(frozen=True)
class Law:
    """What `theory` derives of a weight in equilibrium from a recipe's code, at given hyper-parameters.

    For a small product of learning rate and weight decay the step is sqrt(2 eta lambda / (1 + beta)) for SGD with momentum and
    sqrt(2 eta lambda (1 - beta) / (1 + beta)) for AdamW (Kosson et al. 2023); a projected step adds only its own square, so
    that it is sqrt(2 eta lambda'), lambda' being the decay that reaches an invariant weight: ratio lambda / (1 - beta) for
    SGDP and ratio lambda for AdamP.

    Attributes:
        step: the root mean square of the effective step.
        fourth_power: |w|^4 is this times what `scale` names.
        scale: an entry of the task's summary: gamma_squared, for a step in proportion to the gradient, whose size gamma at |w| = 1
            is the task's; dimension_squared for one whose size only depends on the number of entries.
    """

    step: float
    fourth_power: float
    scale: str

    def norm(self, item: Result, index: int) -> float | None:
        """The norm, as the fourth root of the mean of |w|^4; None of a point that diverged."""
        scale = item.summary[self.scale][index]
        return None if scale is None else float((self.fourth_power * scale) ** 0.25)


def predicted(recipe: str, hyper_parameters: Mapping[str, Any]) -> Law | None:
    """The law at these hyper-parameters; None for a recipe that has none, such as one that keeps the norm constant."""
    from theory.equilibrium import DIMENSION, GAMMA

    if (found := _equilibrium_of(recipe)) is None:
        return None
    values = {**defaults(load_recipe(recipe)), **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    rotation, fourth = found.squared_rotation, found.fourth_power.subs({GAMMA: 1, DIMENSION: 1})
    numbers = [
        formula.subs({symbol: values.get(symbol.name, symbol) for symbol in formula.free_symbols})
        for formula in (rotation, fourth)
    ]
    if any(
        number.free_symbols or not number.is_positive for number in numbers
    ):  # a case left open, or no decay
        return None
    scale = "gamma_squared" if found.fourth_power.has(GAMMA) else "dimension_squared"
    return Law(math.sqrt(float(numbers[0])), float(numbers[1]), scale)


@functools.cache
def _equilibrium_of(recipe: str) -> Any:
    from theory.equilibrium import equilibrium

    # The closed form of a preconditioned recipe needs eps = 0, that of SGD its default without Nesterov's step.
    given = {"eps": 0.0} if "betas" in defaults(load_recipe(recipe)) else {}
    try:
        return equilibrium(recipe, **given)
    except (
        Exception
    ):  # NoEquilibriumError, or whatever the trace of a recipe of one's own may raise
        return None


class Equilibrium(Study):
    """Equilibrium: weight decay and step size alone decide how far weights turn

    A network of scale-invariant weights only, half of its labels random, constant learning rate: the norm settles where
    decay and steps balance, and the effective step there follows from the hyper-parameters alone; the norm does too, up to
    the size of the gradients. The laws are those that `theory` derives from the code of each recipe, for gradients that are
    random and orthogonal to the weight.
    All points of an optimizer train as one vmap sweep. Averages are over the second half of the steps.
    """

    name = "equilibrium"
    compared = {}  # noqa: RUF012  (every arm has a row)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        trials = []
        seeds = plan.seeds if plan.seeds is not None else tuple(range(self.seeds[plan.tier]))
        for label, (recipe, fixed, points) in POINTS.items():
            setting = {
                **fixed,
                "lr": [lr for lr, _ in points],
                "weight_decay": [decay for _, decay in points],
            }
            common: dict[str, Any] = {
                "epochs": self.budget(plan, "mlp").epochs,
                "schedule": "constant",
                "probes": (),
            }
            trials += [
                Trial(label, Spec("mlp", recipe, setting, seed=seed, **common)) for seed in seeds
            ]
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for label in results.arms:
            runs = results.arm(label)
            for index, (lr, decay) in enumerate(_swept(runs.items[0])):
                drift = runs.mean(_at(index, "norm_drift"))
                shown: list[str] = []
                for prediction, measured in ((_step, _measured_step), (_norm, _measured_norm)):
                    law, found = (
                        runs.mean(functools.partial(number, index=index))
                        for number in (prediction, measured)
                    )
                    off = (
                        ""
                        if math.isnan(law) or math.isnan(found)
                        else cell(100 * (found / law - 1), "+.1f")
                    )
                    shown += [
                        "no law" if math.isnan(law) else f"{law:.4f}",
                        "diverged" if math.isnan(found) else f"{found:.4f}",
                        off,
                    ]
                rows.append(
                    (label, cell(lr, "g"), cell(decay, "g"), *shown, cell(100 * drift, "+.1f"))
                )
        compared = (
            "predicted step",
            "measured",
            "off by %",
            "predicted norm",
            "measured",
            "off by %",
        )
        columns = ("optimizer", "lr", "weight decay", *compared, "still drifting %")
        note = (
            "Step: root mean square. Norm: fourth root of the mean of ‖w‖⁴; its law needs how large gradients are at ‖w‖ = 1 (SGD, SGDP) "
            "or how many weights a unit has (AdamW, AdamP), both measured at the end. Drift: the norm over the last quarter of the "
            "steps against the quarter before. No law: the theory has none for the recipe, or none with these settings."
        )
        return (
            [Table("Effective step and norm in equilibrium", columns, rows, note)] if rows else []
        )

    def pictures(self, results: Results) -> list[Picture]:
        time = base("step", "norm ‖w‖")
        for label in results.arms:
            first = results.arm(label).items[0]
            norm, every = first.arrays["norm"], int(first.arrays["every"])
            for i in range(norm.shape[1]):
                line = {"color": color_of(first.spec.recipe), "width": 1.5}
                steps = list(range(0, every * len(norm), every))
                time.add_scatter(
                    x=steps,
                    y=short(norm[:, i]),
                    name=label,
                    legendgroup=label,
                    showlegend=i == 0,
                    line=line,
                )
        pictures = [
            Picture(
                _against(results, "effective step", _step, _measured_step),
                "The effective step, a point per learning rate and decay.",
            ),
            Picture(
                _against(results, "norm", _norm, _measured_norm), "The norm at the same points."
            ),
            Picture(
                time,
                "The norm on its way to equilibrium (first seed, every learning rate and weight decay).",
            ),
        ]
        return [picture for picture in pictures if picture.figure.data]

    def claims(self, results: Results) -> list[Claim]:
        claims = []
        for what, prediction, measured in (
            ("effective step", _step, _measured_step),
            ("norm", _norm, _measured_norm),
        ):
            for label in POINTS:
                off = results.arm(label).values(
                    functools.partial(_worst, prediction=prediction, measured=measured)
                )
                text = f"{label}: the measured {what} in equilibrium is within 15 % of the prediction, at the worst of four points"
                claims.append(
                    sample(text, off, "<", 15.0, source="ours; Kosson et al. 2023", unit="% off")
                )
        return claims


Number = Callable[..., float | None]
"""Of a result, and the index of a point."""


def _swept(item: Result) -> list[tuple[float, float]]:
    """Learning rate and weight decay of each point; nan for what the recipe does not have."""
    points = item.spec.points
    count = max(map(len, points.values()), default=1)
    return list(
        zip(*(points.get(name, [math.nan] * count) for name in ("lr", "weight_decay")), strict=True)
    )


def _law(item: Result, index: int) -> Law | None:
    swept = {name: values[index] for name, values in item.spec.points.items()}
    return predicted(item.spec.recipe, {**item.spec.hyper_parameters, **swept})


def _step(item: Result, index: int) -> float | None:
    return None if (law := _law(item, index)) is None else law.step


def _norm(item: Result, index: int) -> float | None:
    return None if (law := _law(item, index)) is None else law.norm(item, index)


def _at(index: int, entry: str) -> Callable[[Result], float | None]:
    return lambda item: item.summary[entry][index]


def _measured_step(item: Result, index: int) -> float | None:
    return _at(index, "effective_step_rms")(item)


def _measured_norm(item: Result, index: int) -> float | None:
    found = _at(index, "fourth_power_late")(item)
    return None if found is None else float(found**0.25)


def _worst(item: Result, prediction: Number, measured: Number) -> float | None:
    """By how many percent the prediction is off where it is off most; None if a point has no law or did not survive."""
    pairs = [(prediction(item, index), measured(item, index)) for index in range(len(_swept(item)))]
    whole = [(law, found) for law, found in pairs if law is not None and found is not None]
    return (
        max(100 * abs(found / law - 1) for law, found in whole)
        if len(whole) == len(pairs)
        else None
    )


def _against(results: Results, what: str, prediction: Number, measured: Number) -> go.Figure:
    """Measured against predicted, and the line where they agree."""
    figure = base(f"predicted {what}", "measured", log_x=True, log_y=True)
    ends: list[float] = []
    for label in results.arms:
        runs = results.arm(label)
        both = [
            [runs.mean(functools.partial(number, index=index)) for number in (prediction, measured)]
            for index in range(len(_swept(runs.items[0])))
        ]
        known = [pair for pair in both if not any(map(math.isnan, pair))]
        if known:
            xs, ys = (short(numbers) for numbers in zip(*known, strict=True))
            ends += xs
            marker = {"color": color_of(runs.items[0].spec.recipe), "size": 10}
            figure.add_scatter(x=xs, y=ys, name=label, mode="markers", marker=marker)
    if ends:
        diagonal = [min(ends), max(ends)]
        figure.add_scatter(
            x=diagonal, y=diagonal, name="prediction", line={"color": "#888", "dash": "dash"}
        )
    return figure
