"""Norms and turns per step under each norm control, measured and predicted.

    spherenorm run experiments/studies/norm_control.py

Arms and their recipes come first, then the probe and the numbers that it gives, then the laws of
`spherenorm_theory`, then the study.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm import Chain, Scalar, chain, metrics
from spherenorm import rules as r
from spherenorm.recipes import adamh
from spherenorm_experiments import (
    Claim,
    MeasuredStep,
    Place,
    Plan,
    RecordedNumber,
    Result,
    Runs,
    Spec,
    Study,
    Table,
    Trial,
    mean_of,
    mean_over,
    number,
    slug,
)

BASES = ("Adam", "Muon")
CONTROLS = ("decay", "projection", "Hyperball", "rotational", "brake", "gains")

ENTRIES = tuple(2.0**k for k in range(-8, -2))
"""Rates of Adam's step, whose entries are about 1 before the rate multiplies them."""

TURNS = tuple(2.0**k for k in range(-7, -1))
"""Rates that are about the turn of a step in radians, as Muon's and those on spheres are."""

BETAS = {"betas": [0.9, 0.95]}
DECAYS = {"Adam": 1.0, "Muon": 0.25}
"""At a middle rate of its base each makes lr λ = 2^-6: |w|² decays in 1 / (2 lr λ) = 32 steps."""

MUONP = f"{__name__}:muonp"
MDADAM = f"{__name__}:mdadam"

REST = {"recipe": "adam", "lr": 2.0**-5, **BETAS}
"""The optimizer of all other weights: embedding and head keep one rate in all arms."""


class Arm(NamedTuple):
    """A base under a norm control, with the rates that it tries."""

    name: str
    recipe: str
    fixed: Mapping[str, Any]
    rates: Sequence[float]


def arm_of(base: str, control: str) -> Arm:
    """Return a base under a norm control.

    >>> arm_of("Muon", "Hyperball").recipe
    'hyperball(muon)'
    """
    decayed = {"Adam": "adamw", "Muon": "muon"}[base]
    recipes = {
        "decay": decayed,
        "projection": {"Adam": "adamp", "Muon": MUONP}[base],
        "Hyperball": f"hyperball({decayed})",
        "rotational": f"rotational({decayed})",
        "brake": f"radial_brake({decayed})",
        "gains": {"Adam": MDADAM, "Muon": "mdmuon"}[base],
    }
    fixed: dict[str, Any] = dict(BETAS) if base == "Adam" else {}
    if control in ("decay", "projection"):
        fixed["weight_decay"] = DECAYS[base]
    turns = base == "Muon" or control in ("Hyperball", "rotational", "gains")
    return Arm(f"{base}, {control}", recipes[control], fixed, TURNS if turns else ENTRIES)


