"""The states of an optimizer's weights: what joins, what is shared, what a checkpoint brings."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import GroupStep, RuleKey, WeightStep
from spherenorm.global_sums import index_of_furthest, sum_over_weights
from spherenorm.optim.param_groups import (
    PART,
    States,
    bind_and_check_group,
    dtype_and_shape,
    initial_state_or_named_error,
    named_weights,
    recipe_of_group,
)
from spherenorm.optim.schedules import load_schedules, next_step
from spherenorm.optim.sharded import initial_state_of
from spherenorm.registry import Bound, Recipe, bind, defaults_of, recipes_named
from spherenorm.rule import STEP_KEY, Rule, State, make_checked_update
from spherenorm.rules import CoupledDecay

_OPTIONS_OF_ADAM: dict[str, tuple[Any, ...]] = {"amsgrad": (False,)}
"""Options of torch's Adam at which a recipe's step is the same."""

_OPTIONS_OF_MUON: dict[str, tuple[Any, ...]] = {
    "adjust_lr_fn": (None, "original"),
    "eps": (1e-7,),
    "ns_steps": (5,),
    "ns_coefficients": ((3.4445, -4.775, 2.0315),),
}
"""Options of torch's Muon, and the values at which the recipe "muon" takes the same step."""

_OPTIONS_OF_TORCH: dict[str, tuple[Any, ...]] = {
    "momentum": (),
    "dampening": (0,),
    "nesterov": (False,),
    "centered": (False,),
    "momentum_decay": (),
    "beta2_decay": (),
    "rho": (),
    "lr_decay": (),
    "lambd": (),
    "etas": (),
    "history_size": (),
}
"""Hyper-parameters by which a param_group of torch.optim says which optimizer made it.

A recipe that lacks one takes another step, but for these values."""


# States that stay when a hyper-parameter becomes 0


def rule_keeping_states(bound: Bound, states: Iterable[State], t: int = 1) -> Rule:
    """Return the rule of `bound` at step t, with the states that the weights have already.

    A recipe may leave a rule, or a rule a state, out at the Python number 0 (SGD without momentum
    has no buffer). Where a weight has that state from earlier steps, the 0 becomes a 0-dim tensor,
    which leaves nothing out: the state goes on as at any other small number.
    """
    rule = bound.rule.at_step(t)
    rule_keys = set(rule.state_keys)
    key_sets = {frozenset(state) for state in states if not rule_keys.issuperset(state)}
    if not key_sets:
        return rule
    zeros = [zero for zero in _find_zeros(bound.hyper_parameters) if _adds_states(bound, [zero])]
    best = rule
    for count in range(1, len(zeros) + 1):
        for some_zeros in itertools.combinations(zeros, count):
            candidate = _with_tensor_zeros(bound, some_zeros).rule.at_step(t)
            fits = any(keys >= set(candidate.state_keys) for keys in key_sets)
            if fits and len(candidate.state_keys) > len(best.state_keys):
                best = candidate
    return best


_Zero = tuple[str, int | None]
"""A Python number 0 among hyper-parameters: the name, and the index if the value is a tuple."""


def _find_zeros(hyper_parameters: Mapping[str, Any]) -> Iterator[_Zero]:
    """Iterate over the Python numbers 0 among hyper-parameters."""
    for name, value in hyper_parameters.items():
        if type(value) in (tuple, list):
            yield from ((name, i) for i, number in enumerate(value) if _is_python_zero(number))
        elif _is_python_zero(value):
            yield name, None


def _is_python_zero(value: Any) -> bool:
    return type(value) in (int, float) and value == 0


def _with_tensor_zeros(bound: Bound, zeros: Iterable[_Zero]) -> Bound:
    """Return the recipe with 0-dim tensors in the place of these zeros."""
    values = dict(bound.hyper_parameters)
    tensor_zero = torch.zeros((), dtype=torch.float64, device="cpu")
    for name, index in zeros:
        if index is None:
            values[name] = tensor_zero
        else:
            numbers = [*values[name]]
            numbers[index] = tensor_zero
            values[name] = type(values[name])(numbers)
    return bound.replace(**values)


def _adds_states(bound: Bound, zeros: Iterable[_Zero]) -> bool:
    """Return whether the rule has more states with tensors in the place of these zeros."""
    try:
        rule = _with_tensor_zeros(bound, zeros).rule
    except (TypeError, ValueError):  # the recipe takes no tensor there
        return False
    return len(rule.state_keys) > len(bound.rule.state_keys)


# The groups of a step


