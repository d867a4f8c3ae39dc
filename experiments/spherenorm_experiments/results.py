"""The results in Markdown: an index that says what holds, and a page for each study."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from spherenorm_experiments.comparison import study_classes
from spherenorm_experiments.pictures import Picture, image_files
from spherenorm_experiments.report import (
    Section,
    group_by_kind,
    overviews,
    template_environment,
    with_labels,
)
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.store import BULKY, write_file
from spherenorm_experiments.tables import Row, Table, to_markdown
from spherenorm_experiments.verdict import P_HEADING, VERDICTS, rules

INDEX = "index.md"


def write_results(
    sections: Sequence[Section], folder: Path, *, figures: bool = False
) -> list[Path]:
    """Write the index and the page of each section; the index last, whose links then lead to them.

    Args:
        figures: draw the paper's figures, too.

    Raises:
        StoreError: a file cannot be written.
        MissingExtraError: kaleido, which draws them, is missing.
    """
    drawings = {section.label: _drawings(section) for section in sections if figures}
    all_drawings = {
        name: picture
        for section_drawings in drawings.values()
        for name, picture in section_drawings.items()
    }
    pages = results_pages(sections, drawings)
    files = image_files(all_drawings) if all_drawings else {}
    files |= {name: text.encode() for name, text in reversed(pages.items())}
    for name, content in files.items():
        write_file(folder / name, content)
    return [folder / name for name in pages]


def results_pages(
    sections: Sequence[Section], drawings: Mapping[str, Mapping[str, Picture]] = {}
) -> dict[str, str]:
    """The pages by the names of their files, the index first.

    Versions are those of the runs.

    Args:
        drawings: of each section the pictures that its page has, by their files; the report has
            all.
    """
    claims_by_section = {section.label: _claims(section) for section in sections}
    about_all = overviews(sections)
    index = _template("index.md.j2").render(
        sections=sections,
        overviews=about_all,
        rules=[*rules(), *(rule for overview in about_all for rule in overview.rules)],
        groups=group_by_kind([claim for claims in claims_by_section.values() for claim in claims]),
        extent=_not_run(sections),
        notes=[f"{section.label}: {note}" for section in sections for note in section.notes],
        studies=_studies(sections, claims_by_section),
        versions=_versions(sections),
    )
    pages = {INDEX: index}
    for section in sections:
        page = _template("study.md.j2")
        pages[_file(section)] = page.render(
            section=section, groups=group_by_kind(claims_by_section[section.label]), index=INDEX,
            drawings=drawings.get(section.label, {}),
        )  # fmt: skip
    return pages


def _file(section: Section, suffix: str = ".md") -> str:
    """Return the name of a section's file: "t1.md", "t1-smoke.md"."""
    return f"{re.sub(r'[^a-z0-9.=_-]+', '-', section.label.lower()).strip('-')}{suffix}"


def _drawings(section: Section) -> dict[str, Picture]:
    """The pictures that show a figure of the paper, by the names of their files."""
    pictures = [picture for picture in section.study.pictures(section.results) if picture.shows]
    return {
        _file(section, f"-{k}{picture.suffix}"): picture for k, picture in enumerate(pictures, 1)
    }


def _studies(sections: Sequence[Section], claims: Mapping[str, list[dict[str, Any]]]) -> Table:
    """The pages, with the verdicts of their claims and a hash of their runs."""
    rows: list[Row] = []
    for section in sections:
        verdicts = [claim["verdict"] for claim in claims[section.label] if claim["numbers"]]
        counts = {verdict: verdicts.count(verdict) for verdict in map(str, VERDICTS)}
        counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        link = f"[{section.label}]({_file(section)})"
        digest = _digest(section.results)
        rows.append((link, section.study.title(), counted, str(len(section.results)), digest))
    return Table("Studies", ("study", "about", "claims", "runs", "hash of the runs"), rows)


def _claims(section: Section) -> list[dict[str, Any]]:
    claims = [decision.to_json() for decision in section.decisions]
    return with_labels({"label": section.label, "anchor": section.study.name, "claims": claims})


def _not_run(sections: Sequence[Section]) -> list[str]:
    """The studies without a section, and the sections that asked for a part of a study."""
    names = {section.study.name for section in sections}
    missing = [name for name in study_classes() if name not in names]
    partial = [
        section.label for section in sections if len(section.results) < section.results.planned
    ]
    lines = [f"Not run: {', '.join(missing)}."] if missing else []
    return lines + ([f"In part: {', '.join(partial)}."] if partial else [])


def _claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        quoted = f": {claim['quotation']}" if claim["quotation"] else ""
        p = "" if claim["shown_p"] is None else f"{claim['shown_p']:.2g}"
        text = claim["text"] + (f" ({claim['detail']})" if claim["detail"] else "")
        label = f"**{claim['label']}**" if claim["primary"] else claim["label"]
        least_effect = claim["detectable"]
        rows.append(
            (label, claim["verdict"], text, claim["ours"], claim["paper"],
             "" if least_effect is None else f"{least_effect:.2g}", p, str(claim["seeds"] or ""),
             claim["place"] + quoted)
        )  # fmt: skip
    columns = (
        *("claim", "verdict", "says", "ours", "paper", "detectable", P_HEADING, "seeds"),
        "statement",
    )
    return to_markdown(Table("Claims", columns, rows))


def _versions(sections: Sequence[Section]) -> str:
    """The software and hardware of the runs, which need not be those that write the page."""
    origins = [item.about for section in sections for item in section.results]
    versions = dict.fromkeys(
        f"spherenorm {origin['spherenorm']}{_commit_in_words(origin)}, "
        f"torch {origin['torch'].partition('+')[0]}, Python {origin['python']}, "
        f"{origin['gpu'] or origin['cpu']}"
        for origin in origins
        if "spherenorm" in origin
    )
    return f"{'; '.join(versions)}." if versions else "The origin of the runs is not known."


def _commit_in_words(origin: Mapping[str, Any]) -> str:
    """Return the commit of a run's code in brackets; nothing for an installed release."""
    commit = origin.get("commit", "")
    edited = ", edited" if commit.endswith("+") else ""
    return f" (commit {commit[:10]}{edited})" if commit else ""


def _digest(results: Runs) -> str:
    """A hash of the names of the runs and of the numbers that a file of rows has of them."""
    digest = hashlib.sha256()
    for item in sorted(results, key=lambda item: item.name):
        numbers = {name: x for name, x in item.summary.items() if name not in BULKY}
        digest.update(item.name.encode())
        digest.update(repr(sorted(numbers.items())).encode())
    return digest.hexdigest()[:16]


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = template_environment(autoescape=False)
    environment.filters |= {"markdown": to_markdown, "claims": _claims_table}
    return environment.get_template(name)
