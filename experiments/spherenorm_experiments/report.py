"""Sections, the studies of a store with their results, and pages of them that open offline."""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import importlib
import itertools
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from spherenorm.support import one_line
from spherenorm_experiments.campaign import planned_trials
from spherenorm_experiments.comparison import COMMAND, INTERIM, Comparison, find_study
from spherenorm_experiments.comparison_report import (
    ArmResult,
    metric_of,
    training_of,
    with_direction,
)
from spherenorm_experiments.lookup import RecipeError, study_packages
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import TIERS, Plan, Request
from spherenorm_experiments.runs import Result, Runs, Trial, hyper
from spherenorm_experiments.spec import spec_name
from spherenorm_experiments.store import Store, StoreWarning, write_file
from spherenorm_experiments.study import Study
from spherenorm_experiments.verdict import (
    KINDS,
    PERFORMANCE_SEEDS,
    TITLES,
    VERDICTS,
    Decision,
    Verdict,
    rules,
    slug,
    without_verdict,
)

NAMED = 3
"""Changed modules that a note names."""


@dataclass(frozen=True)
class Section:
    """A study under one setting, with the results of all requests for it.

    Attributes:
        plan: the setting: a plan without a choice of seeds.
        older: of each run of other code than is here, what has changed since.
    """

    study: Study
    plan: Plan
    results: Runs
    older: Sequence[Sequence[str]] = ()

    @property
    def notes(self) -> list[str]:
        """Runs that failed or are missing, and the number of those of other code than is here."""
        return [*self.failures, *self.notes_on_results]

    @property
    def failures(self) -> list[str]:
        """Each error by which runs failed."""
        return [f"failed: {text}" for text in dict.fromkeys(self.results.failed)]

    @property
    def notes_on_results(self) -> list[str]:
        """The notes beside those on runs that failed."""
        notes = []
        ended, planned = len(self.results), self.results.planned
        if ended < planned:
            rest = "`resume` goes on with the rest"
            if self.results.failed:  # which fail alike, as long as nothing is mended
                rest = "mend what failed, then `resume` runs the rest"
            notes.append(f"{ended} of {planned} runs have a result; {rest}")
        if self.older:
            modules = [name or "unknown" for name in sorted({*itertools.chain(*self.older)})]
            more = f" and {len(modules) - NAMED} more" if len(modules) > NAMED else ""
            listed = f"{', '.join(modules[:NAMED])}{more}"
            count = f"{len(self.older)} of {ended} runs are of other code than is here"
            notes.append(f"{count}; changed since: {listed}")
        return notes

    @property
    def label(self) -> str:
        """The study's name, and what departs from the defaults."""
        departures = self.plan.departures
        return f"{self.study.name} ({', '.join(departures)})" if departures else self.study.name

    @property
    def heading(self) -> str:
        """The tier, the seeds and the settings: they tell it from the study's other sections."""
        departures = [part for part in self.plan.departures if part != self.plan.tier]
        return ", ".join([f"{self.plan.tier} tier", _seeds(self.results), *departures])

    @property
    def decides(self) -> bool:
        """False in the smoke tier, whose few steps only show that a study runs to its end."""
        return self.plan.tier != "smoke"

    @functools.cached_property
    def decisions(self) -> list[Decision]:
        """The decisions on all claims of the study."""
        decided = self.study.decide_claims(self.results)
        if self.decides:
            return decided
        return [without_verdict(decision, "the smoke tier decides nothing") for decision in decided]

    @functools.cached_property
    def summary(self) -> Sequence[str]:
        """The study's own sentences on what came out; none if it has none."""
        return self.study.summary(self.results, self.decisions)


