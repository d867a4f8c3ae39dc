"""Checkpoints: the state and the param_groups that a state_dict gives an optimizer."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from spherenorm.optim.param_groups import bind_and_check_group, named_weights, recipe_named
from spherenorm.optim.schedules import load_schedules, next_step
from spherenorm.optim.states import (
    dtype_and_shape,
    named_trial_state,
    reconcile_shared_states,
    rule_keeping_states,
)
from spherenorm.registry import Bound, Recipe, bind, defaults_of, recipes_named
from spherenorm.rule import Rule, State

_TORCH_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "adam": {"decoupled_weight_decay": (False,)},
    "adamw": {"decoupled_weight_decay": (True,)},
    "muon": {
        "adjust_lr_fn": (None, "original"),
        "ns_steps": (5,),
        "ns_coefficients": ((3.4445, -4.775, 2.0315),),
    },
}
"""Options of torch's optimizer of a recipe's name, and the values at which the two agree."""


def adapt_state_dict(
    state_dict: Mapping[str, Any],
    param_groups: Sequence[dict[str, Any]],
    class_recipe: Recipe,
) -> dict[str, Any]:
    """Return the state and the param_groups of an optimizer that loads a checkpoint.

    The checkpoint may be of this optimizer's class, of another class whose recipe has the same
    state, or of an optimizer of torch.optim or `adamp` with the same names in its state:

        adamp = sn.optim.AdamP(model.parameters())
        adamp.load_state_dict(adamw.state_dict())  # a run that began with AdamW

    Hyper-parameters that the saved optimizer does not have keep their present values, and so does
    `backend`. Those that only the saved recipe has are dropped, and so are entries of another
    library's state that this one does not have.

    Args:
        state_dict: the checkpoint.
        param_groups: the present param_groups of the optimizer, which stay as they are.
        class_recipe: the recipe of the optimizer's class.

    Raises:
        ValueError: the state has other names or shapes, is complex, or was made with an option of
            torch's that the recipe lacks (amsgrad, Muon's ns_steps, ...); the groups are others; a
            hyper-parameter is outside its interval.
        TypeError: `maximize` is not True or False.
    """
    if not {"state", "param_groups"} <= state_dict.keys():
        raise ValueError(f"a state_dict has state and param_groups, got {sorted(state_dict)}")
    saved_groups = state_dict["param_groups"]
    saved_states = dict(state_dict["state"])
    saved_sizes = [len(group["params"]) for group in saved_groups]
    sizes = [len(group["params"]) for group in param_groups]
    if saved_sizes != sizes:
        raise ValueError(
            f"the state_dict has {len(saved_sizes)} param_groups, of {saved_sizes} parameters, the "
            f"optimizer {len(sizes)}, of {sizes}"
        )
    state: defaultdict[Any, Any] = defaultdict(dict)
    groups, rules_and_states = [], []
    for saved_group, present_group, weights in zip(
        saved_groups, param_groups, named_weights(param_groups), strict=True
    ):
        recipe = recipe_named(present_group["recipe"], class_recipe)
        states_of_group = [saved_states[i] for i in saved_group["params"] if i in saved_states]
        group, rule = _adapt_group(saved_group, present_group, recipe, states_of_group)
        groups.append(group)
        for index, (name, weight) in zip(saved_group["params"], weights, strict=True):
            if index in saved_states:
                initial = named_trial_state(name, weight, rule)
                state[weight] = _adapt_state(name, saved_states.pop(index), initial)
                rules_and_states.append((rule, state[weight]))
    reconcile_shared_states(rules_and_states)
    state.update(saved_states)  # what belongs to no parameter is kept, as torch does
    return {"state": state, "param_groups": groups}


def _adapt_group(
    saved: Mapping[str, Any], present: dict[str, Any], recipe: Recipe, states: Sequence[State]
) -> tuple[dict[str, Any], Rule]:
    """Return `present` with the entries of a saved group, and its rule, which keeps saved states.

    Raises:
        ValueError: the rule of the saved group has other states.
    """
    names = defaults_of(recipe).keys()
    _refuse_torch_options(saved, present["recipe"], names)
    saved_recipe = _saved_recipe(saved, recipe)
    ignored = {"params", "recipe", "backend"}
    if saved_recipe is not None:
        ignored.update(saved_recipe.defaults)
    ignored -= names
    entries = {name: value for name, value in saved.items() if name not in ignored}
    group = {**present, **copy.deepcopy(entries)}
    states = [_without_none(state) for state in states]
    load_schedules(group, saved, present, states, names)
    bound = bind_and_check_group(recipe, group)
    rule = rule_keeping_states(bound, states, next_step(group))
    if saved_recipe is not None:
        saved_keys = rule_keeping_states(saved_recipe, states).state_keys
        if set(saved_keys) != set(rule.state_keys):
            raise ValueError(
                f"the state_dict is of recipe {saved_recipe.name!r}, the param_group of "
                f"{present['recipe']!r}: their states are {sorted(saved_keys)} and "
                f"{sorted(rule.state_keys)}"
            )
    return group, rule


def _without_none(state: Mapping[str, Any]) -> State:
    """Leave out states that an optimizer of torch has as None, such as SGD's momentum at 0."""
    return {key: value for key, value in state.items() if value is not None}


def _refuse_torch_options(saved: Mapping[str, Any], recipe: str, names: Collection[str]) -> None:
    """Refuse options of torch's that change its steps and that the recipe lacks.

    Raises:
        ValueError: the saved group has one.
    """
    for option, accepted in {"amsgrad": (False,), **_TORCH_OPTIONS.get(recipe, {})}.items():
        value = saved.get(option, accepted[0])
        value = tuple(value) if isinstance(value, list) else value
        irrelevant_without_decay = option == "decoupled_weight_decay"
        if irrelevant_without_decay and saved.get("weight_decay") == 0:
            continue
        if option not in names and value not in accepted:
            raise ValueError(
                f"the state_dict was made with {option}={value!r}, which recipe {recipe!r} does "
                "not have"
            )


def _saved_recipe(saved: Mapping[str, Any], recipe: Recipe) -> Bound | None:
    """Return the recipe that a group was saved with, if it is another one than `recipe`.

    It must be registered: a checkpoint's text neither imports nor calls anything else.
    """
    candidates = recipes_named(str(saved.get("recipe")))
    if len(candidates) != 1 or candidates[0] is recipe:
        return None
    (saved_by,) = candidates
    return bind(saved_by, **{name: saved[name] for name in defaults_of(saved_by) if name in saved})


def _adapt_state(name: str, saved: Mapping[str, Any], initial: State) -> State:
    """Return a saved state in the dtypes and on the device of an initial state; empty if it is.

    Torch would cast it to the weight's dtype: a float32 momentum of a bfloat16 weight stays whole.

    Args:
        name: the weight, for messages.
        saved: the state in the checkpoint.
        initial: the state of this weight before its first step.

    Raises:
        ValueError: a state is missing, complex, or of another shape.
    """
    saved = _without_none(saved)
    if not saved:
        return {}
    if not saved.keys() >= initial.keys():
        raise ValueError(
            f"{name}: the state_dict holds {sorted(saved)}, the recipe's state is {sorted(initial)}"
        )
    state = {}
    for key, initial_value in initial.items():
        value = torch.as_tensor(saved[key])
        if value.shape != initial_value.shape or value.is_complex():
            raise ValueError(
                f"{name}: {key} is in the state_dict {dtype_and_shape(value)}; the recipe's state "
                f"is real, of shape {tuple(initial_value.shape)}"
            )
        state[key] = torch.empty_like(initial_value).copy_(value)
    return state
