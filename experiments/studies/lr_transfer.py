"""Do best learning rates stay over widths, and how much do they matter?

    spherenorm run experiments/studies/lr_transfer.py

A table of losses has a row for each seed, and a column for log2 of each rate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from byte_model import UNIFORM
from norm_controls import BASES, CONTROLS, PROBE, REST, arm_of, turn_over_law

from spherenorm_experiments.comparison import Comparison, Condition, Setup
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs, Trial, mean_over, number
from spherenorm_experiments.tables import Cell, Row, Table, mean_of
from spherenorm_experiments.verdict import Claim, slug

WITHIN = 0.02
"""Nats within which two losses are equivalent."""

REACH = 2
"""Octaves on both sides of the best rate over which the sensitivity is taken."""

WIDTHS = {"smoke": (16,), "small": (16, 64), "full": (32, 64, 128, 256)}
"""The widths of each tier; from its smallest to its largest the best rate may drift."""

WINDOWS = {"smoke": 32, "small": 960, "full": 64_000}
"""Training windows of each tier: 120 steps of 8 in the small one, 2,000 of 32 in the full one."""

FIELDS = {"rest": REST, "schedule": "linear", "probes": ("norms", PROBE), "probe_every": 20}
NATS: dict[str, Any] = {"unit": "nats", "equivalence_margin": WITHIN, "is_performance": True}


def byte_condition(label: str, width: int) -> Condition:
    """The byte model at a width, in every tier."""
    windows = {tier: Setup({"windows": count}) for tier, count in WINDOWS.items()}
    setup = windows.pop("small").updated(Setup({"width": width}, fields=FIELDS))
    return Condition(
        label, "byte_model:ByteModel", setup, tiers=windows, unit="nats", margin=WITHIN
    )


CONDITIONS = [
    byte_condition(f"width {width}", width) for width in sorted(set().union(*WIDTHS.values()))
]
ARMS = {(base, control): arm_of(base, control) for base in BASES for control in CONTROLS}


def losses(runs: Runs, condition: str, arm: str) -> pd.DataFrame:
    """The test losses of an arm in nats per byte, at the rates at which all seeds have ended.

    A run that diverged, or does worse than a uniform model, has the loss of that.
    """
    complete = runs.complete_grid(condition, arm)
    loss = (-complete.test.astype(float)).fillna(UNIFORM).clip(upper=UNIFORM)
    table = complete.assign(octave=np.log2(complete.lr.astype(float)), loss=loss)
    return table.pivot(index="seed", columns="octave", values="loss")


def around_best(table: pd.DataFrame) -> list[float]:
    """The octaves within `REACH` of the rate with the best mean loss.

    Fewer where the rates end: others in their place would lie further from the best, where losses
    are higher, and make the arm look more sensitive than one whose best rate is in the middle.
    """
    if table.empty:
        return []
    place = int(np.argmin(table.mean()))
    return list(table.columns[max(0, place - REACH) : place + REACH + 1])


def sensitivity(table: pd.DataFrame) -> pd.Series:
    """Return the mean loss over the rates around the best mean loss, minus the best, by seed.

    Source: Wortsman et al. 2023, arXiv:2309.14322, Section 2.
    """
    chosen = table[around_best(table)]
    return (chosen.mean(axis=1) - chosen.min(axis=1)).astype(float)


def best_octave(table: pd.DataFrame) -> pd.Series:
    """Return log2 of the best rate by seed; see `vertex`."""
    octaves = {seed: vertex(table.columns, row.tolist()) for seed, row in table.iterrows()}
    return pd.Series(octaves, dtype=float)


def vertex(octaves: Sequence[float], values: Sequence[float]) -> float:
    """The vertex of the parabola through the best loss and those beside; the end if it is at one.

    >>> round(vertex((-6.0, -5.0, -4.0), (2.0, 1.0, 1.5)), 2)
    -4.83
    """
    place = int(np.argmin(values))
    if place in (0, len(values) - 1):
        return float(octaves[place])
    before, here, after = values[place - 1 : place + 2]
    curved = before - 2 * here + after
    step = (octaves[place + 1] - octaves[place - 1]) / 2
    return float(octaves[place] + step * (0.0 if curved == 0 else (before - after) / 2 / curved))


def _ran(runs: Runs) -> list[str]:
    """The conditions with runs, from the narrowest to the widest."""
    conditions = {place.condition for place in runs.places}
    return [condition.label for condition in CONDITIONS if condition.label in conditions]


def over_widths(runs: Runs, arm: str, of: Callable[[pd.DataFrame], pd.Series]) -> pd.Series:
    """The mean of a number of the losses over the widths that have runs."""
    return mean_over(of(losses(runs, width, arm)) for width in _ran(runs))


def drift(runs: Runs, arm: str) -> pd.Series:
    """log2 of the best rate at the largest width minus that at the smallest; none for one width."""
    if len(ran := _ran(runs)) < 2:
        return pd.Series(dtype=float)
    narrow, wide = (best_octave(losses(runs, ran[i], arm)) for i in (0, -1))
    return (wide - narrow).dropna()


def _tuned(runs: Runs, arm: str) -> pd.Series:
    """Minus the test loss of each seed at the rate that it chooses, the mean over widths."""
    return mean_over(runs.selected(width, arm).test for width in _ran(runs))


def _against_decay(base: str, control: str) -> Iterator[Claim]:
    arm, decayed = (ARMS[base, name].name for name in (control, "decay"))

    def minus_decay(runs: Runs, of: Callable[..., pd.Series]) -> pd.Series:
        return of(runs, arm=arm) - of(runs, arm=decayed)

    def drifts(runs: Runs, arm: str) -> pd.Series:
        return drift(runs, arm).abs()

    rows: dict[str, tuple[str, Callable[..., pd.Series], str, dict[str, Any]]] = {
        "loss": ("> 0", _tuned, "has a lower loss at its own best rates than", NATS),
        "sensitivity": ("< 0", partial(over_widths, of=sensitivity),
                        "is less sensitive to the rate than", {**NATS, "primary": True}),
        "drift": ("< 0", drifts, "has a best rate that drifts less over widths than",
                  {"unit": "octaves", "is_performance": True, "primary": True}),
    }  # fmt: skip
    for name, (relation, of, text, more) in rows.items():
        yield Claim(
            f"{name}.{slug(base)}.{slug(control)}", relation,
            partial(minus_decay, of=of),
            f"{arm} {text} {decayed}", **more,
        )  # fmt: skip


class LrTransfer(Comparison):
    """The comparison, its curves, and the claims about them."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        labels = {f"width {width}" for width in WIDTHS[plan.budget_tier]}
        trials = super().trials(plan, runs)
        return [trial for trial in trials if trial.place.condition in labels]

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for width, arm in itertools.product(_ran(runs), (arm.name for arm in self.arms)):
            table, chosen = losses(runs, width, arm), runs.selected(width, arm)
            if len(table):
                cells = [mean_of(-chosen.test, ".3f"), mean_of(best_octave(table), ".2f")]
                cells += [mean_of(sensitivity(table), ".3f"), Cell(len(around_best(table)), "d")]
                cells.append(mean_of(number(chosen, turn_over_law), ".2f"))
                rows.append((f"{width}: {arm}", *cells))
        headings = ["arm", "loss at the best rate", "log2(best rate)", "sensitivity", "of rates"]
        note = (
            "Losses in nats per byte on the test files; means over seeds ± SD. Of rates: those "
            f"that the sensitivity is over; fewer than {2 * REACH + 1} where the best is near an "
            "end of the search. "
            "Turn: per step of hidden matrices, in the second half of the runs at the best rate, "
            "over arctan(lr) for Hyperball, lr for rotational, and the turn in equilibrium at the "
            "rate of each step for Adam with decay; the others have no law."
        )
        summary = Table("Loss against rate", [*headings, "turn / law"], rows, note)
        return [*([summary] if rows else []), *super().tables(runs)]


COMMON: dict[str, Any] = {"tune": {"lr": [0.01]}, "seeds": {"small": 3, "evidence": 6, "full": 12}}

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
    of min(loss, loss at the start), minus the best loss. Drift: log2 of the best rate at the
    largest width minus that at the smallest. Each is taken seed by seed. The decay of each base is
    one value, which is not tuned.
    """,
    arms=list(ARMS.values()),
    conditions=CONDITIONS,
    claims=[claim for base, control in ARMS if control != "decay"
            for claim in _against_decay(base, control)],
    first_seed=1000,
    **COMMON,
)  # fmt: skip
