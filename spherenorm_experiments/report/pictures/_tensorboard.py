"""TensorBoard: the metrics of finished runs as event files (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spherenorm_experiments.analysis import Result
from spherenorm_experiments.core import require_extra


def require_tensorboard() -> Any:
    """Import the module that writes event files.

    Raises:
        MissingExtraError: its package is missing; it is a ValueError too.
    """
    return require_extra("torch.utils.tensorboard", "--tensorboard")


def write_events(results: Sequence[Result], root: Path) -> int:
    """Write every scalar metric of every run under `root/<run>`.

    Returns:
        How many runs were written now.
    """
    writer_of = require_tensorboard().SummaryWriter
    written = 0
    for result in {result.id: result for result in results}.values():
        folder = root / result.id
        if folder.exists() or not result.metrics:
            continue
        with writer_of(str(folder)) as writer:
            for record in result.metrics:
                for name, value in record.items():
                    if name != "step" and isinstance(value, int | float):
                        writer.add_scalar(name, value, record["step"])
        written += 1
    return written
