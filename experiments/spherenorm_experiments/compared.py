"""The page of a comparison: what was compared, scores with intervals, curves, and the rest folded.

The same table and sentences are what `compare` leaves in the terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spherenorm_experiments.claims import PERFORMANCE_SEEDS, Decision
from spherenorm_experiments.comparison import INTERIM, Comparison, metric_of
from spherenorm_experiments.page import archive, compare_template, library, panels
from spherenorm_experiments.pictures import (
    Line,
    Picture,
    color_of,
    curves,
    drawn,
    empty_figure,
    rounded,
)
from spherenorm_experiments.runs import number
from spherenorm_experiments.sections import Section, labeled
from spherenorm_experiments.shown import Entry, at_each, entries_of, taken_by
from spherenorm_experiments.stats import interval, mean
from spherenorm_experiments.store import write_file
from spherenorm_experiments.tables import Cell, Row, Table, difference, mean_of

RULES = (
    "Every trial runs on every seed, and each seed takes the trial with its own best validation "
    "score, so that a seed is one repetition of the whole search. Two optimizers are compared seed "
    "by seed, by Student's test; where a run diverged, by the exact sign test. p counts all claims "
    "(Holm), and that more seeds may follow (times 1.25 at the first look, 10 at the second). So p "
    "may be above 0.05 where the interval, which is of this pair alone, is without 0. A score "
    "needs six seeds.",
    "*Shown*: the difference is there, at the level 0.05; the claim that the first scores higher "
    "is supported or contradicted. *Equivalent*: it is shown to be within the margin. "
    "*Inconclusive*: neither. A difference that is shown may lie within the margin.",
)


class Sentence(NamedTuple):
    """A pair in words, with the verdict about it."""

    text: str
    verdict: str
    reason: str

    @property
    def word(self) -> str:
        """The verdict about the text, which says higher or lower."""
        return "shown" if self.verdict in ("supported", "contradicted") else self.verdict

    def __str__(self) -> str:
        return f"{self.text}: {self.word} {self.reason}".rstrip()


class Compared:
    """A section of a comparison on one condition, as it is shown."""

    def __init__(self, section: Section) -> None:
        study = section.study
        assert isinstance(study, Comparison)
        self.section, self.study, self.runs = section, study, section.results
        self.condition = study.conditions[0]
        self.entries = entries_of(study, self.runs)
        self.metric = metric_of(self.runs, self.condition)

    @property
    def title(self) -> str:
        names = [arm.name for arm in self.study.arms]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        return f"{self.condition.place}: {listed}"

    @property
    def about(self) -> str:
        """The runs, in two sentences."""
        if not len(self.runs):
            return f"No run has ended of {self.runs.planned}."
        specs = [item.spec for item in self.runs]
        seeds, runs = len({spec.seed for spec in specs}), len(specs)
        lengths = {f"{x.epochs} epochs of batches of {x.batch_size}, {x.schedule}" for x in specs}
        searches = {
            name: each for e in self.entries for name, each in self.study.search(e.arm).over.items()
        }
        trials = {len(each.tried) for each in self.entries} or {0}
        spans = ", ".join(f"{name} {min(of):g} to {max(of):g}" for name, of in searches.items())
        tier = f"Tier {self.section.plan.tier}: " if self.section.plan.tier != "small" else ""
        return (
            f"{tier}{runs} runs, {seeds} seeds; {'; '.join(sorted(lengths))} schedule. Each "
            f"optimizer is tuned in {max(trials)} trials ({spans}), seed by seed on validation."
        )

    @property
    def sentences(self) -> list[Sentence]:
        """One for each pair."""
        pairs = {claim.claim.name: claim for claim in self.section.decisions}
        scored = [claim for claim in pairs.values() if claim.claim.primary]
        named = zip(self.study.comparisons, scored, strict=False)
        return [self._sentence(base.name, ours.name, each) for (_, (base, ours)), each in named]

    def _sentence(self, base: str, ours: str, decision: Decision) -> Sentence:
        if not decision.has_results:
            return Sentence(
                f"{ours} against {base}", "inconclusive", "(no seed has a score in both)"
            )
        number, claim = decision.numbers[0], decision.claim
        unit = " points" if claim.unit == "pp" else ""
        lost = f"; {number.diverged} seeds diverged" if number.diverged else ""
        if number.number is None:
            text = f"{ours} against {base}: no seed has a score in both{lost}"
        else:
            size, word = abs(number.number), "higher" if number.number >= 0 else "lower"
            ends = number.interval
            between = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
            text = f"{ours} scores {size:.3g}{unit} {word} than {base}{between}{lost}"
            if size == 0 and ends == (0.0, 0.0):
                text = f"{ours} scores as {base} does on each seed{lost}"
        margin, ends = claim.same or 0, number.interval
        small = ends is not None and -margin < ends[0] and ends[1] < margin
        shown = f"p = {decision.p or 0:.2g}, {decision.seeds} seeds"
        shown += f"; within ±{margin:g}{unit}, which count as equal" if small else ""
        reasons = {
            "equivalent": f"(within ±{margin:g}{unit})",
            "supported": f"({shown})",
            "contradicted": f"({shown})",
        }
        few = ""
        if decision.p is None and decision.seeds < PERFORMANCE_SEEDS:
            few = f"{decision.seeds} seeds; a verdict needs {PERFORMANCE_SEEDS}"
        if INTERIM in decision.detail:
            few = INTERIM
        if not self.section.decides:
            few = "the smoke tier decides nothing"
        level = "" if decision.p is None else f"p = {decision.p:.2g}: "
        reason = reasons.get(decision.verdict, f"({few or level + 'may be chance'})")
        last = [x.arm.name for x in self.entries if x.arm.name in (base, ours) and x.marks]
        if last:
            reason += f"; the best value of {' and of '.join(last)} is the last that was tried"
        return Sentence(text, decision.verdict, reason)

    @property
    def table(self) -> Table:
        """A row for each optimizer: what its seeds choose, and how it scores."""
        rows: list[Row] = []
        for entry in self.entries:
            test, gap = entry.chosen.test, Cell(None, missing="")
            low, high = interval(test[np.isfinite(test)].tolist())
            score = replace(mean_of(test, ".4g"), spread=(high - low) / 2)
            if entry.base is not None:
                gap = difference(test, self.runs.best(self.condition.label, entry.base).test)
            diverged = sum(item.diverged for item in entry.every.run)
            growth = mean_of(number(entry.chosen, "growth"), ".3g")
            rows.append(
                (entry.arm.name, _chosen(entry), score, gap, growth, Cell(diverged, "d"))
            )  # fmt: skip
        base = self.study.baseline.name
        columns = ("optimizer", "chosen by seeds", f"test {self.metric}", f"minus {base}")
        note = (
            "± of a score is half of its 95 % interval, of a norm the standard deviation. (edge): "
            "the best value is the end of the range. (outermost): no value was tried beyond it. "
            "Then a wider range, or more trials, may change the order. Diverged: runs of all "
            "trials."
        )
        return Table("Scores", (*columns, "norm, last / first", "diverged"), rows, note)

    def pictures(self) -> tuple[list[Picture], list[Picture]]:
        """Those of scores, and those of norms and steps."""
        names = self.entries[0].names if self.entries else []
        scores = [at_each(self.entries, name, self.metric) for name in names] + [_differences(self)]
        final = [Line(each.arm.name, each.arm.recipe, each.runs) for each in self.entries]
        words = "each seed at the trial that it chooses, mean and range over seeds."
        shown = [
            curves(final, "norm", "norm ‖w‖", f"Norm of the scale-invariant weights, {words}"),
            curves(final, "effective_step", "effective step ‖Δŵ‖", f"Effective step, {words}",
                   log_y=True),
        ]  # fmt: skip
        return drawn(scores), drawn(shown)


def _differences(shown: Compared) -> Picture:
    """The differences of the pairs: ticks are seeds, bars 95 % intervals."""
    figure = empty_figure(f"difference, {shown.metric}", "")
    margin = next((each.claim.same for each in shown.section.decisions if each.claim.same), None)
    if margin is not None:
        figure.add_vrect(-margin, margin, fillcolor="rgba(128,128,128,0.15)", line_width=0)
    labels = []
    for entry in (each for each in shown.entries if each.base is not None):
        theirs = shown.runs.best(shown.condition.label, entry.base or "").test
        gaps = (entry.chosen.test - theirs).dropna()
        gaps = gaps[np.isfinite(gaps)]
        label, color = f"{entry.arm.name} − {entry.base}", color_of(entry.arm.recipe)
        values = gaps.tolist()
        if not values:
            continue
        labels.append(label)
        (low, high), center = interval(values), mean(values)
        ticks = {"symbol": "line-ns-open", "size": 12, "color": color}
        figure.add_scatter(
            x=rounded(values), y=[label] * len(values), mode="markers", marker=ticks,
            showlegend=False, hovertext=[f"seed {seed}" for seed in gaps.index],
        )  # fmt: skip
        ends = {"type": "data", "array": [high - center], "arrayminus": [center - low]}
        figure.add_scatter(
            x=rounded([center]), y=[label], mode="markers", showlegend=False,
            marker={"size": 11, "color": color},
            error_x=None if math.isnan(low) else {**ends, "color": color, "thickness": 3},
        )  # fmt: skip
    rows = [-0.6, len(labels) - 0.4]
    order = {"categoryorder": "array", "categoryarray": labels[::-1]}
    figure.update_yaxes(type="category", range=rows, **order)
    figure.update_xaxes(zeroline=True)
    caption = "Each seed at its best trial: ticks are seeds, bars 95 % intervals."
    if margin is not None:
        caption += f" Within the grey band of ±{margin:g} two scores count as equal."
    return Picture(figure, caption)


def _chosen(entry: Entry) -> str:
    """The points that the seeds take, and how often."""
    listed = ", ".join(f"{point} ×{count}" for point, count in taken_by(entry))
    marks = sorted({*entry.marks.values()})
    return " ".join([listed, *(f"({mark})" for mark in marks)])


def write_comparison(section: Section, path: Path) -> Compared:
    """Write the page of one comparison.

    Raises:
        StoreError: it cannot be written.
    """
    shown = Compared(section)
    first, second = shown.pictures()
    scores, curves_ = panels(first, "scores"), panels(second, "curves")
    entry: dict[str, Any] = {"label": section.label, "anchor": "scorecard"}
    claims = [decision.to_json() for decision in section.decisions]
    page = compare_template().render(
        title=shown.title, about=shown.about, notes=section.notes, sentences=shown.sentences,
        scores=scores, curves=curves_, table=shown.table, rules=RULES,
        details=section.study.every_table(section.results),
        claims=labeled({**entry, "claims": claims}),
        library=library(), archive=archive([*scores, *curves_]),
    )  # fmt: skip
    write_file(path, page.encode())
    return shown


def is_comparison(sections: Sequence[Section]) -> bool:
    """True for one section, of optimizers that are compared on one condition without the paper."""
    if len(sections) != 1 or not isinstance(study := sections[0].study, Comparison):
        return False
    return len(study.conditions) == 1 and not study.departures
