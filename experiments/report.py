"""The report: one self-contained HTML page that opens offline, with the scorecard of all claims on top."""

from __future__ import annotations

import datetime
import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from experiments.claims import NO_RESULTS, Claim
from experiments.requests import Request, RequestWarning
from experiments.results import Result, Results
from experiments.spec import RecipeError, one_line
from experiments.store import Store, write_whole
from experiments.study import TIERS, Plan, Study, find_study

__all__ = ["Page", "Section", "sections", "write_report"]


@dataclass(frozen=True)
class Section:
    """A study under one setting, with the results of all requests for it.

    Attributes:
        plan: the setting: a plan without a choice of optimizers and seeds.
        whole: whether all of the study's own optimizers were asked for.
    """

    study: Study
    plan: Plan
    results: Results
    whole: bool = True

    @property
    def label(self) -> str:
        """The study's name, and what departs from the defaults."""
        departures = self.plan.departures
        return f"{self.study.name} ({', '.join(departures)})" if departures else self.study.name

    @property
    def heading(self) -> str:
        """Everything that tells this section's runs from those of another section of the study."""
        departures = [word for word in self.plan.departures if word != self.plan.tier]
        return ", ".join([f"{self.plan.tier} tier", _seeds(self.results), *departures])

    def claims(self) -> list[Claim]:
        """The study's claims; of a part of the study those that it has something to say to."""
        return [
            claim
            for claim in self.study.claims(self.results)
            if self.whole or claim.ours != NO_RESULTS
        ]


def sections(
    store: Store, requests: Sequence[Request], wanted: Collection[type[Study]] = ()
) -> list[Section]:
    """One section for each study and setting that was ever asked for, in the paper's order, the defaults first.

    Args:
        wanted: only these studies, if any are named.
    """
    found: dict[tuple[str, str], list[Request]] = {}
    for request in requests:
        for name in request.studies:
            found.setdefault(
                (name, json.dumps(request.plan.setting.to_json(), sort_keys=True)), []
            ).append(request)
    made = []
    for (name, _), asked in found.items():
        try:
            study = find_study(name)
        except Exception as error:  # whatever a study of one's own may raise
            warnings.warn(
                f"study {name!r} is left out: {one_line(error)}", RequestWarning, stacklevel=2
            )
            continue
        if not wanted or type(study) in wanted:
            results = Results.gather(store, [request.trials.get(name, ()) for request in asked])
            whole = any(request.plan.optimizers is None for request in asked)
            made.append(Section(study, asked[0].plan.setting, results, whole))
    return sorted((section for section in made if section.results.planned), key=_order)


class Page(NamedTuple):
    """What a page says: all claims with the labels of their sections, and what could not be shown."""

    claims: list[dict[str, Any]]
    problems: list[str]


def write_report(sections: Sequence[Section], path: Path) -> Page:
    """Write the page."""
    shown = [entry for section in sections if (entry := _shown(section)) is not None]
    for number, entry in enumerate(shown):
        earlier = sum(other["name"] == entry["name"] for other in shown[:number])
        entry["anchor"] = f"{entry['name']}-{earlier + 1}" if earlier else entry["name"]
    claims = [
        {"study": entry["label"], "anchor": entry["anchor"], **claim}
        for entry in shown
        for claim in entry["claims"]
    ]
    outcomes = ("reproduced", "not reproduced", "inconclusive")
    page = _template().render(
        sections=shown,
        claims=claims,
        counts={
            outcome: sum(claim["outcome"] == outcome for claim in claims) for outcome in outcomes
        },
        plotly=Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
        date=datetime.date.today().isoformat(),
        figure_json=_figure_json,
    )
    write_whole(path, page.encode())
    return Page(
        claims, [f"{entry['label']}: {problem}" for entry in shown for problem in entry["problems"]]
    )


def _shown(section: Section) -> dict[str, Any] | None:
    """What the page shows of a section; None, with a warning, for a study that needs a recipe that is not here."""
    study, results = section.study, section.results
    made: dict[str, list[Any]] = {}
    problems = []
    parts: dict[str, Callable[[], list[Any]]] = {
        "claims": section.claims,
        "tables": lambda: study.every_table(results),
        "pictures": lambda: study.every_picture(results),
    }
    for name, part in parts.items():
        try:
            made[name] = part()
        except RecipeError as error:
            warnings.warn(f"{section.label} is left out: {error}", RequestWarning, stacklevel=2)
            return None
        except (
            Exception
        ) as error:  # one study that raises does not take the others' sections with it
            made[name] = []
            problems.append(f"no {name}: {one_line(error)}")
    return {
        "name": study.name,
        "label": section.label,
        "heading": section.heading,
        "title": study.title(),
        "short": ", ".join([study.title().split(":")[0], *section.plan.departures]),
        "about": study.about().split("\n\n"),
        "runs": len(results),
        "planned": results.planned,
        "diverged": [_where_diverged(item) for item in results.diverged],
        "points_diverged": [
            _points_diverged(item) for item in results.finished if any(item.points_diverged)
        ],
        "problems": problems,
        "claims": [asdict(claim) for claim in made["claims"]],
        "tables": made["tables"],
        "pictures": made["pictures"],
    }


def _order(section: Section) -> tuple[Any, ...]:
    plan = section.plan
    return (
        order_of(section.study.name),
        bool(plan.settings),
        -TIERS.index(plan.tier),
        plan.departures,
    )


def order_of(name: str) -> tuple[int, str]:
    """The paper's figures and tables first, then its appendix, then our own."""
    known = ("f1", "f2", "f3", "t1", "t2", "c1", "weight-decay", "g1", "h6", "h7")
    return (known.index(name) if name in known else len(known), name)


def _figure_json(figure: Any) -> Markup:
    """Safe inside a script element."""
    return Markup(figure.to_json(remove_uids=True).replace("<", "\\u003c"))


def _seeds(results: Results) -> str:
    """The seeds in runs of consecutive ones: "seeds 0-4, 7"."""
    seeds = sorted({item.spec.seed for item in results})
    first = [seed for seed in seeds if seed - 1 not in seeds]
    last = [seed for seed in seeds if seed + 1 not in seeds]
    spans = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(first, last, strict=True))
    return f"seed{'s' if len(seeds) > 1 else ''} {spans}" if seeds else "no runs yet"


def _where_diverged(item: Result) -> str:
    return f"{item.arm}, seed {item.spec.seed}: step {item.summary['diverged_at']}"


def _points_diverged(item: Result) -> str:
    return f"{item.arm}, seed {item.spec.seed}: {sum(item.points_diverged)} of {len(item.points_diverged)}"


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(os.path.join(os.path.dirname(__file__), "templates"))
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = _code
    environment.filters["words"] = _words
    return environment.get_template("report.html.j2")


def _code(text: str) -> Markup:
    """`this` as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _words(text: str) -> Markup:
    """Broken at spaces only, where a browser would also break "1e-6" in two."""
    return Markup(" ").join(
        Markup('<span class="word">{}</span>').format(word) for word in text.split(" ")
    )
