"""Errors of code that a user brought along, such as a recipe or a study, said in one line."""

from __future__ import annotations

__all__ = ["RecipeError", "one_line"]


class RecipeError(ValueError):
    """There is no such recipe, or its module cannot be imported."""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, with its kind where the message alone says little."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"
