"""The progress of long computations: the one thing the library shows, and only when asked to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spherenorm._errors import require_module


@contextmanager
def shown(progress: Callable[[int, int], None] | bool) -> Iterator[Callable[[int, int], object]]:
    """A function to call with (done, total): the one given, one that draws a bar, or one that
    does nothing.

    Raises:
        MissingExtraError: a bar is asked for, and rich is not installed.
    """
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield lambda done, total: None
    else:
        missing = "progress=True needs rich: pip install 'spherenorm[experiments]'"
        with require_module("rich.progress", missing).Progress() as bar:
            task = bar.add_task("sweep")
            yield lambda done, total: bar.update(task, completed=done, total=total)