def muonp(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.0,
    delta: Scalar = 0.1,
    wd_ratio: Scalar = 0.1,
) -> Chain:
    """Muon whose step loses its radial part where the weight is scale-invariant, as AdamP's does.

    Source: Jordan et al. 2024 (Muon); Heo et al. 2021 (AdamP), Eq. 12.
    """
    return chain(
        r.InterpolatedAverage(momentum**2, momentum, buffer="momentum_buffer"),
        r.Orthogonalize(),
        r.ScaleInvarianceTest(delta),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


def mdadam(
    lr: Scalar = 0.01,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    gain_ratio: Scalar = 0.1,
) -> Chain:
    """Magnitude and direction decoupled, with Adam: W = diag(a) V diag(b), where `adamh` steps V.

    The gains a and b are those of `mdmuon`: Adam's, with gain_ratio times the learning rate of V.

    Source: Hägele et al. 2026, arXiv:2606.25971; Wen et al. 2026 (Hyperball), arXiv:2606.16899.
    """
    rows, columns = (
        chain(r.AdaptiveMoments(*betas, eps=eps, name=name), r.StepSize(lr * gain_ratio))
        for name in ("gain", "column_gain")
    )
    inner = r.GainAndDirection(adamh(lr, betas, eps), columns, "dim=1", "one", buffer="column_gain")
    return chain(r.GainAndDirection(inner, rows, "channel", "one"))


def rotation(step: MeasuredStep) -> dict[str, Any]:
    """The norm, the turn in radians and the gradient's norm of each weight as a whole."""
    return {
        "rotation": {
            name: [
                float(metrics.norm(after, "layer")),
                float(metrics.angular_update(step.before[name], after, "layer")),
                float(metrics.norm(step.grad[name], "layer")),
            ]
            for name, after in step.after.items()
        }
    }


PROBE = f"{__name__}:rotation"

LATE = 0.5
"""The share of the steps before those over which stationary averages are taken."""

BLOCKS = "blocks."
"""Begins the names of a transformer's hidden weights; of others the invariant weights count."""


class Rotations(NamedTuple):
    """The measurements of a run: arrays of shape (probed steps, hidden weights).

    Attributes:
        progress: of the run before each step, in [0, 1); shape (probed steps,).
        rates: the learning rate of each step.
    """

    progress: np.ndarray
    rates: np.ndarray
    norms: np.ndarray
    turns: np.ndarray
    gradients: np.ndarray

    @classmethod
    def of(cls, item: Result) -> Rotations | None:
        """Read the rotations of a run; None if it was not probed."""
        probed = [record for record in item.metrics if "rotation" in record]
        views = item.summary["views"]
        names = [name for name in views if name.startswith(BLOCKS)]
        names = names or [name for name, view in views.items() if view is not None]
        if not probed or not names:
            return None
        measured = np.array([[record["rotation"][name] for name in names] for record in probed])
        total, per_epoch = item.summary["steps"], item.summary["steps_per_epoch"]
        before = np.array([record["step"] - 1 for record in probed])
        factors = [item.spec.rate_factor(int(step), total, per_epoch) for step in before]
        rates = item.spec.hyper_parameters["lr"] * np.array(factors)
        return cls(before / total, rates, *np.moveaxis(measured, -1, 0))

    def within(self, low: float, high: float) -> np.ndarray:
        """True at the steps of this part of the run."""
        return (low <= self.progress) & (self.progress < high)

    @property
    def late_turns(self) -> np.ndarray:
        """The turns at the steps of the second half."""
        late: np.ndarray = self.turns[self.within(LATE, 1.0)]
        return late


Law = Callable[[float], float]
"""The turn per step as a function of the learning rate."""


def law_of(spec: Spec) -> Law | None:
    """The law of a recipe's turn, as theory has it; None without one.

    On the hyperball a step that is orthogonal to the weight turns it by arctan(lr), and a
    rotational optimizer by lr on the average. Of a recipe with decay it is the turn at which decay
    and steps balance (`equilibrium.py`), which it only comes to.
    """
    if spec.recipe.startswith("hyperball("):
        return math.atan
    if spec.recipe.startswith("rotational("):
        return float
    return (
        functools.partial(_turn_under_decay, _settings_without_rate(spec))
        if spec.recipe == "adamw"
        else None
    )


def law_with_momentum(spec: Spec) -> Law | None:
    """The law of the turn on the hyperball, with what momentum does to it; None of other recipes.

    That of `spherenorm_theory.equilibrium_turn`, for gradients that are random and orthogonal to
    the weight.
    """
    if not spec.recipe.startswith("hyperball("):
        return None
    return functools.partial(_equilibrium_turn, spec.recipe, _settings_without_rate(spec))


def _settings_without_rate(spec: Spec) -> str:
    """The hyper-parameters but for the learning rate, as the key of a cache."""
    return json.dumps({name: x for name, x in spec.hyper_parameters.items() if name != "lr"})


@functools.cache
def _equilibrium_turn(recipe: str, settings: str, rate: float) -> float:
    from spherenorm_theory import equilibrium_turn  # sympy takes a second to import

    return equilibrium_turn(recipe, lr=rate, **json.loads(settings))


@functools.cache
def _turn_under_decay(settings: str, rate: float) -> float:
    """The turn of AdamW in equilibrium, for gradients that are random and orthogonal to it."""
    from spherenorm_theory import equilibrium

    values = json.loads(settings)
    law = equilibrium("adamw", eps=0.0)
    values |= {"lr": rate, **dict(zip(("beta1", "beta2"), values.pop("betas"), strict=True))}
    formula = law.squared_effective_step
    names = {symbol: values[symbol.name] for symbol in formula.free_symbols}
    return math.sqrt(float(formula.subs(names)))


def compare_turn(run: Result, law_of: Callable[[Spec], Law | None]) -> float | None:
    """Return the turn over that of the law at the rate of each step.

    It is the mean over late steps and weights; None if the recipe has no law, or nothing was
    measured.
    """
    law, rotations = law_of(run.spec), Rotations.of(run)
    if law is None or rotations is None:
        return None
    rates = rotations.rates[rotations.within(LATE, 1.0)].tolist()
    return float((rotations.late_turns / np.array([[law(rate)] for rate in rates])).mean())


def _late_turn(run: Result) -> float | None:
    """Return the root mean square turn per step over the hidden weights, late in the run."""
    rotations = Rotations.of(run)
    return rotations and float(np.sqrt((rotations.late_turns**2).mean()))


def _spread_over_layers(run: Result) -> float | None:
    """Return the standard deviation of the late mean turns of hidden weights over their mean."""
    rotations = Rotations.of(run)
    if rotations is None:
        return None
    means = rotations.late_turns.mean(0)
    return float(means.std(ddof=1) / means.mean())


def _norm_growth(run: Result) -> float | None:
    """Return the last norm over the first: the geometric mean over hidden weights."""
    rotations = Rotations.of(run)
    return rotations and float(np.exp(np.log(rotations.norms[-1] / rotations.norms[0]).mean()))


late_turn = RecordedNumber("late turn", _late_turn)
spread_over_layers = RecordedNumber("spread over layers", _spread_over_layers)
norm_growth = RecordedNumber("norm growth", _norm_growth)
turn_over_law = RecordedNumber("turn over law", lambda run: compare_turn(run, law_of))
turn_over_law_with_momentum = RecordedNumber(
    "turn over law with momentum", lambda run: compare_turn(run, law_with_momentum)
)

Number = Callable[[Result], float | None]

RATES = {"smoke": slice(2, 3), "small": slice(1, 4), "full": slice(0, 6)}
"""The places of the rates in the grid of each arm."""

WINDOWS = {"smoke": 32, "small": 1200, "full": 64_000}
"""Training windows of the byte model: 150 steps of 8 in the small tier."""

ALLOWED = {"Hyperball": 0.05, "rotational": 0.1, "decay": 0.15}
"""By how much the turn may differ from its law: a share of it. That of decay is a mean field."""

TASKS = {"bytes": "spherenorm_experiments.byte_model:ByteModel", "digits": "digits"}
"""The tasks on which turns are measured, by their labels."""


def _predicted(item: Result) -> float | None:
    """The turn of the law at the rate of a run, which is constant."""
    law = law_of(item.spec)
    return None if law is None else law(item.spec.hyper_parameters["lr"])


COLUMNS: dict[str, tuple[Number, str]] = {
    "turn (rad)": (late_turn, ".4f"),
    "law": (_predicted, ".4f"),
    "turn / law": (turn_over_law, ".3f"),
    "turn / law with momentum": (turn_over_law_with_momentum, ".3f"),
    "spread over layers": (spread_over_layers, ".3f"),
    "norm growth": (norm_growth, ".3f"),
}


def _claims(task: str, base: str, control: str) -> Iterator[Claim]:
    end, who, allowed = slug(f"{control}.{base}.{task}"), f"{base}, {control}", ALLOWED[control]
    law = f"of its law, within {allowed:.0%}"

    def of(runs: Runs, key: Number, control: str = control) -> pd.Series:
        """The mean of a number over the rates, by seed."""
        by_rate = runs.all_runs(task, arm_of(base, control).name).groupby("lr")
        return mean_over(
            number(rate_runs.set_index("seed"), key, math.inf) for _, rate_runs in by_rate
        )

    def turns(name: str, key: Number, more: str = "") -> Claim:
        text = f"{who}: the turn per step is that {law}{more}, the mean over the rates ({task})"
        statistic = functools.partial(of, key=key)
        return Claim(f"{name}.{end}", f"= 1 ± {allowed:g}", statistic, text, ratio=True)

    if (base, control) != ("Muon", "decay"):
        yield turns("turn", turn_over_law)
    if control == "Hyperball":
        yield turns("momentum", turn_over_law_with_momentum, ", with momentum")
    if control != "decay":
        yield Claim(
            f"spread.{end}", "< 1",
            lambda runs: of(runs, spread_over_layers) / of(runs, spread_over_layers, "decay"),
            f"{who}: turns are spread less over layers than under decay ({task})", ratio=True,
        )  # fmt: skip


class NormControl(Study):
    """Norm control: norms and turns per step, measured and predicted

    Weight decay comes to a turn per step at which it balances the steps; on spheres the learning
    rate is that turn from the first step on. Here each matrix's norm and turn is measured under two
    bases and six norm controls, at constant rates, on a byte-level language model of width 32 and
    on a network of convolutions with BatchNorm for digits. Its convolutions are scale-invariant; of
    the language model only the matrices of queries and keys are.

    Laws: arctan(lr) on the hyperball, if the step is orthogonal to the weight; lr of rotational
    optimizers; under Adam with decay the turn in equilibrium, for gradients that are random and
    orthogonal to the weight. Averages are over the second half of the steps.

    Momentum lets steps on the hyperball point outwards, too, so that they turn the weight less. The
    turn that follows (`spherenorm_theory.equilibrium_turn`) has no free number; it was derived
    after runs of other seeds had shown less than arctan(lr).
    """

    name = "norm-control"
    seeds = {"smoke": 1, "small": 3, "evidence": 4, "full": 12}  # noqa: RUF012
    first_seed = 1100
    claims = tuple(claim for part in itertools.product(TASKS, BASES, ALLOWED)
                   for claim in _claims(*part))  # fmt: skip

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        labels = ["bytes"] if plan.tier == "smoke" else [*TASKS]
        trials: list[Trial] = []
        for label, base, control in itertools.product(labels, BASES, CONTROLS):
            arm = arm_of(base, control)
            options = (
                {"windows": WINDOWS[plan.budget_tier], "width": 32} if label == "bytes" else {}
            )
            for rate in arm.rates[RATES[plan.budget_tier]]:
                trials += self.make_trials(
                    plan, Place(label, arm.name), TASKS[label], arm.recipe,
                    {**arm.fixed, "lr": rate},
                    options=options, rest=REST, schedule="constant", probes=("norms", PROBE),
                    probe_every=10,
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Sequence[Any]] = []
        for place in runs.places:
            for rate, rate_runs in runs.all_runs(*place).groupby("lr"):
                cells = [
                    mean_of(number(rate_runs, key, math.inf), f) for key, f in COLUMNS.values()
                ]
                rows.append((f"{place}, lr {rate:.3g}", *cells))
        note = (
            "Means over seeds ± SD, of hidden matrices. Turn: root mean square per step. Spread "
            "over layers: standard deviation over mean of the turns of the matrices. Norm growth: "
            "last norm over that at step 10, the geometric mean. Arms without a law: none is known."
        )
        return [Table("Turns and norms", ("arm", *COLUMNS), rows, note)] if rows else []
