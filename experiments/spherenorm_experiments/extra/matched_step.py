"""A study of our own: is AdamP more than another schedule of the effective step?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from spherenorm_experiments.claims import Claim, Statement, slug
from spherenorm_experiments.condition import Condition, Contender
from spherenorm_experiments.paper.adversarial import f4
from spherenorm_experiments.paper.audio import t4
from spherenorm_experiments.paper.debiasing import d1
from spherenorm_experiments.pictures import Picture, drawn, empty_figure, rounded
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Arm, Result, Results, Trial
from spherenorm_experiments.samples import Sample, pooled
from spherenorm_experiments.shown import growth
from spherenorm_experiments.spec import Regime
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, column, difference
from spherenorm_experiments.tuning import choose

ADAM, ADAMP = "Adam", "AdamP"
KINDS = ((ADAM, ADAM), (ADAM, ADAMP), (ADAMP, ADAM), (ADAMP, ADAMP))
"""The optimizer that gives a step its direction, and the one that gives its length."""

EQUIVALENT = 2.0
"""Points: less than the smallest gap of the three benchmarks at tuned rates, which is three."""

GIVEN = Statement("identity", "Regime.steps_of")


class Benchmark(NamedTuple):
    """A condition of the paper's benchmarks, and the rates at which it is run here.

    Attributes:
        contenders: Adam or AdamW, and AdamP; the same hyper-parameters hold for both.
        rates: around the best ones of both.
    """

    condition: Condition
    contenders: tuple[Contender, Contender]
    rates: tuple[float, ...]

    @property
    def label(self) -> str:
        return self.condition.label

    def recipe(self, direction: str) -> str:
        """The recipe that gives a step this direction."""
        return self.contenders[direction == ADAMP].recipe

    def arm(self, direction: str, length: str, rate: float) -> Arm:
        """Steps of one optimizer's direction and of one optimizer's length, at a rate."""
        given = "" if direction == length else f" with {length}'s steps"
        settings = {"condition": self.label, "direction": direction, "length": length, "lr": rate}
        label = f"{self.label}: {direction}{given}, lr {rate:g}"
        return Arm(label, self.recipe(direction), settings)


BENCHMARKS = (
    Benchmark(d1.STRIPES, (d1.ADAM, d1.ADAMP), (0.012, 0.03, 0.08)),
    Benchmark(f4.CONDITIONS[0], (f4.ADAM, f4.ADAMP), (0.015, 0.03, 0.06)),
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

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        """Both optimizers; then each with the steps of the runs of the other that have finished."""
        benchmarks = BENCHMARKS[:1] if plan.tier == "smoke" else BENCHMARKS
        own = [trial for each in benchmarks for trial in self._with_own_steps(plan, each)]
        return own + [trial for each in benchmarks for trial in _with_given_steps(each, results)]

    def _with_own_steps(self, plan: Plan, benchmark: Benchmark) -> Iterator[Trial]:
        condition, setup = benchmark.condition, benchmark.condition.on(plan.tier, real=False)
        rates = benchmark.rates[:1] if plan.tier == "smoke" else benchmark.rates
        rates = (plan.overrides["lr"],) if "lr" in plan.overrides else rates
        fields = {"regime": Regime(**setup.regime), "probes": ("norms", "steps"), **setup.fields}
        for rate, contender in itertools.product(rates, benchmark.contenders):
            name = ADAMP if contender is benchmark.contenders[1] else ADAM
            values = {**contender.fixed, "lr": rate, **setup.hyper_parameters}
            arm = benchmark.arm(name, name, rate)
            yield from self.seeded(
                plan, arm, condition.task, values, options=setup.options, **fields
            )

    def tables(self, results: Results) -> list[Table]:
        known = [each for each in BENCHMARKS if _rates(results, each)]
        tables = [_parts_table(results, known), _rates_table(results, known)]
        return [table for table in [*tables, _steps_table(results, known)] if table.rows]

    def pictures(self, results: Results) -> list[Picture]:
        return drawn([_parts_picture(results)])

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for benchmark in BENCHMARKS for claim in _claims(benchmark)]


def _with_given_steps(benchmark: Benchmark, results: Results) -> Iterator[Trial]:
    """Each optimizer with the steps of the other; a run that diverged has none to give."""
    for direction, length in KINDS:
        for rate in _rates(results, benchmark) if direction != length else ():
            arm = benchmark.arm(direction, length, rate)
            for item in results.arm(benchmark.arm(length, length, rate)).finished:
                regime = replace(item.spec.regime, steps_of=item.name)
                yield Trial(arm, replace(item.spec, recipe=arm.recipe, regime=regime))


def _rates(results: Results, benchmark: Benchmark) -> list[float]:
    """The rates at which a benchmark has runs."""
    own = (arm.settings for arm in results.arms if arm.has(condition=benchmark.label))
    return sorted({settings["lr"] for settings in own})


def _score(results: Results, benchmark: Benchmark, direction: str, length: str) -> Sample:
    """The mean test score over the rates, by seed."""
    arms = [benchmark.arm(direction, length, rate) for rate in _rates(results, benchmark)]
    scores = [results.arm(arm).values("test") for arm in arms]
    return pooled(scores) if scores else Sample({}, performance=True)


PARTS = {
    "AdamP − Adam": ("#777777", "diamond"),
    "by the effective steps": ("#0072b2", "circle"),
    "by the direction": ("#aa3377", "square"),
}
"""The gap in scores and its parts, each with a color and a symbol."""


def _tuned_score(results: Results, benchmark: Benchmark, direction: str, length: str) -> Sample:
    """The test score of each seed at the rate that its own validation set chooses."""
    rates, ended = _rates(results, benchmark), dict[int, list[Result]]()
    for rate in rates:
        for item in results.arm(benchmark.arm(direction, length, rate)):
            ended.setdefault(item.spec.seed, []).append(item)
    whole = [runs for runs in ended.values() if len(runs) == len(rates)]
    return Results([choose(runs) for runs in whole]).values("test", performance=True)


def gap_in_parts(scores: Mapping[tuple[str, str], Sample]) -> list[tuple[Sample, Sample]]:
    """The gap of AdamP to Adam, its part by the length of steps, and its part by their direction.

    Each is a difference of two samples, in the order of `PARTS`.

    With s(direction, length) each part is the mean over both values of the other one:

        length:    (s(Adam, AdamP) + s(AdamP, AdamP)) / 2 - (s(Adam, Adam) + s(AdamP, Adam)) / 2
        direction: (s(AdamP, Adam) + s(AdamP, AdamP)) / 2 - (s(Adam, Adam) + s(Adam, AdamP)) / 2

    so that both together are the gap s(AdamP, AdamP) - s(Adam, Adam). All three are over the seeds
    that all four samples have.
    """
    shared = set.intersection(*map(set, scores.values()))
    common = {
        kind: replace(sample, by_seed={seed: sample[seed] for seed in sample if seed in shared})
        for kind, sample in scores.items()
    }

    def mean_with(place: int, name: str) -> Sample:
        return pooled(sample for kind, sample in common.items() if kind[place] == name)

    return [
        (common[ADAMP, ADAMP], common[ADAM, ADAM]),
        (mean_with(1, ADAMP), mean_with(1, ADAM)),
        (mean_with(0, ADAMP), mean_with(0, ADAM)),
    ]


def _parts_table(results: Results, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    ways = (("mean over rates", _score), ("best rate", _tuned_score))
    for benchmark, (way, score) in itertools.product(benchmarks, ways):
        scores = {kind: score(results, benchmark, *kind) for kind in KINDS}
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


def _rates_table(results: Results, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    for benchmark in benchmarks:
        for rate in _rates(results, benchmark):
            scores = {
                kind: results.arm(benchmark.arm(*kind, rate)).values("test") for kind in KINDS
            }
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


def _steps_table(results: Results, benchmarks: Sequence[Benchmark]) -> Table:
    rows: list[Row] = []
    for benchmark in benchmarks:
        for rate in _rates(results, benchmark):
            for kind in KINDS:
                runs = results.arm(benchmark.arm(*kind, rate))
                if runs:
                    path = runs.cell("total_effective_step", ".3g", spread=True)
                    label = f"{benchmark.label}, {rate:g}: {_kind_name(*kind)}"
                    rows.append((label, path, runs.cell(growth, ".3f", spread=True)))
    headings = ("arm", "path on sphere", "norm, last / first")
    note = "The path is the sum of the mean effective steps of the scale-invariant weights."
    return Table("Steps and norms", headings, rows, note)


def _parts(results: Results, benchmark: Benchmark) -> list[tuple[Sample, Sample]]:
    return gap_in_parts({kind: _score(results, benchmark, *kind) for kind in KINDS})


def _parts_picture(results: Results) -> Picture:
    """Draw the gap and its parts, a line for each benchmark, with their intervals."""
    figure = empty_figure("points of the test score", "")
    known = [each for each in BENCHMARKS if _rates(results, each)]
    for place, (name, (color, symbol)) in enumerate(PARTS.items()):
        cells = [difference(*_parts(results, benchmark)[place]) for benchmark in known]
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

    def score(direction: str, length: str) -> partial[Sample]:
        return partial(_score, benchmark=benchmark, direction=direction, length=length)

    adamp, given = score(ADAMP, ADAMP), score(ADAM, ADAMP)
    yield Claim(
        f"{scored}direction",
        f"AdamP scores higher than Adam with AdamP's effective steps {where}",
        adamp, ">", given, unit="pp", equivalent=EQUIVALENT, primary=True,
    )  # fmt: skip
    yield Claim(
        f"{scored}steps",
        f"Adam scores higher with AdamP's effective steps than with its own {where}",
        given, ">", score(ADAM, ADAM), unit="pp", equivalent=EQUIVALENT,
    )  # fmt: skip
    yield Claim(
        f"{scored}reverse",
        f"AdamP scores higher with its own effective steps than with Adam's {where}",
        adamp, ">", score(ADAMP, ADAM), unit="pp", equivalent=EQUIVALENT,
    )  # fmt: skip
    yield Claim(
        f"{scored}given",
        f"Adam with AdamP's effective steps has its path on the sphere {where}",
        partial(_path, benchmark=benchmark, direction=ADAM), "=",
        partial(_path, benchmark=benchmark, direction=ADAMP),
        how="ratio", margin=1e-3, cites=GIVEN,
    )  # fmt: skip


def _path(results: Results, benchmark: Benchmark, direction: str) -> Sample:
    """The mean path over the rates, with AdamP's steps, by seed."""
    arms = [benchmark.arm(direction, ADAMP, rate) for rate in _rates(results, benchmark)]
    paths = [results.arm(arm).values("total_effective_step") for arm in arms]
    return pooled(paths) if paths else Sample({})
