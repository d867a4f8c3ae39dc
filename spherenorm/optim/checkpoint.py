"""Checkpoints: the state and the param_groups that a state_dict gives an optimizer."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from spherenorm.optim.group import checked_group, recipe_of
from spherenorm.optim.states import reconcile_shared, rule_keeping_states
from spherenorm.optim.weights import describe, first_state, named
from spherenorm.registry import Bound, Recipe, bind, defaults_of, recipes_named
from spherenorm.rule import Rule, State

_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "adam": {"decoupled_weight_decay": (False,)},
    "adamw": {"decoupled_weight_decay": (True,)},
    "muon": {
        "adjust_lr_fn": (None, "original"),
        "ns_steps": (5,),
        "ns_coefficients": ((3.4445, -4.775, 2.0315),),
    },
}
"""Options of torch's optimizers of these names, with the values at which the recipes are theirs."""


def fit(
    state_dict: Mapping[str, Any],
    param_groups: Sequence[dict[str, Any]],
    own_recipe: Recipe,
) -> dict[str, Any]:
    """The state and the param_groups of an optimizer that has loaded a checkpoint.

    The checkpoint may be of this optimizer's class, of another class whose recipe has the same
    state, or of an optimizer of torch.optim or `adamp` with the same names in its state:

        adamp = sn.optim.AdamP(model.parameters())
        adamp.load_state_dict(adamw.state_dict())  # a run that began with AdamW

    Hyper-parameters that the saved optimizer does not have keep their present values, and so does
    `backend`. Those that only the saved recipe has are dropped, and so are entries of another
    library's state that this one does not have.

    The optimizer's present `param_groups`, whose class has `own_recipe`, stay as they are.

    Raises:
        ValueError: the state has other names or shapes, is complex, or was made with an option of
            torch's that the recipe lacks (amsgrad, Muon's ns_steps, ...); the groups are others; a
            hyper-parameter is outside its interval.
        TypeError: `maximize` is not True or False.
    """
    if not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(f"a state_dict has state and param_groups, got {sorted(state_dict)}")
    saved_groups, rest = state_dict["param_groups"], dict(state_dict["state"])
    saved, own = ([len(g["params"]) for g in each] for each in (saved_groups, param_groups))
    if saved != own:
        theirs = f"{len(saved)} param_groups, of {saved} parameters"
        raise ValueError(f"the state_dict has {theirs}, the optimizer {len(own)}, of {own}")
    state: defaultdict[Any, Any] = defaultdict(dict)
    groups, sharing = [], []
    for group, old, weights in zip(saved_groups, param_groups, named(param_groups), strict=True):
        held = [rest[key] for key in group["params"] if key in rest]
        loaded, rule = _fit_group(group, old, recipe_of(old["recipe"], own_recipe), held)
        groups.append(loaded)
        for key, (name, weight) in zip(group["params"], weights, strict=True):
            if key in rest:
                fresh = first_state(name, weight, rule)
                state[weight] = _fit_state(name, rest.pop(key), fresh)
                sharing.append((rule, state[weight]))
    reconcile_shared(sharing)
    state.update(rest)  # as torch does with what belongs to no parameter
    return {"state": state, "param_groups": groups}


def _fit_group(
    saved: Mapping[str, Any], present: dict[str, Any], recipe: Recipe, states: Sequence[State]
) -> tuple[dict[str, Any], Rule]:
    """`present` with the entries of a saved group, and its rule then, which keeps saved states."""
    own = defaults_of(recipe).keys()
    _refuse_options(saved, present["recipe"], own)
    saver = _saver(saved, recipe)
    left_out = {"params", "recipe", "backend", *(saver.defaults if saver else ())} - own
    entries = {name: value for name, value in saved.items() if name not in left_out}
    group = {**present, **copy.deepcopy(entries)}
    states = [{key: x for key, x in state.items() if x is not None} for state in states]
    rule = rule_keeping_states(checked_group(recipe, group), states)
    saved_keys = rule_keeping_states(saver, states).keys if saver else rule.state_keys
    if saver and set(saved_keys) != set(rule.state_keys):
        both = f"of recipe {saver.name!r}, the param_group of {present['recipe']!r}"
        differing = f"{sorted(saved_keys)} and {sorted(rule.state_keys)}"
        raise ValueError(f"the state_dict is {both}: their states are {differing}")
    return group, rule


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
    found = recipes_named(str(saved.get("recipe")))
    if len(found) != 1 or found[0] is recipe:
        return None
    return bind(found[0], **{n: saved[n] for n in defaults_of(found[0]) if n in saved})


def _fit_state(weight: str, saved: Mapping[str, Any], fresh: State) -> State:
    """`saved` in the dtypes and on the device of a fresh state; empty if it is.

    Torch would cast it to the weight's dtype: a float32 momentum of a bfloat16 weight stays whole.
    """
    saved = {key: value for key, value in saved.items() if value is not None}
    if saved and not saved.keys() >= fresh.keys():
        both = f"{sorted(saved)}, the recipe's state is {sorted(fresh)}"
        raise ValueError(f"{weight}: the state_dict holds {both}")
    state = {}
    for key, x in fresh.items() if saved else ():
        value = torch.as_tensor(saved[key])
        if value.shape != x.shape or value.is_complex():
            both = f"{describe(value)}; the recipe's state is real, of shape {tuple(x.shape)}"
            raise ValueError(f"{weight}: {key} is in the state_dict {both}")
        state[key] = torch.empty_like(x).copy_(value)
    return state
