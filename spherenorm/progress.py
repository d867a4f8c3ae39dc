"""The progress of long computations: the one thing the library shows, and only when asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["shown"]


@contextmanager
def shown(progress: Callable[[int, int], None] | bool) -> Iterator[Callable[[int, int], object]]:
    """What to call with (done, total)."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        try:
            from rich.progress import Progress
        except ImportError as error:
            raise ImportError(
                "progress=True needs rich: pip install 'spherenorm[experiments]'"
            ) from error
        with Progress() as bar:
            task = bar.add_task("sweep")
            yield lambda done, total: bar.update(task, completed=done, total=total)
