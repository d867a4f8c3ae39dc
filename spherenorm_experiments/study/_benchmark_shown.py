"""The tables, pictures and claims of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spherenorm_experiments.analysis import (
    OURS,
    Arm,
    Cell,
    Claim,
    Heading,
    Key,
    Of,
    Result,
    Results,
    Row,
    Sample,
    Statement,
    Table,
    difference,
    metric_on_test,
    metrics_of,
    paper,
    percent_right,
    slug,
)
from spherenorm_experiments.report.pictures import Picture, Tries, curves, drawn, tried
from spherenorm_experiments.study._benchmark_range import range_table
from spherenorm_experiments.study._setting import Contender, Setting, arm_of, with_substitutes
from spherenorm_experiments.study._substitutes import means_of
from spherenorm_experiments.study._tuning import Tuned

__all__ = [
    "Measured",
    "benchmark_claims",
    "benchmark_pictures",
    "benchmark_tables",
    "invariant_share",
    "score_claim",
]

DELTA = 0.1


@dataclass(frozen=True)
class Measured:
    """A benchmark as far as it has run.

    Attributes:
        table: its settings.
        contenders: its optimizers.
        pairs: baselines, each with the contender that is held against it.
        results: of all runs.
        found: the search of each arm of the tuning.
    """

    table: Sequence[Setting]
    contenders: Sequence[Contender]
    pairs: Sequence[tuple[str, str]]
    results: Results
    found: Mapping[Arm, Tuned]

    def arms(self, setting: Setting) -> list[tuple[Contender, Arm]]:
        """The final arms of a setting that have a result, substitutes after their own."""
        return [
            (contender, arm)
            for contender in self.contenders
            for arm in with_substitutes(self.results, self.own(setting, contender.name))
            if self.results.arm(arm)
        ]

    def own(self, setting: Setting, name: str) -> Arm:
        """The final arm of the contender called `name`."""
        contender = next(each for each in self.contenders if each.name == name)
        return arm_of(setting, contender)

    def baseline(self, setting: Setting, arm: Arm) -> Arm | None:
        """The arm that another is compared with: for a substitute its own, else the pair's."""
        if arm.substitutes_for is not None:
            return arm.substitutes_for
        name = next((a for a, b in self.pairs if b == arm.settings["contender"]), None)
        return None if name is None else self.own(setting, name)

    @property
    def rates(self) -> str:
        """The rates of the final runs, in words: the paper's, where none was searched."""
        real = bool(self.results.having(stage="final")) and not self.found
        return "the paper's rate" if real else "its best rate"

    def rate(self, arm: Arm) -> Cell:
        """The learning rate of an arm's final runs, marked at the edges of its search."""
        unit = "(edge)" if self.is_at_edge(arm) else ""
        return Cell(self._rate(arm), ".3g", unit=unit)

    def is_at_edge(self, arm: Arm) -> bool:
        """True if the rate of an arm's final runs is the first or the last of its search."""
        search = next((found for of, found in self.found.items() if _final_of(of, arm)), None)
        rate = self._rate(arm)
        if search is None or rate is None or not search.points or "lr" not in search.points[0]:
            return False
        return search.at_edge("lr", rate)

    def _rate(self, arm: Arm) -> float | None:
        """The learning rate of an arm's final runs."""
        return next((item.spec.hyper_parameters.get("lr") for item in self.results.arm(arm)), None)

    def metrics(self, setting: Setting) -> list[str]:
        """The metrics of a setting; those that the paper has come first, and of them the score."""
        named = metrics_of(self.results.having(setting=setting.label, stage="final"))
        return list(dict.fromkeys([*(name for name in setting.paper if name in named), *named]))


def benchmark_tables(seen: Measured) -> list[Table]:
    """Scores, norms and searches; none of which no run has a number."""
    scores = {
        setting.label: {
            arm: seen.results.arm(arm).values("test")
            for _, arm in seen.arms(setting)
            if arm.substitutes_for is None
        }
        for setting in seen.table
    }
    made = (_scores(seen), range_table(scores), _norms(seen), _searches(seen))
    return [table for table in made if table.rows]


