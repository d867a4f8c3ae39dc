"""A study of our own: does the best learning rate stay over widths, and how much does it matter?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender, Setup, arm_of
from spherenorm_experiments.extra.control.arms import BASES, COLORS, CONTROLS, REST, contender
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
from spherenorm_experiments.results import Results, Trial
from spherenorm_experiments.samples import Sample, paired_values, pooled
from spherenorm_experiments.tables import Row, Table, mean_of
from spherenorm_experiments.tuning import with_tuned

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


class LrTransfer(TunedComparison):
    """The comparison, its curves, and the claims about them."""

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        known = {f"width {width}" for width in WIDTHS[plan.budgets]}
        every = super().trials(plan, results)
        return [trial for trial in every if trial.arm.settings["condition"] in known]

    def tables(self, results: Results) -> list[Table]:
        own = [_curves_table(results), _drift_table(results)]
        return [*(table for table in own if table.rows), *super().tables(results)]

    def pictures(self, results: Results) -> list[Picture]:
        return [*drawn(_loss_picture(results, base) for base in BASES), *super().pictures(results)]


CONDITIONS = [
    byte_condition(f"width {width}", width=width) for width in sorted(set().union(*WIDTHS.values()))
]
ARMS = {(base, control): contender(base, control) for base in BASES for control in CONTROLS}

Number = Callable[[dict[int, Curve]], Sample]
"""A number of the curves of an arm at one width, by seed."""


def over_widths(results: Results, arm: Contender, number: Number) -> Sample:
    """The mean of a number over the widths that have runs."""
    return _mean([number(curves(results, condition, arm)) for condition in _ran(results)])


def drift(results: Results, arm: Contender) -> Sample:
    """log2 of the best rate at the largest width minus that at the smallest; none for one width."""
    conditions = _ran(results)
    if len(conditions) < 2:
        return Sample({}, performance=True)
    narrowest, widest = (
        best_octave(curves(results, each, arm)) for each in (conditions[0], conditions[-1])
    )
    return paired_values(widest, narrowest)


def _tuned(results: Results, arm: Contender) -> Sample:
    """Minus the test loss of each seed at the rate that it chooses, the mean over widths."""
    conditions = _ran(results)
    return _mean([results.arm(arm_of(each, arm)).values("test") for each in conditions])


def _absolute_drift(results: Results, arm: Contender) -> Sample:
    return drift(results, arm).map(abs)


def _mean(samples: Sequence[Sample]) -> Sample:
    return pooled(samples) if samples else Sample({}, performance=True)


def _ran(results: Results) -> list[Condition]:
    """The conditions with runs, from the narrowest to the widest."""
    known = {arm.settings.get("condition") for arm in results.arms}
    return [condition for condition in CONDITIONS if condition.label in known]


class Question(NamedTuple):
    """A number of an arm that is compared with that of its base under decay.

    Attributes:
        number: by seed, of the results and of an arm.
        relation: of the arm's number to the other, as the claim has it.
        words: the claim between the names of the two.
        margin: within which the two are equivalent.
    """

    number: Callable[..., Sample]
    relation: Literal["<", ">"]
    words: str
    unit: str
    margin: float | None = None


QUESTIONS = {
    "loss": Question(_tuned, ">", "has a lower loss at its own best rates than", "nats", WITHIN),
    "sensitivity": Question(
        partial(over_widths, number=sensitivity), "<", "is less sensitive to the rate than",
        "nats", WITHIN,
    ),
    "plateau": Question(
        partial(over_widths, number=plateau), ">", "has a wider plateau than", "octaves"
    ),
    "drift": Question(
        _absolute_drift, "<", "has a best rate that drifts less over widths than", "octaves"
    ),
}  # fmt: skip


def one_sided(results: Results, arms: Sequence[Contender]) -> str:
    """The arms whose rates end within reach of the best one, so that a sensitivity lacks some."""
    parts = []
    for condition, arm in itertools.product(_ran(results), arms):
        if few := lacking(curves(results, condition, arm)):
            parts.append(f"{arm.name} at {condition.label} lacks {few} of {2 * REACH + 1} rates")
    return "; ".join(parts)


def _claims() -> Iterator[Claim]:
    for (base, control), arm in ARMS.items():
        decayed = ARMS[base, "decay"]
        for name, asked in QUESTIONS.items() if arm is not decayed else ():
            yield Claim(
                f"{name}.{slug(base)}.{slug(control)}", f"{arm.name} {asked.words} {decayed.name}",
                partial(asked.number, arm=arm), asked.relation, partial(asked.number, arm=decayed),
                unit=asked.unit, equivalent=asked.margin, primary=name in ("sensitivity", "drift"),
                caveat=partial(one_sided, arms=(arm, decayed)) if name == "sensitivity" else "",
            )  # fmt: skip


def _curves_table(results: Results) -> Table:
    rows: list[Row] = []
    tuned = with_tuned(results)
    for condition in _ran(results):
        for arm in ARMS.values():
            found = curves(results, condition, arm)
            chosen = tuned.arm(arm_of(condition, arm))
            if found:
                loss = chosen.values("test").map(lambda score: -score)
                cells = [mean_of(loss, ".3f"), mean_of(best_octave(found), ".2f")]
                cells += [mean_of(sensitivity(found), ".3f"), mean_of(plateau(found), ".2f")]
                cells.append(mean_of(chosen.values(turn_over_law), ".2f"))
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


def _drift_table(results: Results) -> Table:
    conditions, rows = _ran(results), list[Row]()
    for arm in ARMS.values():
        found = drift(results, arm)
        if found:
            ends = [best_octave(curves(results, each, arm)) for each in conditions]
            octaves = ", ".join(f"{np.mean(list(each.values())):.2f}" for each in ends)
            rows.append((arm.name, octaves, mean_of(found, "+.2f")))
    widths = ", ".join(each.label.removeprefix("width ") for each in conditions)
    headings = ("arm", f"log2(best rate) at width {widths}", "drift")
    return Table("Drift of the best rate", headings, rows, "In octaves; means over seeds ± SD.")


def _loss_picture(results: Results, base: str) -> Picture:
    """Draw the mean loss against the rate, a line for each norm control and width."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    colors, dashes = dict[str, str](), dict[str, str]()
    for condition, dash in zip(_ran(results), ("solid", "dash", "dot", "dashdot"), strict=False):
        for control in CONTROLS:
            found = curves(results, condition, ARMS[base, control])
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
    baseline=ARMS["Adam", "decay"],
    contenders=[arm for key, arm in ARMS.items() if key != ("Adam", "decay")],
    tune={"lr": [0.01]},
    on=CONDITIONS,
    claims=list(_claims()),
    first_seed=1000,
    seeds={"small": 3, "evidence": 6, "full": 12},
)
