"""Hyper-parameters by name, and as inputs of a trace: a tuple such as betas is one per entry."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Mapping
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from spherenorm import Recipe, bind, find_recipe, recipe_names
from spherenorm.support import unknown_name


def is_number(value: object) -> bool:
    """True for a real number that is no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def are_numbers(value: object) -> bool:
    """True for a tuple of numbers, such as betas."""
    return isinstance(value, tuple) and bool(value) and all(map(is_number, value))


def structure_of(hyper_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters that choose a recipe's code, and so its law.

    They are flags and other values that are no numbers, and the number 0, at which a recipe may
    leave a rule out; a tuple with a 0 in it as a whole.
    """
    return {
        name: value
        for name, value in hyper_parameters.items()
        if not (is_number(value) or are_numbers(value))
        or 0 in (value if isinstance(value, tuple) else (value,))
    }


def structure_of_run(recipe: str | Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters that choose the code of a run: of those given, and of the defaults."""
    used = {**bind(resolve_recipe(recipe)).defaults, **given}
    return structure_of({n: tuple(x) if isinstance(x, list) else x for n, x in used.items()})


def parts_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each hyper-parameter by the names of its inputs: betas gives beta1, beta2.

    No two inputs have one name: beside a hyper-parameter beta1, betas gives betas1, betas2.
    """
    taken, parts = {*values}, dict[str, dict[str, Any]]()
    for name, value in values.items():
        parts[name] = {name: value}
        if are_numbers(value):
            parts[name] = dict(zip(_part_names(name, len(value), taken), value, strict=True))
            taken |= {*parts[name]}
    return parts


def _part_names(name: str, entries: int, taken: set[str]) -> list[str]:
    stems = (name + "_" * n if n >= 0 else name.removesuffix("s") for n in count(-1))
    names = ([f"{stem}{i}" for i in range(1, entries + 1)] for stem in stems)
    return next(each for each in names if taken.isdisjoint(each))


def numbers_by_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """All values by the names of inputs."""
    return {part: entry for parts in parts_of(values).values() for part, entry in parts.items()}


def enter(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters `values`, in which the numbers that `inputs` names are replaced."""
    entered = {
        name: [inputs.get(part, entry) for part, entry in parts.items()]
        for name, parts in parts_of(values).items()
    }
    return {n: tuple(x) if are_numbers(values[n]) else x[0] for n, x in entered.items()}


def resolve_recipe(recipe: str | Recipe) -> Recipe:
    """`find_recipe`, with one message for whatever can be wrong with a module of recipes.

    Raises:
        ValueError: no such recipe, or its module cannot be imported.
    """
    if isinstance(recipe, str) and ":" in recipe and not all(recipe.split(":", 1)):
        raise unknown_name("recipe", recipe, recipe_names(), "(your own: module:function)")
    try:
        return find_recipe(recipe)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"recipe {recipe!r} cannot be imported: {message(error)}") from error


def resolve_hyper_parameters(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every hyper-parameter of `recipe` with its value, given or default.

    Lists become tuples, and real numbers of other types, such as numpy's, become Python's.

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
        entries = values[hyper] if are_numbers(values[hyper]) else ()
        if are_numbers(default) and len(entries) != len(default):
            raise ValueError(
                f"{name}: {hyper} takes {len(default)} numbers, such as {default}; got {value!r}"
            )
        for entry in values[hyper] if isinstance(values[hyper], tuple) else (values[hyper],):
            if is_number(entry) and not math.isfinite(entry):
                raise ValueError(f"{name}: {hyper} must be a finite number, got {value!r}")
    missing = [hyper for hyper, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise ValueError(
            f"{name}: hyper-parameter {missing[0]!r} has no default, give a value: {missing[0]}=..."
        )
    return {hyper: _plain(value) for hyper, value in values.items()}


def _plain(value: Any) -> Any:
    """A real number as an int or a float of Python, a tuple entry by entry."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if not is_number(value) or isinstance(value, (int, float)):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


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
