"""Sections: the studies of a store, each under one setting, with the results of all requests.

The scorecard has the claims of all sections, counted apart by kind.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from spherenorm.support import one_line
from spherenorm_experiments.analysis import (
    KINDS,
    TITLES,
    VERDICTS,
    Decision,
    Result,
    Results,
    gather,
    undecided,
)
from spherenorm_experiments.engine import Store
from spherenorm_experiments.engine.door import Door
from spherenorm_experiments.files import RequestWarning
from spherenorm_experiments.study import (
    TIERS,
    Plan,
    Request,
    Study,
    TunedComparison,
    find_study,
)

ORDER = (
    *("f1", "f2", "f3", "t1", "t2", "t3", "f4", "t4", "t5", "t6", "c1"),
    *("d1", "d2", "d3", "weight-decay", "g1", "h6", "h7"),
)
"""The paper's figures and tables, then its appendix; our own studies follow."""

LEADS = ("matched-step",)
"""Studies that open the page; their first tables stand on the index of results."""


@dataclass(frozen=True)
class Section:
    """A study under one setting, with the results of all requests for it.

    Attributes:
        plan: the setting: a plan without a choice of optimizers and seeds.
        whole: True if all of the study's own optimizers were asked for.
        older: the arms with results of other code or data than are here.
    """

    study: Study
    plan: Plan
    results: Results
    whole: bool = True
    older: Sequence[str] = ()

    @property
    def notes(self) -> list[str]:
        """Runs that failed or are left out, and arms with results of other code than is here."""
        failed = [f"failed: {text}" for text in dict.fromkeys(self.results.failed)]
        lack = "left out, as the task or its data were edited since; run it again"
        replaced = [f"{lack}: {arm}" for arm in self.results.replaced]
        ended, planned = len(self.results), self.results.planned
        if ended < planned:
            left = f"{ended} of {planned} runs have a result; `resume` goes on with the rest"
            replaced.append(left)
        return [*failed, *replaced, *(f"of other code than is here: {arm}" for arm in self.older)]

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
        """Of all claims of the study; for a partial run, only of those it has results for."""
        decided = self.study.decided(self.results)
        if not self.decides:
            decided = [undecided(each, "the smoke tier decides nothing") for each in decided]
        return [decision for decision in decided if self.whole or decision.has_results]


def sections(
    store: Store, requests: Sequence[Request], wanted: Collection[str] = ()
) -> list[Section]:
    """One section for each study and setting that was ever asked for.

    They are in the paper's order, the defaults before other settings.

    Args:
        wanted: the names of studies, as these have them; only these, if there are any.

    Warns:
        RequestWarning: a study is not here, and is left out.
    """
    by_setting: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        setting = json.dumps(request.plan.common.to_json(), sort_keys=True)
        for name in request.studies:
            by_setting.setdefault((name, setting), []).append(request)
    made, door = [], Door(store)
    for (name, _), asked in by_setting.items():
        try:
            study = find_study(name)
        except Exception as error:  # a user's study may raise anything
            left_out = f"study {name!r} is left out: {one_line(error)}"
            warnings.warn(left_out, RequestWarning, stacklevel=2)
            continue
        if not wanted or study.name in wanted:
            trials = [request.trials.get(name, ()) for request in asked]
            by_end = sorted(range(len(asked)), key=lambda i: asked[i].ended)
            results = gather(store, trials, [trials[i] for i in by_end])
            whole = any(request.plan.optimizers is None for request in asked)
            whole |= isinstance(study, TunedComparison)  # to which they are added
            older = _older(results, door)
            made.append(Section(study, asked[0].plan.common, results, whole, older))
    return sorted((section for section in made if section.results.planned), key=_order)


def names_of(requests: Sequence[Request]) -> set[str]:
    """The names that the studies of these requests have, those of comparisons among them."""
    names = set()
    for name in {name for request in requests for name in request.studies}:
        with suppress(Exception):  # a study that is not here is left out by `sections`
            names.add(find_study(name).name)
    return names


def _older(results: Results, door: Door) -> list[str]:
    """The arms with results that the same request would not give now."""
    first: dict[tuple[str, str], Result] = {}
    for item in results:
        kind = item.family or json.dumps({**item.spec.to_json(), "seed": 0})
        first.setdefault((item.arm.label, kind), item)
    older: dict[str, None] = {}
    for item in first.values():
        with contextlib.suppress(Exception):  # its code is not here at all: nothing to compare
            if item.name not in door.resolve(item.spec).rows:
                older[item.arm.label] = None
    return list(older)


def _order(section: Section) -> tuple[Any, ...]:
    name, plan = section.study.name, section.plan
    place = ORDER.index(name) if name in ORDER else len(ORDER)
    return (
        name not in LEADS,
        place,
        name,
        bool(plan.overrides),
        -TIERS.index(plan.tier),
        plan.departures,
    )


def _seeds(results: Results) -> str:
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
    known = list(claims)
    made = []
    for kind in KINDS:
        chosen = [claim for claim in known if claim["kind"] == kind]
        if chosen:
            made.append(Group(kind, TITLES[kind], chosen, _counts(chosen)))
    return made


def _counts(claims: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of claims with each verdict that a claim of the kind can have."""
    paper = claims[0]["kind"] == "paper"
    found = [claim["verdict"] for claim in claims]
    usual = ("reproduced", "not reproduced") if paper else ("holds", "does not hold")
    return {v: found.count(v) for v in VERDICTS if v in found or v in usual}
