"""TensorBoard: the metrics of finished runs as event files (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.results import Result

__all__ = ["export"]


def export(results: Sequence[Result], root: Path) -> int:
    """Write every scalar metric of every run under `root/<run>`; returns how many runs."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ValueError("event files need TensorBoard: pip install -e '.[tensorboard]'") from error
    written = 0
    for result in {result.spec.id: result for result in results}.values():
        folder = root / result.spec.id
        if folder.exists() or not result.metrics:
            continue
        with SummaryWriter(str(folder)) as writer:
            for record in result.metrics:
                for name, value in record.items():
                    if name != "step" and isinstance(value, int | float):
                        writer.add_scalar(name, value, record["step"])
        written += 1
    return written
