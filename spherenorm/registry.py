"""Recipes by name: functions from hyper-parameters to a rule, found by a short name or as `module:function`."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from spherenorm.rule import Rule

__all__ = ["Recipe", "build", "defaults", "find_recipe", "names", "recipe", "reference"]

Recipe = Callable[..., Rule]

_F = TypeVar("_F", bound=Recipe)
_registered: dict[str, Recipe] = {}


def recipe(function: _F) -> _F:
    """Register a recipe under its function's name and return it unchanged.

    Raises:
        ValueError: another function holds that name; TypeError: the function takes *args or **kwargs, so that its
        hyper-parameters have no names.
    """
    name = function.__name__
    _parameters(function)
    holder = _registered.get(name)
    if holder is not None and _location(holder) != _location(function):
        raise ValueError(f"the recipe name {name!r} is taken by {_location(holder)}")
    _registered[name] = function
    return function


def names() -> list[str]:
    """The registered names, in order of registration."""
    return list(_registered)


def find_recipe(spec: str | Recipe) -> Recipe:
    """The recipe that `spec` stands for: a registered name, `module:function`, or a recipe itself.

    Raises:
        ValueError: nothing of that name; the message lists the nearest names.
    """
    if callable(spec):
        return spec
    if spec in _registered:
        return _registered[spec]
    if not isinstance(spec, str):
        raise TypeError(f"a recipe is a function, a registered name or module:function, got {spec!r}")
    module_name, colon, function_name = spec.partition(":")
    if not (colon and module_name):
        raise ValueError(f"no recipe is named {spec!r}; {_nearest(spec, names())} (your own: module:function)")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise  # the module exists, something that it imports does not
        raise ValueError(f"recipe {spec!r}: there is no module {module_name!r} on the import path") from None
    found = getattr(module, function_name, None)
    if not callable(found):
        functions = [n for n, f in vars(module).items() if inspect.isfunction(f)]
        raise ValueError(f"recipe {spec!r}: module {module_name!r} has no function {function_name!r}; {_nearest(function_name, functions)}")
    return found  # type: ignore[no-any-return]


def build(function: Recipe, hyper_parameters: Mapping[str, Any]) -> Rule:
    """The rule that a recipe makes of its hyper-parameters.

    Raises:
        TypeError: what it returns is no rule; ValueError, TypeError: a hyper-parameter outside its interval, after the
        hyper-parameters that are not the recipe's defaults.
    """
    try:
        for name, default in defaults(function).items():
            value = hyper_parameters.get(name, default)
            if name == "betas" and isinstance(default, tuple) and (not isinstance(value, tuple | list) or len(value) != len(default)):
                raise ValueError(f"betas must be {len(default)} numbers, got {value!r}")
        rule = function(**hyper_parameters)
    except (TypeError, ValueError) as error:
        known = defaults(function)
        chosen = ", ".join(f"{name}={value!r}" for name, value in hyper_parameters.items() if repr(value) != repr(known.get(name)))
        raise type(error)(f"{reference(function)}({chosen}): {error}") from error
    if not isinstance(rule, Rule):
        raise TypeError(f"recipe {reference(function)!r} must return a rule, it returned {rule!r}")
    return rule


def reference(function: Recipe) -> str:
    """The string that finds `function` again: its registered name, else `module:function`."""
    name = getattr(function, "__name__", "")
    return name if _registered.get(name) is function else _location(function)


def defaults(function: Recipe) -> Mapping[str, Any]:
    """Hyper-parameter names and defaults, in order; `inspect.Parameter.empty` marks one without a default."""
    return MappingProxyType({name: parameter.default for name, parameter in _parameters(function).items()})


@functools.cache  # reading a signature takes longer than stepping a small weight
def _parameters(function: Recipe) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
            raise TypeError(f"recipe {_location(function)}: hyper-parameters need names, got {parameter}")
    return parameters


def _location(function: Recipe) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', repr(function))}"


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"