def make_group_steps(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule], states: States
) -> tuple[list[GroupStep], dict[Tensor, State]]:
    """Return the weights to step, and new states for some, which are kept if the step succeeds.

    A weight that joins late has the states that all weights share from the others.
    """
    groups = []
    new_states: dict[Tensor, State] = {}
    failure: Exception | None = None
    for param_group, rule in zip(param_groups, rules, strict=True):
        keys = set(rule.state_keys)
        steps = []
        for weight in param_group["params"]:
            grad = weight.grad
            if grad is None:
                continue
            state = states.get(weight)
            # The keys differ if a schedule has switched a rule on or off. A rule without states
            # gets an empty dict of its own at the first step, too: checkpoints ask for it.
            if state is None or state.keys() != keys:
                try:
                    state = new_states[weight] = complete_state(rule, weight, state or {})
                except Exception as error:
                    # Other processes go on to gather the next weights, with this one.
                    failure = failure or error
                    continue
            steps.append(WeightStep(weight, -grad if param_group["maximize"] else grad, state))
        groups.append(GroupStep(rule, param_group["backend"], steps))
    if failure is not None:
        raise failure
    if new_states and any(rule.needs_global_sums for rule in rules):
        _share_with_new_states(param_groups, groups, states, new_states)
    return groups, new_states


def complete_state(rule: Rule, weight: Tensor, old: State) -> State:
    """Return the state of a rule: values of the old state where it has them, else initial ones.

    Raises:
        ValueError: another number of rules than before has a state of one name, so that it is
            unclear whose the old values are.
    """
    old_keys = old.keys() - set(rule.optional_keys)
    changed_keys = _numbered_keys(old_keys) ^ _numbered_keys(_required_keys(rule))
    if old and changed_keys:
        raise ValueError(
            f"{type(rule).__name__}: a hyper-parameter became 0 or stopped being 0, so another "
            f"number of rules now has a state named {', '.join(sorted(changed_keys))}, and it is "
            "unclear whose the saved values are; give each rule a name, as in "
            'NormalizedUpdate(..., name="first")'
        )
    # Initial values are copied, since a user's `init` may return the weight itself.
    return {
        key: old[key] if key in old else value.clone()
        for key, value in initial_state_of(weight, rule).items()
    }


def _numbered_keys(keys: Iterable[str]) -> set[str]:
    """Return the keys with a number behind another key, such as exp_avg_2 beside exp_avg."""
    names = set(keys)
    parts = ((key, key.rpartition("_")) for key in names)
    return {key for key, (base, _, number) in parts if number.isdigit() and base in names}


def with_global_sums(groups: Sequence[GroupStep]) -> list[GroupStep]:
    """Return the groups with the global sums of their rules, taken over all weights."""
    if not any(group.rule.needs_global_sums for group in groups):
        return [*groups]
    weights = []
    for group in _contributing_groups(groups):
        key = RuleKey.of(group.rule)
        for step in group.weights:
            update = make_checked_update(key.rule, step.weight, step.grad, step.state)
            weights.append((key.rule_on(step.weight.device), update, step.state))
    sums = sum_over_weights(weights)
    return [replace(group, global_sums=sums) for group in groups]


# States that all weights share, such as Prodigy's estimate of the distance


def check_shared_fields(rules: Iterable[Rule]) -> None:
    """Refuse groups that differ in a number on which a shared state depends, except for 0.

    Raises:
        ValueError: they do.
    """
    first_values: dict[tuple[type, str], Any] = {}
    for rule in rules:
        if not rule.needs_global_sums:
            continue
        for inner_rule in rule.walk():
            for name in inner_rule.shared_fields:
                value = getattr(inner_rule, name)
                key = type(inner_rule), name
                first_value = first_values.setdefault(key, value)
                if value is first_value or _is_zero(value):
                    continue
                if _is_zero(first_value):
                    first_values[key] = value
                elif value != first_value:
                    raise ValueError(
                        f"{type(inner_rule).__name__}: {name} is {_format_number(first_value)} in "
                        f"one param_group and {_format_number(value)} in another, and all weights "
                        f"share one estimate; give all groups the same {name}, or 0 to those that "
                        "shall not move"
                    )


def copy_shared_states(
    param_groups: Sequence[Mapping[str, Any]], groups: Sequence[GroupStep], states: States
) -> None:
    """Copy shared states, after a step, to the weights that were not stepped."""
    for rule_class in _classes_with_shared_states(groups):
        source = _first_group_with(rule_class, groups)
        if source is None:
            continue
        stepped = {id(step.state) for step in source.weights}
        values = [source.weights[0].state[key] for key in source.rule.shared_keys[rule_class]]
        for param_group, group in zip(param_groups, groups, strict=True):
            keys = group.rule.shared_keys.get(rule_class, ())
            for weight in param_group["params"] if keys else ():
                state = states.get(weight)
                if not state or id(state) in stepped:
                    continue
                for key, value in zip(keys, values, strict=True):
                    if key in state:
                        state[key].copy_(value)


