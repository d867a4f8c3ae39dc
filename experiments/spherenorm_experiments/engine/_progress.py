"""The progress of a run while it trains: one small file for the command line, and TensorBoard.

progress.json   step, steps, rate, remaining, last values; written whole about once a second
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spherenorm_experiments.core import require_extra

SECONDS_BETWEEN = 1.0
MOST_SCALARS = 20
"""TensorBoard takes 50 microseconds for a number, so it gets only a few."""


class Live:
    """The progress of one run, told while it trains.

    Args:
        folder: the run's.
        steps: of the whole run.
        done: before this process began.
        events: the folder of TensorBoard's event files; None writes none.
    """

    def __init__(self, folder: Path, steps: int, done: int, events: Path | None) -> None:
        self.path, self.steps, self.first = folder / "progress.json", steps, done
        self.started = self.last_written = time.monotonic()
        self.validation: dict[str, float] = {}
        self.writer: Any = None
        if events is not None:
            board = require_extra("torch.utils.tensorboard", "--tensorboard")
            # What a run that was killed wrote after its last checkpoint is written again.
            self.writer = board.SummaryWriter(str(events), purge_step=done + 1)

    def tell(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a step."""
        now = time.monotonic()
        if "validation" in record:
            self.validation = {"validation": record["validation"]}
        if now - self.last_written >= SECONDS_BETWEEN:
            self.last_written = now
            self._write(record, now)
        if self.writer is not None:
            for name, value in _scalars(record).items():
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """The run has ended or stopped; what it is then is in its status."""
        self.path.unlink(missing_ok=True)
        if self.writer is not None:
            self.writer.close()

    def _write(self, record: Mapping[str, Any], now: float) -> None:
        done = record["step"]
        rate = (done - self.first) / max(now - self.started, 1e-9)
        content = {
            "step": done,
            "steps": self.steps,
            "rate": rate,
            "remaining": (self.steps - done) / rate if rate else None,
            "last": {**_scalars(record), **self.validation},
            "updated": time.time(),
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:  # it only informs: a full disk stops a run where it matters
            partial.write_text(json.dumps(content))
            os.replace(partial, self.path)
        except OSError:
            partial.unlink(missing_ok=True)


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {
        name: value
        for name, value in record.items()
        if name != "step" and isinstance(value, int | float)
    }
    return dict(list(numbers.items())[:MOST_SCALARS])
