"""The report: one self-contained HTML page that opens offline."""

from __future__ import annotations

import base64
import datetime
import functools
import gzip
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from spherenorm.support import one_line
from spherenorm_experiments.claims import slug
from spherenorm_experiments.errors import RecipeError
from spherenorm_experiments.lookup import places
from spherenorm_experiments.paper.findings import findings, opening, rules, summary
from spherenorm_experiments.paper.thirteen import thirteen_table
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.sections import Section, groups, labeled
from spherenorm_experiments.store import StoreWarning, write_file


class Page(NamedTuple):
    """The content of a page: all claims with the labels of their sections, and the problems."""

    claims: list[dict[str, Any]]
    problems: list[str]


def write_report(sections: Sequence[Section], path: Path) -> Page:
    """Write the page.

    Warns:
        StoreWarning: a section needs a recipe that is not here, and is left out.

    Raises:
        StoreError: the page cannot be written.
    """
    shown = [entry for section in sections if (entry := _shown(section)) is not None]
    for number, entry in enumerate(shown):
        earlier = sum(other["name"] == entry["name"] for other in shown[:number])
        entry["anchor"] = f"{entry['name']}-{earlier + 1}" if earlier else entry["name"]
    for entry in shown:
        entry["claims"] = labeled(entry)
        entry["groups"] = groups(entry["claims"])
        entry["figures"] = panels(entry["pictures"], f"figure-{entry['anchor']}")
    claims = [claim for entry in shown for claim in entry["claims"]]
    known = [section for section in sections if not _raises(section)]
    ours = [section for section in known if section.study.name in places("STUDIES")]
    begins = opening(ours)
    opened = panels(begins.pictures, "figure-opening")
    page = _template().render(
        sections=shown,
        groups=groups(claims),
        summary=summary(ours),
        findings=findings(ours),
        rules=rules(),
        thirteen=thirteen_table(ours),
        begins=begins,
        opened=opened,
        library=library(),
        archive=archive([*opened, *(panel for entry in shown for panel in entry["figures"])]),
        date=datetime.date.today().isoformat(),
    )
    write_file(path, page.encode())
    problems = [f"{entry['label']}: {problem}" for entry in shown for problem in entry["problems"]]
    return Page(claims, problems)


def _raises(section: Section) -> bool:
    """True if its claims cannot be decided, which its own section tells."""
    try:
        return not section.decisions
    except Exception:  # a user's study may raise anything
        return True


def _shown(section: Section) -> dict[str, Any] | None:
    """A section as the template takes it; None, with a warning, if a recipe of it is not here."""
    study, results = section.study, section.results
    parts: dict[str, Callable[[], list[Any]]] = {
        "claims": lambda: [claim.to_json() for claim in section.decisions],
        "tables": lambda: study.every_table(results),
        "pictures": lambda: study.pictures(results),
    }
    made: dict[str, list[Any]] = {}
    problems = []
    for name, part in parts.items():
        try:
            made[name] = part()
        except RecipeError as error:
            warnings.warn(f"{section.label} is left out: {error}", StoreWarning, stacklevel=2)
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
        "lost": sum(item.diverged for item in results),
        "diverged": _diverged(results),
        "problems": problems,
        "notes": section.notes,
        **made,
    }


def _diverged(runs: Runs) -> list[str]:
    """The runs that diverged: each with its step, or of an arm with many points how many."""
    texts = []
    for place in runs.places:
        own = [item for item in runs if item.place == place]
        lost = [item for item in own if item.diverged]
        if lost and any(item.index is not None for item in own):
            texts.append(f"{place}: {len(lost)} of {len(own)}")
            continue
        steps = ((item.spec.seed, item.summary["diverged_at"]) for item in lost)
        texts += [f"{place}, seed {seed}: step {step}" for seed, step in steps]
    return texts


@functools.cache
def _template(name: str = "report.html.j2") -> jinja2.Template:
    environment = template_environment(autoescape=True)
    environment.filters |= {"code": _code, "words": _words, "slug": slug}
    return environment.get_template(name)


def compare_template() -> jinja2.Template:
    """The template of a comparison's page."""
    return _template("compare.html.j2")


def template_environment(*, autoescape: bool) -> jinja2.Environment:
    """The templates of pages; an unknown name in one is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
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
    """The pictures of a section.

    Args:
        prefix: of the figures' ids.
    """
    return [Panel(f"{prefix}-{number}", picture) for number, picture in enumerate(pictures, 1)]


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
