"""A study of our own: does the best learning rate stay over widths, and how much does it matter?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.extra.control.arms import BASES, COLORS, CONTROLS, REST, arm_of
from spherenorm_experiments.extra.control.probe import PROBE
from spherenorm_experiments.extra.control.rates import (
    REACH,
    WITHIN,
    Curve,
    best_octave,
    curves,
    lacking,
    plateau,
    sensitivity,
)
from spherenorm_experiments.extra.control.turns import turn_over_law
from spherenorm_experiments.pictures import Picture, drawn, lines
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs, Trial, mean_over, number
from spherenorm_experiments.tables import Row, Table, mean_of

WIDTHS = {"smoke": (16,), "small": (16, 64), "full": (32, 64, 128, 256)}
"""The widths of each tier; from its smallest to its largest the best rate may drift."""

WINDOWS = {"smoke": 32, "small": 960, "full": 64_000}
"""Training windows of each tier: 120 steps of 8 in the small one, 2,000 of 32 in the full one."""

FIELDS = {"rest": REST, "schedule": "linear", "probes": ("norms", PROBE), "probe_every": 20}


def byte_condition(label: str, **options: Any) -> Condition:
    """The byte model with these options, in every tier."""
    windows = {tier: Setup({"windows": count}) for tier, count in WINDOWS.items()}
    setup = windows.pop("small").updated(Setup(options, fields=FIELDS))
    return Condition(label, "bytes", setup, tiers=windows, unit="nats", margin=WITHIN)


class LrTransfer(Comparison):
    """The comparison, its curves, and the claims about them."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        known = {f"width {width}" for width in WIDTHS[plan.budgets]}
        every = super().trials(plan, runs)
        return [trial for trial in every if trial.place.condition in known]

    def tables(self, runs: Runs) -> list[Table]:
        own = [_curves_table(runs), _drift_table(runs)]
        return [*(table for table in own if table.rows), *super().tables(runs)]

    def pictures(self, runs: Runs) -> list[Picture]:
        return [*drawn(_loss_picture(runs, base) for base in BASES), *super().pictures(runs)]


CONDITIONS = [
    byte_condition(f"width {width}", width=width) for width in sorted(set().union(*WIDTHS.values()))
]
ARMS = {(base, control): arm_of(base, control) for base in BASES for control in CONTROLS}

Number = Callable[[dict[int, Curve]], pd.Series]
"""A number of the curves of an arm at one width, by seed."""


def over_widths(runs: Runs, arm: Arm, of: Number) -> pd.Series:
    """The mean of a number over the widths that have runs."""
    return mean_over(of(curves(runs, each.label, arm.name)) for each in _ran(runs))


def drift(runs: Runs, arm: Arm) -> pd.Series:
    """log2 of the best rate at the largest width minus that at the smallest; none for one width."""
    ran = _ran(runs)
    if len(ran) < 2:
        return pd.Series(dtype=float)
    narrow, wide = (best_octave(curves(runs, ran[i].label, arm.name)) for i in (0, -1))
    return (wide - narrow).dropna()


def _tuned(runs: Runs, arm: Arm) -> pd.Series:
    """Minus the test loss of each seed at the rate that it chooses, the mean over widths."""
    return mean_over(runs.best(each.label, arm.name).test for each in _ran(runs))


def _absolute_drift(runs: Runs, arm: Arm) -> pd.Series:
    return drift(runs, arm).abs()


def _ran(runs: Runs) -> list[Condition]:
    """The conditions with runs, from the narrowest to the widest."""
    known = {place.condition for place in runs.places}
    return [condition for condition in CONDITIONS if condition.label in known]


class Question(NamedTuple):
    """A number of an arm that is compared with that of its base under decay.

    Attributes:
        number: by seed, of the results and of an arm.
        relation: of the arm's number minus the other, as the claim has it.
        words: the claim between the names of the two.
        margin: within which the two are equivalent.
    """

    number: Callable[..., pd.Series]
    relation: str
    words: str
    unit: str
    margin: float | None = None


QUESTIONS = {
    "loss": Question(_tuned, "> 0", "has a lower loss at its own best rates than", "nats", WITHIN),
    "sensitivity": Question(
        partial(over_widths, of=sensitivity), "< 0", "is less sensitive to the rate than",
        "nats", WITHIN,
    ),
    "plateau": Question(
        partial(over_widths, of=plateau), "> 0", "has a wider plateau than", "octaves"
    ),
    "drift": Question(
        _absolute_drift, "< 0", "has a best rate that drifts less over widths than", "octaves"
    ),
}  # fmt: skip


def one_sided(runs: Runs, arms: Sequence[Arm]) -> str:
    """The arms whose rates end within reach of the best one, so that a sensitivity lacks some."""
    parts = []
    for condition, arm in itertools.product(_ran(runs), arms):
        if few := lacking(curves(runs, condition.label, arm.name)):
            parts.append(f"{arm.name} at {condition.label} lacks {few} of {2 * REACH + 1} rates")
    return "; ".join(parts)


