"""Helpers for errors: the nearest known names, and an optional package that is missing."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class MissingExtraError(ImportError, ValueError):
    """An optional package is not installed; the message names what needs it and how to get it."""


def close_names(
    name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.5
) -> list[str]:
    """The known names that are spelled nearly as `name`, the closest first.

    Args:
        name: as it was given.
        known: the right names.
        most: how many to return at most.
        cutoff: the least similarity, in [0, 1]; see `difflib.get_close_matches`.
    """
    return difflib.get_close_matches(str(name), list(known), n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of an error message about an unknown name: the nearest known names.

    Args:
        name: the unknown name.
        known: the right names.
        otherwise: the end of the message if none is near; by default it lists all known names.

    Example:
        >>> did_you_mean("sgpd", ["adam", "sgd", "sgdp"])
        'did you mean sgd or sgdp?'
        >>> did_you_mean("lion", ["adam", "sgd"])
        'known: adam, sgd'
    """
    known = list(known)
    if close := close_names(name, known):
        return f"did you mean {' or '.join(close)}?"
    return otherwise or f"known: {', '.join(sorted(known))}"


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> ValueError:
    """The error to raise for a name that is not known.

    Args:
        kind: of thing that was asked for, such as "schedule".
        name: the unknown name.
        known: the right names.
        hint: follows the nearest names.

    Example:
        >>> unknown_name("schedule", "cosin", ["constant", "cosine"])
        ValueError("no schedule is named 'cosin'; did you mean cosine?")
    """
    end = f" {hint}" if hint else ""
    return ValueError(f"no {kind} is named {name!r}; {did_you_mean(name, known)}{end}")


def require_module(module: str, otherwise: str) -> Any:
    """Import an optional module.

    Args:
        module: its name.
        otherwise: the message if it is missing: what needs it, and how to install it. "{error}"
            in it stands for the import's own error.

    Raises:
        MissingExtraError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(otherwise.replace("{error}", str(error))) from error
