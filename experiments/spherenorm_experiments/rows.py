"""Rows in one file: every run that committed pages are made of, so that anyone can make them again.

    spherenorm results --rows          # writes rows.parquet beside the pages
    spherenorm results --from rows     # makes the pages of it, without any store

A row has the study and the setting that it belongs to, the condition and the arm, the spec, the
numbers of the run, and the release and the commit of the code that trained it. Records of single
steps and arrays are not kept: pictures of them, and tables that read them, need the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spherenorm_experiments.comparison import find_study, name_of
from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import Section
from spherenorm_experiments.runs import Place, Result, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import BULKY, RunFolder, write_file

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
    content = pd.DataFrame(records).to_parquet(compression="zstd", index=False)
    write_file(path, content)
    return len(records)


def _records(section: Section) -> Iterator[dict[str, Any]]:
    results = section.results
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
            "run": item.name,
            "spec": json.dumps(item.spec.to_json(), sort_keys=True),
            "summary": json.dumps(summary),
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
        items = [_result(row) for _, row in rows.iterrows()]
        results = Runs(items, (), missing_counts, json.loads(row.seed_counts))
        sections.append(Section(find_study(study), Plan.from_json(json.loads(plan)), results))
    return sections


def _result(row: pd.Series) -> Result:
    return Result(
        name=row.run,
        spec=Spec.from_json(json.loads(row.spec)),
        summary=json.loads(row.summary),
        folder=RunFolder(NO_FOLDER / row.run),
        about=json.loads(row.about),
        place=Place(row.condition, row.arm),
    )
