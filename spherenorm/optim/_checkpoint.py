"""Checkpoints: the state and the param_groups that a state_dict gives an optimizer."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._registry import Bound, Recipe, bind, defaults_of, registered
from spherenorm._steps import init_apart
from spherenorm.core import Rule
from spherenorm.optim._arguments import HOW, OTHER_NAMES, require_truth
from spherenorm.optim._group import ParamGroup, checked_rule
from spherenorm.optim._weights import describe


def fit(
    state_dict: Mapping[str, Any],
    param_groups: Sequence[dict[str, Any]],
    recipe_of: Callable[[Mapping[str, Any]], Recipe],
) -> dict[str, Any]:
    """The state and the param_groups of an optimizer that has loaded a checkpoint.

    The checkpoint may be of this optimizer's class, of another class whose recipe has the same
    state, or of an optimizer of torch.optim or `adamp` with the same names in its state:

        adamp = sn.optim.AdamP(model.parameters())
        adamp.load_state_dict(adamw.state_dict())  # a run that began with AdamW

    Hyper-parameters that the saved optimizer does not have keep their present values, and so does
    how a step runs. Those that only the saved recipe has are dropped, and so are entries of another
    library's state that this one does not have.

    Args:
        state_dict: as `state_dict` returns it; hooks may have changed it.
        param_groups: the optimizer's present ones, which stay as they are.
        recipe_of: the recipe of a param_group.

    Raises:
        ValueError: the state has other names or shapes, is complex, or was made with an option of
            torch's that the recipe lacks (amsgrad, Muon's ns_steps, ...); the groups are others; a
            hyper-parameter is outside its interval.
        TypeError: `maximize` is not True or False.
    """
    if not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(f"a state_dict has state and param_groups, got {sorted(state_dict)}")
    saved_groups, rest = state_dict["param_groups"], dict(state_dict["state"])
    if (count := len(saved_groups)) != (own := len(param_groups)):
        raise ValueError(f"the state_dict has {count} param_groups, the optimizer {own}")
    state: defaultdict[Any, Any] = defaultdict(dict)
    groups: list[ParamGroup] = []
    index = 0
    for saved_group, present in zip(saved_groups, param_groups, strict=True):
        group, rule = _fit_group(saved_group, present, recipe_of(present))
        groups.append(group)
        for key, weight in zip(saved_group["params"], group["params"], strict=True):
            try:
                template = init_apart(rule, weight)
                if key in rest:
                    state[weight] = _fit_state(rest.pop(key), template)
            except ValueError as error:
                raise ValueError(f"{describe(index, weight)}: {error}") from error
            index += 1
    state.update(rest)  # as torch does with what belongs to no parameter
    return {"state": state, "param_groups": groups}


def _fit_group(
    saved: Mapping[str, Any], present: dict[str, Any], recipe: Recipe
) -> tuple[ParamGroup, Rule]:
    """`present` with the entries of a saved group, and its rule then."""
    if (count := len(saved["params"])) != (own := len(present["params"])):
        what = "the state_dict's param_group"
        raise ValueError(f"{what} has {count} parameters, the optimizer's {own}")
    _refuse_options(saved, present["recipe"], defaults_of(recipe))
    saver = _saver(saved, recipe)
    left_out = {"params", "recipe", *HOW, *OTHER_NAMES["backend"]}
    left_out |= saver.defaults.keys() - present.keys() if saver else set()
    entries = {name: value for name, value in saved.items() if name not in left_out}
    assert isinstance(present, ParamGroup)
    group = ParamGroup({**present, **copy.deepcopy(entries)}, present.how)
    require_truth(group["maximize"])
    rule = checked_rule(recipe, group)
    if saver and set(saver.rule.keys) != set(rule.keys):
        states = f"{sorted(saver.rule.keys)} and {sorted(rule.keys)}"
        both = f"of recipe {saver.name!r}, the param_group of {present['recipe']!r}"
        raise ValueError(f"the state_dict is {both}: their states are {states}")
    return group, rule


_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "adam": {"decoupled_weight_decay": (False,)},
    "adamw": {"decoupled_weight_decay": (True,)},
    "muon": {
        "adjust_lr_fn": (None, "original"),
        "ns_steps": (5,),
        "ns_coefficients": ((3.4445, -4.775, 2.0315),),
    },
    "sgd": {"dampening": (0,)},
}
"""Options of torch's optimizers of these names, with the values at which the recipes are theirs."""


def _refuse_options(saved: Mapping[str, Any], recipe: str, own: Collection[str]) -> None:
    """Refuse options of torch's that change its steps and that the recipe lacks."""
    for name, taken in {"amsgrad": (False,), **_OPTIONS.get(recipe, {})}.items():
        value = saved.get(name, taken[0])
        value = tuple(value) if isinstance(value, list) else value
        idle = name == "decoupled_weight_decay" and saved.get("weight_decay") == 0
        if name not in own and value not in taken and not idle:
            lacks = f"which recipe {recipe!r} does not have"
            raise ValueError(f"the state_dict was made with {name}={value!r}, {lacks}")


def _saver(saved: Mapping[str, Any], recipe: Recipe) -> Bound | None:
    """The recipe that a group was saved with, if it is another one than `recipe`.

    It must be registered: a checkpoint's text neither imports nor calls anything else.
    """
    found = registered(str(saved.get("recipe")))
    if len(found) != 1 or found[0] is recipe:
        return None
    return bind(found[0], **{n: saved[n] for n in defaults_of(found[0]) if n in saved})


def _fit_state(saved: Mapping[str, Any], template: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`saved` in the dtypes and on the device of `template`, empty if it is.

    Torch would cast it to the weight's dtype: a float32 momentum of a bfloat16 weight stays whole.
    """
    saved = {name: value for name, value in saved.items() if value is not None}
    if saved and not saved.keys() >= template.keys():
        held = f"the state_dict holds {sorted(saved)}"
        raise ValueError(f"{held}, the recipe's state is {sorted(template)}")
    state = {}
    for name, fresh in template.items() if saved else ():
        value = torch.as_tensor(saved[name])
        if value.shape != fresh.shape:
            shapes = f"{tuple(value.shape)} in the state_dict, not {tuple(fresh.shape)}"
            raise ValueError(f"{name} has shape {shapes}")
        if value.is_complex():
            raise ValueError(f"{name} is complex ({value.dtype}), and the recipe's state is real")
        state[name] = torch.empty_like(fresh).copy_(value)
    return state