def sections(
    store: Store, requests: Sequence[Request], wanted: Collection[str] = ()
) -> list[Section]:
    """Read the section of each study and setting that was ever asked for.

    They are in the order of their package, the defaults before other settings.

    Args:
        wanted: the names of studies, as these have them or as a command finds them; only these, if
            there are any.

    Warns:
        StoreWarning: a study is not here, and is left out.
    """
    by_setting: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        setting = json.dumps(request.plan.without_seeds.to_json(), sort_keys=True)
        for name in request.studies:
            by_setting.setdefault((name, setting), []).append(request)
    study_sections = []
    for (name, _), plan_requests in by_setting.items():
        try:
            study = find_study(name)
            if wanted and not {name, study.name} & {
                *wanted,
                *(name_wanted.lower() for name_wanted in wanted),
            }:
                continue
            results = _merge_requests(study, plan_requests, store)
        except Exception as error:  # a user's study may raise anything
            left_out = f"study {name!r} is left out: {one_line(error)}"
            warnings.warn(left_out, StoreWarning, stacklevel=2)
            continue
        old = [list(modules) for item in results if (modules := store.changed(item.code))]
        study_sections.append(Section(study, plan_requests[0].plan.without_seeds, results, old))
    return sorted((section for section in study_sections if section.results.planned), key=_order)


def _merge_requests(study: Study, requests: Sequence[Request], store: Store) -> Runs:
    """Return the stored results of several requests for a study as one: seeds and arms add up.

    They know how many seeds each request has added, since a claim says if its number has grown.
    """
    parts = [_trials(study, request.plan, store) for request in requests]
    trials = {(trial.place, spec_name(trial.spec)): trial.spec for part in parts for trial in part}
    rows = store.newest(trials.values())
    items = [Result.of(place, rows[name]) for place, name in trials if name in rows]
    missing = [key for key in trials if key[1] not in rows]
    errors, places = _errors(store) if missing else {}, [place for place, _ in missing]
    failed = [f"{place}: {errors[name]}" for place, name in missing if name in errors]
    ordered_places = dict.fromkeys([*(item.place for item in items), *places])
    seeds, counts = set[int](), []
    for part in parts:
        seeds |= {trial.spec.seed for trial in part if spec_name(trial.spec) in rows}
        counts.append(len(seeds))
    missing_counts = {place: places.count(place) for place in ordered_places}
    return Runs(items, failed, missing_counts, counts)


def _trials(study: Study, plan: Plan, store: Store) -> list[Trial]:
    """Return the trials that a plan asks for, as far as they are known."""
    trials, results = planned_trials(study, plan, Runs()), Runs()
    while True:
        rows = store.newest(trial.spec for trial in trials)
        named = [(trial.place, spec_name(trial.spec)) for trial in trials]
        results = Runs(Result.of(place, rows[name]) for place, name in named if name in rows)
        more = planned_trials(study, plan, results)
        if len(more) <= len(trials):
            return trials
        trials = more


def _errors(store: Store) -> dict[str, str]:
    """Return the errors of runs that have failed, by the names of their specs."""
    errors: dict[str, str] = {}
    for folder in store.folders():
        status = folder.status() if not (folder.path / "rows.json").exists() else {}
        if status.get("state") == "failed":
            error = status.get("error", "no reason is known")
            names = status.get("names") or [folder.name]
            errors |= {name.rpartition("-")[0]: error for name in names}
    return errors


def _order(section: Section) -> tuple[Any, ...]:
    name, plan = section.study.name, section.plan
    order = [name for package in study_packages() for name in getattr(package, "ORDER", ())]
    place = order.index(name) if name in order else len(order)
    rank = bool(plan.overrides), -TIERS.index(plan.tier), plan.departures
    return place, name, *rank


def _seeds(results: Runs) -> str:
    """Return the seeds in runs of consecutive ones: "seeds 0–4, 7"."""
    seeds = sorted({item.spec.seed for item in results})
    starts = [seed for seed in seeds if seed - 1 not in seeds]
    ends = [seed for seed in seeds if seed + 1 not in seeds]
    spans = (str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(spans)}" if seeds else "no runs yet"


class Group(NamedTuple):
    """The claims of one kind, and how many of them have each verdict."""

    kind: str
    title: str
    claims: list[Mapping[str, Any]]
    counts: dict[str, int]

    @property
    def listed(self) -> str:
        """The counts in words."""
        return ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items())


