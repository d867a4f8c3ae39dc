"""Hyper-parameters by name, and as scalar inputs of a trace: one per entry of a tuple as betas."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from spherenorm import Recipe, bind, find_recipe, recipe_names
from spherenorm.support import unknown_name


def is_number(value: object) -> bool:
    """Tell if a value is a real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def are_numbers(value: object) -> bool:
    """Tell if a value is a tuple or a list of numbers, such as betas."""
    return isinstance(value, tuple | list) and bool(value) and all(map(is_number, value))


def static_arguments(hyper_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters that select a recipe's code, and so its law.

    They are flags and other values that are no numbers, and the number 0, at which a recipe may
    leave a rule out; a tuple with a 0 in it as a whole.
    """
    static = {}
    for name, value in hyper_parameters.items():
        entries = value if isinstance(value, tuple | list) else (value,)
        if not (is_number(value) or are_numbers(value)) or 0 in entries:
            static[name] = value
    return static


def static_arguments_of_run(
    recipe: str | Recipe, hyper_parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the static arguments of a run, among those given and the defaults.

    A number 1.0 is static, too: it is an end of some intervals, and those of a law are open.
    """
    used = {**bind(resolve_recipe(recipe)).defaults, **hyper_parameters}
    values = {n: tuple(x) if isinstance(x, list) else x for n, x in used.items()}
    ones = {n: x for n, x in values.items() if is_number(x) and x == 1}
    return {**static_arguments(values), **ones}


def scalar_names(hyper_parameters: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the names of the scalar inputs of each hyper-parameter: betas has beta1 and beta2.

    No input has the name of another hyper-parameter or of another input: beside a hyper-parameter
    beta1, the entries of betas are betas1 and betas2; beside betas1 too, betas_1 and betas_2.

    Example:
        >>> scalar_names({"lr": 0.1, "betas": (0.9, 0.8)})
        {'lr': ('lr',), 'betas': ('beta1', 'beta2')}
        >>> scalar_names({"betas": (0.9, 0.8), "beta2": 0.5})["betas"]
        ('betas1', 'betas2')
    """
    names, used_names = dict[str, tuple[str, ...]](), {*hyper_parameters}
    for name, value in hyper_parameters.items():
        names[name] = (name,)
        if are_numbers(value):
            underscored = (name + "_" * n for n in itertools.count())
            for stem in itertools.chain([name.removesuffix("s")], underscored):
                names[name] = tuple(f"{stem}{i}" for i in range(1, len(value) + 1))
                if used_names.isdisjoint(names[name]):
                    break
            used_names.update(names[name])
    return names


def scalars_by_name(
    values: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all values by the names of scalar inputs.

    Args:
        values: the hyper-parameters.
        beside: all hyper-parameters of the recipe, if `values` are some of them.
    """
    names, scalars = scalar_names(values if beside is None else beside), dict[str, Any]()
    for name, value in values.items():
        entries = value if are_numbers(value) else (value,)
        scalars.update(zip(names[name], entries, strict=True))
    return scalars


def substitute_inputs(values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters `values` with other values for some scalar inputs."""
    names, result = scalar_names(values), dict[str, Any]()
    for name, value in values.items():
        entries = value if are_numbers(value) else (value,)
        new = [inputs.get(key, x) for key, x in zip(names[name], entries, strict=True)]
        new_tuple = list(new) if isinstance(value, list) else tuple(new)
        result[name] = new_tuple if are_numbers(value) else new[0]
    return result


def resolve_recipe(recipe: str | Recipe) -> Recipe:
    """Return the recipe of a name or "module:function"; `find_recipe` with one kind of error.

    Raises:
        ValueError: no such recipe, or its module cannot be imported.
        TypeError: `recipe` is neither a string nor a function.
    """
    if not isinstance(recipe, str):
        return find_recipe(recipe)
    if ":" in recipe and not all(recipe.split(":", 1)):
        raise unknown_name("recipe", recipe, recipe_names(), "(your own: module:function)")
    try:
        return find_recipe(recipe)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"recipe {recipe!r} cannot be imported: {type(error).__name__}: "
            f"{' '.join(str(error).split())}"
        ) from error


def resolve_hyper_parameters(recipe: Recipe, hyper_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all hyper-parameters of `recipe`, given or default.

    A given list becomes a tuple, unless the default is a list: a recipe may ask for its type.

    Raises:
        ValueError: no such hyper-parameter, one without a value, one that is inf or nan, or another
            number of entries than a tuple has.
    """
    defaults = bind(recipe).defaults
    values = {
        name: tuple(x) if isinstance(x, list) and not isinstance(defaults.get(name), list) else x
        for name, x in hyper_parameters.items()
    }
    bound = bind(recipe, **values)
    for name, default in bound.defaults.items():
        value = bound.hyper_parameters.get(name, inspect.Parameter.empty)
        if value is inspect.Parameter.empty:
            raise ValueError(
                f"{bound.name}: hyper-parameter {name!r} has no default, give a value: {name}=..."
            )
        # An entry may be a tensor or a schedule, and no text.
        entries = value if isinstance(value, tuple | list) else ()
        n_entries = sum(not isinstance(entry, str) for entry in entries)
        if are_numbers(default) and n_entries != len(default):
            raise ValueError(
                f"{bound.name}: {name} takes {len(default)} numbers, such as {default}; "
                f"got {value!r}"
            )
        for entry in value if isinstance(value, tuple | list) else (value,):
            if is_number(entry) and not math.isfinite(entry):
                raise ValueError(f"{bound.name}: {name} must be a finite number, got {value!r}")
    return dict(bound.hyper_parameters)
