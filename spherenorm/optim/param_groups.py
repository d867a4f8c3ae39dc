"""Param_groups: arguments of a recipe, checked, completed and bound; and checks of weights.

A param_group is a dict of torch's: its `params`, the name of its recipe, and a value for each
hyper-parameter of that recipe. Schedulers write into it between steps.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.compile import require_backend, why_not_steppable
from spherenorm.numerics import as_number, can_never_be_stepped, refuse_unless_real
from spherenorm.optim.schedules import (
    CLOCK,
    SCHEDULES,
    latest_clock,
    next_step,
    set_schedules,
    with_schedules,
)
from spherenorm.optim.sharded import initial_state_for_check
from spherenorm.registry import (
    Bound,
    Recipe,
    bind,
    defaults_of,
    find_recipe,
    hyper_parameter_names,
    is_builtin,
    name_of,
    recipes_named,
)
from spherenorm.rule import Rule, State
from spherenorm.schedule import Schedule
from spherenorm.support import signature_of
from spherenorm.torch_internals import is_flattened_by_fsdp
from spherenorm.views import View

PART = "part"
"""The entry of a param_group that names its part, if its recipe returns a partition."""
COMMON_ARGUMENTS = {"maximize": False, "backend": "auto"}
"""The arguments that every optimizer has besides its hyper-parameters, with their defaults."""
_RESERVED = ("self", "params", "param_names", "recipe", PART, SCHEDULES, CLOCK, *COMMON_ARGUMENTS)
"""Entries of a param_group, and arguments of a class, that are no hyper-parameters."""
_SYNONYMS = ("learning_rate", "wd", "decay")
"""Names that other libraries have for hyper-parameters."""
_TYPO_SIMILARITY = 0.8
"""Similarity of a misspelled name: "weight_decy", but not the tags "no_decay" and "decay_mult"."""
_OPTIMIZER_CHOICES = (
    *("algorithm", "algo", "optim", "optim_name", "optim_type"),
    *("opt", "optimizer", "optimizer_name", "optimizer_type"),
)
"""Entries by which other libraries choose the optimizer of a param_group (dion: `algorithm`)."""
_OPTIMIZER_FLAG = re.compile(r"use_(\w+)")
"""The same choice as a boolean, such as `use_muon` of KellerJordan/Muon."""
_RATE_MULTIPLIERS = (
    *("lr_scale", "lr_mult", "lr_mul", "lr_multi", "lr_multiplier", "lr_factor", "lr_ratio"),
)
_DECAY_MULTIPLIERS = (
    *("wd_scale", "wd_mult", "wd_mul", "wd_multiplier", "wd_factor"),
    *("weight_decay_scale", "weight_decay_mult", "weight_decay_multiplier"),
)
_CLIPPING = (
    *("max_grad_norm", "clip_grad_norm", "grad_clip", "grad_clip_norm", "clip_grad"),
    *("gradient_clip_val", "clip_norm", "clipnorm", "clip_value", "clipvalue"),
)
_FOREIGN_ENTRIES = {
    **dict.fromkeys(_RATE_MULTIPLIERS, "multiply lr itself, unless a scheduler reads it"),
    **dict.fromkeys(
        _DECAY_MULTIPLIERS, "multiply weight_decay itself, unless a scheduler reads it"
    ),
    **dict.fromkeys(_CLIPPING, "clip gradients before the step, by torch.nn.utils.clip_grad_norm_"),
}
"""Entries that other libraries or their schedulers act on, and what to do instead."""
_ONE_KERNEL = 'leave it out; backend="auto" steps all weights in one kernel where it can'
_TORCH_ARGUMENTS = {
    "amsgrad": "this library does not have it",
    "foreach": _ONE_KERNEL,
    "fused": _ONE_KERNEL,
    "capturable": "leave it out; a compiled step can be captured in a CUDA graph as it is",
    "differentiable": "use spherenorm.functional, whose steps can be differentiated",
}
"""Arguments of torch.optim that are accepted at False and None, and what to do otherwise."""

States = Mapping[Tensor, State]
"""The state of each weight that has been stepped: `optimizer.state`."""
NamedWeights = Iterable[tuple[str, Tensor]]
"""Weights with their names in messages: index, name if there is one, and shape."""


class GroupsOfRecipe(list[dict[str, Any]]):
    """The param_groups that were made for one recipe, which those without a "recipe" take.

    Attributes:
        recipe: the recipe's name.
        groups_with_preset_names: each group, with the names of its entries that a preset has set
            and not the user.
        names: the names of parameters.
    """

    def __init__(
        self,
        groups: Sequence[tuple[dict[str, Any], frozenset[str]]],
        recipe: str,
        names: Mapping[Tensor, str],
    ) -> None:
        super().__init__(group for group, _ in groups)
        self.recipe, self.groups_with_preset_names, self.names = recipe, list(groups), names

    def for_optimizer(self, given_names: Collection[str]) -> list[dict[str, Any]]:
        """Return the groups as a class takes them.

        Its parameters have names, unless the user has added some that have none; entries of a
        preset that the call of the class gives are left out.
        """
        preset_names = {id(group): names for group, names in self.groups_with_preset_names}
        has_names = all(weight in self.names for group in self for weight in group["params"])
        groups = []
        for group in self:
            overridden = preset_names.get(id(group), frozenset()) & set(given_names)
            entries = {key: x for key, x in group.items() if key not in overridden}
            if has_names:
                entries["params"] = [(self.names[weight], weight) for weight in group["params"]]
            groups.append(entries)
        return groups


def warn_of_other_recipe(optimizer: str, recipe: str, groups: GroupsOfRecipe) -> None:
    """Warn of groups made for another recipe, which those without a "recipe" would not get."""
    if recipe != groups.recipe and f"({groups.recipe})" not in recipe:
        warnings.warn(
            f"{optimizer} steps param_groups by {recipe!r} that were made for {groups.recipe!r}: "
            f"use groups.optimizer(), or make them for {recipe!r}",
            stacklevel=4,
        )


def refuse_reserved_names(recipe: Recipe) -> None:
    """Refuse a recipe with a hyper-parameter of a name that every optimizer uses.

    Raises:
        TypeError: it has one.
    """
    for name in defaults_of(recipe):
        if name in _RESERVED:
            raise TypeError(
                f"recipe {name_of(recipe)!r}: the hyper-parameter {name!r} is an argument of every "
                "optimizer; rename it"
            )


def refuse_modules(params: Any) -> None:
    """Refuse a module, or its method that was not called, in the place of parameters.

    Raises:
        TypeError: `params` is one.
    """
    if callable(params) and not isinstance(params, torch.nn.ParameterList):
        is_module = isinstance(params, torch.nn.Module)
        value = f"a {type(params).__name__}" if is_module else f"{params!r}, which was not called"
        raise TypeError(f"params must be parameters, such as model.parameters(), got {value}")


def named_weights(param_groups: Sequence[Mapping[str, Any]]) -> Iterator[NamedWeights]:
    """Iterate over the param_groups; each becomes its weights with their names in messages."""
    counts = (len(group["params"]) for group in param_groups)
    first_indices = itertools.accumulate(counts, initial=0)
    return map(_name_weights, param_groups, first_indices)


def _name_weights(group: Mapping[str, Any], first_index: int) -> NamedWeights:
    names = group.get("param_names", [None] * len(group["params"]))
    pairs = zip(names, group["params"], strict=True)
    for index, (name, weight) in enumerate(pairs, first_index):
        in_parentheses = f" ({name})" if name else ""
        yield f"parameter {index}{in_parentheses} of shape {tuple(weight.shape)}", weight


def bind_arguments(
    optimizer: str, recipe: Recipe, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Bind the arguments of a call of the class named `optimizer` to hyper-parameters.

    Returns:
        The value of each hyper-parameter, and the names of those that were given.

    Raises:
        TypeError: an argument is unknown, absent, or torch.optim's and switched on.
    """
    names = defaults_of(recipe)
    _refuse_torch_arguments(kwargs, names)
    kwargs = {
        name: value
        for name, value in kwargs.items()
        if name in names or name not in _TORCH_ARGUMENTS
    }
    try:
        bound = signature_of(recipe).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"{optimizer}: {error}; its hyper-parameters are {', '.join(names)}"
        ) from None
    given_names = frozenset(bound.arguments)
    bound.apply_defaults()
    return {name: to_plain(value) for name, value in bound.arguments.items()}, given_names