def with_labels(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims of a section with its label and anchor, and a label such as t1.growth.sgdp."""
    section = {"study": entry["label"], "anchor": entry["anchor"]}
    return [
        {**section, "label": f"{entry['anchor']}.{claim['name']}", **claim}
        for claim in entry["claims"]
    ]


def group_by_kind(claims: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Return the claims by kind, the paper's first; kinds without a claim are left out."""
    all_claims, grouped = list(claims), []
    for kind in KINDS:
        chosen = [claim for claim in all_claims if claim["kind"] == kind]
        verdicts = [claim["verdict"] for claim in chosen]
        counts = [
            (str(v), verdicts.count(v)) for v in VERDICTS if v in verdicts or v in VERDICTS[:2]
        ]
        grouped += [Group(kind, TITLES[kind], chosen, dict[str, int](counts))] if chosen else []
    return grouped


RULES = (
    "Every trial runs on every seed, and each seed takes the trial with its own best validation "
    "score, so that a seed is one repetition of the whole search. Two optimizers are compared seed "
    "by seed, by Student's test; where a run diverged, by the exact sign test. p counts all claims "
    "(Holm), so it may be above 0.05 where the interval, which is of this pair alone, is without "
    "0. Where seeds were added after a look, the claim says so, and p is not adjusted for it. A "
    "score needs six seeds.",
    "*Better* and *worse*: the difference is there, at the level 0.05; the claim that the first "
    "scores better is supported or contradicted. *Equivalent*: it is shown to be within the "
    "margin. *Inconclusive*: neither. A difference that is there may lie within the margin.",
)


class Page(NamedTuple):
    """The content of a page: all claims with the labels of their sections, and the problems."""

    claims: list[dict[str, Any]]
    problems: list[str]


def write_report(sections: Sequence[Section], path: Path) -> Page:
    """Write the page; one comparison without the paper has a page of its own kind.

    Warns:
        StoreWarning: a section needs a recipe that is not here, and is left out.

    Raises:
        StoreError: the page cannot be written.
    """
    contexts = [entry for section in sections if (entry := _section_context(section)) is not None]
    for number, entry in enumerate(contexts):
        earlier = sum(previous["name"] == entry["name"] for previous in contexts[:number])
        entry["anchor"] = f"{entry['name']}-{earlier + 1}" if earlier else entry["name"]
        entry["claims"] = with_labels(entry)
        entry["groups"] = group_by_kind(entry["claims"])
        entry["figures"] = panels(entry["pictures"], f"figure-{entry['anchor']}")
    claims = [claim for entry in contexts for claim in entry["claims"]]
    figures = [panel for entry in contexts for panel in entry["figures"]]
    if is_comparison(sections) and contexts:
        content = {"section": contexts[0], "compared": ComparisonText(sections[0]), "rules": RULES}
        name = "compare.html.j2"
    else:
        readable = [section for section in sections if not _raises(section)]
        name = "report.html.j2"
        content = {
            "sections": contexts,
            "groups": group_by_kind(claims),
            "overviews": overviews(readable),
            "rules": rules(),
            "date": datetime.date.today().isoformat(),
        }
    page = _template(name).render(library=library(), archive=archive(figures), **content)
    write_file(path, page.encode())
    problems = [
        f"{entry['label']}: {problem}" for entry in contexts for problem in entry["problems"]
    ]
    return Page(claims, problems)


@dataclass(frozen=True)
class Overview:
    """All results of a package of studies together, ahead of the sections of each study.

    The `__init__` of the package names a function of the sections that returns one, or None where
    no section is of its studies: `OVERVIEW = "overview:overview"`.

    Attributes:
        title: of the page.
        head: HTML at the top of the page, with its heading.
        links: texts of links to anchors in the body, by anchor.
        body: HTML ahead of the sections.
        markdown: the same, as the beginning of the results' index.
        rules: sentences on how the package's conclusions follow from verdicts.
    """

    title: str
    head: Markup
    links: Mapping[str, str]
    body: Markup
    markdown: str
    rules: Sequence[str] = ()


def overviews(sections: Sequence[Section]) -> list[Overview]:
    """Return the overviews of all packages of studies that have one of these sections."""
    made_overviews: list[Overview] = []
    for package in study_packages():
        address: str = getattr(package, "OVERVIEW", "")
        if address:
            module, _, attribute = address.partition(":")
            make = getattr(importlib.import_module(f"{package.__name__}.{module}"), attribute)
            overview: Overview | None = make(sections)
            made_overviews += [] if overview is None else [overview]
    return made_overviews


def _raises(section: Section) -> bool:
    """Return True if its claims cannot be decided, which its own section tells."""
    try:
        return not section.decisions
    except Exception:  # a user's study may raise anything
        return True


def _section_context(section: Section) -> dict[str, Any] | None:
    """A section as the template takes it; None, with a warning, if a recipe of it is not here."""
    study, results = section.study, section.results
    parts: dict[str, Callable[[], list[Any]]] = {
        "claims": lambda: [claim.to_json() for claim in section.decisions],
        "tables": lambda: study.all_tables(results),
        "pictures": lambda: study.pictures(results),
        "summary": lambda: list(section.summary),
    }
    parts_made: dict[str, list[Any]] = {}
    problems = []
    for name, part in parts.items():
        try:
            parts_made[name] = part()
        except RecipeError as error:
            warnings.warn(f"{section.label} is left out: {error}", StoreWarning, stacklevel=2)
            return None
        except Exception as error:  # a study that raises leaves the others their sections
            parts_made[name] = []
            problems.append(f"no {name}: {one_line(error)}")
    return {
        "name": study.name,
        "label": section.label,
        "heading": section.heading,
        "title": study.title(),
        "short": ", ".join([study.title().split(":")[0], *section.plan.departures]),
        "about": study.about().split("\n\n"),
        "summary": parts_made["summary"],
        "runs": len(results),
        "planned": results.planned,
        "diverged": _diverged(section),
        "problems": problems,
        "notes": section.notes,
        **parts_made,
    }


def _diverged(section: Section) -> str:
    """Return the runs that diverged: each with its step, or of an arm with many points how many."""
    texts, diverged = [], [item for item in section.results if item.diverged]
    for place in dict.fromkeys(item.place for item in diverged):
        runs_of_place = [item for item in section.results if item.place == place]
        steps = {x.spec.seed: x.summary["diverged_at"] for x in runs_of_place if x.diverged}
        if any(item.index is not None for item in runs_of_place):
            texts.append(
                f"{place}: {sum(x.diverged for x in runs_of_place)} of {len(runs_of_place)}"
            )
        else:
            texts += [f"{place}, seed {seed}: step {step}" for seed, step in steps.items()]
    more = "; …" if len(texts) > 6 else ""
    return f"{len(diverged)} of them diverged ({'; '.join(texts[:6])}{more})" if diverged else ""


class Sentence(NamedTuple):
    """A pair in words, with the verdict about it."""

    text: str
    verdict: Verdict
    word: str
    reason: str
    direction: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.word} ({self.reason})"

    @property
    def ground(self) -> str:
        """The reason with the direction, for a page on which the sentence may stand alone."""
        return f"({'; '.join(filter(None, [self.reason, self.direction]))})"


