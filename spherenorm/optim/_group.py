"""A param_group: the weights that one recipe steps, with its hyper-parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from spherenorm._registry import Bound, Recipe, bind, defaults_of, find_recipe, name_of
from spherenorm.compile import require_backend
from spherenorm.core import Rule
from spherenorm.optim._arguments import (
    HOW,
    SHARED,
    as_saved,
    refuse_modules,
    refuse_near_misses,
    refuse_taken_names,
    refuse_torch_arguments,
    require_truth,
)


class ParamGroup(dict[str, Any]):
    """A param_group, whose momentum has two names: its recipe's, and that of the optimizer's class.

    torch's CyclicLR and OneCycleLR set `momentum` or the first of `betas` in all groups, whichever
    the class has; a group of another recipe takes either for its own.

    Attributes:
        how: the values that choose how a step runs. `group["backend"]` reads and sets them, but
            they are not stored in the dict, so that checkpoints omit them.
    """

    def __init__(self, entries: Mapping[str, Any], how: Mapping[str, Any] | None = None) -> None:
        super().__init__(entries)
        self.how = dict(how or {})

    def __missing__(self, name: str) -> Any:
        if name in self.how:
            return self.how[name]
        if name == "betas" and "momentum" in self:
            return (self["momentum"],)
        if name == "momentum" and "betas" in self:
            return self["betas"][0]
        raise KeyError(f"{name}: a param_group of recipe {self.get('recipe')!r} has none")

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.how:
            self.how[name] = value
            return
        if name == "betas" and name not in self and "momentum" in self:
            name, value = "momentum", value[0]
        elif name == "momentum" and name not in self and "betas" in self:
            name, value = "betas", (value, *self["betas"][1:])
        super().__setitem__(name, value)

    def update(self, *entries: Any, **more: Any) -> None:
        for name, value in dict(*entries, **more).items():
            self[name] = value

    def set_apart(self) -> None:
        """Move the entries that choose how a step runs to `how`."""
        self.how = {name: self.pop(name) for name in HOW}

    def __reduce__(self) -> Any:
        # All entries at once: set one by one, `betas` could overwrite `momentum`.
        return ParamGroup, (dict(self), self.how)


def complete_group(
    param_group: Mapping[str, Any], own_recipe: Recipe, own_defaults: Mapping[str, Any]
) -> ParamGroup:
    """A copy of `param_group` with every entry of its recipe.

    Args:
        param_group: `params`, and the entries in which it differs from the defaults.
        own_recipe: the recipe of the optimizer's class.
        own_defaults: the optimizer's entries; a group of another recipe has that one's defaults.

    Raises:
        TypeError, ValueError: an entry is missing, wrong, or nearly a hyper-parameter.
    """
    if not isinstance(param_group, dict):
        raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
    group = ParamGroup(param_group)
    if "params" not in group:
        raise ValueError(f"a param_group needs params, got {sorted(group)}")
    refuse_modules(group["params"])
    if not isinstance(group["params"], Tensor | set):
        group["params"] = list(group["params"])
    recipe = find_recipe(group.get("recipe", own_recipe))
    refuse_taken_names(recipe)
    known, group["recipe"] = defaults_of(recipe), name_of(recipe)
    defaults = own_defaults
    if recipe is not own_recipe:
        _refuse_ambiguous(recipe, group["recipe"], own_recipe)
        defaults = {**known, **{name: own_defaults[name] for name in SHARED}}
    for name, default in defaults.items():
        if group.setdefault(name, default) is inspect.Parameter.empty:
            lack = f"needs {name}, and the param_group does not set it"
            raise ValueError(f"recipe {group['recipe']!r} {lack}")
        group[name] = as_saved(group[name])
    require_truth(group["maximize"])
    require_backend(group["backend"])
    refuse_torch_arguments(group, known)
    refuse_near_misses(group, known)
    return group


def bind_group(recipe: Recipe, group: Mapping[str, Any]) -> Bound:
    """The group's recipe with its present hyper-parameters."""
    return bind(recipe, **{name: group[name] for name in defaults_of(recipe)})


def checked_rule(recipe: Recipe, group: Mapping[str, Any]) -> Rule:
    """The group's rule; numbers that tensors hold are checked, too.

    Raises:
        ValueError, TypeError: a hyper-parameter is outside its interval.
    """
    bound = bind_group(recipe, group)
    numbers = {name: _as_number(value) for name, value in bound.hyper_parameters.items()}
    bound.replace(**numbers).rule  # noqa: B018  (it raises)
    return bound.rule


def _refuse_ambiguous(recipe: Recipe, name: str, own_recipe: Recipe) -> None:
    """Refuse a recipe that its name in a checkpoint would not find again."""
    if name == name_of(own_recipe):
        raise ValueError(
            f"recipe {name!r} of a param_group is another function than the "
            "optimizer's recipe of that name; give one of them another name"
        )
    if find_recipe(name) is not recipe:
        raise ValueError(f"recipe {name!r} of a param_group must be importable by that name")


def _as_number(value: Any) -> Any:
    """The number that a tensor on the CPU holds, so that its interval can be checked."""
    if isinstance(value, tuple | list):
        return type(value)(_as_number(v) for v in value)
    read = isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim
    return value.item() if read else value