def _first_group_with(rule_class: str, groups: Sequence[GroupStep]) -> GroupStep | None:
    """Return the first group that steps and has the shared states of this class of rules."""
    for group in _contributing_groups(groups):
        if rule_class in group.rule.shared_keys and group.weights:
            return group
    return None


def reconcile_shared_states(rules_and_states: Sequence[tuple[Rule, State]]) -> None:
    """Give all weights of a checkpoint the shared states of the weight that is furthest ahead."""
    furthest: dict[str, list[Tensor]] = {}
    for rule, state in rules_and_states:
        for rule_class, keys in rule.shared_keys.items() if state else ():
            values = [state[key] for key in keys]
            furthest_values = furthest.setdefault(rule_class, values)
            pairs = [
                torch.stack([x, y.to(x.device)])
                for x, y in zip(furthest_values, values, strict=True)
            ]
            if index_of_furthest(pairs) == 1:
                furthest[rule_class] = values
    for rule, state in rules_and_states:
        for rule_class, keys in rule.shared_keys.items() if state else ():
            for key, value in zip(keys, furthest[rule_class], strict=True):
                if state[key] is not value:
                    state[key].copy_(value)


def _share_with_new_states(
    param_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStep],
    states: States,
    new_states: Mapping[Tensor, State],
) -> None:
    """Copy the shared values of the other weights to new states.

    At the very first step all states are new, and share the values of the first.
    """
    for rule_class in _classes_with_shared_states(groups):
        values = _shared_values(rule_class, param_groups, groups, states)
        if values is None:
            continue
        for group in groups:
            keys = group.rule.shared_keys.get(rule_class, ())
            for step in group.weights if keys else ():
                if step.weight in new_states:
                    for key, value in zip(keys, values, strict=True):
                        step.state[key] = value.to(step.state[key], copy=True)


def _shared_values(
    rule_class: str,
    param_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[GroupStep],
    states: States,
) -> list[Tensor] | None:
    """Return the shared values of the first weight that has any, else those of a new state."""
    for param_group, group in zip(param_groups, groups, strict=True):
        keys = group.rule.shared_keys.get(rule_class, ())
        for weight in param_group["params"] if keys else ():
            state = states.get(weight)
            if state and state.keys() >= set(keys):
                return [state[key] for key in keys]
    source = _first_group_with(rule_class, groups)
    if source is None:
        return None
    return [source.weights[0].state[key] for key in source.rule.shared_keys[rule_class]]


def _classes_with_shared_states(groups: Sequence[GroupStep]) -> set[str]:
    """Return the names of the classes of rules with states that all weights share."""
    class_names: set[str] = set()
    for group in groups:
        if group.rule.needs_global_sums:
            class_names.update(group.rule.shared_keys)
    return class_names


def _contributing_groups(groups: Sequence[GroupStep]) -> list[GroupStep]:
    """Return the groups that shared states depend on: those that step, unless none does."""
    groups = [group for group in groups if group.weights]
    if len(groups) < 2:
        return groups
    return [group for group in groups if _contributes(group.rule)] or groups


def _contributes(rule: Rule) -> bool:
    """Return False if one of the fields is 0 on which the rule's shared states depend."""
    for inner_rule in rule.walk():
        if any(_is_zero(getattr(inner_rule, name)) for name in inner_rule.shared_fields):
            return False
    return True


def _is_zero(value: Any) -> bool:
    return bool(value == 0)


def _format_number(value: Any) -> str:
    return f"{value.item():g}" if isinstance(value, Tensor) else f"{value:g}"


# Checkpoints: the state and the param_groups that a state_dict gives an optimizer


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
            torch's that the recipe lacks (amsgrad, SGD's momentum, Muon's ns_steps, ...) or with
            Adam's L2 decay where the recipe's is decoupled; a count of steps is negative; the
            groups are others; a hyper-parameter is outside its interval.
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
        recipe = recipe_of_group(present_group["recipe"], class_recipe)
        states_of_group = [saved_states[i] for i in saved_group["params"] if i in saved_states]
        group, rule = _adapt_group(saved_group, present_group, recipe, states_of_group)
        groups.append(group)
        for index, (name, weight) in zip(saved_group["params"], weights, strict=True):
            if index in saved_states:
                initial = initial_state_or_named_error(name, weight, rule)
                saved_state = saved_states.pop(index)
                state[weight] = _adapt_state(name, saved_state, initial, rule.optional_keys)
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
    _refuse_other_decay(saved, present["recipe"], rule)
    if saved_recipe is not None:
        saved_keys = _required_keys(rule_keeping_states(saved_recipe, states))
        keys = _required_keys(rule)
        if saved_keys != keys:
            raise ValueError(
                f"the state_dict is of recipe {saved_recipe.name!r}, the param_group of "
                f"{present['recipe']!r}: their states are {sorted(saved_keys)} and {sorted(keys)}"
            )
    return group, rule


