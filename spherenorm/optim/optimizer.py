"""`RecipeOptimizer`: a `torch.optim.Optimizer` that steps each weight by a recipe's rule."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from spherenorm.annotations import signature_of
from spherenorm.compile import Dispatcher
from spherenorm.numerics import outside_inference_mode
from spherenorm.optim.checkpoint import fit
from spherenorm.optim.evaluation import Evaluated
from spherenorm.optim.group import (
    SHARED,
    GroupsOfRecipe,
    bind_arguments,
    bind_group,
    complete_group,
    recipe_of,
    refuse_modules,
    refuse_taken_names,
    warn_of_other_recipe,
    warn_of_unused_arguments,
)
from spherenorm.optim.states import (
    check_shared_fields,
    gather,
    rule_keeping_states,
    spread_shared,
    with_sums,
)
from spherenorm.optim.weights import (
    check_gradients,
    check_weights,
    named,
    refuse_changed_weights,
)
from spherenorm.registry import Recipe, find_recipe, hints_of, name_of
from spherenorm.rule import Rule

IN_A_GRAPH = (
    "step() runs kernels of its own between the graphs of torch.compile. Compile the loss with "
    "fullgraph=True and call backward() and step() outside, or compile the whole train step with "
    "fullgraph=False; see docs/speed.md."
)
"""The reason that torch.compile is given, and shows where it wants the whole graph."""


class RecipeOptimizer(Evaluated):
    """A torch optimizer that steps each weight by its recipe's rule. Made by `torch_optimizer`.

    Args:
        params: parameters, named parameters, or param_groups. A group may override any
            hyper-parameter, and may name another recipe under "recipe" (a registered name or
            `module:function`), whose own defaults then hold for it.
        maximize: ascend instead of descend.
        backend: which path a step takes: "auto", "rule" or "compiled", explained in
            `spherenorm.compile`; the numbers are the rule's own on each. See also `explain`.
        *args, **hyper_parameters: those of the recipe, in its order. Arguments that only
            torch.optim has (amsgrad, foreach, ...) are taken at False and None.

    Raises:
        TypeError: an unknown hyper-parameter, an argument of torch.optim that is none here, a
            module for its parameters, a complex, integer or 8-bit parameter that is not frozen,
            or an entry of a group by which another library chooses an optimizer (`use_muon`).
        ValueError: a hyper-parameter outside its interval, an unknown backend, weights that
            FullyShardedDataParallel has flattened. Nothing changes then.

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
        name, recipe = type(self).__name__, name_of(self.recipe)
        own, given = bind_arguments(name, self.recipe, args, hyper_parameters)
        if isinstance(params, GroupsOfRecipe):
            warn_of_other_recipe(name, recipe, params)
            params = params.without_replaced(given)
        shared = {"maximize": maximize, "backend": backend, "recipe": recipe}
        super().__init__(params, {**own, **shared})
        given |= {key for key, default in SHARED.items() if shared[key] != default}
        warn_of_unused_arguments(name, self.defaults, given, self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `params` and the entries in which they differ from the optimizer.

        Raises:
            TypeError, ValueError: as the class. Nothing is added then.
        """
        group, rule = complete_group(param_group, self.recipe, self.defaults)
        others = self.defaults.keys() - group.keys()
        super().add_param_group(group)
        try:
            for name in others:  # hyper-parameters of the class's own recipe, from torch
                del group[name]
            *_, weights = named(self.param_groups)
            check_weights(type(self).__name__, weights, rule)
            if rule.needs_global_sums:
                check_shared_fields(map(self.rule_of, self.param_groups))
        except BaseException:
            self.param_groups.pop()
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
            torch._dynamo.graph_break(msg=IN_A_GRAPH)
            skipped = torch.compiler.disable(self._step_now)  # type: ignore[no-untyped-call]
            return skipped(closure)  # type: ignore[no-any-return]
        return self._step_now(closure)

    @torch.no_grad()
    def _step_now(self, closure: Callable[[], float] | None) -> float | None:
        self.refuse_in_evaluation("step()")
        with torch.enable_grad():
            loss = None if closure is None else closure()
        rules = [self.rule_of(group) for group in self.param_groups]
        check_gradients(self.param_groups)
        check_shared_fields(rules)
        with outside_inference_mode(), torch.no_grad():
            groups, new = gather(self.param_groups, rules, self.state)
        old = {weight: self.state[weight] for weight in new if weight in self.state}
        self.state.update(new)  # before a weight moves, which an interrupt may stop half-way
        self._dispatcher.may_have_written = False
        try:
            groups = with_sums(groups)
            self._dispatcher.step(groups)
            spread_shared(self.param_groups, groups, self.state)
        except BaseException as error:
            if not self._dispatcher.may_have_written:
                for weight in new:
                    del self.state[weight]
                self.state.update(old)
            if isinstance(error, Exception):
                refuse_changed_weights(self.param_groups, rules, self.state, error)
            raise
        return loss

    @functools.cached_property
    def _dispatcher(self) -> Dispatcher:
        """The records of this optimizer's rules; a copy starts anew."""
        return Dispatcher()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint, bit by bit: of this class, of another one whose recipe has the same
        state, or of the optimizer that this one replaces (torch.optim, `adamp`). See `fit`.

        Raises:
            ValueError: the checkpoint does not fit. Nothing changes then.
        """
        self.refuse_in_evaluation("load_state_dict()")
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            hooked = before(self, state_dict)
            state_dict = state_dict if hooked is None else hooked
        self.__setstate__(fit(state_dict, self.param_groups, self.recipe))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        """The rule of one of `param_groups`, at its present hyper-parameters."""
        bound = bind_group(recipe_of(group["recipe"], self.recipe), group)
        return rule_keeping_states(bound, filter(None, map(self.state.get, group["params"])))


def torch_optimizer(recipe: Recipe | str, name: str | None = None) -> type[RecipeOptimizer]:
    """The `torch.optim.Optimizer` class of a recipe.

    Its arguments and their defaults are the recipe's; see `RecipeOptimizer` for those that all
    classes share. The class belongs to the module that calls this: it pickles, and so do its
    optimizers, if that module has it by its name.

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
    made = _optimizer_class(function, name or _class_name(function), module)
    if module == "spherenorm.optim":
        _OWN[function] = made
    return made


_OWN: dict[Recipe, type[RecipeOptimizer]] = {}
"""The classes of `spherenorm.optim` by their recipes."""


def _class_name(recipe: Recipe) -> str:
    """The name of the library's class of a recipe, or the recipe's in CamelCase."""
    if recipe in _OWN:
        return _OWN[recipe].__name__
    return "".join(part.capitalize() for part in recipe.__name__.split("_"))


def own_class(recipe: Recipe) -> type[RecipeOptimizer] | None:
    """The library's class of a recipe; None if it has none."""
    return _OWN.get(recipe)


@functools.cache
def _optimizer_class(function: Recipe, name: str, module: str) -> type[RecipeOptimizer]:
    refuse_taken_names(function)
    doc = inspect.getdoc(function) or f"The optimizer of {function.__name__}."
    doc += "\n\n`params`, `maximize` and `backend` are as for `RecipeOptimizer`."
    entries = {"recipe": staticmethod(function), "__doc__": doc, "__module__": module}
    return type(name, (RecipeOptimizer,), {**entries, "__init__": _init_of(function)})


def _init_of(function: Recipe) -> Callable[..., None]:
    """`RecipeOptimizer.__init__` with the arguments of a recipe for all who ask for its signature:
    editors, and tools that make optimizers of configuration files (jsonargparse, Hydra).
    """

    def init(self: RecipeOptimizer, params: ParamsT, *args: Any, **others: Any) -> None:
        RecipeOptimizer.__init__(self, params, *args, **others)

    hints = hints_of(function)
    theirs = signature_of(function).parameters.values()
    own = [each.replace(annotation=hints.get(each.name, Any)) for each in theirs]
    every = inspect.signature(RecipeOptimizer.__init__, eval_str=True).parameters
    parameters = [every["self"], every["params"], *own, *(every[name] for name in SHARED)]
    init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    init.__annotations__ = {p.name: p.annotation for p in parameters[1:]}
    return init


def unwrap(optimizer: Any) -> Any:
    """The innermost `.optimizer`: of Accelerate's and Lightning's wrappers, and of schedulers.

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
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
