"""A param_group: the arguments of one recipe, and the rule that they make."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._annotations import signature_of
from spherenorm._registry import (
    Recipe,
    bind,
    defaults_of,
    find_recipe,
    hyper_parameter_names,
    name_of,
)
from spherenorm._views import View
from spherenorm.compile import require_backend
from spherenorm.core import Rule

SHARED = {"maximize": False, "backend": "auto"}
"""The arguments of every optimizer beside its hyper-parameters, with their defaults."""
_OTHER_ENTRIES = ("self", "params", "param_names", "recipe", *SHARED)
_OTHER_WORDS = ("learning_rate", "wd", "decay")
"""Those of other libraries for hyper-parameters."""
_ONE_KERNEL = 'leave it out; backend="auto" steps all weights in one kernel where it can'
_OF_TORCH = {
    "amsgrad": "this library does not have it",
    "foreach": _ONE_KERNEL,
    "fused": _ONE_KERNEL,
    "capturable": "leave it out; a compiled step can be captured in a CUDA graph as it is",
    "differentiable": "use spherenorm.functional, whose steps can be differentiated",
}
"""Arguments of torch.optim that are taken at False and None, and what to do instead otherwise."""


def refuse_taken_names(recipe: Recipe) -> None:
    """Refuse a recipe with a hyper-parameter that is called as another entry of param_groups."""
    for name in defaults_of(recipe):
        if name in _OTHER_ENTRIES:
            has = f"recipe {name_of(recipe)!r} has a hyper-parameter {name!r}"
            raise TypeError(f"{has}, which every optimizer has beside; give it another name")


def refuse_modules(params: Any) -> None:
    """Refuse a module, or its method that was not called, in the place of parameters."""
    if callable(params) and not isinstance(params, torch.nn.ParameterList):
        module = isinstance(params, torch.nn.Module)
        got = f"a {type(params).__name__}" if module else f"{params!r}, which was not called"
        raise TypeError(f"params must be parameters, such as model.parameters(), got {got}")


def bind_arguments(
    optimizer: str, recipe: Recipe, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each hyper-parameter in a call of the class that is named `optimizer`.

    Raises:
        TypeError: an argument is unknown, absent, or torch.optim's and switched on.
    """
    known = defaults_of(recipe)
    _refuse_arguments_of_torch(named, known)
    given = {name: v for name, v in named.items() if name in known or name not in _OF_TORCH}
    try:
        bound = signature_of(recipe).bind(*positional, **given)
    except TypeError as error:
        has = f"its hyper-parameters are {', '.join(known)}"
        raise TypeError(f"{optimizer}: {error}; {has}") from None
    bound.apply_defaults()
    return bound.arguments


def complete_group(
    param_group: Mapping[str, Any], own_recipe: Recipe, own_defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], Rule]:
    """A copy of `param_group` that has a value for every argument of its recipe, and its rule.

    Args:
        param_group: `params`, and the entries in which it differs from the defaults.
        own_recipe: of the optimizer's class.
        own_defaults: of the optimizer; a group of another recipe has that one's.

    Raises:
        TypeError, ValueError: an entry is wrong; a hyper-parameter has no value; the name of the
            group's recipe in a checkpoint would not find it again.
    """
    refuse_modules(param_group["params"])
    recipe, defaults = find_recipe(param_group.get("recipe", own_recipe)), own_defaults
    refuse_taken_names(recipe)
    known, name = defaults_of(recipe), name_of(recipe)
    if recipe_of(name, own_recipe) is not recipe:
        alone = "must be importable by that name, which is no other recipe's"
        raise ValueError(f"recipe {name!r} of a param_group {alone}")
    if recipe is not own_recipe:
        defaults = {**known, **{shared: own_defaults[shared] for shared in SHARED}}
    group = {**defaults, **param_group, "recipe": name}
    _refuse_arguments_of_torch(group, known)
    _warn_of_no_effect(param_group, name, known)
    for argument in known:
        if group[argument] is inspect.Parameter.empty:
            lack = f"needs {argument}, and the param_group does not set it"
            raise ValueError(f"recipe {name!r} {lack}")
        group[argument] = _as_saved(group[argument])
    return group, checked_rule(recipe, group)


def recipe_of(name: str, own_recipe: Recipe) -> Recipe:
    """The recipe that a param_group names; that of the class need not be importable."""
    return own_recipe if name == name_of(own_recipe) else find_recipe(name)


def bind_group(recipe: Recipe, group: Mapping[str, Any]) -> Rule:
    """The rule of a param_group at its present hyper-parameters.

    Raises:
        TypeError: a hyper-parameter has a wrong type, or `maximize` is not True or False.
        ValueError: a hyper-parameter is outside its interval, or there is no such backend.
    """
    if not isinstance(group["maximize"], bool):
        raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")
    require_backend(group["backend"])
    return bind(recipe, **{name: group[name] for name in defaults_of(recipe)}).rule


def checked_rule(recipe: Recipe, group: Mapping[str, Any]) -> Rule:
    """As `bind_group`, with a check of numbers in tensors, for which a step would have to wait."""
    numbers = {name: _as_number(group[name]) for name in defaults_of(recipe)}
    bind_group(recipe, {**group, **numbers})
    return bind_group(recipe, group)


def _refuse_arguments_of_torch(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    for name, instead in _OF_TORCH.items():
        if name not in known and arguments.get(name):
            raise TypeError(f"{name}={arguments[name]!r} is an argument of torch.optim: {instead}")


def _warn_of_no_effect(group: Mapping[str, Any], recipe: str, known: Collection[str]) -> None:
    """Warn of entries that mean to be hyper-parameters. (Others are tags, which torch keeps.)"""
    others = [name for name in group if name not in known and name not in _OTHER_ENTRIES]
    found = hyper_parameter_names() if others else set()
    meant = [*known, "recipe", *_OTHER_WORDS]
    for name in others:
        if name in found - _OF_TORCH.keys() or difflib.get_close_matches(name.lower(), meant):
            no_effect = f"{name}={group[name]!r} in a param_group has no effect"
            has = f"the hyper-parameters of {recipe!r} are {', '.join(known)}"
            warnings.warn(f"{no_effect}: {has}", stacklevel=7)


def _as_saved(value: Any) -> Any:
    """Views by their names: a state_dict that holds an object of another class does not load with
    `weights_only=True`."""
    if type(value) in (tuple, list):
        return type(value)(map(_as_saved, value))
    return str(value) if isinstance(value, View) else value


def _as_number(value: Any) -> Any:
    """The number that a tensor on the CPU holds."""
    if type(value) in (tuple, list):
        return type(value)(map(_as_number, value))
    read = isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim
    return value.item() if read else value
