"""A study of our own: where weight decay holds the norm, and how far the weights then turn per step."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from experiments.claims import Claim, sample
from experiments.plots import Picture, base, color_of, short
from experiments.results import Result, Results, Trial
from experiments.spec import Spec, load_recipe
from experiments.study import Plan, Study, Table
from spherenorm.registry import defaults

__all__ = ["Equilibrium", "predicted"]

POINTS: dict[str, tuple[str, dict[str, Any], tuple[tuple[float, float], ...]]] = {
    "SGD": ("sgd", {"momentum": 0.9}, ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))),
    "SGDP": ("sgdp", {"momentum": 0.9}, ((0.1, 3e-2), (0.2, 3e-2), (0.1, 1e-1), (0.2, 1e-1))),
    "AdamW": ("adamw", {"betas": [0.9, 0.99]}, ((0.01, 1.0), (0.02, 1.0), (0.01, 3.0), (0.02, 3.0))),
    "AdamP": ("adamp", {"betas": [0.9, 0.99]}, ((0.01, 10.0), (0.02, 10.0), (0.01, 30.0), (0.02, 30.0))),
}
"""Recipe, fixed hyper-parameters, and pairs of learning rate and weight decay."""


def predicted(recipe: str, hyper_parameters: Mapping[str, Any]) -> float:
    """The root mean square of the effective step in equilibrium, by the law that `theory` derives from the recipe's code.

    For a small product of learning rate and weight decay it is sqrt(2 eta lambda / (1 + beta)) for SGD with momentum and
    sqrt(2 eta lambda (1 - beta) / (1 + beta)) for AdamW (Kosson et al. 2023); a projected step adds only its own square, so
    that it is sqrt(2 eta lambda'), lambda' being the decay that reaches an invariant weight: ratio lambda / (1 - beta) for
    SGDP and ratio lambda for AdamP.
    """
    values = {**defaults(load_recipe(recipe)), **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    law = _law_of(recipe)
    return math.sqrt(float(law.subs({symbol: values[symbol.name] for symbol in law.free_symbols})))


@functools.cache
def _law_of(recipe: str) -> Any:
    from theory.equilibrium import equilibrium

    # The closed form of a preconditioned recipe needs eps = 0, that of SGD its default without Nesterov's step.
    given = {"eps": 0.0} if "betas" in defaults(load_recipe(recipe)) else {}
    return equilibrium(recipe, **given).squared_rotation


class Equilibrium(Study):
    """Equilibrium: weight decay and step size alone decide how far weights turn

    A network of scale-invariant weights only, half of its labels random, constant learning rate: the norm settles where
    decay and steps balance, and the effective step there follows from the hyper-parameters alone. The law is the one that
    `theory` derives from the code of each recipe, for gradients that are random and orthogonal to the weight.
    All points of an optimizer train as one vmap sweep. Averages are over the second half of the steps.
    """

    name = "equilibrium"
    compared = {}  # noqa: RUF012  (every arm has a row)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        trials = []
        seeds = plan.seeds if plan.seeds is not None else tuple(range(self.seeds[plan.tier]))
        for label, (recipe, fixed, points) in POINTS.items():
            setting = {**fixed, "lr": [lr for lr, _ in points], "weight_decay": [decay for _, decay in points]}
            common: dict[str, Any] = {"epochs": self.budget(plan, "mlp").epochs, "schedule": "constant", "probes": ()}
            trials += [Trial(label, Spec("mlp", recipe, setting, seed=seed, **common)) for seed in seeds]
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for label in results.arms:
            runs = results.arm(label)
            for index, (lr, decay) in enumerate(zip(*_swept(runs.items[0]), strict=True)):
                law = _law(runs.items[0], index)
                measured = runs.mean(lambda item, i=index: item.summary["effective_step_rms"][i])  # type: ignore[misc]
                norm = runs.mean(lambda item, i=index: item.summary["norm_late"][i])  # type: ignore[misc]
                drift = runs.mean(lambda item, i=index: item.summary["norm_drift"][i])  # type: ignore[misc]
                numbers = (f"{law:.4f}", f"{measured:.4f}", f"{100 * (measured / law - 1):+.1f} %", f"{norm:.3f}", f"{100 * drift:+.1f} %")
                rows.append((label, f"{lr:g}", f"{decay:g}", *numbers))
        columns = ("optimizer", "lr", "weight decay", "predicted step", "measured (rms)", "off by", "norm", "still drifting")
        note = "Drift: the norm's mean over the last quarter of the steps against the quarter before."
        return [Table("Effective step in equilibrium", columns, rows, note)]

    def pictures(self, results: Results) -> list[Picture]:
        law = base("predicted effective step", "measured", log_x=True, log_y=True)
        ends: list[float] = []
        time = base("step", "norm ‖w‖")
        for label in results.arms:
            runs = results.arm(label)
            first = runs.items[0]
            color = color_of(first.spec.recipe)
            xs = [_law(first, i) for i in range(len(_swept(first)[0]))]
            ys = [runs.mean(lambda item, i=i: item.summary["effective_step_rms"][i]) for i in range(len(xs))]  # type: ignore[misc]
            ends += xs
            law.add_scatter(x=short(xs), y=short(ys), name=label, mode="markers", marker={"color": color, "size": 10})
            norm, every = first.arrays["norm"], int(first.arrays["every"])
            for i in range(norm.shape[1]):
                line = {"color": color, "width": 1.5}
                steps = list(range(0, every * len(norm), every))
                time.add_scatter(x=steps, y=short(norm[:, i]), name=label, legendgroup=label, showlegend=i == 0, line=line)
        if ends:
            diagonal = short([min(ends), max(ends)])
            law.add_scatter(x=diagonal, y=diagonal, name="prediction", line={"color": "#888", "dash": "dash"})
        return [
            Picture(law, "Measured against predicted effective step, one point per learning rate and weight decay."),
            Picture(time, "The norm on its way to equilibrium (first seed, every learning rate and weight decay)."),
        ]

    def claims(self, results: Results) -> list[Claim]:
        claims = []
        for label in POINTS:
            runs = results.arm(label)
            text = f"{label}: the measured effective step in equilibrium is within 15 % of the prediction, at the worst of four points"
            claims.append(sample(text, runs.values(_worst), "<", 15.0, source="ours; Kosson et al. 2023", unit="% off"))
        return claims


def _worst(item: Result) -> float:
    """By how many percent the prediction is off where it is off most."""
    measured: list[float] = item.summary["effective_step_rms"]
    return max(100 * abs(value / _law(item, index) - 1) for index, value in enumerate(measured))


def _swept(item: Result) -> tuple[list[float], list[float]]:
    return item.spec.points["lr"], item.spec.points["weight_decay"]


def _law(item: Result, index: int) -> float:
    swept = {name: values[index] for name, values in item.spec.points.items()}
    return predicted(item.spec.recipe, {**item.spec.hyper_parameters, **swept})
