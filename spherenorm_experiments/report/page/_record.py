"""The results as a Markdown page, written from stored runs, with versions and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spherenorm_experiments.analysis import Results, Table
from spherenorm_experiments.engine import write_file
from spherenorm_experiments.report.page._sections import Section, groups, labeled
from spherenorm_experiments.report.pictures import to_markdown
from spherenorm_experiments.study import study_classes, thirteen_table

HEAD = """# Results

Written by `spherenorm results` from stored runs; not edited by hand.
Statements of the paper are held against small runs: embedded data and small networks in place of
the paper's (the settings of each study are at its end). Numbers are means over seeds with Student's
95 % intervals. A verdict, for or against, is adjusted for the number of claims of its study by
Holm's procedure; a score or a time needs six seeds. *Equivalent* means that a difference was shown
to be smaller than the margin that the claim names. Only statements of the paper count as reproduced
or not.
"""


def write_results(sections: Sequence[Section], path: Path) -> None:
    """Write the page.

    Raises:
        StoreError: it cannot be written.
    """
    write_file(path, results_page(sections).encode())


def results_page(sections: Sequence[Section]) -> str:
    """The page: verdicts by kind, every claim with its statement, tables, versions and hashes.

    Versions are those of the runs.
    """
    claims = [claim for section in sections for claim in _claims(section)]
    parts = [HEAD, *_counts(claims), *_not_run(sections), *_notes(sections)]
    thirteen = thirteen_table((s.label, s.study, s.results) for s in sections)
    if thirteen is not None:
        parts.append(f"## {thirteen.title}\n\n{to_markdown(thirteen)}\n{thirteen.about}\n")
    refuted = [c for c in claims if c["kind"] == "paper" and c["verdict"] == "not reproduced"]
    if refuted:
        parts += ["## What speaks against the paper\n", _claims_table(refuted)]
    for group in groups(claims):
        parts += [f"## {group.title}\n", _claims_table(group.claims)]
    for section in sections:
        parts.append(f"## {section.study.title()}\n\n{section.heading}.\n")
        for table in section.study.every_table(section.results):
            note = f"\n{table.about}\n" if table.about else ""
            parts.append(f"### {table.title}\n\n{to_markdown(table)}{note}")
    return "\n".join([*parts, _versions(sections)])


def _claims(section: Section) -> list[dict[str, Any]]:
    found = [claim.to_json() for claim in section.decisions()]
    return labeled({"label": section.label, "anchor": section.study.name, "claims": found})


def _counts(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = []
    for group in groups(claims):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in group.counts.items())
        parts.append(f"- **{group.title}**: {counts}.")
    return [*parts, ""]


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
    lines += [f"In part: {', '.join(partial)}."] if partial else []
    return [" ".join(lines) + "\n"] if lines else []


def _notes(sections: Sequence[Section]) -> list[str]:
    """The runs that failed, and those of other code than is here."""
    notes = [f"- {section.label}: {note}" for section in sections for note in section.notes]
    return ["\n".join(notes) + "\n"] if notes else []


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
    rows = [
        (section.label, str(len(section.results)), _digest(section.results)) for section in sections
    ]
    table = to_markdown(Table("Runs", ("study", "runs", "hash of the runs"), rows))
    ended = [item for section in sections for item in section.results]
    folders = {item.folder.path: item.folder for item in ended}
    origins = dict.fromkeys(
        _version(origin)
        for folder in folders.values()
        for origin in folder.read_json("origin.json") or ()
    )
    versions = f"{'; '.join(origins)}." if origins else "The origin of the runs is not known."
    about = (
        "A hash is of the names and summaries of a study's runs; a name is itself a hash of all "
    )
    return f"## Versions and hashes\n\n{versions}\n\n{table}\n{about}that decides a run.\n"


def _version(origin: Mapping[str, Any]) -> str:
    """The software and hardware of a run, which need not be those that write the page."""
    torch = origin["torch"].partition("+")[0]
    machine = origin["gpu"] or origin["cpu"]
    return f"spherenorm {origin['spherenorm']}, torch {torch}, Python {origin['python']}, {machine}"


def _digest(results: Results) -> str:
    """A hash of the names of the runs and of their summaries."""
    digest = hashlib.sha256()
    for item in sorted(results, key=lambda item: item.id):
        digest.update(item.id.encode())
        digest.update(repr(sorted(item.summary.items(), key=lambda pair: pair[0])).encode())
    return digest.hexdigest()[:16]
