"""Requests of a store that cannot be read, and the sections of those that can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spherenorm_experiments.cli._console import say_error, usage_errors
from spherenorm_experiments.cli._options import existing_store
from spherenorm_experiments.report.page import Section, names_of, sections
from spherenorm_experiments.study import find_study, read_requests

__all__ = ["read_sections", "tell_unusable"]


def tell_unusable(requests: Mapping[str, str]) -> bool:
    """Say which requests cannot be read, and what to do; True if there are any."""
    for name, text in requests.items():
        say_error(f"plans/{name}: {text}")
    return bool(requests)


def read_sections(studies: Sequence[str], out: Path) -> tuple[list[Section], bool]:
    """The sections of these studies, or of all that were run if none is named.

    A wrong name, and a store without such a study, end the command.

    Returns:
        The sections, and True if a request cannot be read.
    """
    with usage_errors():
        store = existing_store(out)
    requests, unusable = read_requests(store)
    here = names_of(requests)
    with usage_errors():
        wanted = {name if name in here else find_study(name).name for name in studies}
    found = sections(store, requests, wanted)
    left = tell_unusable(unusable)
    with usage_errors():
        if not found:
            lack = f"the store {out} holds no such study"
            raise ValueError(f"{lack}; `spherenorm run` comes first")
    return found, left
