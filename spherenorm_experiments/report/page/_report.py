"""The report, one self-contained HTML page that opens offline, and the results in Markdown."""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from spherenorm.support import one_line
from spherenorm_experiments.analysis import Results, Table
from spherenorm_experiments.core import RecipeError
from spherenorm_experiments.engine import write_file
from spherenorm_experiments.files import RequestWarning
from spherenorm_experiments.report.page._sections import Section, groups, labeled
from spherenorm_experiments.report.pictures import Picture, finished, forest, to_markdown
from spherenorm_experiments.study import study_classes, thirteen_table


class Page(NamedTuple):
    """The content of a page: all claims with the labels of their sections, and the problems."""

    claims: list[dict[str, Any]]
    problems: list[str]


def write_report(sections: Sequence[Section], path: Path) -> Page:
    """Write the page.

    Warns:
        RequestWarning: a section needs a recipe that is not here, and is left out.

    Raises:
        StoreError: the page cannot be written.
    """
    shown = [entry for section in sections if (entry := _shown(section)) is not None]
    for number, entry in enumerate(shown):
        earlier = sum(other["name"] == entry["name"] for other in shown[:number])
        entry["anchor"] = f"{entry['name']}-{earlier + 1}" if earlier else entry["name"]
    claims = [claim for entry in shown for claim in labeled(entry)]
    paper = [claim for claim in claims if claim["kind"] == "paper"]
    drawn = forest(paper or claims)
    for entry in shown:
        entry["figures"] = panels(entry["pictures"], f"figure-{entry['anchor']}")
    scorecard = panels([] if drawn is None else [drawn], "figure-scorecard")
    page = _template("report.html.j2").render(
        sections=shown,
        groups=groups(claims),
        paper=bool(paper),
        thirteen=_thirteen(sections),
        scorecard=scorecard,
        library=library(),
        archive=archive([*scorecard, *(panel for entry in shown for panel in entry["figures"])]),
        date=datetime.date.today().isoformat(),
    )
    write_file(path, page.encode())
    problems = [f"{entry['label']}: {problem}" for entry in shown for problem in entry["problems"]]
    return Page(claims, problems)


def _thirteen(sections: Sequence[Section]) -> Table | None:
    """The paper's thirteen benchmarks; a section of a part of the contenders counts as far as it
    goes, and what raises is told in its own section.
    """
    try:
        return thirteen_table((s.label, s.study, s.results) for s in sections)
    except Exception as error:
        warnings.warn(
            f"no table of the benchmarks: {one_line(error)}", RequestWarning, stacklevel=2
        )
        return None


def _shown(section: Section) -> dict[str, Any] | None:
    """A section as the template takes it; None, with a warning, if a recipe of it is not here."""
    study, results = section.study, section.results
    parts: dict[str, Callable[[], list[Any]]] = {
        "claims": lambda: [claim.to_json() for claim in section.decisions()],
        "tables": lambda: study.every_table(results),
        "pictures": lambda: study.pictures(results),
    }
    made: dict[str, list[Any]] = {}
    problems = []
    for name, part in parts.items():
        try:
            made[name] = part()
        except RecipeError as error:
            warnings.warn(f"{section.label} is left out: {error}", RequestWarning, stacklevel=2)
            return None
        except Exception as error:  # a study that raises leaves the others their sections
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
        "lost": len(results.diverged),
        "diverged": _diverged(results),
        "problems": problems,
        "notes": section.notes,
        **made,
    }


def _diverged(results: Results) -> list[str]:
    """The runs that diverged: each with its step, or of an arm with many points how many."""
    texts = []
    for arm in results.diverged.arms:
        runs = results.arm(arm)
        lost = runs.diverged
        if any(item.family for item in runs):
            texts.append(f"{arm}: {len(lost)} of {len(runs)}")
            continue
        steps = ((item.spec.seed, item.summary["diverged_at"]) for item in lost)
        texts += [f"{arm}, seed {seed}: step {step}" for seed, step in steps]
    return texts


def write_results(sections: Sequence[Section], path: Path) -> None:
    """Write the page in Markdown.

    Raises:
        StoreError: it cannot be written.
    """
    write_file(path, results_page(sections).encode())


def results_page(sections: Sequence[Section]) -> str:
    """The page: verdicts by kind, every claim with its statement, tables, versions and hashes.

    Versions are those of the runs.
    """
    claims = [claim for section in sections for claim in _claims(section)]
    refuted = [c for c in claims if c["kind"] == "paper" and c["verdict"] == "not reproduced"]
    hashes = [(each.label, str(len(each.results)), _digest(each.results)) for each in sections]
    return _template("results.md.j2").render(
        sections=sections,
        groups=groups(claims),
        refuted=refuted,
        extent=_not_run(sections),
        notes=[f"{section.label}: {note}" for section in sections for note in section.notes],
        thirteen=thirteen_table((s.label, s.study, s.results) for s in sections),
        versions=_versions(sections),
        hashes=Table("Runs", ("study", "runs", "hash of the runs"), hashes),
    )


def _claims(section: Section) -> list[dict[str, Any]]:
    claims = [decision.to_json() for decision in section.decisions()]
    return labeled({"label": section.label, "anchor": section.study.name, "claims": claims})


def _not_run(sections: Sequence[Section]) -> list[str]:
    """The studies without a section, and the sections that asked for a part of a study."""
    names = {section.study.name for section in sections}
    missing = [name for name in study_classes() if name not in names]
    partial = [
        f"{section.label} ({len(section.results)} of {section.results.planned} runs)"
        for section in sections
        if not section.whole or len(section.results) < section.results.planned
    ]
    lines = [f"Not run: {', '.join(missing)}."] if missing else []
    return lines + ([f"In part: {', '.join(partial)}."] if partial else [])


def _claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        quoted = f": “{claim['quotation']}”" if claim["quotation"] else ""
        p = f"{claim['p']:.2g}" if claim["p"] is not None and claim["seeds"] else ""
        text = claim["text"] + (f" ({claim['detail']})" if claim["detail"] else "")
        label = f"**{claim['label']}**" if claim["primary"] else claim["label"]
        seeds = str(claim["seeds"] or "")
        rows.append(
            (label, claim["verdict"], text, claim["ours"], claim["paper"], p, seeds,
             claim["place"] + quoted)
        )  # fmt: skip
    columns = ("claim", "verdict", "says", "ours", "paper", "p", "seeds", "statement")
    return to_markdown(Table("Claims", columns, rows))


def _versions(sections: Sequence[Section]) -> str:
    """The software and hardware of the runs, which need not be those that write the page."""
    ended = [item for section in sections for item in section.results]
    folders = {item.folder.path: item.folder for item in ended}
    origins = [each for f in folders.values() for each in f.read_json("origin.json") or ()]
    versions = dict.fromkeys(
        f"spherenorm {origin['spherenorm']}, torch {origin['torch'].partition('+')[0]}, "
        f"Python {origin['python']}, {origin['gpu'] or origin['cpu']}"
        for origin in origins
    )
    return f"{'; '.join(versions)}." if versions else "The origin of the runs is not known."


def _digest(results: Results) -> str:
    """A hash of the names of the runs and of their summaries."""
    digest = hashlib.sha256()
    for item in sorted(results, key=lambda item: item.id):
        digest.update(item.id.encode())
        digest.update(repr(sorted(item.summary.items(), key=lambda pair: pair[0])).encode())
    return digest.hexdigest()[:16]


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = _code
    environment.filters["words"] = _words
    environment.filters["markdown"] = to_markdown
    environment.filters["claims"] = _claims_table
    return environment.get_template(name)


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
    """The pictures of a section.

    Args:
        prefix: of the figures' ids.
    """
    return [
        Panel(f"{prefix}-{number}", picture) for number, picture in enumerate(finished(pictures), 1)
    ]


def archive(panels: Iterable[Panel]) -> Markup:
    """The figures of a page by id, as compressed JSON in letters; a browser unpacks it."""
    figures = {
        panel.id: json.loads(panel.picture.figure.to_json(remove_uids=True)) for panel in panels
    }
    return _packed(json.dumps(figures, separators=(",", ":"), sort_keys=True))


def library() -> Markup:
    """The drawing library, compressed: 4.8 MB take 2."""
    return _packed(plotly.offline.get_plotlyjs())


def _packed(text: str) -> Markup:
    # Without a time in the header, the same page has the same bytes.
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())
