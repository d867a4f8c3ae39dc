"""The folder of all data sets, and caches of what is read from it.

    @per_folder(4)
    def imagenet(side=224): ...

A process may turn to another folder: a plain cache would go on with the data of the one before,
and with their fingerprint.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["FOLDER", "PerFolder", "per_folder"]

FOLDER = "SPHERENORM_DATA"
"""The environment variable with the folder of all data sets.

Processes that train inherit it. It is no part of a run's identity: the data are.
"""

P = ParamSpec("P")
T = TypeVar("T")


class PerFolder(Generic[P, T]):
    """A function whose results are kept, by its arguments and by the folder of all data sets."""

    def __init__(self, function: Callable[P, T], size: int) -> None:
        functools.update_wrapper(self, function)

        @functools.lru_cache(maxsize=size)
        def kept(_: str | None, *args: Any, **more: Any) -> T:
            return function(*args, **more)

        self._kept: Callable[..., T] = kept
        self.cache_clear = kept.cache_clear

    def __call__(self, *args: P.args, **more: P.kwargs) -> T:
        return self._kept(os.environ.get(FOLDER), *args, **more)


def per_folder(size: int) -> Callable[[Callable[P, T]], PerFolder[P, T]]:
    """Keep the last `size` results of a function, by arguments and folder."""
    return functools.partial(PerFolder, size=size)
