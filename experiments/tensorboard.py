"""TensorBoard: the metrics of finished runs as event files (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.extras import needed
from experiments.results import Result

__all__ = ["check", "export"]


def check() -> Any:
    """The module that writes; ValueError if its package is missing."""
    return needed("torch.utils.tensorboard", "--tensorboard")


def export(results: Sequence[Result], root: Path) -> int:
    """Write every scalar metric of every run under `root/<run>`; returns how many runs."""
    writer_of = check().SummaryWriter
    written = 0
    for result in {result.spec.id: result for result in results}.values():
        folder = root / result.spec.id
        if folder.exists() or not result.metrics:
            continue
        with writer_of(str(folder)) as writer:
            for record in result.metrics:
                for name, value in record.items():
                    if name != "step" and isinstance(value, int | float):
                        writer.add_scalar(name, value, record["step"])
        written += 1
    return written