def benchmark_pictures(seen: Measured) -> list[Picture]:
    """Norms and effective steps of the final runs, and the searches, setting by setting."""
    pictures = []
    for setting in seen.table:
        final = seen.results.having(setting=setting.label, stage="final")
        where = f"{setting.label}, each optimizer at {seen.rates}"
        pictures += [
            curves(final, "norm", "norm ‖w‖", f"Norm of the scale-invariant units: {where}."),
            curves(final, "effective_step", "effective step ‖Δŵ‖",
                   f"Effective step sizes: {where}.", log_y=True),
        ]  # fmt: skip
        tries = {
            arm: Tries(found.points, found.scores, found.best)
            for arm, found in seen.found.items()
            if arm.has(setting=setting.label) and found.points and "lr" in found.points[0]
        }
        caption = f"The search on {setting.label}: validation score against the learning rate."
        pictures.append(tried(tries, "lr", "validation score", caption))
    return drawn(pictures)


def benchmark_claims(
    table: Sequence[Setting],
    pairs: Sequence[tuple[Contender, Contender]],
    grounds: Mapping[str, Statement],
    measured: Callable[[Results], Measured],
) -> list[Claim]:
    """For each setting and pair: the score, and the geometry behind it.

    Args:
        grounds: the statements behind the claims of "growth", "steps" and "detection".
        measured: reads the results, of which the caveats about searches are.
    """
    claims = [
        claim
        for setting in table
        for pair in pairs
        for claim in (_of_score(setting, pair, measured), *_of_geometry(setting, pair, grounds))
    ]
    # Two pairs may have the same second optimizer, whose detection is claimed once.
    return list({claim.name: claim for claim in claims}.values())


def score_claim(setting: Setting, baseline: str, ours: str) -> str:
    """The name of the claim about a pair's scores."""
    return f"{slug(setting.label)}.score.{slug(ours)}.{slug(baseline)}"


def _of_score(
    setting: Setting, pair: tuple[Contender, Contender], measured: Callable[[Results], Measured]
) -> Claim:
    baseline, ours = (contender.name for contender in pair)
    behind, ahead = (arm_of(setting, contender) for contender in pair)

    def caveat(results: Results) -> str:
        seen = measured(results)
        return "; ".join(
            f"the best rate of {name} is at an edge of its search"
            for name, arm in ((ours, ahead), (baseline, behind))
            if seen.is_at_edge(arm)
        )

    return Claim(
        score_claim(setting, baseline, ours),
        f"{ours} scores higher than {baseline} ({setting.label})",
        Of(ahead, "test"), ">", Of(behind, "test"), cites=setting.cites, unit=setting.unit,
        equivalent=setting.margin, paper=setting.gap(ours, baseline) or "", caveat=caveat,
        primary=True,
    )  # fmt: skip


def _of_geometry(
    setting: Setting, pair: tuple[Contender, Contender], grounds: Mapping[str, Statement]
) -> Iterator[Claim]:
    if not setting.invariant:
        return
    baseline, ours = (contender.name for contender in pair)
    behind, ahead = (arm_of(setting, contender) for contender in pair)
    where, name = f"({setting.label}, each at its rate)", slug(setting.label)
    yield Claim(
        f"{name}.growth.{slug(ours)}.{slug(baseline)}",
        f"{ours} grows its norm less than {baseline}: last over first norm {where}",
        Of(ahead, growth), "<", Of(behind, growth), how="ratio",
        cites=grounds.get("growth", OURS),
    )  # fmt: skip
    path = "total_effective_step"
    yield Claim(
        f"{name}.path.{slug(ours)}.{slug(baseline)}",
        f"{ours} keeps larger effective steps than {baseline}: ratio of the paths {where}",
        Of(ahead, path), ">", Of(behind, path), how="ratio", cites=grounds.get("steps", OURS),
    )  # fmt: skip
    yield Claim(
        f"{name}.detection.{slug(ours)}",
        f"The test takes scale-invariant weights of {ours} for such, more than 99 % of the time "
        f"({setting.label})",
        Of(ahead, percent_right(DELTA, invariant=True)), ">", 99.0, unit="%",
        limits=(0.0, 100.0), cites=grounds.get("detection", OURS),
    )  # fmt: skip


def growth(item: Result) -> float | None:
    """The last norm over the first, of the scale-invariant units."""
    start, last = (item.summary.get(name) for name in ("norm_start", "norm_last"))
    return None if not start or last is None else last / start


