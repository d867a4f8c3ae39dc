"""Hyper-parameters by name, and as inputs of a trace: a tuple such as betas is one per entry."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spherenorm import Recipe, bind, find_recipe, recipe_names

__all__ = [
    "are_numbers",
    "enter",
    "inputs_of",
    "is_number",
    "message",
    "numbers_by_name",
    "resolve_hyper_parameters",
    "resolve_recipe",
]


def is_number(value: object) -> bool:
    """True for a Python number that is no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def are_numbers(value: object) -> bool:
    """True for a tuple of numbers, such as betas."""
    return isinstance(value, tuple) and bool(value) and all(map(is_number, value))


def inputs_of(name: str, value: Any) -> dict[str, Any]:
    """The numbers of a hyper-parameter by the names of their inputs."""
    if are_numbers(value):
        return _parts(name, value)
    return {name: value} if is_number(value) else {}


def numbers_by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """All values by the names of inputs."""
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        numbers.update(_parts(name, value) if isinstance(value, tuple) else {name: value})
    return numbers


def enter(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters `values`, with `inputs` in the places of the numbers of their names."""

    def entered(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(inputs.get(part, entry) for part, entry in _parts(name, value).items())
        return inputs.get(name, value)

    return {name: entered(name, value) for name, value in values.items()}


def _parts(name: str, value: tuple[Any, ...]) -> dict[str, Any]:
    """One name per entry of a tuple: betas gives beta1, beta2."""
    return {f"{name.removesuffix('s')}{i}": entry for i, entry in enumerate(value, 1)}


def resolve_recipe(recipe: str | Recipe) -> Recipe:
    """`find_recipe`, with one message for whatever can be wrong with a module of recipes.

    Raises:
        ValueError: no such recipe, or its module cannot be imported.
    """
    if isinstance(recipe, str) and ":" in recipe and not all(recipe.split(":", 1)):
        known = ", ".join(recipe_names())
        raise ValueError(
            f"no recipe is named {recipe!r}; known: {known} (your own: module:function)"
        )
    try:
        return find_recipe(recipe)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"recipe {recipe!r} cannot be imported: {message(error)}") from error


def resolve_hyper_parameters(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every hyper-parameter of `recipe` with its value, given or default.

    Lists become tuples. Entries of a tuple that stay symbols have their defaults.

    Raises:
        ValueError: no such hyper-parameter, one without a value, one that is inf or nan, or not as
            many numbers as a tuple has.
    """
    bound = bind(recipe)
    name, values = bound.name, dict(bound.defaults)
    for hyper, value in given.items():
        if hyper not in values:
            raise ValueError(f"{name} has no hyper-parameter {hyper!r}; it has {', '.join(values)}")
        default = values[hyper]
        values[hyper] = tuple(value) if isinstance(value, list) else value
        if are_numbers(default):
            values[hyper] = _resolve_tuple(name, hyper, default, values[hyper], value)
        for entry in values[hyper] if isinstance(values[hyper], tuple) else (values[hyper],):
            if is_number(entry) and not math.isfinite(entry):
                raise ValueError(f"{name}: {hyper} must be a finite number, got {value!r}")
    missing = [hyper for hyper, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise ValueError(
            f"{name}: hyper-parameter {missing[0]!r} has no default, give a value: {missing[0]}=..."
        )
    return values


def _resolve_tuple(
    name: str, hyper: str, default: tuple[Any, ...], entries: Any, given: Any
) -> tuple[Any, ...]:
    """The entries of a tuple, where one may be its own name and then has its default."""
    parts = _parts(hyper, default)
    entries = entries if isinstance(entries, tuple) else ()
    if len(entries) != len(parts) or not all(
        is_number(e) or e == part for e, part in zip(entries, parts, strict=True)
    ):
        raise ValueError(
            f"{name}: {hyper} takes {len(parts)} numbers, such as {default}, or "
            f"({', '.join(parts)}) where one stays a symbol; got {given!r}"
        )
    return tuple(parts[e] if isinstance(e, str) else e for e in entries)


def message(error: Exception) -> str:
    """A recipe's error in one line, with its place unless the message is the recipe's own."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "torch" not in Path(frame.filename).parts and Path(frame.filename).parent != _ROOM
    ]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


_ROOM = Path(__file__).parent
