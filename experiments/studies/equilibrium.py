"""The norm at which weight decay holds weights, and the turn per step that follows.

    spherenorm run experiments/studies/equilibrium.py

A network of scale-invariant weights only is a pure loss here, so that a grid of it trains as one
sweep. What it measures is compared with the laws of `spherenorm_theory`.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from spherenorm import Bound, metrics
from spherenorm.functional import Sweep
from spherenorm_experiments import (
    Budget,
    Cell,
    Claim,
    Place,
    Plan,
    PureTask,
    RecordedNumber,
    Result,
    Runs,
    Statement,
    Study,
    Table,
    Trial,
    generator,
    load_recipe,
    number,
    slug,
)

WIDTH, BATCH = 24, 48
"""Units of a hidden layer, and images in a batch."""

NOISE = 0.5
"""The share of the labels that is random."""

UNSEEN = 2**40
"""The first seed of the batches that measure gradients at the end; no run has one so large."""

GRADIENT_BATCHES = 64

ROUNDING = 1e-12
"""The gradient of a weight on a pixel that never changes is at most this.

Adam's eps keeps such a weight in its place.
"""

LATE = 0.5
"""The share of the steps, at the end, over which stationary averages are taken."""


@dataclass(frozen=True)
class Mlp(PureTask):
    """Digits through two hidden layers, each normalized over its batch, and a fixed last layer.

    Every weight that trains is scale-invariant row by row. Random labels keep gradients from
    vanishing: the task is to find where weight decay balances them.
    """

    name = "mlp"
    tiers = {"smoke": Budget(6), "small": Budget(1500), "full": Budget(20000)}  # noqa: RUF012

    def start(self, seed: int) -> dict[str, Tensor]:
        return {
            name: _drawn(WIDTH, size, generator(seed, f"init {name}")) / math.sqrt(size)
            for name, size in (("first", 64), ("second", WIDTH))
        }

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        images, labels, last_layer = batch[0]
        activations = torch.relu(normalize(images @ params["first"].T))
        activations = torch.relu(normalize(activations @ params["second"].T))
        return cross_entropy(activations @ last_layer, labels)

    def batches(self, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
        images, labels = digits()
        last_layer = _drawn(WIDTH, 10, torch.Generator().manual_seed(11)) / math.sqrt(WIDTH)

        def batch(step: int) -> tuple[Tensor, ...]:
            random = generator(seed, "data", step)
            chosen = torch.randint(len(images), (BATCH,), generator=random)
            noisy = torch.rand(BATCH, generator=random) < NOISE
            random_labels = torch.randint(10, (BATCH,), generator=random)
            return images[chosen], torch.where(noisy, random_labels, labels[chosen]), last_layer

        return batch

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        steps = torch.cat([metrics.effective_step(before[name], after[name]) for name in before])
        norms = torch.cat([metrics.norm(after[name]) for name in after])
        return {
            "squared_step": steps.square().mean(),
            "fourth_power": norms.pow(4).mean(),
            "norm": norms.mean(),
        }

    def gradients(self, params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Sizes of the gradients at weights that have a leading dimension of points.

        Returns:
            Of shape (points,), means over all units and over batches that no run has seen: of
            |g|^2 |w|^2, and of the squared number of a unit's weights that have a gradient at all
            (some pixels never change).
        """
        device = next(iter(params.values())).device
        drawn = [self.batches(UNSEEN + i)(0) for i in range(GRADIENT_BATCHES)]
        unseen = [torch.stack(part) for part in zip(*drawn, strict=True)]
        per_batch = vmap(grad(self.loss), in_dims=(None, 0))
        per_point = vmap(per_batch, in_dims=(0, None))
        grads = per_point(params, tuple(x.to(device) for x in unseen))
        sizes = [
            grads[name].square().sum(-1).mean(dim=1) * weight.square().sum(-1)
            for name, weight in params.items()
        ]
        counts = [(grads[name].abs() > ROUNDING).any(dim=1).sum(-1) for name in params]
        squared = torch.cat(counts, dim=-1).double().square()
        return torch.cat(sizes, dim=-1).mean(-1), squared.mean(-1)

    def summarize(
        self, seeds: Sequence[int], start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        sizes = [
            self.gradients({name: value[:, i] for name, value in swept.params.items()})
            for i in range(len(seeds))
        ]
        gamma, dimension = (torch.stack(part, dim=1) for part in zip(*sizes, strict=True))
        records, norm = swept.records, swept.records["norm"]
        late = int(LATE * len(norm))
        half = late + (len(norm) - late) // 2
        numbers = {
            "effective_step_rms": records["squared_step"][late:].mean(dim=0).sqrt(),
            "fourth_power_late": records["fourth_power"][late:].mean(dim=0),
            "gamma_squared": gamma,
            "dimension_squared": dimension,
            "norm_drift": norm[half:].mean(dim=0) / norm[late:half].mean(dim=0) - 1,
        }
        return numbers, {}

    def fingerprint(self) -> str:
        return hashlib.sha256(digits()[0].numpy().tobytes()).hexdigest()


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """The first 1,024 of scikit-learn's digits, standardized as a whole, and their labels."""
    images, labels = load_digits(return_X_y=True)
    standardized = (images - images.mean()) / images.std()
    return torch.from_numpy(standardized)[:1024], torch.from_numpy(labels)[:1024]


def normalize(x: Tensor) -> Tensor:
    """Return the columns of a batch with mean 0 and variance 1."""
    centered = x - x.mean(dim=0)
    return centered / (centered.square().mean(dim=0) + 1e-12).sqrt()


def _drawn(rows: int, columns: int, random: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=random, dtype=torch.float64)


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
        return _fourth_root(item.summary[self.scale], self.fourth_power)


def _fourth_root(value: float | None, factor: float = 1.0) -> float | None:
    return None if value is None else float((factor * value) ** 0.25)


def predict(recipe: str, hyper_parameters: Mapping[str, Any]) -> Prediction | None:
    """The prediction at these hyper-parameters.

    None for a recipe that has no law, such as one that keeps the norm constant, and for
    hyper-parameters without an equilibrium.

    Raises:
        RecipeError: there is no such recipe.
    """
    from spherenorm_theory.step import GAMMA
    from spherenorm_theory.symbols import DIMENSION  # sympy takes a second to import

    bound, law = _law_of(recipe)
    if law is None:
        return None
    values = {**bound.defaults, **hyper_parameters}
    values |= dict(zip(("beta1", "beta2"), values.get("betas", ()), strict=False))
    fourth_power = law.fourth_power.subs({GAMMA: 1, DIMENSION: 1})
    step, norm = (
        formula.subs({symbol: values.get(symbol.name, symbol) for symbol in formula.free_symbols})
        for formula in (law.squared_effective_step, fourth_power)
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
    settings = {"eps": 0.0} if "betas" in bound.defaults else {}
    try:
        return bound, equilibrium(bound.recipe, **settings)
    except Exception:  # NoEquilibriumError, or the trace of a recipe of one's own failed
        return bound, None


def _predict_step(run: Result) -> float | None:
    """Return the effective step of the law at the settings of a run; None if there is no law."""
    law = predict(run.spec.recipe, run.spec.hyper_parameters)
    return None if law is None else law.step


def _predict_norm(run: Result) -> float | None:
    """Return the norm of the law at the settings of a run; None if there is no law."""
    law = predict(run.spec.recipe, run.spec.hyper_parameters)
    return None if law is None else law.norm(run)


Number = Callable[[Result], float | None]
QUANTITIES: dict[str, tuple[Number, Number]] = {
    "effective step": (
        RecordedNumber("predicted effective step", _predict_step),
        lambda run: run.summary["effective_step_rms"],
    ),
    "norm": (
        RecordedNumber("predicted norm", _predict_norm),
        lambda run: _fourth_root(run.summary["fourth_power_late"]),
    ),
}
"""The number that the law predicts, and the one that the run measures."""


def _claim(quantity: str, name: str) -> Claim:
    predicted, measured = QUANTITIES[quantity]

    def off(runs: Runs) -> pd.Series:
        """By how many percent at the worst point, by seed; empty if a point has no law."""
        complete = runs.complete_grid("", name).set_index("seed")
        law = number(complete, predicted, worst=1.0)
        if law.isna().any():
            return pd.Series(dtype=float)
        share = number(complete, measured, worst=math.inf) / law
        return 100 * (share - 1).abs().groupby("seed").max()

    return Claim(
        f"{slug(quantity)}.{slug(name)}", f"< {ALLOWED:g}", off,
        f"{name}: the measured {quantity} in equilibrium is within 15 % of the prediction, at the "
        "worst of four points", Statement("ours", "ours; Kosson et al. 2023"), unit="% off",
        limits=(0.0, math.inf),
    )  # fmt: skip


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
    claims = tuple(_claim(quantity, name) for quantity in QUANTITIES for name in OPTIMIZERS)

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials = []
        for name, (fixed, pairs) in OPTIMIZERS.items():
            rates, decays = (list(column) for column in zip(*pairs, strict=True))
            setting = {**fixed, "lr": rates, "weight_decay": decays}
            trials += self.make_trials(
                plan,
                Place("", name),
                f"{__name__}:Mlp",
                name.lower(),
                setting,
                schedule="constant",
                probes=(),
            )
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Sequence[Any]] = []
        for place in runs.places:
            for _, point_runs in runs.all_runs(*place).groupby("point", sort=False):
                point = point_runs.run.iloc[0].spec.hyper_parameters
                cells = [Cell(point.get(key), "g") for key in ("lr", "weight_decay")]
                for keys in QUANTITIES.values():
                    law, measured = (float(number(point_runs, key).mean()) for key in keys)
                    cells += [Cell(law, ".4f", missing="no law"),
                              Cell(measured, ".4f", missing="diverged"),
                              Cell(100 * (measured / law - 1), "+.1f", missing="")]  # fmt: skip
                drift = number(point_runs, lambda item: item.summary["norm_drift"]).mean()
                rows.append([place.arm, *cells, Cell(100 * float(drift), "+.1f")])
        columns = ["optimizer", "lr", "weight decay"]
        for quantity in ("step", "norm"):
            columns += [f"predicted {quantity}", "measured", "off by %"]
        title = "Effective step and norm in equilibrium"
        return [Table(title, [*columns, "still drifting %"], rows, NOTE)] if rows else []
