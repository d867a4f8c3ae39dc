"""Recipes by name: functions from hyper-parameters to a rule, found by a short name or as `module:function`."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import operator
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from spherenorm.chain import Chain, refuse_lost_geometry
from spherenorm.rule import Rule

__all__ = [
    "Recipe",
    "build",
    "defaults",
    "find_recipe",
    "load_module",
    "names",
    "recipe",
    "reference",
    "registered",
]

Recipe = Callable[..., Rule]

_F = TypeVar("_F", bound=Recipe)
_registered: dict[tuple[str, str], Recipe] = {}
"""By file and function, so that a module that is loaded under two names has each recipe once."""
_LIBRARY = "spherenorm.recipes"


def recipe(function: _F) -> _F:
    """Register a recipe under its function's name and return it unchanged.

        @sn.recipe
        def halved(lr=0.1):
            return sn.chain(sn.rules.StepSize(lr), sn.rules.StepSize(0.5))

        print(sn.find_recipe("halved")(lr=0.2))

    The library's own names always mean the library's recipes. A name that two other modules
    register means neither: call each `module:function`. A function that is defined again (a
    notebook's cell, a reload) replaces the one before.

    Raises:
        TypeError: the function takes *args or **kwargs, so that its hyper-parameters have no names.
    """
    _parameters(function)
    _registered[_source(function)] = function
    return function


def names() -> list[str]:
    """The names that find the registered recipes, in order; `module:function` for shared names."""
    return [f.__name__ if _named(f.__name__) == [f] else _location(f) for f in _registered.values()]


def find_recipe(spec: str | Recipe) -> Recipe:
    """The recipe that `spec` stands for: a registered name, `module:function`, or a recipe itself.

        rule = sn.find_recipe("adamp")(lr=0.01)

    The module that runs as a script is not imported a second time under its own name.

    Raises:
        ValueError: nothing of that name (the message lists the nearest), or two recipes of it.
        TypeError: `spec` is neither a string nor a function.
    """
    if callable(spec):
        return spec
    if not isinstance(spec, str):
        raise TypeError(
            f"a recipe is a function, a registered name or module:function, got {spec!r}"
        )
    found = registered(spec)
    if len(found) > 1:
        raise ValueError(f"recipe {spec!r} may be {' or '.join(map(_location, found))}; say which")
    return found[0] if found else _imported(spec)


def registered(spec: str) -> list[Recipe]:
    """The registered recipes that a string may mean; nothing is imported for it."""
    return _named(spec) or [f for f in _registered.values() if _location(f) == spec]


def _imported(spec: str) -> Recipe:
    module_name, colon, function_name = spec.partition(":")
    if not (colon and module_name):
        raise ValueError(
            f"no recipe is named {spec!r}; {_nearest(spec, names())} (your own: module:function)"
        )
    try:
        module = load_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise  # the module exists, something that it imports does not
        raise ValueError(
            f"recipe {spec!r}: there is no module {module_name!r} on the import path"
        ) from None
    try:
        found = operator.attrgetter(function_name)(module)
    except AttributeError:
        found = None
    if not callable(found):
        functions = [n for n, f in vars(module).items() if inspect.isfunction(f)]
        lack = f"module {module_name!r} has no function {function_name!r}"
        raise ValueError(f"recipe {spec!r}: {lack}; {_nearest(function_name, functions)}")
    return found  # type: ignore[no-any-return]


def load_module(name: str) -> ModuleType:
    """Import a module, or give `__main__` where that is the very file, which runs as a script.

    Raises:
        ModuleNotFoundError: there is none of that name; and whatever its own code raises.
    """
    main = sys.modules.get("__main__")
    if name not in sys.modules and getattr(main, "__file__", None):
        origin = getattr(importlib.util.find_spec(name), "origin", None)
        if origin and os.path.realpath(origin) == _file_of("__main__"):
            return sys.modules["__main__"]
    return importlib.import_module(name)


def build(function: Recipe, hyper_parameters: Mapping[str, Any]) -> Rule:
    """The rule that a recipe makes of its hyper-parameters.

    Raises:
        TypeError: what it returns is no rule; ValueError, TypeError: a hyper-parameter outside its interval, after the
        hyper-parameters that are not the recipe's defaults.
    """
    try:
        for name, default in defaults(function).items():
            value = hyper_parameters.get(name, default)
            if (
                name == "betas"
                and isinstance(default, tuple)
                and (not isinstance(value, tuple | list) or len(value) != len(default))
            ):
                raise ValueError(f"betas must be {len(default)} numbers, got {value!r}")
        rule = function(**hyper_parameters)
        if isinstance(rule, Rule) and not isinstance(rule, Chain):
            refuse_lost_geometry(rule)
    except (TypeError, ValueError) as error:
        known = defaults(function)
        chosen = ", ".join(
            f"{name}={value!r}"
            for name, value in hyper_parameters.items()
            if repr(value) != repr(known.get(name))
        )
        raise type(error)(f"{reference(function)}({chosen}): {error}") from error
    if not isinstance(rule, Rule):
        raise TypeError(f"recipe {reference(function)!r} must return a rule, it returned {rule!r}")
    return rule


def reference(function: Recipe) -> str:
    """The string that finds `function` again, whatever others register later.

    The library's recipes have their names, all others `module:function`.
    """
    lasting = function.__module__ == _LIBRARY and function in _registered.values()
    return function.__name__ if lasting else _location(function)


def defaults(function: Recipe) -> Mapping[str, Any]:
    """Hyper-parameter names and defaults, in order; `inspect.Parameter.empty` marks one without a default."""
    return MappingProxyType(
        {name: parameter.default for name, parameter in _parameters(function).items()}
    )


@functools.cache  # reading a signature takes longer than stepping a small weight
def _parameters(function: Recipe) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise TypeError(
                f"recipe {_location(function)}: hyper-parameters need names, got {parameter}"
            )
    return parameters


def _named(name: str) -> list[Recipe]:
    """The registered recipes that a short name may mean: one where the library has that name."""
    found = [function for function in _registered.values() if function.__name__ == name]
    return [function for function in found if function.__module__ == _LIBRARY] or found


def _location(function: Recipe) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', repr(function))}"


def _source(function: Recipe) -> tuple[str, str]:
    return _file_of(function.__module__) or function.__module__, function.__qualname__


def _file_of(module_name: str) -> str | None:
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return os.path.realpath(file) if file else None


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"
