"""A study of our own: norms and turns per step under each norm control, measured and predicted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.extra.control.arms import BASES, COLORS, CONTROLS, REST, contender
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
from spherenorm_experiments.results import Arm, Key, Result, Results, Trial
from spherenorm_experiments.samples import Sample, pooled
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, mean_of

RATES = {"smoke": slice(2, 3), "small": slice(1, 4), "full": slice(0, 6)}
"""The places of the rates in the grid of each arm."""

WINDOWS = {"smoke": 32, "small": 2400, "full": 64_000}
"""Training windows of the byte model: 300 steps of 8 in the small tier."""

ALLOWED = {"Hyperball": 0.05, "rotational": 0.1, "decay": 0.15}
"""By how much the turn may differ from its law: a share of it. That of decay is a mean field."""


class Place(NamedTuple):
    """A task on which turns are measured."""

    label: str
    task: str


BYTES, DIGITS = PLACES = (Place("bytes", "bytes"), Place("digits", "digits"))


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

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        places = PLACES[:1] if plan.tier == "smoke" else PLACES
        trials: list[Trial] = []
        for place, base, control in itertools.product(places, BASES, CONTROLS):
            of = contender(base, control)
            options = {"windows": WINDOWS[plan.budgets], "width": 32} if place is BYTES else {}
            for rate in _rates(base, control)[RATES[plan.budgets]]:
                trials += self.seeded(
                    plan, arm(place, base, control, rate), place.task, {**of.fixed, "lr": rate},
                    options=options, rest=REST, schedule="constant",
                    probes=("norms", PROBE), probe_every=10,
                )  # fmt: skip
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows: list[Row] = []
        for each in results.arms:
            runs = results.arm(each)
            keys: list[tuple[Key, str]] = [(late_turn, ".4f"), (_predicted, ".4f")]
            keys += [(turn_over_law, ".3f"), (_over_momentum, ".3f")]
            keys += [(spread_over_layers, ".3f"), (norm_growth, ".3f")]
            rows.append((each.label, *(mean_of(runs.values(key), form) for key, form in keys)))
        headings = ["arm", "turn (rad)", "law", "turn / law", "turn / law with momentum"]
        headings += ["spread over layers", "norm growth"]
        note = (
            "Means over seeds ± SD, of hidden matrices. Turn: root mean square per step. Spread "
            "over layers: standard deviation over mean of the turns of the matrices. Norm growth: "
            "last norm over that at step 10, the geometric mean. Arms without a law: none is known."
        )
        return [Table("Turns and norms", headings, rows, note)] if rows else []

    def pictures(self, results: Results) -> list[Picture]:
        return drawn(_against_law(results, place) for place in PLACES)

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for place in PLACES for claim in _claims(place)]


def arm(place: Place, base: str, control: str, rate: float) -> Arm:
    """A base under a norm control, on a task and at a rate."""
    settings = {"place": place.label, "base": base, "control": control, "lr": rate}
    label = f"{place.label}: {base}, {control}, lr {rate:.3g}"
    return Arm(label, contender(base, control).recipe, settings)


def _rates(base: str, control: str) -> Sequence[float]:
    tune = contender(base, control).tune
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


def _over_rates(results: Results, place: Place, base: str, control: str, key: Key) -> Sample:
    """The mean of a number over the rates, by seed."""
    own = results.having(place=place.label, base=base, control=control)
    samples = [own.arm(each).values(key) for each in own.arms]
    return pooled(samples) if samples else Sample({})


def _claims(place: Place) -> Iterator[Claim]:
    for base, (control, allowed) in itertools.product(BASES, ALLOWED.items()):
        side = partial(_over_rates, place=place, base=base, control=control)
        where, end = f"({place.label})", slug(f"{control}.{base}.{place.label}")
        if (base, control) != ("Muon", "decay"):
            yield Claim(
                f"turn.{end}",
                f"{base}, {control}: the turn per step is within {allowed:.0%} of its law {where}",
                partial(side, key=turn_over_law), "=", 1.0, how="ratio", margin=allowed,
            )  # fmt: skip
        if (base, control) == ("Adam", "Hyperball"):
            yield Claim(
                f"momentum.{end}",
                f"{base}, {control}: the turn per step is within {allowed:.0%} of its law with "
                f"momentum {where}",
                partial(side, key=_over_momentum), "=", 1.0, how="ratio", margin=allowed,
            )  # fmt: skip
        if control != "decay":
            decayed = partial(_over_rates, place=place, base=base, control="decay")
            yield Claim(
                f"spread.{end}",
                f"{base}, {control}: turns are spread less over layers than under decay {where}",
                partial(side, key=spread_over_layers), "<",
                partial(decayed, key=spread_over_layers), how="ratio",
            )  # fmt: skip


def _against_law(results: Results, place: Place) -> Picture:
    """Draw measured turns against those of the law, a mark for each run."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for item in results.having(place=place.label).finished:
        law, measured = _predicted(item), late_turn(item)
        if law is not None and measured is not None:
            name = f"{item.arm.settings['base']}, {item.arm.settings['control']}"
            xs, ys = series.setdefault(name, ([], []))
            xs.append(law)
            ys.append(measured)
    colors = {name: COLORS[name.partition(", ")[2]] for name in series}
    caption = f"Turn per step of hidden matrices, measured against the law ({place.label})."
    words = "turn by the law (rad)", "measured (rad)"
    return points(series, *words, caption, colors, log_x=True, log_y=True, diagonal=True)
