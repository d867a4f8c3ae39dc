"""Sections: the studies of a store, each under one setting, with the results of all requests.

The scorecard has the claims of all sections, counted apart by kind.
"""

from __future__ import annotations

import functools
import itertools
import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spherenorm.support import one_line
from spherenorm_experiments.campaign import planned_trials
from spherenorm_experiments.comparing import find_study
from spherenorm_experiments.lookup import study_packages
from spherenorm_experiments.plan import TIERS, Plan, Request
from spherenorm_experiments.runs import Result, Runs, Trial
from spherenorm_experiments.spec import spec_name
from spherenorm_experiments.store import Store, StoreWarning
from spherenorm_experiments.study import Study
from spherenorm_experiments.verdict import KINDS, TITLES, VERDICTS, Decision, without_verdict

NAMED = 3
"""Changed modules that a note names."""


@dataclass(frozen=True)
class Section:
    """A study under one setting, with the results of all requests for it.

    Attributes:
        plan: the setting: a plan without a choice of seeds.
        older: of each run of other code than is here, the modules that have changed since.
    """

    study: Study
    plan: Plan
    results: Runs
    older: Sequence[Sequence[str]] = ()

    @property
    def notes(self) -> list[str]:
        """Runs that failed or are missing, and the number of those of other code than is here."""
        notes = [f"failed: {text}" for text in dict.fromkeys(self.results.failed)]
        ended, planned = len(self.results), self.results.planned
        if ended < planned:
            left = f"{ended} of {planned} runs have a result; `resume` goes on with the rest"
            notes.append(left)
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
        """Of all claims of the study."""
        decided = self.study.decided(self.results)
        if self.decides:
            return decided
        return [without_verdict(each, "the smoke tier decides nothing") for each in decided]


def sections(
    store: Store, requests: Sequence[Request], wanted: Collection[str] = ()
) -> list[Section]:
    """One section for each study and setting that was ever asked for.

    They are in the order of their package, the defaults before other settings.

    Args:
        wanted: the names of studies, as these have them or as a command finds them; only these, if
            there are any.

    Warns:
        StoreWarning: a study is not here, and is left out.
    """
    by_setting: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        setting = json.dumps(request.plan.common.to_json(), sort_keys=True)
        for name in request.studies:
            by_setting.setdefault((name, setting), []).append(request)
    made = []
    for (name, _), asked in by_setting.items():
        try:
            study = find_study(name)
            if wanted and not {name, study.name} & {*wanted, *(each.lower() for each in wanted)}:
                continue
            results = _gathered(study, asked, store)
        except Exception as error:  # a user's study may raise anything
            left_out = f"study {name!r} is left out: {one_line(error)}"
            warnings.warn(left_out, StoreWarning, stacklevel=2)
            continue
        old = [list(modules) for item in results if (modules := store.changed(item.code))]
        made.append(Section(study, asked[0].plan.common, results, old))
    return sorted((section for section in made if section.results.planned), key=_order)


def _gathered(study: Study, asked: Sequence[Request], store: Store) -> Runs:
    """The stored results of several requests for a study as one: seeds and arms add up.

    They know which seeds there were at the end of each request, since a claim that grew has to pay
    for that.
    """
    parts = [_trials(study, request.plan, store) for request in asked]
    trials = {(each.place, spec_name(each.spec)): each.spec for part in parts for each in part}
    rows = store.newest(trials.values())
    items = [Result.of(place, rows[name]) for place, name in trials if name in rows]
    missing = [key for key in trials if key[1] not in rows]
    errors, places = _errors(store) if missing else {}, [place for place, _ in missing]
    failed = [f"{place}: {errors[name]}" for place, name in missing if name in errors]
    every = dict.fromkeys([*(item.place for item in items), *places])
    seen, looks = frozenset[int](), []
    for _, part in sorted(zip(asked, parts, strict=True), key=lambda pair: pair[0].ended):
        seen |= {trial.spec.seed for trial in part if spec_name(trial.spec) in rows}
        looks.append(seen)
    return Runs(items, failed, {place: places.count(place) for place in every}, looks)


def _trials(study: Study, plan: Plan, store: Store) -> list[Trial]:
    """The trials that a plan asks for, as far as they are known."""
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
    """The errors of runs that have failed, by the names of their specs."""
    found: dict[str, str] = {}
    for folder in store.folders():
        status = folder.status() if not (folder.path / "rows.json").exists() else {}
        if status.get("state") == "failed":
            error = status.get("error", "no reason is known")
            own = status.get("names") or [folder.name]
            found |= {name.rpartition("-")[0]: error for name in own}
    return found


def _order(section: Section) -> tuple[Any, ...]:
    name, plan = section.study.name, section.plan
    order = [name for package in study_packages() for name in getattr(package, "ORDER", ())]
    place = order.index(name) if name in order else len(order)
    usual = bool(plan.overrides), -TIERS.index(plan.tier), plan.departures
    return place, name, *usual


def _seeds(results: Runs) -> str:
    """The seeds in runs of consecutive ones: "seeds 0–4, 7"."""
    seeds = sorted({item.spec.seed for item in results})
    first = [seed for seed in seeds if seed - 1 not in seeds]
    last = [seed for seed in seeds if seed + 1 not in seeds]
    spans = (str(a) if a == b else f"{a}–{b}" for a, b in zip(first, last, strict=True))
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


def labeled(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims of a section with its label and anchor, and a label such as t1.growth.sgdp."""
    section = {"study": entry["label"], "anchor": entry["anchor"]}
    return [
        {**section, "label": f"{entry['anchor']}.{claim['name']}", **claim}
        for claim in entry["claims"]
    ]


def groups(claims: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The claims by kind, the paper's first; kinds without a claim are left out."""
    known, made = list(claims), []
    for kind in KINDS:
        chosen = [claim for claim in known if claim["kind"] == kind]
        found = [claim["verdict"] for claim in chosen]
        counts = [(str(v), found.count(v)) for v in VERDICTS if v in found or v in VERDICTS[:2]]
        made += [Group(kind, TITLES[kind], chosen, dict[str, int](counts))] if chosen else []
    return made