def warn_of_unused_arguments(
    optimizer: str,
    arguments: Mapping[str, Any],
    given_names: Collection[str],
    param_groups: Sequence[Mapping[str, Any]],
) -> None:
    """Warn of given arguments of a class that no param_group has, since each sets its own.

    A value that some group has as well is not lost: timm gives a decay of 0 beside its groups.
    """
    for name in sorted(given_names):
        entries = map(with_schedules, param_groups)
        group_values = [group[name] for group in entries if name in group]
        argument = to_plain(arguments[name])
        if any(_is_same(argument, value) for value in group_values):
            continue
        values = f": they have {', '.join(map(repr, group_values))}" if group_values else ""
        warnings.warn(
            f"{optimizer}: {name}={arguments[name]!r} reaches no param_group, since each sets "
            f"its own or has another recipe{values}. Set {name} in the param_groups",
            stacklevel=4,
        )


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return bool(a == b)


def complete_group(
    param_group: Mapping[str, Any],
    class_recipe: Recipe,
    class_defaults: Mapping[str, Any],
    param_groups: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any], Rule]:
    """Return a copy of a param_group with a value for every argument of its recipe, and its rule.

    Args:
        param_group: `params`, and the entries in which it differs from the defaults.
        class_recipe: the recipe of the optimizer's class.
        class_defaults: the defaults of the optimizer; a group of another recipe has the defaults
            of that one.
        param_groups: the groups that the optimizer has already; schedules start at their clock.

    Raises:
        TypeError, ValueError: an entry is wrong; a hyper-parameter has no value; the name of the
            group's recipe in a checkpoint would not find it again.
    """
    refuse_modules(param_group["params"])
    recipe = find_recipe(param_group.get("recipe", class_recipe))
    refuse_reserved_names(recipe)
    recipe_defaults, name = defaults_of(recipe), name_of(recipe)
    if "recipe" not in param_group:
        _refuse_optimizer_choices(param_group, name, recipe_defaults)
    if recipe_of_group(name, class_recipe) is not recipe:
        raise ValueError(
            f"recipe {name!r} of a param_group must be importable by its name, so that a "
            "checkpoint finds it; another recipe has that name, or none"
        )
    defaults = class_defaults
    if recipe is not class_recipe:
        defaults = {**recipe_defaults, **{key: class_defaults[key] for key in COMMON_ARGUMENTS}}
    group = {**defaults, **param_group, "recipe": name}
    _refuse_torch_arguments(group, recipe_defaults)
    _warn_of_entries_without_effect(param_group, name, recipe_defaults)
    for argument in recipe_defaults:
        if group[argument] is inspect.Parameter.empty:
            raise ValueError(
                f"recipe {name!r} needs {argument}, and the param_group does not set it"
            )
        group[argument] = to_plain(group[argument])
    rule = bind_and_check_group(recipe, group).rule
    clock = latest_clock(param_groups)
    set_schedules(group, clock)
    if rule.is_scheduled and not rule.is_partition:
        group.setdefault(CLOCK, clock)
    return group, rule.at_step(next_step(group))