def _searched(entry: ArmResult) -> str:
    """Return the number of an arm's trials, and what they span."""
    count, spans = len(entry.grid_scores), []
    for name in (name for name in entry.search.names if hyper(name) in entry.grid_scores):
        low, high = entry.grid_scores[hyper(name)].min(), entry.grid_scores[hyper(name)].max()
        spans.append(f"{name} {low:g} to {high:g}" if low < high else f"{name} {low:g}")
    return f"{count} trial{'s' * (count != 1)} ({', '.join(spans)})"


class ComparisonText:
    """A comparison in words."""

    def __init__(self, section: Section) -> None:
        study = section.study
        assert isinstance(study, Comparison)
        self.section, self.study = section, study
        self.entries = study.arm_results(section.results)

    @property
    def title(self) -> str:
        names = [arm.name for arm in self.study.arms]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
        score = f" ({self.score})" if self.entries else ""
        condition = self.study.conditions[0]
        place = condition.place if len(self.study.conditions) == 1 else condition.task
        return f"{place}{score}: {listed}"

    @property
    def score(self) -> str:
        """The metric that decides, with the direction in which it is better."""
        return with_direction([(metric_of(self.entries), self.entries[0].better)])

    @property
    def best_points(self) -> list[str]:
        """A sentence with the tuned values of each optimizer; none if nothing is tuned."""
        names = [
            f"{entry.name_at_best} on {entry.condition.place}"
            if len(self.study.conditions) > 1
            else entry.name_at_best
            for entry in self.entries
            if entry.search.names
        ]
        return [f"Best on validation, on average over seeds: {', '.join(names)}."] if names else []

    @property
    def advice(self) -> list[str]:
        """Sentences that say how far to go on, for each best value at the edge of its range."""
        return [sentence for entry in self.entries for sentence in entry.edge_advice]

    @property
    def about(self) -> str:
        """The runs, in two sentences."""
        runs, tier = self.section.results, self.section.plan.tier
        searches = {result.arm.name: _searched(result) for result in self.entries}
        alike = len({*searches.values()}) == 1
        tuned = {"each optimizer": next(iter(searches.values()))} if alike else searches
        spans = ", ".join(f"{name} in {search}" for name, search in tuned.items())
        if not len(runs):
            return f"No run has ended of {runs.planned}."
        seeds = len({item.spec.seed for item in runs})
        return (
            f"{f'Tier {tier}: ' if tier != 'small' else ''}{len(runs)} runs, {seeds} "
            f"seed{'s' * (seeds != 1)}; {training_of(runs)}. Tuned seed by seed on validation: "
            f"{spans}."
        )

    @property
    def sentences(self) -> list[Sentence]:
        """A sentence for each pair, on its scores and then on its steps to a target."""
        pairs = self.study.comparisons if self.study.scored else []
        decisions = self.section.decisions
        sentences = []
        for number, (condition, (base, arm)) in enumerate(pairs):
            place = f"{condition.label}: " if len(self.study.conditions) > 1 else ""
            pair_sentences = [self._sentence(arm.name, base.name, decisions[number])]
            if self.study.target is not None:
                speed = decisions[len(pairs) + number]
                pair_sentences.append(self._sentence_on_speed(arm.name, base.name, speed))
            sentences += [
                sentence._replace(text=place + sentence.text) for sentence in pair_sentences
            ]
        return sentences

    def _sentence_on_speed(self, arm: str, base: str, decision: Decision) -> Sentence:
        number = decision.numbers[0] if decision.numbers else None
        text = f"{arm} against {base}: no seed has reached {self.study.target} in either"
        if number is not None and number.number is None:
            text = f"{arm} against {base}: no seed has reached {self.study.target} in both"
        elif number is not None:
            text = f"{arm} reaches {self.study.target} in {number} of the steps of {base}"
        reason = f"{self._reason(decision, 0.0, '')}; fewer is better"
        return Sentence(text, decision.verdict, decision.verdict_word, reason)

    def _sentence(self, arm: str, base: str, decision: Decision) -> Sentence:
        claim, unit = decision.claim, " points" if decision.claim.unit == "pp" else ""
        number = decision.numbers[0] if decision.numbers else None
        ends = number.interval if number else None
        if number is not None and number.diverged:  # the sign test decides
            text = f"{arm} against {base}"
            if decision.verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
                above = decision.supported == (claim.sign == ">")
                word = "higher" if above else "lower"
                text = f"{arm} scores {word} than {base} on most seeds where they differ"
            text += f"; {number.diverged} seeds diverged"
        elif number is None or number.number is None:
            text = f"{arm} against {base}: no seed has a score in both"
        elif number.number == 0 and ends == (0.0, 0.0):
            text = f"{arm} scores as {base} does on each seed"
        else:
            size, word = abs(number.number), "higher" if number.number >= 0 else "lower"
            between = "" if ends is None else f" [{ends[0]:+.3g}, {ends[1]:+.3g}]"
            text = f"{arm} scores {size:.3g}{unit} {word} than {base}{between}"
        direction = "lower is better" if claim.sign == "<" else "higher is better"
        reason = self._reason(decision, claim.tested_margin or 0, unit)
        word = decision.verdict_word
        return Sentence(text, decision.verdict, word, reason, direction)

    def _reason(self, decision: Decision, margin: float, unit: str) -> str:
        """Return the reason for a verdict, or what is missing for one."""
        p, seeds = decision.p, decision.seeds
        counted = f"{seeds} seed{'s' * (seeds != 1)}"
        if decision.verdict is Verdict.EQUIVALENT:
            return f"within ±{margin:g}{unit}"
        if decision.verdict in (Verdict.SUPPORTED, Verdict.CONTRADICTED):
            ends = decision.numbers[0].interval
            small = ends is not None and -margin < ends[0] and ends[1] < margin
            small = small and not decision.numbers[0].diverged
            equal = f"; within ±{margin:g}{unit}, which count as equal" if small else ""
            return f"p = {p or 0:.2g}, {counted}{equal}"
        if decision.verdict is Verdict.INCONCLUSIVE:
            effect = decision.detectable_text
            return f"p = {p:.2g}" + (f"; {counted} detect {effect}" if effect else "")
        if not self.section.decides:
            return "the smoke tier decides nothing"
        if INTERIM in decision.detail:
            return INTERIM
        return f"{counted}; a verdict needs {PERFORMANCE_SEEDS}"


