"""A param_group: the arguments of one recipe, and the rule that they make."""

from __future__ import annotations

import difflib
import inspect
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.annotations import signature_of
from spherenorm.compile import require_backend
from spherenorm.numerics import as_number
from spherenorm.registry import (
    Bound,
    Recipe,
    bind,
    defaults_of,
    find_recipe,
    hyper_parameter_names,
    name_of,
    recipes_named,
)
from spherenorm.rule import Rule
from spherenorm.views import View

SHARED = {"maximize": False, "backend": "auto"}
"""The arguments of every optimizer beside its hyper-parameters, with their defaults."""
_OTHER_ENTRIES = ("self", "params", "param_names", "recipe", *SHARED)
_OTHER_WORDS = ("learning_rate", "wd", "decay")
"""Those of other libraries for hyper-parameters."""
_TYPO_SIMILARITY = 0.8
"""Of a misspelled hyper-parameter: "weight_decy", but not the tags "no_decay" and "decay_mult"."""
_CHOOSING_WORDS = (
    *("algorithm", "algo", "optim", "optim_name", "optim_type"),
    *("opt", "optimizer", "optimizer_name", "optimizer_type"),
)
"""Entries by which other libraries choose the optimizer of a param_group (dion: `algorithm`)."""
_CHOOSING_FLAG = re.compile(r"use_(\w+)")
"""The same as a truth value, such as `use_muon` of KellerJordan/Muon."""
_MULTIPLY = "multiply {of} itself, unless a scheduler reads it"
_CLIP = "clip gradients before the step, by torch.nn.utils.clip_grad_norm_"
_RATE_MULTIPLIERS = (
    *("lr_scale", "lr_mult", "lr_mul", "lr_multi", "lr_multiplier", "lr_factor", "lr_ratio"),
)
_DECAY_MULTIPLIERS = (
    *("wd_scale", "wd_mult", "wd_mul", "wd_multiplier", "wd_factor"),
    *("weight_decay_scale", "weight_decay_mult", "weight_decay_multiplier"),
)
_CLIPPING_WORDS = (
    *("max_grad_norm", "clip_grad_norm", "grad_clip", "grad_clip_norm", "clip_grad"),
    *("gradient_clip_val", "clip_norm", "clipnorm", "clip_value", "clipvalue"),
)
_OF_OTHER_LIBRARIES = {
    **dict.fromkeys(_RATE_MULTIPLIERS, _MULTIPLY.format(of="lr")),
    **dict.fromkeys(_DECAY_MULTIPLIERS, _MULTIPLY.format(of="weight_decay")),
    **dict.fromkeys(_CLIPPING_WORDS, _CLIP),
}
"""Entries that other libraries or their schedulers act on, and what to do instead."""
_ONE_KERNEL = 'leave it out; backend="auto" steps all weights in one kernel where it can'
_OF_TORCH = {
    "amsgrad": "this library does not have it",
    "foreach": _ONE_KERNEL,
    "fused": _ONE_KERNEL,
    "capturable": "leave it out; a compiled step can be captured in a CUDA graph as it is",
    "differentiable": "use spherenorm.functional, whose steps can be differentiated",
}
"""Arguments of torch.optim that are taken at False and None, and what to do instead otherwise."""


class GroupsOfRecipe(list[dict[str, Any]]):
    """The param_groups that were made for one recipe, which those without a "recipe" take.

    Attributes:
        recipe: its name.
        preset_names: the groups whose entries of these names are a preset's and not the user's.
    """

    def __init__(
        self, groups: Sequence[tuple[dict[str, Any], frozenset[str]]], recipe: str
    ) -> None:
        super().__init__(group for group, _ in groups)
        self.recipe, self.preset_names = recipe, list(groups)

    def without_replaced(self, given: Collection[str]) -> list[dict[str, Any]]:
        """Return the groups without those entries of a preset that a call of a class gives."""
        preset_names = {id(group): names for group, names in self.preset_names}
        found = []
        for group in self:
            replaced = preset_names.get(id(group), frozenset()) & set(given)
            found.append({key: x for key, x in group.items() if key not in replaced})
        return found


def warn_of_other_recipe(optimizer: str, recipe: str, groups: GroupsOfRecipe) -> None:
    """Warn of groups made for another recipe, which those without a "recipe" would not get."""
    if recipe != groups.recipe and f"({groups.recipe})" not in recipe:
        warnings.warn(
            f"{optimizer} steps param_groups by {recipe!r} that were made for {groups.recipe!r}: "
            f"use groups.optimizer(), or make them for {recipe!r}",
            stacklevel=4,
        )


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
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the value of each hyper-parameter in a call of the class that is named `optimizer`,
    and the names of those that were given.

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
    given_names = frozenset(bound.arguments)
    bound.apply_defaults()
    return {name: as_saved(value) for name, value in bound.arguments.items()}, given_names


