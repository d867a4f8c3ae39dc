"""`RecipeOptimizer`: a `torch.optim.Optimizer` that steps each weight by a recipe's rule."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, overload

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from spherenorm.compile import Dispatcher
from spherenorm.numerics import outside_inference_mode
from spherenorm.optim.evaluation import EvalModeMixin
from spherenorm.optim.param_groups import (
    COMMON_ARGUMENTS,
    GroupBinder,
    GroupsOfRecipe,
    bind_arguments,
    check_gradients,
    check_patterns_of_partitions,
    check_weights,
    complete_group,
    named_weights,
    refuse_changed_weights,
    refuse_modules,
    refuse_reserved_names,
    split_by_label,
    warn_of_other_recipe,
    warn_of_unused_arguments,
)
from spherenorm.optim.schedules import (
    CLOCK,
    entries_after_step,
    has_entries,
    has_new_schedules,
    next_step,
    refuse_written_numbers,
    set_schedules,
    steps_taken,
    with_its_schedules,
)
from spherenorm.optim.sharded import has_newcomers
from spherenorm.optim.states import (
    adapt_state_dict,
    check_shared_fields,
    copy_shared_states,
    make_group_steps,
    rule_keeping_states,
    with_global_sums,
)
from spherenorm.registry import Recipe, find_recipe, name_of, type_hints_of
from spherenorm.rule import Rule
from spherenorm.support import signature_of
from spherenorm.torch_internals import load_state_dict_hooks, request_graph_break

GRAPH_BREAK_REASON = (
    "step() runs kernels of its own between the graphs of torch.compile. Compile the loss with "
    "fullgraph=True and call backward() and step() outside, or compile the whole train step with "
    "fullgraph=False; see docs/speed.md."
)
"""What torch.compile shows where a user wants one graph that holds a step."""


class RecipeOptimizer(EvalModeMixin):
    """A torch optimizer that steps each weight by its recipe's rule. Made by `torch_optimizer`.

    Args:
        params: parameters, named parameters, or param_groups. A group may override any
            hyper-parameter, and may name another recipe under "recipe" (a registered name or
            `module:function`), whose own defaults then hold for it.
        maximize: ascend instead of descend.
        backend: which path a step takes: "auto", "rule" or "compiled", explained in
            `spherenorm.compile`; the numbers are the rule's own on each. See also `explain`.
        *args, **hyper_parameters: the hyper-parameters of the recipe, in its order. Arguments that
            only torch.optim has (amsgrad, foreach, ...) are accepted at False and None.

    Raises:
        TypeError: an unknown hyper-parameter, an argument of torch.optim that is none here, a
            module for its parameters, a complex, integer or 8-bit parameter that is not frozen,
            or an entry of a group by which another library chooses an optimizer (`use_muon`).
        ValueError: a hyper-parameter outside its interval, an unknown backend, weights that
            FullyShardedDataParallel has flattened, a pattern of a partition's labels that names no
            parameter. Nothing changes then.

    Warns:
        UserWarning: a manifold does not suit weights of a group (see `Sphere.weight_warnings`); a
            group sets a hyper-parameter that its recipe does not have; an argument reaches no
            group, since each sets its own.

    Example:
        >>> optimizer = sn.optim.SGD([torch.ones(2)], lr=0.1, momentum=0.9)
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """

    recipe: ClassVar[Recipe]

    def __init__(
        self,
        params: ParamsT,
        *args: Any,
        maximize: bool = False,
        backend: str = "auto",
        **hyper_parameters: Any,
    ) -> None:
        refuse_modules(params)
        class_name, recipe_name = type(self).__name__, name_of(self.recipe)
        values, given_names = bind_arguments(class_name, self.recipe, args, hyper_parameters)
        if isinstance(params, GroupsOfRecipe):
            warn_of_other_recipe(class_name, recipe_name, params)
            params = params.for_optimizer(given_names)
        common_entries = {"maximize": maximize, "backend": backend, "recipe": recipe_name}
        super().__init__(params, {**values, **common_entries})
        check_patterns_of_partitions(self.recipe, self.param_groups)
        given_names |= {
            key for key, default in COMMON_ARGUMENTS.items() if common_entries[key] != default
        }
        warn_of_unused_arguments(class_name, self.defaults, given_names, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `params` and the entries in which they differ from the optimizer.

        Raises:
            TypeError, ValueError: as the class. Nothing is added then.
        """
        groups = getattr(self, "param_groups", ())
        group, rule = complete_group(param_group, self.recipe, self.defaults, groups)
        if rule.is_partition:
            self._add_parts(split_by_label(group, rule, param_group))
            return
        unwanted = self.defaults.keys() - group.keys()
        super().add_param_group(group)
        try:
            for name in unwanted:
                # Torch has added the hyper-parameters of the class to a group of another recipe.
                del group[name]
            *_, weights = named_weights(self.param_groups)
            check_weights(type(self).__name__, weights, rule)
            if rule.needs_global_sums:
                check_shared_fields(map(self.rule_of, self.param_groups))
        except BaseException:
            self.param_groups.pop()
            raise

    def _add_parts(self, param_groups: Sequence[dict[str, Any]]) -> None:
        """Add the groups of a partition, or none of them."""
        n_groups = len(self.param_groups)
        try:
            for param_group in param_groups:
                self.add_param_group(param_group)
        except BaseException:
            del self.param_groups[n_groups:]
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every parameter that has a gradient, after `closure` has computed a loss.

        Raises:
            TypeError, ValueError: a gradient is sparse; a hyper-parameter has left its interval; a
                weight no longer fits its state. Nothing changes then.
        """
        if torch.compiler.is_compiling():
            # The kernels are compiled already, so Dynamo must skip this call. (As a decorator, this
            # would import Dynamo with this module.)
            request_graph_break(GRAPH_BREAK_REASON)
            eager_step = torch.compiler.disable(self._eager_step)  # type: ignore[no-untyped-call]
            return eager_step(closure)  # type: ignore[no-any-return]
        return self._eager_step(closure)

    @torch.no_grad()
    def _eager_step(self, closure: Callable[[], float] | None) -> float | None:
        self.refuse_in_evaluation("step()")
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._register_sharded_weights()
        try:
            rules = self._rules_of_step()
            entries = [entries_after_step(group) for group in self.param_groups]
            check_gradients(self.param_groups)
            check_shared_fields(rules)
            agreement = self._dispatcher.agreement
            if agreement.meshes and has_newcomers(self.param_groups, rules, self.state):
                agreement.check_gradients()
            with outside_inference_mode(), torch.no_grad():
                groups, new_states = make_group_steps(self.param_groups, rules, self.state)
        except Exception as error:
            self._dispatcher.agreement.broadcast_and_raise(error)
        old_states = {w: self.state[w] for w in new_states if w in self.state}
        # New states are stored before any weight moves, so that an interrupt leaves every moved
        # weight with its state.
        self.state.update(new_states)
        self._dispatcher.may_have_written = False
        try:
            has_sums = any(rule.needs_global_sums for rule in rules)
            self._dispatcher.step(groups, with_global_sums if has_sums else None)
            copy_shared_states(self.param_groups, groups, self.state)
        except BaseException as error:
            if not self._dispatcher.may_have_written:
                for weight in new_states:
                    del self.state[weight]
                self.state.update(old_states)
            if isinstance(error, Exception):
                refuse_changed_weights(self.param_groups, rules, self.state, error)
            raise
        for group, new_entries in zip(self.param_groups, entries, strict=True):
            group.update(new_entries)
            if new_entries:
                self._scheduled_entries[id(group)] = with_its_schedules(group, new_entries)
        return loss

    def _rules_of_step(self) -> list[Rule]:
        """Return the rule of each of `param_groups`, whose schedules are moved to their place.

        Raises:
            TypeError, ValueError: as `rule_of`; the message starts with the index of the group.
        """
        rules = []
        for index, group in enumerate(self.param_groups):
            try:
                self._move_schedules_out_of_entries(group)
                rules.append(self.rule_of(group))
            except (TypeError, ValueError) as error:
                raise type(error)(f"param_groups[{index}]: {error}") from error
        return rules

    def _register_sharded_weights(self) -> None:
        """Register the sharded weights, on which all processes have to agree, and their names."""
        weights = [weight for group in self.param_groups for weight in group["params"]]

        def names() -> dict[Any, str]:
            named = itertools.chain.from_iterable(named_weights(self.param_groups))
            return {weight: name for name, weight in named}

        self._dispatcher.agreement.find_weights(weights, names)

    def _move_schedules_out_of_entries(self, group: dict[str, Any]) -> None:
        """Move schedules that were set as entries of a param_group to `group["schedules"]`.

        An entry may also be one with which the group's recipe makes a schedule: that needs a clock.
        """
        states = filter(None, map(self.state.get, group["params"]))
        if has_new_schedules(group):
            set_schedules(group, steps_taken(states))
        elif CLOCK not in group and self._group_binder.bind(group).rule.is_scheduled:
            group[CLOCK] = steps_taken(states)

    @functools.cached_property
    def _dispatcher(self) -> Dispatcher:
        """The recorded steps of this optimizer's rules; a copy of the optimizer starts anew."""
        return Dispatcher()

    @functools.cached_property
    def _group_binder(self) -> GroupBinder:
        """The rules of the param_groups; a copy of the optimizer starts anew."""
        return GroupBinder(self.recipe)

    @functools.cached_property
    def _scheduled_entries(self) -> dict[int, Mapping[str, Any]]:
        """What the last step has left in each group with schedules, by the id of the group.

        A copy of the optimizer starts anew.
        """
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint, bit by bit.

        It may be of this class, of another one whose recipe has the same state, or of the optimizer
        that this one replaces (torch.optim, `adamp`). See `adapt_state_dict`.

        Raises:
            TypeError: it is no mapping.
            ValueError: the checkpoint does not fit. Nothing changes then.
        """
        self.refuse_in_evaluation("load_state_dict()")
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"{type(self).__name__}: load_state_dict takes the state_dict() of an optimizer, "
                f"got {state_dict!r:.60}"
            )
        state_dict = dict(state_dict)
        pre_hooks, post_hooks = load_state_dict_hooks(self)
        for hook in pre_hooks:
            result = hook(self, state_dict)
            state_dict = state_dict if result is None else result
        self.__setstate__(adapt_state_dict(state_dict, self.param_groups, self.recipe))
        for hook in post_hooks:
            hook(self)

    def rule_of(self, group: Mapping[str, Any], t: int | None = None) -> Rule:
        """Return the rule of one of `param_groups`, at its present hyper-parameters.

        Args:
            group: the group.
            t: the step at which schedules are taken; None for the next one.

        Raises:
            TypeError, ValueError: a hyper-parameter is wrong, or one with a schedule was set.
        """
        if t is None:
            # Comparing objects takes less time than asking the schedules for their numbers.
            if not has_entries(group, self._scheduled_entries.get(id(group))):
                refuse_written_numbers(group)
            t = next_step(group)
        bound = self._group_binder.bind(group)
        states = filter(None, map(self.state.get, group["params"]))
        return rule_keeping_states(bound, states, t)

    def rule_with_schedules(self, group: Mapping[str, Any]) -> Rule:
        """Return the rule of one of `param_groups`, with schedules in the place of numbers.

        Args:
            group: the group.

        Raises:
            TypeError, ValueError: a hyper-parameter is wrong.
        """
        return self._group_binder.bind(group).rule


def torch_optimizer(recipe: Recipe | str, name: str | None = None) -> type[RecipeOptimizer]:
    """Return the `torch.optim.Optimizer` class of a recipe.

    Its arguments and their defaults are the recipe's; see `RecipeOptimizer` for those that all
    classes share. The class belongs to the module that calls this: it pickles, and so do its
    optimizers, if that module has it by its name. `inspect.getsource(cls)` is the recipe's.

    Args:
        recipe: a recipe, a registered name, or `module:function`.
        name: the name of the class; by default that of `spherenorm.optim`, or the recipe's in
            CamelCase.

    Raises:
        ValueError: nothing of that name; see `find_recipe`.
        TypeError: a hyper-parameter has the name of an argument that all classes share.

    Example:
        >>> Plain = torch_optimizer("sgd", "Plain")
        >>> print(*inspect.signature(Plain).parameters)
        params lr momentum dampening weight_decay nesterov maximize backend
    """
    function = find_recipe(recipe)
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return _optimizer_class(function, name or _default_class_name(function), module)


def _default_class_name(recipe: Recipe) -> str:
    """Return the name of the library's class of a recipe, or the recipe's name in CamelCase."""
    cls = builtin_class(recipe)
    if cls is not None:
        return cls.__name__
    return "".join(part.capitalize() for part in recipe.__name__.split("_"))


def builtin_class(recipe: Recipe) -> type[RecipeOptimizer] | None:
    """Return the class of a recipe in `spherenorm.optim`; None if it has none."""
    for cls in RecipeOptimizer.__subclasses__():
        if cls.__module__ == "spherenorm.optim" and cls.recipe is recipe:
            return cls
    return None


@functools.cache
def _optimizer_class(function: Recipe, name: str, module: str) -> type[RecipeOptimizer]:
    refuse_reserved_names(function)
    doc = inspect.getdoc(function) or f"The optimizer of {function.__name__}."
    init = _init_with_arguments_of(function)
    _, *parameters = inspect.signature(init).parameters.values()
    attributes = {
        "recipe": staticmethod(function),
        "__doc__": f"{doc}\n\n`params`, `maximize` and `backend` are as for `RecipeOptimizer`.",
        "__module__": module,
        "__init__": init,
        # `inspect.getsource` follows __wrapped__ to the recipe. `inspect.signature` would follow
        # it, too, and stops at __signature__.
        "__wrapped__": _OwnClassAttribute(function),
        "__signature__": _OwnClassAttribute(inspect.Signature(parameters)),
    }
    return type(name, (RecipeOptimizer,), attributes)


class _OwnClassAttribute:
    """An attribute of one class that neither its subclasses nor its instances have.

    A user's subclass has a source and a signature of its own.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is not None or owner is not self.owner:
            raise AttributeError(f"{owner.__name__!r} has no attribute {self.name!r}")
        return self.value