def split_by_label(
    group: Mapping[str, Any], partition: Rule, param_group: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a param_group for each label of the partition that a group's recipe returns.

    Args:
        group: the complete group, for its names of parameters.
        partition: the rule of its recipe.
        param_group: the entries that the user gave; the new groups have these.

    Raises:
        ValueError: the parameters have no names, or one has no label.
    """
    params = list(param_group["params"])
    if "param_names" in group:
        params = list(zip(group["param_names"], params, strict=True))
    groups: dict[str, list[Any]] = {label: [] for label in partition.labels}  # type: ignore[attr-defined]
    for pair in params:
        if not isinstance(pair, tuple):
            raise ValueError(
                f"recipe {group['recipe']!r} returns a partition, which needs the names of "
                "parameters: pass model.named_parameters()"
            )
        label = partition.label(*pair)  # type: ignore[attr-defined]
        groups[label].append(pair)
    entries = {name: value for name, value in param_group.items() if name != "param_names"}
    return [{**entries, PART: label, "params": pairs} for label, pairs in groups.items() if pairs]


def check_patterns_of_partitions(
    class_recipe: Recipe, param_groups: Sequence[Mapping[str, Any]]
) -> None:
    """Check that each pattern of the partitions that recipes return names a parameter.

    Raises:
        ValueError: a pattern names none.
    """
    groups_by_recipe: dict[str, list[Mapping[str, Any]]] = {}
    for group in param_groups:
        if PART in group:
            groups_by_recipe.setdefault(group["recipe"], []).append(group)
    for name, groups in groups_by_recipe.items():
        whole = {key: value for key, value in groups[0].items() if key != PART}
        partition = bind_group(recipe_of_group(name, class_recipe), whole).rule
        partition.check_patterns([x for group in groups for x in group["param_names"]])  # type: ignore[attr-defined]


def recipe_of_group(name: str, class_recipe: Recipe) -> Recipe:
    """Return the recipe that a param_group names; that of the class need not be importable."""
    return class_recipe if name == name_of(class_recipe) else find_recipe(name)


def bind_group(recipe: Recipe, group: Mapping[str, Any]) -> Bound:
    """Return the recipe with the present hyper-parameters of a param_group; its rule is made.

    Those with a schedule are bound to it, and the rule is scheduled.

    Raises:
        TypeError: a hyper-parameter has a wrong type, or `maximize` is not True or False.
        ValueError: a hyper-parameter is outside its interval, or there is no such backend.
    """
    _check_common_arguments(group)
    entries = with_schedules(group)
    bound = bind(recipe, **{name: entries[name] for name in defaults_of(recipe)})
    if PART in group:
        bound = replace(bound, part=group[PART])
    bound.rule  # noqa: B018  (it raises)
    return bound


def bind_and_check_group(recipe: Recipe, group: Mapping[str, Any]) -> Bound:
    """Do as `bind_group`, and check numbers in tensors, for which a step would have to wait."""
    entries = with_schedules(group)
    numbers = {name: _read_number(entries[name]) for name in defaults_of(recipe)}
    bind_group(recipe, {**group, **numbers})
    return bind_group(recipe, group)


class _BoundGroup(NamedTuple):
    """A recipe as it was bound to entries of a param_group.

    Attributes:
        bound: the recipe with its hyper-parameters.
        names: the entries that it depends on: "recipe" and the hyper-parameters.
        values: the objects that these entries were.
    """

    bound: Bound
    names: tuple[str, ...]
    values: tuple[Any, ...]


class GroupBinder:
    """Binds the param_groups of an optimizer, anew only when one of their entries has changed.

    Making a rule takes as long as stepping several small weights, so a rule is kept as long as
    all entries of its group are the same objects of immutable types. A recipe of the user's may
    read values other than its arguments, so it is called for every step.

    Args:
        class_recipe: the recipe of the optimizer's class.
    """

    def __init__(self, class_recipe: Recipe) -> None:
        self._class_recipe = class_recipe
        self._cache: dict[int, _BoundGroup] = {}
        """By the id of a group. A new group of the same id finds other values, or equal ones."""

    def bind(self, group: Mapping[str, Any]) -> Bound:
        """Return the recipe of a param_group with its present hyper-parameters; see `bind_group`.

        Raises:
            TypeError, ValueError: as `bind_group`.
        """
        cached = self._cache.get(id(group))
        entries = with_schedules(group)
        if cached is not None and all(
            entries[name] is value for name, value in zip(cached.names, cached.values, strict=True)
        ):
            _check_common_arguments(group)
            return cached.bound
        recipe = recipe_of_group(group["recipe"], self._class_recipe)
        bound = bind_group(recipe, group)
        names = ("recipe", *bound.hyper_parameters, *([PART] if PART in group else []))
        values = tuple(entries[name] for name in names)
        if is_builtin(recipe) and all(map(_is_immutable, values)):
            self._cache[id(group)] = _BoundGroup(bound, names, values)
        return bound


def _is_immutable(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    return value is None or type(value) in (float, int, bool, str) or isinstance(value, Schedule)


def _check_common_arguments(group: Mapping[str, Any]) -> None:
    """Check the entries that every optimizer has."""
    if not isinstance(group["maximize"], bool):
        raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")
    require_backend(group["backend"])


def _refuse_torch_arguments(arguments: Mapping[str, Any], names: Collection[str]) -> None:
    for name, instead in _TORCH_ARGUMENTS.items():
        if name not in names and arguments.get(name):
            raise TypeError(f"{name}={arguments[name]!r} is an argument of torch.optim: {instead}")


def _refuse_optimizer_choices(
    group: Mapping[str, Any], recipe: str, names: Collection[str]
) -> None:
    """Refuse entries by which other libraries choose another optimizer than this group's recipe."""
    for name, value in group.items():
        if name in names or name in _RESERVED:
            continue
        flag = _OPTIMIZER_FLAG.fullmatch(name)
        if flag:
            chosen = flag[1].lower()
            # `use_muon` is true of Muon and of its variants.
            is_switch = isinstance(value, int) and bool(recipes_named(chosen))
            if not is_switch or bool(value) == (chosen in recipe):
                continue
            suggestion = chosen if value else "adamw"
        elif name in _OPTIMIZER_CHOICES and value is not None:
            chosen = value.lower() if isinstance(value, str) else "adamw"
            if chosen == recipe:
                continue
            suggestion = chosen if recipes_named(chosen) else "adamw"
        else:
            continue
        raise TypeError(
            f"{name}={value!r} in a param_group does not choose its optimizer here, which would be "
            f'{recipe!r}; give the group a recipe instead, such as "recipe": "{suggestion}"'
        )


def _warn_of_entries_without_effect(
    group: Mapping[str, Any], recipe: str, names: Collection[str]
) -> None:
    """Warn of entries that look like hyper-parameters. Others are tags, which torch keeps."""
    extra_names = [name for name in group if name not in names and name not in _RESERVED]
    if not extra_names:
        return
    names_of_other_recipes = hyper_parameter_names() - _TORCH_ARGUMENTS.keys()
    for name in extra_names:
        is_typo = difflib.get_close_matches(
            name.lower(), [*names, "recipe"], cutoff=_TYPO_SIMILARITY
        )
        remedy = ""
        if name in _FOREIGN_ENTRIES:
            remedy = f" on the optimizer: {_FOREIGN_ENTRIES[name]}"
        elif not (name in names_of_other_recipes or name in _SYNONYMS or is_typo):
            continue
        warnings.warn(
            f"{name}={group[name]!r} in a param_group has no effect{remedy}; "
            f"the hyper-parameters of {recipe!r} are {', '.join(names)}",
            stacklevel=7,
        )


def to_plain(value: Any) -> Any:
    """Return a value as plain numbers, tuples and strings, views by their names.

    A state_dict that holds an object of another class, such as a number of numpy's, does not load
    with `weights_only=True`.
    """
    try:
        value = as_number(value)
    except ValueError:
        return value  # the number is too large, and the recipe refuses it by its name
    if type(value) in (tuple, list):
        return type(value)(map(to_plain, value))
    return str(value) if isinstance(value, View) else value


def _read_number(value: Any) -> Any:
    """Return the number in a 0-dim tensor on the CPU; search tuples and lists."""
    if type(value) in (tuple, list):
        return type(value)(map(_read_number, value))
    is_readable = isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim
    return value.item() if is_readable else value


# Checks of weights and gradients


def check_weights(optimizer: str, weights: NamedWeights, rule: Rule) -> None:
    """Refuse weights that a rule cannot step, and warn of weights that it does not suit.

    Args:
        optimizer: the name of the class, for the warning.
        weights: the weights of a param_group.
        rule: the rule that is to step them.

    Raises:
        TypeError: a weight is complex, integer or of 8 bits, and not frozen.
        ValueError: a weight was flattened by FullyShardedDataParallel, or the rule has no units
            in its shape, or refuses its values.

    Warns:
        UserWarning: the rule or its manifold suits some weights badly.
    """
    names_by_warning: defaultdict[str, list[str]] = defaultdict(list)
    for name, weight in weights:
        if can_never_be_stepped(weight):
            continue
        refuse_unless_real(weight, name)
        _refuse_flattened(name, weight)
        initial_state_or_named_error(name, weight, rule)
        for warning in rule.weight_warnings(weight):
            names_by_warning[warning].append(name)
    sentences = []
    for warning, names in names_by_warning.items():
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        sentences.append(f"{', '.join(names[:5])}{more} {warning}")
    if sentences:
        # Show the line that calls the class: three calls of __init__ and add_param_group are
        # between it and this function.
        warnings.warn(f"{optimizer}: {'. '.join(sentences)}", stacklevel=6)


def initial_state_or_named_error(name: str, weight: Tensor, rule: Rule) -> State:
    """Return the state of a weight before its first step, without advancing random generators.

    Raises:
        ValueError: the rule refuses the weight; the message starts with the weight's name.
    """
    try:
        return initial_state_for_check(weight, rule)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_gradients(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse weights and gradients that cannot be stepped now.

    Raises:
        TypeError: a gradient is sparse.
        ValueError: a weight is expanded, an inference tensor, or was flattened meanwhile.
    """
    # Making the names of weights takes longer than this check of all of them.
    if all(_passes_quick_check(weight) for group in param_groups for weight in group["params"]):
        return
    for name, weight in itertools.chain.from_iterable(named_weights(param_groups)):
        _refuse_flattened(name, weight)
        if weight.grad is None:
            continue
        reason = why_not_steppable(weight, weight.grad)
        if reason is not None:
            error_type = TypeError if weight.grad.is_sparse else ValueError
            raise error_type(f"{name} {reason}")


def _passes_quick_check(weight: Tensor) -> bool:
    """Return True for nearly all weights that can be stepped; `why_not_steppable` decides."""
    grad = weight.grad
    if grad is not None and (grad.is_sparse or grad.shape != weight.shape):
        return False
    return not (weight.is_inference() or 0 in weight.stride() or is_flattened_by_fsdp(weight))


def refuse_changed_weights(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: States,
    error: Exception,
) -> None:
    """After an error in a step, refuse a weight that has changed since its state was made.

    Raises:
        ValueError: the state of a weight has another dtype or shape than the weight needs.
    """
    for weights, rule in zip(named_weights(param_groups), rules, strict=True):
        for name, weight in weights:
            state = states.get(weight)
            if weight.grad is None or not state:
                continue
            for key, needed in initial_state_or_named_error(name, weight, rule).items():
                old_text = dtype_and_shape(state.get(key, needed))
                needed_text = dtype_and_shape(needed)
                if old_text != needed_text:
                    raise ValueError(
                        f"{name}: its state {key!r} is {old_text}, and the weight needs "
                        f"{needed_text}. If it has changed, delete its state or make a new "
                        f"optimizer ({error})"
                    ) from error


def dtype_and_shape(x: Tensor) -> str:
    """Describe a tensor for a message."""
    return f"{x.dtype} of shape {tuple(x.shape)}"


def _refuse_flattened(name: str, weight: Tensor) -> None:
    """Refuse a parameter flattened by FullyShardedDataParallel, which has no rows."""
    if is_flattened_by_fsdp(weight):
        raise ValueError(
            f"{name} was flattened by FullyShardedDataParallel and has no rows any more; use "
            "torch.distributed.fsdp.fully_shard"
        )
