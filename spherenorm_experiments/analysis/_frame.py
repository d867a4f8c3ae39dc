"""All runs of a store as one pandas frame, for notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from spherenorm_experiments.core import require_extra
from spherenorm_experiments.engine import Row, Store, rows_in

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load"]

BULKY = ("views", "shapes", "files")
"""Entries of a summary that are about every weight or file."""

RENAMED = {"validation_metrics": "validation", "test_metrics": "test"}


def load(store: Path | str = "runs") -> pd.DataFrame:
    """The runs of a store that have ended, finished or diverged: one row each.

    Columns are `run`, its name; the fields of its spec (`task`, `recipe`, `seed`, ...); its
    hyper-parameters by their names; `option.<name>` and `regime.<name>`; and its numbers, such as
    `diverged_at`, `test` and `test.<metric>`. What a run does not have is missing there.

        frame = load("runs")
        frame[frame.task == "network"].pivot_table("test", ["recipe", "lr"], "seed")

    Args:
        store: the folder that `--out` names.

    Raises:
        FileNotFoundError: there is no store.
        MissingExtraError: pandas is missing.
    """
    pandas = require_extra("pandas", "load")
    if not (Path(store) / "runs").is_dir():
        raise FileNotFoundError(f"no runs in {store}")
    folders = Store(store).folders()
    return pandas.DataFrame([_record(row) for folder in folders for row in rows_in(folder)])


def _record(row: Row) -> dict[str, Any]:
    spec = row.spec.to_json()
    record = {"run": row.name}
    options, regime, point = (
        spec.pop(part, {}) for part in ("options", "regime", "hyper_parameters")
    )
    record |= spec
    record |= {name if name not in record else f"hyper.{name}": x for name, x in point.items()}
    record |= {f"option.{name}": x for name, x in options.items()}
    record |= {f"regime.{name}": x for name, x in regime.items()}
    for name, value in row.summary.items():
        if isinstance(value, dict) and name in RENAMED:
            record |= {f"{RENAMED[name]}.{metric}": x for metric, x in value.items()}
        elif name not in BULKY:
            record[name if name not in record else f"result.{name}"] = value
    return record