def _required_keys(rule: Rule) -> set[str]:
    """Return the keys of the states without which no checkpoint loads."""
    return {*rule.state_keys}.difference(rule.optional_keys)


def _without_none(state: Mapping[str, Any]) -> State:
    """Leave out states that an optimizer of torch has as None, such as SGD's momentum at 0."""
    return {key: value for key, value in state.items() if value is not None}


def _refuse_torch_options(saved: Mapping[str, Any], recipe: str, names: Collection[str]) -> None:
    """Refuse options of torch's that change its steps and that the recipe lacks.

    Raises:
        ValueError: the saved group has one.
    """
    options = dict(_OPTIONS_OF_ADAM)
    if "recipe" not in saved:
        options.update(_OPTIONS_OF_TORCH)
    if recipe == "muon":
        options.update(_OPTIONS_OF_MUON)
    for option, accepted in options.items():
        if option in names or option not in saved:
            continue
        value = saved[option]
        value = tuple(value) if isinstance(value, list) else value
        if value not in accepted:
            raise ValueError(
                f"the state_dict was made with {option}={value!r}, which recipe {recipe!r} does "
                "not have"
            )


def _refuse_other_decay(saved: Mapping[str, Any], recipe: str, rule: Rule) -> None:
    """Refuse a decay that torch's optimizer adds elsewhere in its step than the recipe.

    Raises:
        ValueError: torch added it to the gradient, and the recipe does not, or the reverse.
    """
    is_decoupled = saved.get("decoupled_weight_decay")
    if "recipe" in saved or is_decoupled is None or not saved.get("weight_decay"):
        return
    is_coupled = any(isinstance(inner_rule, CoupledDecay) for inner_rule in rule.walk())
    if is_decoupled == is_coupled:
        own_kind = "coupled (L2, in the gradient)" if is_coupled else "decoupled from the gradient"
        raise ValueError(
            f"the state_dict was made with weight_decay={saved['weight_decay']!r} and "
            f"decoupled_weight_decay={is_decoupled!r}, and the decay of recipe {recipe!r} is "
            f"{own_kind}; for another decay from here on, set weight_decay to 0 in the "
            "state_dict's param_groups and your own after loading"
        )


def _saved_recipe(saved: Mapping[str, Any], recipe: Recipe) -> Bound | None:
    """Return the recipe that a group was saved with, if it is another one than `recipe`.

    It must be registered: a checkpoint's text neither imports nor calls anything else.
    """
    candidates = recipes_named(str(saved.get("recipe")))
    if len(candidates) != 1 or candidates[0] is recipe:
        return None
    (saved_by,) = candidates
    values = {name: saved[name] for name in defaults_of(saved_by) if name in saved}
    return replace(bind(saved_by, **values), part=saved.get(PART))


def _adapt_state(
    name: str, saved: Mapping[str, Any], initial: State, optional_keys: Collection[str]
) -> State:
    """Return a saved state in the dtypes and on the device of an initial state.

    The result is {} if the saved state is empty.

    Torch would cast it to the weight's dtype: a float32 momentum of a bfloat16 weight stays whole.

    Args:
        name: the name of the weight in messages.
        saved: the state in the checkpoint.
        initial: the state of this weight before its first step.
        optional_keys: the states that keep their initial values if the checkpoint lacks them.

    Raises:
        ValueError: a state is missing, complex, or of another shape, or the step count negative.
    """
    saved = _without_none(saved)
    if not saved:
        return {}
    missing = initial.keys() - saved.keys() - set(optional_keys)
    if missing:
        raise ValueError(
            f"{name}: the state_dict holds {sorted(saved)}, the recipe's state is {sorted(initial)}"
        )
    state = {}
    for key, initial_value in initial.items():
        value = torch.as_tensor(saved.get(key, initial_value))
        if value.shape != initial_value.shape or value.is_complex():
            raise ValueError(
                f"{name}: {key} is in the state_dict {dtype_and_shape(value)}; the recipe's state "
                f"is real, of shape {tuple(initial_value.shape)}"
            )
        if hasattr(value, "full_tensor") and not hasattr(initial_value, "full_tensor"):
            value = value.full_tensor()  # a number, which earlier versions placed as a DTensor
        if key == STEP_KEY and not value >= 0:
            raise ValueError(
                f"{name}: {key} is in the state_dict {value.item():g}; a count of steps is at "
                "least 0"
            )
        state[key] = torch.empty_like(initial_value).copy_(value)
    return state
