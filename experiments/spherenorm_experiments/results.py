"""The results in Markdown, and the rows that they are made of.

    spherenorm results --rows          # writes rows.parquet beside the pages
    spherenorm results --from rows     # makes the pages of it, without any store

An index says what holds, and each study has a page. A row has the study and the setting that it
belongs to, the condition and the arm, the spec, the numbers of the run, and the release and the
commit of the code that trained it. Records of single steps and arrays are not kept, but for
each `RecordedNumber` of them that the pages show: pictures of curves need the store.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from spherenorm_experiments.comparison import find_study, name_of, study_classes
from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.pictures import Picture, image_files
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import (
    Section,
    group_by_kind,
    overviews,
    template_environment,
    with_labels,
)
from spherenorm_experiments.runs import Place, Result, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import BULKY, RunFolder, write_file
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
    """Return the pages by the names of their files, the index first.

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
    """Return the pictures that show a figure of the paper, by the names of their files."""
    pictures = [picture for picture in section.study.pictures(section.results) if picture.shows]
    return {
        _file(section, f"-{k}{picture.suffix}"): picture for k, picture in enumerate(pictures, 1)
    }


def _studies(sections: Sequence[Section], claims: Mapping[str, list[dict[str, Any]]]) -> Table:
    """Return the pages, with the verdicts of their claims and a hash of their runs."""
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
    """Return the studies without a section, and the sections that asked for a part of a study."""
    names = {section.study.name for section in sections}
    missing = [name for name in study_classes() if name not in names]
    partial = [
        section.label for section in sections if len(section.results) < section.results.planned
    ]
    command = "`spherenorm run NAME --tier evidence` runs one, `spherenorm results` adds its page"
    lines = [f"Not run, and without a page: {', '.join(missing)}; {command}."] if missing else []
    return lines + ([f"In part: {', '.join(partial)}."] if partial else [])


def _claims_table(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for claim in claims:
        quoted = f": {claim['quotation']}" if claim["quotation"] else ""
        p = "" if claim["printed_p"] is None else f"{claim['printed_p']:.2g}"
        text = claim["text"] + (f" ({claim['detail']})" if claim["detail"] else "")
        label = f"**{claim['label']}**" if claim["primary"] else claim["label"]
        rows.append(
            (label, claim["verdict"], text, claim["ours"], claim["paper"],
             claim["detectable_text"], p, str(claim["seeds"] or ""),
             claim["place"] + quoted)
        )  # fmt: skip
    columns = (
        *("claim", "verdict", "says", "ours", "paper", "detectable", P_HEADING, "seeds"),
        "statement",
    )
    return to_markdown(Table("Claims", columns, rows))


def _versions(sections: Sequence[Section]) -> str:
    """Return the software and hardware of the runs, which need not be those that write the page."""
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
    """Return a hash of the names of the runs and of the numbers that a file of rows has of them."""
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


FILE = "rows.parquet"
"""The name of the file beside the pages."""

NO_FOLDER = Path("no-store")
"""Stands for the folder of a run whose files are not here; it has no records."""


def write_rows(sections: Sequence[Section], path: Path) -> int:
    """Write the runs of these sections to a file, and return how many rows it has.

    Raises:
        StoreError: the file cannot be written.
        MissingExtraError: pyarrow is missing.
    """
    require_extra("pyarrow", "a file of rows")
    records = [record for section in sections for record in _records(section)]
    frame = pd.DataFrame(records)
    content = frame.to_parquet(compression="zstd", compression_level=19, index=False)
    write_file(path, content)
    return len(records)


def _records(section: Section) -> Iterator[dict[str, Any]]:
    results = section.results
    # The pages ask the runs for their recorded numbers, which are then kept.
    _ = section.decisions, section.study.all_tables(results)
    shared = {
        "study": name_of(section.study),
        "plan": json.dumps(section.plan.to_json(), sort_keys=True),
        "seed_counts": json.dumps(results.seed_counts),
        "missing_counts": json.dumps(
            [[*place, count] for place, count in results.missing_counts.items()]
        ),
    }
    for item in results:
        summary = {name: value for name, value in item.summary.items() if name not in BULKY}
        yield {
            **shared,
            "condition": item.place.condition,
            "arm": item.place.arm,
            "seed": item.spec.seed,
            "run": item.name,
            "spec": json.dumps(item.spec.to_json(), sort_keys=True),
            "summary": json.dumps(summary),
            "recorded": json.dumps(item.recorded_numbers),
            "about": json.dumps(dict(item.about)),
            "release": item.about.get("spherenorm", ""),
            "commit": item.about.get("commit", ""),
        }


def read_rows(path: Path) -> list[Section]:
    """Read the sections of a file that `write_rows` has written.

    Raises:
        ValueError: there is no such file.
        MissingExtraError: pyarrow is missing.
    """
    require_extra("pyarrow", "a file of rows")
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; `spherenorm results --rows` writes it")
    frame = pd.read_parquet(path)
    sections = []
    for (study, plan), rows in frame.groupby(["study", "plan"], sort=False):
        row = rows.iloc[0]
        missing_counts = {Place(*names): count for *names, count in json.loads(row.missing_counts)}
        items = [_result(row) for row in rows.itertuples()]
        results = Runs(items, (), missing_counts, json.loads(row.seed_counts))
        sections.append(Section(find_study(study), Plan.from_json(json.loads(plan)), results))
    return sections


def merge(old: Sequence[Section], new: Sequence[Section]) -> list[Section]:
    """Return the sections of both, in the order of the old; the new one of two that are alike."""
    by_label = {section.label: section for section in (*old, *new)}
    return list(by_label.values())


def _result(row: Any) -> Result:
    return Result(
        name=row.run,
        spec=Spec.from_json(json.loads(row.spec)),
        summary=json.loads(row.summary),
        folder=RunFolder(NO_FOLDER / row.run),
        about=json.loads(row.about),
        place=Place(row.condition, row.arm),
        recorded_numbers=json.loads(row.recorded),
    )
