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
from spherenorm_experiments.tables import Row, Table, column, difference, mean_of

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
        tables = [_parts_table(runs, known), _rates_table(runs, known)]
        return [table for table in [*tables, _steps_table(runs, known)] if table.rows]

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


def _score(runs: Runs, benchmark: Benchmark, direction: str, length: str) -> pd.Series:
    """The mean test score over the rates, by seed."""
    kind = direction, length
    return mean_over(_at(runs, benchmark, kind, rate) for rate in _rates(runs, benchmark))


PARTS = {
    "AdamP − Adam": ("#777777", "diamond"),
    "by the effective steps": ("#0072b2", "circle"),
    "by the direction": ("#aa3377", "square"),
}
"""The gap in scores and its parts, each with a color and a symbol."""


def _tuned_score(runs: Runs, benchmark: Benchmark, direction: str, length: str) -> pd.Series:
    """The test score of each seed at the rate that its own validation set chooses."""
    own = _runs(runs, benchmark, direction, length)
    ended = own.groupby("seed").seed.transform("count") == len(_rates(runs, benchmark))
    return choose(own[ended]).test


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
    ways = (("mean over rates", _score), ("best rate", _tuned_score))
    for benchmark, (way, score) in itertools.product(benchmarks, ways):
        scores = {kind: score(runs, benchmark, *kind) for kind in KINDS}
        parts = [difference(*pair) for pair in gap_in_parts(scores)]
        rows.append((f"{benchmark.label}, {way}", *column(list(scores.values()), ".4g"), *parts))
    names = [_kind_name(*kind) for kind in KINDS]
    headings = ("benchmark", *names, *PARTS)
    note = (
        "Test scores ± SD over seeds: means over the rates, and at the rate that the validation "
        "set of each seed chooses. Differences are paired by seed, with Student's 95 % intervals. "
        "Each part of the gap is the mean of the two ways to exchange "
        "the one and keep the other; both add up to the gap. Adam is AdamW on the keywords."
    )
    return Table("The gap in two parts", headings, rows, note)


def _kind_name(direction: str, length: str) -> str:
    return direction if direction == length else f"{direction}, {length}'s steps"


def _rates_table(runs: Runs, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    for benchmark in benchmarks:
        for rate in _rates(runs, benchmark):
            scores = {kind: _at(runs, benchmark, kind, rate) for kind in KINDS}
            given = scores[ADAM, ADAMP]
            gained = difference(given, scores[ADAM, ADAM])
            left = difference(scores[ADAMP, ADAMP], given)
            means = column(list(scores.values()), ".4g")
            rows.append((f"{benchmark.label}, {rate:g}", *means, gained, left))
    headings = ["benchmark, rate", *(_kind_name(*kind) for kind in KINDS)]
    headings += ["AdamP's steps: gained", "AdamP's direction: gained"]
    note = (
        "Gained: Adam with AdamP's steps minus Adam, and AdamP minus Adam with AdamP's steps. Mean "
        "± SD over seeds; differences with Student's 95 % intervals."
    )
    return Table("Scores at each rate", headings, rows, note)


def _steps_table(runs: Runs, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    for benchmark in benchmarks:
        for rate in _rates(runs, benchmark):
            for kind in KINDS:
                path = _at(runs, benchmark, kind, rate, "total_effective_step")
                if len(path):
                    growth = mean_of(_at(runs, benchmark, kind, rate, "growth"), ".3f")
                    label = f"{benchmark.label}, {rate:g}: {_kind_name(*kind)}"
                    rows.append((label, mean_of(path, ".3g"), growth))
    headings = ("arm", "path on sphere", "norm, last / first")
    note = "The path is the sum of the mean effective steps of the scale-invariant weights."
    return Table("Steps and norms", headings, rows, note)


def _parts(runs: Runs, benchmark: Benchmark) -> list[tuple[pd.Series, pd.Series]]:
    return gap_in_parts({kind: _score(runs, benchmark, *kind) for kind in KINDS})


def _parts_picture(runs: Runs) -> Picture:
    """Draw the gap and its parts, a line for each benchmark, with their intervals."""
    figure = empty_figure("points of the test score", "")
    known = [each for each in BENCHMARKS if _rates(runs, each)]
    for place, (name, (color, symbol)) in enumerate(PARTS.items()):
        cells = [difference(*_parts(runs, benchmark)[place]) for benchmark in known]
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


def _claims(benchmark: Benchmark) -> Iterator[Claim]:
    """Claims of the gain by steps, of the gain by direction beyond it, and of the steps given."""
    where, scored = f"({benchmark.label})", f"{slug(benchmark.label)}."
    adamp, given, adam, reverse = (ADAMP, ADAMP), (ADAM, ADAMP), (ADAM, ADAM), (ADAMP, ADAM)
    said = (
        ("direction", "AdamP scores higher than Adam with AdamP's effective steps", adamp, given),
        ("steps", "Adam scores higher with AdamP's effective steps than with its own", given, adam),
        ("reverse", "AdamP scores higher with its own effective steps than with Adam's", adamp,
         reverse),
    )  # fmt: skip
    for name, text, ours, theirs in said:
        yield Claim(
            scored + name, "> 0", partial(_difference, benchmark=benchmark, ours=ours, base=theirs),
            f"{text} {where}", unit="pp", margin=EQUIVALENT, score=True,
            primary=name == "direction",
        )  # fmt: skip
    yield Claim(
        f"{scored}given", "= 1 ± 0.001", partial(_path_ratio, benchmark=benchmark),
        f"Adam with AdamP's effective steps has its path on the sphere {where}", GIVEN, ratio=True,
    )  # fmt: skip


def _difference(
    runs: Runs, benchmark: Benchmark, ours: tuple[str, str], base: tuple[str, str]
) -> pd.Series:
    return _score(runs, benchmark, *ours) - _score(runs, benchmark, *base)


def _path_ratio(runs: Runs, benchmark: Benchmark) -> pd.Series:
    """The mean path over the rates of Adam with AdamP's steps, over AdamP's, by seed."""
    given, own = (
        mean_over(_at(runs, benchmark, (direction, ADAMP), rate, "total_effective_step")
                  for rate in _rates(runs, benchmark))
        for direction in (ADAM, ADAMP)
    )  # fmt: skip
    return given / own
