"""A study of our own: is AdamP more than another schedule of the effective step?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pandas as pd

from spherenorm_experiments.claims import Claim, Statement, slug
from spherenorm_experiments.comparison import Arm, Condition
from spherenorm_experiments.paper.adversarial import f4
from spherenorm_experiments.paper.audio import t4
from spherenorm_experiments.paper.debiasing import d1
from spherenorm_experiments.pictures import Picture, drawn, empty_figure, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial, across, choose, mean_over
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, column, difference

ADAM, ADAMP = "Adam", "AdamP"
KINDS = ((ADAM, ADAM), (ADAM, ADAMP), (ADAMP, ADAM), (ADAMP, ADAMP))
"""The optimizer that gives a step its direction, and the one that gives its length."""

EQUIVALENT = 2.0
"""Points: less than the smallest gap of the three benchmarks at tuned rates, which is three."""

GIVEN = Statement("identity", "GivenSteps")


class Benchmark(NamedTuple):
    """A condition of the paper's benchmarks, and the rates at which it is run here.

    Attributes:
        arms: Adam or AdamW, and AdamP; the same hyper-parameters hold for both.
        rates: around the best ones of both.
    """

    condition: Condition
    arms: tuple[Arm, Arm]
    rates: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.condition.label

    def recipe(self, direction: str) -> str:
        """The recipe that gives a step this direction."""
        return self.arms[direction == ADAMP].recipe

    def place(self, direction: str, length: str) -> Place:
        """Steps of one optimizer's direction and of one optimizer's length."""
        return Place(self.label, _name(direction, length))


def _name(direction: str, length: str) -> str:
    return direction if direction == length else f"{direction} with {length}'s steps"


BENCHMARKS = (
    Benchmark(d1.STRIPES, (d1.ADAM, d1.ADAMP), (0.012, 0.03, 0.08)),
    Benchmark(f4.CONDITIONS[0], (f4.F4.arms[0], f4.F4.arms[1]), (0.015, 0.03, 0.06)),
    Benchmark(t4.CONDITIONS[1], (t4.ADAMW, t4.ADAMP), (0.01, 0.03, 0.1)),
)


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
            fixed = benchmark.arms[name == ADAMP].fixed
            values = {**fixed, "lr": rate, **setup.hyper_parameters}
            yield from self.seeded(
                plan, benchmark.place(name, name), condition.task, benchmark.recipe(name), values,
                options=setup.options, **fields,
            )  # fmt: skip

    def tables(self, runs: Runs) -> list[Table]:
        known = [each for each in BENCHMARKS if _rates(runs, each)]
        return [_parts_table(runs, known)] if known else []

    def pictures(self, runs: Runs) -> list[Picture]:
        return drawn([_parts_picture(runs)])

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for benchmark in BENCHMARKS for claim in _claims(benchmark)]


def _with_given_steps(benchmark: Benchmark, runs: Runs) -> Iterator[Trial]:
    """Each optimizer with the steps of the other; a run that diverged has none to give."""
    for direction, length in KINDS:
        own = _runs(runs, benchmark, length, length) if direction != length else None
        for item in () if own is None else own.run:
            if not item.diverged:
                options = {**item.spec.options, "steps_of": item.name}
                task, recipe = f"{item.spec.task}-given-steps", benchmark.recipe(direction)
                spec = replace(item.spec, task=task, recipe=recipe, options=options)
                yield Trial(benchmark.place(direction, length), spec)


def _runs(runs: Runs, benchmark: Benchmark, direction: str, length: str) -> pd.DataFrame:
    return runs.every(*benchmark.place(direction, length))


def _rates(runs: Runs, benchmark: Benchmark) -> list[float]:
    """The rates at which a benchmark has runs."""
    own = [_runs(runs, benchmark, name, name).lr for name in (ADAM, ADAMP)]
    return sorted({float(rate) for each in own for rate in each})


def _at(
    runs: Runs, benchmark: Benchmark, kind: tuple[str, str], rate: float, key: str = "test"
) -> pd.Series:
    """A number at one rate, by seed."""
    every = _runs(runs, benchmark, *kind)
    return every[every.lr == rate].set_index("seed")[key]


def _mean(runs: Runs, benchmark: Benchmark, kind: tuple[str, str], key: str = "test") -> pd.Series:
    """The mean of a number over the rates, by seed."""
    return mean_over(_at(runs, benchmark, kind, x, key) for x in _rates(runs, benchmark))


def _tuned(runs: Runs, benchmark: Benchmark, kind: tuple[str, str]) -> pd.Series:
    """The test score of each seed at the rate that its own validation set chooses."""
    own = _runs(runs, benchmark, *kind)
    ended = own.groupby("seed").seed.transform("count") == len(_rates(runs, benchmark))
    return choose(own[ended]).test


PARTS = {
    "AdamP − Adam": ("#777777", "diamond"),
    "by the effective steps": ("#0072b2", "circle"),
    "by the direction": ("#aa3377", "square"),
}
"""The gap in scores and its parts, each with a color and a symbol."""


def gap_in_parts(scores: Mapping[tuple[str, str], pd.Series]) -> list[tuple[pd.Series, pd.Series]]:
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


def _parts_table(runs: Runs, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    for benchmark in benchmarks:
        ways = {"mean over rates": _mean, "best rate": _tuned}
        ways |= {f"rate {rate:g}": partial(_at, rate=rate) for rate in _rates(runs, benchmark)}
        for way, score in ways.items():
            scores = {kind: score(runs, benchmark, kind) for kind in KINDS}
            parts = (difference(*pair) for pair in gap_in_parts(scores))
            means = column(list(scores.values()), ".4g")
            rows.append((f"{benchmark.label}, {way}", *means, *parts))
    names = (a if a == b else f"{a}, {b}'s steps" for a, b in KINDS)
    note = (
        "Test scores ± SD over seeds: means over the rates, at the rate that the validation set of "
        "each seed chooses, and at each rate. Differences are paired by seed, with Student's 95 % "
        "intervals. Each part of the gap is the average over both orders of swapping; both add up "
        "to the gap. Adam is AdamW on the keywords."
    )
    return Table("The gap in two parts", ("benchmark", *names, *PARTS), rows, note)


def _parts_picture(runs: Runs) -> Picture:
    """Draw the gap and its parts, a line for each benchmark, with their intervals."""
    figure = empty_figure("points of the test score", "")
    known = [each for each in BENCHMARKS if _rates(runs, each)]
    for place, (name, (color, symbol)) in enumerate(PARTS.items()):
        every = [{kind: _mean(runs, each, kind) for kind in KINDS} for each in known]
        cells = [difference(*gap_in_parts(scores)[place]) for scores in every]
        lines = [
            (float(cell.number), cell.interval or (cell.number, cell.number), benchmark.label)
            for cell, benchmark in zip(cells, known, strict=True)
            if cell.number is not None
        ]
        if lines:
            values, ends, labels = zip(*lines, strict=True)
            above = [float(high) - x for x, (_, high) in zip(values, ends, strict=True)]
            figure.add_scatter(
                x=rounded(values), y=labels, name=name, mode="markers", orientation="h",
                error_x={"array": rounded(above), "color": color}, offsetgroup=name,
                marker={"color": color, "size": 10, "symbol": symbol},
            )  # fmt: skip
    figure.update_layout(scattermode="group")
    figure.update_yaxes(type="category", autorange="reversed")
    figure.add_vline(x=0, line={"color": "#888888", "width": 1, "dash": "dot"})
    caption = (
        "Is AdamP more than another schedule of the effective step? The gap in scores between "
        "AdamP and Adam, the part that exchanging their effective steps makes, and the part that "
        "exchanging their directions makes; means over rates and seeds with 95 % intervals."
    )
    return Picture(figure, caption, wide=True)


def _claims(benchmark: Benchmark) -> list[Claim]:
    """Claims of the gain by steps, of the gain by direction beyond it, and of the steps given."""
    end, where = slug(benchmark.label), f"({benchmark.label})"
    adamp, given, adam, reverse = (ADAMP, ADAMP), (ADAM, ADAMP), (ADAM, ADAM), (ADAMP, ADAM)

    def gain(name: str, ours: tuple[str, str], base: tuple[str, str], text: str) -> Claim:
        return Claim(
            f"{end}.{name}", "> 0",
            lambda runs: _mean(runs, benchmark, ours) - _mean(runs, benchmark, base),
            f"{text} {where}", unit="pp", margin=EQUIVALENT, score=True,
            primary=name == "direction",
        )  # fmt: skip

    def paths(runs: Runs) -> pd.Series:
        """The path of Adam with AdamP's steps over that of AdamP."""
        key = "total_effective_step"
        return _mean(runs, benchmark, given, key) / _mean(runs, benchmark, adamp, key)

    return [
        gain("direction", adamp, given,
             "AdamP scores higher than Adam with AdamP's effective steps"),
        gain("steps", given, adam,
             "Adam scores higher with AdamP's effective steps than with its own"),
        gain("reverse", adamp, reverse,
             "AdamP scores higher with its own effective steps than with Adam's"),
        Claim(f"{end}.given", "= 1 ± 0.001", paths,
              f"Adam with AdamP's effective steps has its path on the sphere {where}", GIVEN,
              ratio=True),
    ]  # fmt: skip
