"""A study of our own: is AdamP more than another schedule of the effective step?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from spherenorm_experiments.claims import Claim, Statement, slug
from spherenorm_experiments.comparison import Arm, Condition
from spherenorm_experiments.paper.adversarial import f4
from spherenorm_experiments.paper.audio import t4
from spherenorm_experiments.paper.debiasing import d1
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial, across, choose
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, column, difference

ADAM, ADAMP = "Adam", "AdamP"
Kind = tuple[str, str]
KINDS: tuple[Kind, ...] = ((ADAM, ADAM), (ADAM, ADAMP), (ADAMP, ADAM), (ADAMP, ADAMP))
"""The optimizer that gives a step its direction, and the one that gives its length."""

EQUIVALENT = 2.0
"""Points: less than the smallest gap of the three benchmarks at tuned rates, which is three."""

PARTS = ("AdamP − Adam", "by the effective steps", "by the direction")
"""The gap in scores, and its parts."""


class Benchmark(NamedTuple):
    """A condition of the paper's benchmarks, and the rates at which it is run here.

    Attributes:
        arms: Adam or AdamW, and AdamP; the same hyper-parameters hold for both.
        rates: around the best ones of both.
    """

    condition: Condition
    arms: tuple[Arm, Arm]
    rates: tuple[float, ...]

    def arm(self, name: str) -> Arm:
        return self.arms[name == ADAMP]

    def place(self, direction: str, length: str) -> Place:
        """Steps of one optimizer's direction and of one optimizer's length."""
        other = f"{direction} with {length}'s steps"
        return Place(self.condition.label, direction if direction == length else other)

    def numbers(self, runs: Runs, kind: Kind, key: str = "test") -> pd.DataFrame:
        """A number by seed and rate."""
        return runs.every(*self.place(*kind)).pivot(index="seed", columns="lr", values=key)

    def mean(self, runs: Runs, kind: Kind, key: str = "test") -> pd.Series:
        """The mean of a number over the rates, by seed."""
        return self.numbers(runs, kind, key).astype(float).mean(axis=1, skipna=False)

    def tuned(self, runs: Runs, kind: Kind) -> pd.Series:
        """The test score of each seed at the rate that its own validation set chooses."""
        own = runs.every(*self.place(*kind))
        ended = own.groupby("seed").seed.transform("count") == own.lr.nunique()
        return choose(own[ended]).test


BENCHMARKS = (
    Benchmark(d1.STRIPES, (d1.ADAM, d1.ADAMP), (0.012, 0.03, 0.08)),
    Benchmark(f4.CONDITIONS[0], (f4.F4.arms[0], f4.F4.arms[1]), (0.015, 0.03, 0.06)),
    Benchmark(t4.CONDITIONS[1], (t4.ADAMW, t4.ADAMP), (0.01, 0.03, 0.1)),
)


def gap_in_parts(scores: Mapping[Kind, pd.Series]) -> list[tuple[pd.Series, pd.Series]]:
    """The gap of AdamP to Adam, its part by the length of steps, and its part by their direction.

    Each is a difference of two samples, in the order of `PARTS`.

    With s(direction, length) each part is the mean over both values of the other one:

        length:    (s(Adam, AdamP) + s(AdamP, AdamP)) / 2 - (s(Adam, Adam) + s(AdamP, Adam)) / 2
        direction: (s(AdamP, Adam) + s(AdamP, AdamP)) / 2 - (s(Adam, Adam) + s(Adam, AdamP)) / 2

    so that both together are the gap s(AdamP, AdamP) - s(Adam, Adam). All three are over the seeds
    that all four samples have.
    """
    common = across(scores.values()).set_axis(list(scores), axis=1)

    def mean_with(place: int, name: str) -> pd.Series:
        return common[[kind for kind in scores if kind[place] == name]].mean(axis=1)

    return [
        (common[ADAMP, ADAMP], common[ADAM, ADAM]),
        (mean_with(1, ADAMP), mean_with(1, ADAM)),
        (mean_with(0, ADAMP), mean_with(0, ADAM)),
    ]


def _claims(benchmark: Benchmark) -> Iterator[Claim]:
    """Claims of the gain by steps, of the gain by direction beyond it, and of the steps given."""
    end, where = slug(benchmark.condition.label), f"({benchmark.condition.label})"
    adam, given, reverse, adamp = KINDS
    rows = {
        "direction": (adamp, given, "AdamP scores higher than Adam with AdamP's effective steps"),
        "steps": (given, adam, "Adam scores higher with AdamP's effective steps than with its own"),
        "reverse": (adamp, reverse,
                    "AdamP scores higher with its own effective steps than with Adam's"),
    }  # fmt: skip

    def gain(runs: Runs, ours: Kind, base: Kind) -> pd.Series:
        return benchmark.mean(runs, ours) - benchmark.mean(runs, base)

    def paths(runs: Runs) -> pd.Series:
        ours, theirs = (benchmark.mean(runs, x, "total_effective_step") for x in (given, adamp))
        return ours / theirs

    for name, (ours, base, text) in rows.items():
        yield Claim(
            f"{end}.{name}", "> 0", partial(gain, ours=ours, base=base), f"{text} {where}",
            unit="pp", margin=EQUIVALENT, score=True, primary=name == "direction",
        )  # fmt: skip
    yield Claim(
        f"{end}.given", "= 1 ± 0.001", paths,
        f"Adam with AdamP's effective steps has its path on the sphere {where}",
        Statement("identity", "GivenSteps"), ratio=True,
    )  # fmt: skip


class MatchedStep(Study):
    """Matched step: is AdamP more than another schedule of the effective step?

    AdamP removes the radial part of Adam's step, so that norms grow less and weights turn further.
    Here each is had without the other: Adam turns its weights as far as AdamP did with the same
    seed and rate, weight by weight and step by step, in its own direction and to its own norm; and
    AdamP turns them as far as Adam did. Only scale-invariant weights are matched; the others step
    as their optimizer does. If AdamP is a schedule, Adam with its steps scores as AdamP does. (From
    equal moments both turn a weight in one direction, that of the tangent part. So directions
    differ by the moments alone, in which gradients count by the norm at which they were taken.)

    The score of a claim is the mean over a few rates around the best, the same for all, so that no
    rate is chosen. Differences are paired by seed.
    """

    name = "matched-step"
    seeds = {"smoke": 1, "small": 6, "evidence": 12, "full": 24}  # noqa: RUF012
    first_seed = 900
    claims = tuple(claim for benchmark in BENCHMARKS for claim in _claims(benchmark))

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        """Both optimizers; then each with the steps of the runs of the other that have finished."""
        benchmarks = BENCHMARKS[:1] if plan.tier == "smoke" else BENCHMARKS
        own = [trial for each in benchmarks for trial in self._with_own_steps(plan, each)]
        return own + [trial for each in benchmarks for trial in _with_given_steps(each, runs)]

    def _with_own_steps(self, plan: Plan, benchmark: Benchmark) -> Iterator[Trial]:
        condition, setup = benchmark.condition, benchmark.condition.on(plan.tier, real=False)
        rates = benchmark.rates[:1] if plan.tier == "smoke" else benchmark.rates
        rates = (plan.overrides["lr"],) if "lr" in plan.overrides else rates
        fields = {"regime": Regime(**setup.regime), "probes": ("norms", "steps"), **setup.fields}
        for rate, name in itertools.product(rates, (ADAM, ADAMP)):
            arm = benchmark.arm(name)
            yield from self.seeded(
                plan, benchmark.place(name, name), condition.task, arm.recipe,
                {**arm.fixed, "lr": rate, **setup.hyper_parameters}, options=setup.options,
                **fields,
            )  # fmt: skip

    def tables(self, runs: Runs) -> list[Table]:
        rows = [row for each in BENCHMARKS for row in _rows(runs, each)]
        names = (a if a == b else f"{a}, {b}'s steps" for a, b in KINDS)
        note = (
            "Test scores ± SD over seeds: means over the rates, at the rate that the validation "
            "set of each seed chooses, and at each rate. Differences are paired by seed, with "
            "Student's 95 % intervals. Each part of the gap is the average over both orders of "
            "swapping; both add up to the gap. Adam is AdamW on the keywords."
        )
        title = "The gap in two parts"
        return [Table(title, ("benchmark", *names, *PARTS), rows, note)] if rows else []


def _rows(runs: Runs, benchmark: Benchmark) -> Iterator[Row]:
    own = {kind: benchmark.numbers(runs, kind) for kind in KINDS}
    rates = sorted({float(rate) for kind in (KINDS[0], KINDS[3]) for rate in own[kind]})

    def at(rate: float, kind: Kind) -> pd.Series:
        return own[kind].get(rate, pd.Series(dtype=float))

    ways: dict[str, Callable[[Kind], pd.Series]] = {
        "mean over rates": partial(benchmark.mean, runs),
        "best rate": partial(benchmark.tuned, runs),
    }
    ways |= {f"rate {rate:g}": partial(at, rate) for rate in rates}
    for way, score in ways.items() if rates else ():
        scores = {kind: score(kind) for kind in KINDS}
        parts = (difference(*pair) for pair in gap_in_parts(scores))
        means = column(list(scores.values()), ".4g")
        yield (f"{benchmark.condition.label}, {way}", *means, *parts)


def _with_given_steps(benchmark: Benchmark, runs: Runs) -> Iterator[Trial]:
    """Each optimizer with the steps of the other; a run that diverged has none to give."""
    for direction, length in KINDS[1:3]:
        for item in runs.every(*benchmark.place(length, length)).run:
            if not item.diverged:
                options = {**item.spec.options, "steps_of": item.name}
                task, recipe = f"{item.spec.task}-given-steps", benchmark.arm(direction).recipe
                spec = replace(item.spec, task=task, recipe=recipe, options=options)
                yield Trial(benchmark.place(direction, length), spec)