def warn_of_unused_arguments(
    optimizer: str,
    arguments: Mapping[str, Any],
    given: Collection[str],
    param_groups: Sequence[Mapping[str, Any]],
) -> None:
    """Warn of given arguments of a class that no param_group has, since each sets its own.

    A value that some group has as well is not lost: timm gives a decay of 0 beside its groups.
    """
    for name in sorted(given):
        groups_have = [group[name] for group in param_groups if name in group]
        if not any(_is_same(as_saved(arguments[name]), value) for value in groups_have):
            values = f": they have {', '.join(map(repr, groups_have))}" if groups_have else ""
            warnings.warn(
                f"{optimizer}: {name}={arguments[name]!r} reaches no param_group, since each sets "
                f"its own or has another recipe{values}. Set {name} in the param_groups",
                stacklevel=4,
            )


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, tuple | list) and isinstance(other, tuple | list):
        return len(value) == len(other) and all(map(_is_same, value, other))
    if isinstance(value, Tensor) or isinstance(other, Tensor):
        return value is other
    return bool(value == other)


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
    if "recipe" not in param_group:
        _refuse_other_choices(param_group, name, known)
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
        group[argument] = as_saved(group[argument])
    return group, checked_group(recipe, group).rule


def recipe_of(name: str, own_recipe: Recipe) -> Recipe:
    """The recipe that a param_group names; that of the class need not be importable."""
    return own_recipe if name == name_of(own_recipe) else find_recipe(name)


def bind_group(recipe: Recipe, group: Mapping[str, Any]) -> Bound:
    """The recipe of a param_group with its present hyper-parameters, whose rule is made.

    Raises:
        TypeError: a hyper-parameter has a wrong type, or `maximize` is not True or False.
        ValueError: a hyper-parameter is outside its interval, or there is no such backend.
    """
    if not isinstance(group["maximize"], bool):
        raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")
    require_backend(group["backend"])
    bound = bind(recipe, **{name: group[name] for name in defaults_of(recipe)})
    bound.rule  # noqa: B018  (it raises)
    return bound


def checked_group(recipe: Recipe, group: Mapping[str, Any]) -> Bound:
    """As `bind_group`, with a check of numbers in tensors, for which a step would have to wait."""
    numbers = {name: _as_number(group[name]) for name in defaults_of(recipe)}
    bind_group(recipe, {**group, **numbers})
    return bind_group(recipe, group)


def _refuse_arguments_of_torch(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    for name, instead in _OF_TORCH.items():
        if name not in known and arguments.get(name):
            raise TypeError(f"{name}={arguments[name]!r} is an argument of torch.optim: {instead}")


def _refuse_other_choices(group: Mapping[str, Any], recipe: str, known: Collection[str]) -> None:
    """Refuse entries by which other libraries choose another optimizer than this group's recipe."""
    for name, value in group.items():
        if name in known or name in _OTHER_ENTRIES:
            continue
        if flag := _CHOOSING_FLAG.fullmatch(name):
            asked = flag[1].lower()
            # (`use_muon` is true of Muon and of its variants.)
            is_switch = isinstance(value, int) and bool(recipes_named(asked))
            if not is_switch or bool(value) == (asked in recipe):
                continue
            instead = asked if value else "adamw"
        elif name in _CHOOSING_WORDS and value is not None:
            instead = value.lower() if isinstance(value, str) else "adamw"
            if instead == recipe:
                continue
            instead = instead if recipes_named(instead) else "adamw"
        else:
            continue
        raise TypeError(
            f"{name}={value!r} in a param_group does not choose its optimizer here, which would be "
            f'{recipe!r}; give the group a recipe instead, such as "recipe": "{instead}"'
        )


def _warn_of_no_effect(group: Mapping[str, Any], recipe: str, known: Collection[str]) -> None:
    """Warn of entries that mean to be hyper-parameters. (Others are tags, which torch keeps.)"""
    others = [name for name in group if name not in known and name not in _OTHER_ENTRIES]
    found = hyper_parameter_names() if others else set()
    meant = [*known, "recipe"]
    for name in others:
        no_effect = f"{name}={group[name]!r} in a param_group has no effect"
        if name in _OF_OTHER_LIBRARIES:
            no_effect += f" on the optimizer: {_OF_OTHER_LIBRARIES[name]}"
        elif not (
            name in found - _OF_TORCH.keys()
            or name in _OTHER_WORDS
            or difflib.get_close_matches(name.lower(), meant, cutoff=_TYPO_SIMILARITY)
        ):
            continue
        has = f"the hyper-parameters of {recipe!r} are {', '.join(known)}"
        warnings.warn(f"{no_effect}; {has}", stacklevel=7)


def as_saved(value: Any) -> Any:
    """Return a value as plain numbers, tuples and strings, views by their names.

    A state_dict that holds an object of another class, such as a number of numpy's, does not load
    with `weights_only=True`.
    """
    try:
        value = as_number(value)
    except ValueError:
        return value  # of a number that is too large, which the recipe refuses by its name
    if type(value) in (tuple, list):
        return type(value)(map(as_saved, value))
    return str(value) if isinstance(value, View) else value


def _as_number(value: Any) -> Any:
    """The number that a tensor on the CPU holds."""
    if type(value) in (tuple, list):
        return type(value)(map(_as_number, value))
    read = isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim
    return value.item() if read else value