def _scores(seen: Measured) -> Table:
    names = list(dict.fromkeys(name for each in seen.table for name in seen.metrics(each)))
    quoted = list(dict.fromkeys(name for each in seen.table for name in each.paper))
    rows: list[Row] = []
    for setting in seen.table:
        arms = [arm for _, arm in seen.arms(setting)]
        columns = [
            means_of({arm: _metric(seen, arm, name) for arm in arms}, ".4g") for name in names
        ]
        for i, arm in enumerate(arms):
            base = seen.baseline(setting, arm)
            gap = Cell(None, missing="")
            if base is not None:
                ours, other = (seen.results.arm(each).values("test") for each in (arm, base))
                gap = difference(ours, other)
            theirs = {} if arm.substitutes_for else setting.paper
            name = arm.settings["contender"]
            rows.append(
                (
                    *(arm.label, seen.rate(arm)),
                    *(cells[i] for cells in columns),
                    Cell(len(seen.results.arm(arm).finished), "d"),
                    gap,
                    *(theirs.get(metric, {}).get(name) for metric in quoted),
                )
            )
    headings: list[Heading] = [
        *("arm", "lr", *names, "seeds", "minus its baseline"),
        *paper(*quoted),
    ]
    # (of an optimizer with two baselines, the row has the difference from the first)
    shown = {ours: baseline for baseline, ours in reversed(seen.pairs)}
    pairs = ", ".join(f"{ours} − {baseline}" for ours, baseline in shown.items())
    places = "; ".join(f"{each.label}: {each.theirs}" for each in seen.table if each.theirs)
    note = (
        (f"The paper's settings: {places}. " if places else "")
        + "Means over the seeds that all arms of a setting have ended ± standard deviation; of a "
        "substitute over those of them that it has. (edge): the best rate is the first or the last "
        f"of its search. Differences ({pairs}) are of the score, paired by seed, with Student's "
        "95 % intervals."
    )
    return Table("Scores", headings, rows, note)


def _norms(seen: Measured) -> Table:
    right: Key = percent_right(DELTA, invariant=True)
    wrong: Key = percent_right(DELTA, invariant=False)
    rows: list[Row] = []
    for setting in seen.table:
        arms = [arm for _, arm in seen.arms(setting)]
        keys: tuple[tuple[Key, str], ...] = (
            ("norm_start", ".3g"), ("norm_last", ".3g"), (growth, ".3f"),
            ("total_effective_step", ".3g"), (right, ".1f"), (wrong, ".1f"),
        )  # fmt: skip
        columns = [means_of({arm: seen.results.arm(arm).values(key) for arm in arms}, form)
                   for key, form in keys]  # fmt: skip
        for i, arm in enumerate(arms):
            runs = seen.results.arm(arm)
            share = runs.cell(invariant_share, ".1f", spread=True)
            rows.append((arm.label, share, views_of(runs), *(cells[i] for cells in columns)))
    headings = (
        *("arm", "invariant share (%)", "views", "norm first", "norm last", "last / first"),
        *("path on sphere", "detected (%)", "left alone (%)"),
    )
    note = (
        "The norm is the mean over the scale-invariant units. Views: in how many weights of two or "
        "more dimensions the audit finds invariance channel by channel, of the whole layer, and "
        "none. Detected: scale-invariant weights that the test with δ = 0.1 takes for such; left "
        "alone: others that it does not."
    )
    return Table("Norms, steps and detection", headings, rows, note)


def invariant_share(item: Result) -> float:
    """The percentage of the parameters that are scale-invariant."""
    return 100 * float(item.summary["invariant_share"])


def views_of(runs: Results) -> str:
    """The number of weights by the view in which the audit finds them invariant."""
    views = next((list(item.summary["views"].values()) for item in runs), [])
    counts = [("channel", "channel"), ("layer", "layer"), (None, "none")]
    return ", ".join(f"{views.count(view)} {name}" for view, name in counts if view in views)


def _searches(seen: Measured) -> Table:
    rows: list[Row] = []
    for arm, found in seen.found.items():
        if found.points:
            scores = "; ".join(
                f"{point['lr']:g}: {score:.4g}" if math.isfinite(score) else f"{point['lr']:g}: –"
                for point, score in zip(found.points, found.scores, strict=True)
                if "lr" in point
            )
            rows.append((arm.label, Cell(len(found.points), "d"), scores))
    note = "Mean validation scores on the seeds of the tuning, which no final run has."
    return Table("Searches", ("arm", "trials", "rate: score"), rows, note)


def _metric(seen: Measured, arm: Arm, name: str) -> Sample:
    return seen.results.arm(arm).values(metric_on_test(name), performance=True)


def _final_of(searched: Arm, final: Arm) -> bool:
    """True if a search is that of a final arm."""
    same = {**searched.settings, "stage": "final"} == final.settings
    return same and searched.recipe == final.recipe