def _claims() -> Iterator[Claim]:
    for (base, control), arm in ARMS.items():
        decayed = ARMS[base, "decay"]
        for name, asked in QUESTIONS.items() if arm is not decayed else ():
            yield Claim(
                f"{name}.{slug(base)}.{slug(control)}", asked.relation,
                partial(_difference, asked=asked, arm=arm, base=decayed),
                f"{arm.name} {asked.words} {decayed.name}", unit=asked.unit, margin=asked.margin,
                primary=name in ("sensitivity", "drift"), score=True,
                note=partial(one_sided, arms=(arm, decayed)) if name == "sensitivity" else "",
            )  # fmt: skip


def _difference(runs: Runs, asked: Question, arm: Arm, base: Arm) -> pd.Series:
    return asked.number(runs, arm) - asked.number(runs, base)


def _curves_table(runs: Runs) -> Table:
    rows: list[Row] = []
    for condition in _ran(runs):
        for arm in ARMS.values():
            found = curves(runs, condition.label, arm.name)
            chosen = runs.best(condition.label, arm.name)
            if found:
                cells = [mean_of(-chosen.test, ".3f"), mean_of(best_octave(found), ".2f")]
                cells += [mean_of(sensitivity(found), ".3f"), mean_of(plateau(found), ".2f")]
                cells.append(mean_of(number(chosen, turn_over_law), ".2f"))
                rows.append((f"{condition.label}: {arm.name}", *cells))
    headings = ("arm", "loss at the best rate", "log2(best rate)", "sensitivity", "plateau",
                "turn / law")  # fmt: skip
    note = (
        "Losses in nats per byte on the test files; means over seeds ± SD. Plateau in octaves. "
        "Turn: per step of hidden matrices, in the second half of the runs at the best rate, over "
        "arctan(lr) for Hyperball, lr for rotational, and the turn in equilibrium at the rate of "
        "each step for Adam with decay; the others have no law."
    )
    return Table("Loss against rate", headings, rows, note)


def _drift_table(runs: Runs) -> Table:
    conditions, rows = _ran(runs), list[Row]()
    for arm in ARMS.values():
        found = drift(runs, arm)
        if len(found):
            ends = [best_octave(curves(runs, each.label, arm.name)) for each in conditions]
            octaves = ", ".join(f"{each.mean():.2f}" for each in ends)
            rows.append((arm.name, octaves, mean_of(found, "+.2f")))
    widths = ", ".join(each.label.removeprefix("width ") for each in conditions)
    headings = ("arm", f"log2(best rate) at width {widths}", "drift")
    return Table("Drift of the best rate", headings, rows, "In octaves; means over seeds ± SD.")


def _loss_picture(runs: Runs, base: str) -> Picture:
    """Draw the mean loss against the rate, a line for each norm control and width."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    colors, dashes = dict[str, str](), dict[str, str]()
    for condition, dash in zip(_ran(runs), ("solid", "dash", "dot", "dashdot"), strict=False):
        for control in CONTROLS:
            found = curves(runs, condition.label, ARMS[base, control].name)
            if found:
                octaves = next(iter(found.values())).octaves
                means = np.mean([curve.losses for curve in found.values()], axis=0)
                name = f"{control}, {condition.label}"
                series[name] = [2.0**x for x in octaves], means.tolist()
                colors[name], dashes[name] = COLORS[control], dash
    caption = (
        f"{base}: test loss against the learning rate, means over seeds. Rates of Hyperball and "
        "rotational, and of Adam with gains, are turns; the others multiply the base's step."
    )
    words = "learning rate", "loss (nats per byte)"
    return lines(series, *words, caption, colors, log_x=True, dashes=dashes)


STUDY = LrTransfer(
    "lr-transfer",
    f"""Learning rates over widths: does the best rate stay, and how much does it matter?

    A byte-level language model (two layers, normalized queries and keys, no gains) on the
    source of Python's standard library, each window read once, the rate falling linearly to 0.
    Two bases, Adam and Muon, each under six norm controls: decoupled decay, AdamP's projection
    (with the same decay), Hyperball, rotational, radial brake, and gains: W = diag(a) V diag(b),
    where |V| stays, and a and b are learned at a tenth of V's rate (MD decoupling). Only the
    matrices of the blocks take these; embedding and head take Adam at one rate in all arms.
    Rates are a factor 2 apart, and all train on all seeds.

    Sensitivity (Wortsman et al. 2023): the mean over the rates within {REACH} octaves of the best
    of min(loss, loss at the start), minus the best loss. Plateau: the octaves of rates whose loss
    is within {WITHIN:g} nats of the best. Drift: log2 of the best rate at the largest width minus
    that at the smallest. Each is taken seed by seed. The decay of each base is one value, which is
    not tuned.
    """,
    arms=list(ARMS.values()),
    tune={"lr": [0.01]},
    conditions=CONDITIONS,
    claims=list(_claims()),
    first_seed=1000,
    seeds={"small": 3, "evidence": 6, "full": 12},
)