def is_comparison(sections: Sequence[Section]) -> bool:
    """True for one section, of a request to compare or of one condition without the paper."""
    if len(sections) != 1 or not isinstance(study := sections[0].study, Comparison):
        return False
    is_request = study.lookup_name.startswith(f"{COMMAND} ")
    return (is_request or len(study.conditions) == 1) and not study.departures


@functools.cache
def _template(name: str) -> jinja2.Template:
    return html_templates().get_template(name)


def html_templates(*folders: Path) -> jinja2.Environment:
    """Return the templates of HTML pages, with their filters; see `template_environment`."""
    environment = template_environment(*folders, autoescape=True)
    environment.filters |= {"code": _code, "words": _words, "slug": slug}
    return environment


def template_environment(*folders: Path, autoescape: bool) -> jinja2.Environment:
    """Return the templates of these folders and of this package; unknown names are errors.

    Args:
        folders: searched first.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).with_name("templates")]),
        autoescape=autoescape,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _code(text: str) -> Markup:
    """`this` as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _words(content: object) -> Markup:
    """Text that breaks at spaces only, as a browser would also break "1e-6" in two."""
    words = str(content).split(" ")
    return Markup(" ").join(Markup('<span class="word">{}</span>').format(word) for word in words)


@dataclass(frozen=True)
class Panel:
    """A picture on a page.

    Attributes:
        id: of its figure.
        label: for readers who do not see it.
    """

    id: str
    picture: Picture

    @property
    def label(self) -> str:
        figure = self.picture.figure
        names = dict.fromkeys(trace.name for trace in figure.data if trace.name)
        axes = figure.layout.yaxis.title.text, figure.layout.xaxis.title.text
        of = " against ".join(filter(None, axes))
        return ". ".join(filter(None, [f"Figure: {of}" if of else "Figure", ", ".join(names)]))


def panels(pictures: Sequence[Picture], prefix: str) -> list[Panel]:
    """Return the pictures of a section, with figures whose ids begin with a prefix."""
    return [Panel(f"{prefix}-{number}", picture) for number, picture in enumerate(pictures, 1)]


def archive(panels: Iterable[Panel]) -> Markup:
    """Return the figures of a page by id, as compressed JSON in letters; a browser unpacks it."""
    figures = {
        panel.id: json.loads(panel.picture.figure.to_json(remove_uids=True)) for panel in panels
    }
    return _packed(json.dumps(figures, separators=(",", ":"), sort_keys=True))


def library() -> Markup:
    """Return the drawing library, compressed: 4.8 MB take 2."""
    return _packed(plotly.offline.get_plotlyjs())


def _packed(text: str) -> Markup:
    # Without a time in the header, the same page has the same bytes.
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())