def _init_with_arguments_of(recipe: Recipe) -> Callable[..., None]:
    """Return `RecipeOptimizer.__init__` with the arguments of a recipe in its signature.

    Editors ask for it, and tools that make optimizers of configuration files (jsonargparse, Hydra).
    """

    def init(self: RecipeOptimizer, params: ParamsT, *args: Any, **kwargs: Any) -> None:
        RecipeOptimizer.__init__(self, params, *args, **kwargs)

    hints = type_hints_of(recipe)
    recipe_parameters = [
        parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in signature_of(recipe).parameters.items()
    ]
    base = inspect.signature(RecipeOptimizer.__init__, eval_str=True).parameters
    common_parameters = [base[name] for name in COMMON_ARGUMENTS]
    parameters = [base["self"], base["params"], *recipe_parameters, *common_parameters]
    init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    init.__annotations__ = {p.name: p.annotation for p in parameters[1:]}
    return init


def unwrap(optimizer: Any) -> Any:
    """Return the innermost `.optimizer` of a scheduler, or of a wrapper such as Accelerate's.

    A wrapper's class may derive from the wrapped one or from `Optimizer` without being made as
    one, so a wrapper is told by what it holds.

    Args:
        optimizer: an optimizer, a wrapper, or anything else, which is returned as it is.

    Example:
        >>> optimizer = torch.optim.SGD([torch.ones(2)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        >>> unwrap(scheduler) is optimizer
        True
    """
    while True:
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return optimizer
        optimizer = inner
