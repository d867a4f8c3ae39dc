"""A study of our own: norms and turns per step under each norm control, measured and predicted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.extra.control.arms import BASES, COLORS, CONTROLS, REST, arm_of
from spherenorm_experiments.extra.control.probe import PROBE
from spherenorm_experiments.extra.control.turns import (
    late_turn,
    law_of,
    law_with_momentum,
    norm_growth,
    spread_over_layers,
    turn_over_law,
)
from spherenorm_experiments.pictures import Picture, drawn, points
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Key, Place, Result, Runs, Trial, mean_over, number
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, mean_of

RATES = {"smoke": slice(2, 3), "small": slice(1, 4), "full": slice(0, 6)}
"""The places of the rates in the grid of each arm."""

WINDOWS = {"smoke": 32, "small": 2400, "full": 64_000}
"""Training windows of the byte model: 300 steps of 8 in the small tier."""

ALLOWED = {"Hyperball": 0.05, "rotational": 0.1, "decay": 0.15}
"""By how much the turn may differ from its law: a share of it. That of decay is a mean field."""


class Measured(NamedTuple):
    """A task on which turns are measured."""

    label: str
    task: str


BYTES, DIGITS = PLACES = (Measured("bytes", "bytes"), Measured("digits", "digits"))


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
    turn that follows (`spherenorm_theory.turn_at_rest`) has no free number; it was derived after
    the runs below had shown less than arctan(lr).
    """

    name = "norm-control"
    seeds = {"smoke": 1, "small": 3, "evidence": 6, "full": 12}  # noqa: RUF012
    first_seed = 1100

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        places = PLACES[:1] if plan.tier == "smoke" else PLACES
        trials: list[Trial] = []
        for place, base, control in itertools.product(places, BASES, CONTROLS):
            of = arm_of(base, control)
            options = {"windows": WINDOWS[plan.budgets], "width": 32} if place is BYTES else {}
            for rate in _rates(base, control)[RATES[plan.budgets]]:
                trials += self.seeded(
                    plan, Place(place.label, of.name), place.task, of.recipe,
                    {**of.fixed, "lr": rate}, options=options, rest=REST, schedule="constant",
                    probes=("norms", PROBE), probe_every=10,
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        keys: list[tuple[Key, str]] = [(late_turn, ".4f"), (_predicted, ".4f")]
        keys += [(turn_over_law, ".3f"), (_over_momentum, ".3f")]
        keys += [(spread_over_layers, ".3f"), (norm_growth, ".3f")]
        for place in runs.places:
            for rate, own in runs.every(*place).groupby("lr"):
                cells = (mean_of(number(own, key, math.inf), form) for key, form in keys)
                rows.append((f"{place}, lr {rate:.3g}", *cells))
        headings = ["arm", "turn (rad)", "law", "turn / law", "turn / law with momentum"]
        headings += ["spread over layers", "norm growth"]
        note = (
            "Means over seeds ± SD, of hidden matrices. Turn: root mean square per step. Spread "
            "over layers: standard deviation over mean of the turns of the matrices. Norm growth: "
            "last norm over that at step 10, the geometric mean. Arms without a law: none is known."
        )
        return [Table("Turns and norms", headings, rows, note)] if rows else []

    def pictures(self, runs: Runs) -> list[Picture]:
        return drawn(_against_law(runs, place) for place in PLACES)

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for place in PLACES for claim in _claims(place)]


def _rates(base: str, control: str) -> Sequence[float]:
    tune = arm_of(base, control).tune
    assert isinstance(tune, dict)
    rates: Sequence[float] = tune["lr"]
    return rates


def _predicted(item: Result) -> float | None:
    """The turn of the law at the rate of a run, which is constant."""
    law = law_of(item.spec)
    return None if law is None else law(item.spec.hyper_parameters["lr"])


def _over_momentum(item: Result) -> float | None:
    """The turn over that of the law with momentum."""
    return turn_over_law(item, law_with_momentum)


def _over_rates(runs: Runs, place: Measured, arm: str, key: Key) -> pd.Series:
    """The mean of a number over the rates, by seed."""
    every = runs.every(place.label, arm)
    return mean_over(number(own.set_index("seed"), key, math.inf) for _, own in every.groupby("lr"))


def _spread_over_decay(runs: Runs, place: Measured, base: str, control: str) -> pd.Series:
    ours, theirs = (
        _over_rates(runs, place, arm_of(base, each).name, spread_over_layers)
        for each in (control, "decay")
    )
    return ours / theirs


def _claims(place: Measured) -> Iterator[Claim]:
    for base, (control, allowed) in itertools.product(BASES, ALLOWED.items()):
        side = partial(_over_rates, place=place, arm=arm_of(base, control).name)
        where, end = f"({place.label})", slug(f"{control}.{base}.{place.label}")
        within = f"= 1 ± {allowed:g}"
        if (base, control) != ("Muon", "decay"):
            yield Claim(
                f"turn.{end}", within, partial(side, key=turn_over_law),
                f"{base}, {control}: the turn per step is within {allowed:.0%} of its law {where}",
                ratio=True,
            )  # fmt: skip
        if (base, control) == ("Adam", "Hyperball"):
            yield Claim(
                f"momentum.{end}", within, partial(side, key=_over_momentum),
                f"{base}, {control}: the turn per step is within {allowed:.0%} of its law with "
                f"momentum {where}", ratio=True,
            )  # fmt: skip
        if control != "decay":
            yield Claim(
                f"spread.{end}", "< 1",
                partial(_spread_over_decay, place=place, base=base, control=control),
                f"{base}, {control}: turns are spread less over layers than under decay {where}",
                ratio=True,
            )  # fmt: skip


def _against_law(runs: Runs, place: Measured) -> Picture:
    """Draw measured turns against those of the law, a mark for each run."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for item in (each for each in runs.on(place.label) if not each.diverged):
        law, measured = _predicted(item), late_turn(item)
        if law is not None and measured is not None:
            xs, ys = series.setdefault(item.place.arm, ([], []))
            xs.append(law)
            ys.append(measured)
    colors = {name: COLORS[name.partition(", ")[2]] for name in series}
    caption = f"Turn per step of hidden matrices, measured against the law ({place.label})."
    words = "turn by the law (rad)", "measured (rad)"
    return points(series, *words, caption, colors, log_x=True, log_y=True, diagonal=True)
