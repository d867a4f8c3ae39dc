"""The folder of the paper's data sets, and what a process keeps of it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["FOLDER", "kept_by_folder"]

FOLDER = "SPHERENORM_DATA"
"""The environment variable with the folder of all data sets.

Processes that train inherit it. It is no part of a run's identity: the data are.
"""

Function = TypeVar("Function", bound=Callable[..., Any])


def kept_by_folder(most: int) -> Callable[[Function], Function]:
    """Keep the last `most` results of a function of its arguments and of the folder's files.

    `lru_cache` alone would give the data of another folder after the folder has changed.
    """

    def decorate(function: Function) -> Function:
        @functools.lru_cache(maxsize=most)
        def kept(_: str | None, *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            return kept(os.environ.get(FOLDER), *arguments, **named)

        called.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate
