"""The progress of runs while they train, from the small files that they write."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress, TaskID

from spherenorm_experiments.engine import Store, read_progress

__all__ = ["duration", "progress_line", "progress_of_runs", "watched"]

SECONDS_BETWEEN_LOOKS = 1.0


def progress_of_runs(store: Store) -> list[tuple[str, dict[str, Any]]]:
    """The runs that have a progress file, with its content; see `read_progress`."""
    folders = sorted(path.parent for path in (store.root / "runs").glob("*/progress.json"))
    found = ((folder.name, read_progress(folder)) for folder in folders)
    return [(name, content) for name, content in found if content is not None]


def progress_line(progress: Mapping[str, Any]) -> str:
    """The step, the rate, the remaining time and the last values, in a line."""
    left = progress.get("remaining")
    parts = [f"step {progress['step']} of {progress['steps']}", f"{progress['rate']:.3g} steps/s"]
    parts += [] if left is None else [f"{duration(left)} left"]
    return ", ".join([*parts, _values(progress)]).rstrip(", ")


def duration(seconds: float) -> str:
    """Seconds, or minutes, as a reader wants them."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def watched(store: Store, bar: Progress, every: float | None) -> Iterator[None]:
    """Show the runs that train, until the end of the block.

    Args:
        bar: gets a line for each of them.
        every: seconds between plain lines, in place of the bar; None prints none.
    """
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(store, bar, every, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(store: Store, bar: Progress, every: float | None, ended: threading.Event) -> None:
    lines: dict[str, TaskID] = {}
    while not ended.wait(every or SECONDS_BETWEEN_LOOKS):
        found = dict(progress_of_runs(store))
        for name, progress in found.items():
            if every is not None:
                print(f"{name}: {progress_line(progress)}", flush=True)
                continue
            if name not in lines:
                lines[name] = bar.add_task(name, left="?", last="")
            left = "?" if progress["remaining"] is None else duration(progress["remaining"])
            done, count, last = progress["step"], progress["steps"], _values(progress)
            bar.update(lines[name], completed=done, total=count, left=left, last=last)
        for name in lines.keys() - found.keys():
            bar.remove_task(lines.pop(name))


def _values(progress: Mapping[str, Any]) -> str:
    shown = {name: x for name, x in progress["last"].items() if name in ("loss", "validation")}
    return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
