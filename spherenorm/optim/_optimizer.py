"""`RecipeOptimizer`: a `torch.optim.Optimizer` that steps each weight by a recipe's rule."""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch.optim.optimizer import Optimizer, ParamsT

from spherenorm._registry import Recipe, defaults_of, find_recipe, name_of
from spherenorm.compile import Dispatcher
from spherenorm.core import Rule
from spherenorm.optim._arguments import (
    SHARED,
    bind_arguments,
    refuse_modules,
    refuse_taken_names,
)
from spherenorm.optim._checkpoint import fit
from spherenorm.optim._group import bind_group, checked_rule, complete_group
from spherenorm.optim._help import class_doc
from spherenorm.optim._step import gather
from spherenorm.optim._weights import (
    check_gradients,
    check_weights,
    naming_changed_weights,
    warn_of_weights,
)

IN_A_GRAPH = (
    "step() runs kernels of its own between the graphs of torch.compile. Compile the loss with "
    "fullgraph=True and call backward() and step() outside, or compile the whole train step with "
    "fullgraph=False; see docs/speed.md."
)
"""The reason that torch.compile is given, and shows where it wants the whole graph."""


class OptimizerType(type):
    """The type of optimizer classes, by which `copyreg` knows those that it makes anew.

    Attributes:
        made_of: the recipe, the name that was asked for, and the module, of a class that
            `torch_optimizer` made; its subclasses have none of their own.
    """

    made_of: tuple[Recipe, str | None, str]


class RecipeOptimizer(Optimizer, metaclass=OptimizerType):
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
            module for its parameters, or a parameter that is complex or integer.
        ValueError: a hyper-parameter outside its interval, an unknown backend, weights that
            FullyShardedDataParallel has flattened. Nothing changes then.

    Warns:
        UserWarning: a manifold does not suit weights of a group (see `Sphere.weight_warnings`).

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
        own = bind_arguments(type(self).__name__, self.recipe, args, hyper_parameters)
        shared = {"maximize": maximize, "backend": backend, "recipe": name_of(self.recipe)}
        super().__init__(params, {**own, **shared})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `params` and the entries in which they differ from the optimizer.

        Raises:
            TypeError, ValueError: as the class; an entry that is nearly a hyper-parameter. Nothing
                is added then.
        """
        group = complete_group(param_group, self.recipe, self.defaults)
        recipe = self._recipe(group)
        rule = checked_rule(recipe, group)
        first = sum(len(present["params"]) for present in self.param_groups)
        check_weights(group["params"], rule, first)
        warn_of_weights(type(self).__name__, group["params"], rule, first)
        super().add_param_group(group)
        for name in self.defaults.keys() - {*defaults_of(recipe), *SHARED, "recipe"}:
            del group[name]  # a hyper-parameter that only the class's own recipe has
        group.set_apart()

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
        with torch.enable_grad():
            loss = None if closure is None else closure()
        rules = [self.rule_of(group) for group in self.param_groups]
        check_gradients(self.param_groups)
        groups, new = gather(rules, self.param_groups, self.state)
        with naming_changed_weights(self.param_groups, rules, self.state):
            self._dispatcher.step(groups)
        self.state.update(new)
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
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            hooked = before(self, state_dict)
            state_dict = state_dict if hooked is None else hooked
        self.__setstate__(fit(state_dict, self.param_groups, self._recipe))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def rule_of(self, group: Mapping[str, Any]) -> Rule:
        """The rule of one of `param_groups`, at its present hyper-parameters."""
        return bind_group(self._recipe(group), group).rule

    def _recipe(self, group: Mapping[str, Any]) -> Recipe:
        own = group["recipe"] == name_of(self.recipe)
        return self.recipe if own else find_recipe(group["recipe"])


def torch_optimizer(recipe: Recipe | str, name: str | None = None) -> type[RecipeOptimizer]:
    """The `torch.optim.Optimizer` class of a recipe.

    Its arguments and their defaults are the recipe's; see `RecipeOptimizer` for those that all
    classes share. The class belongs to the module that calls this. It pickles, and so do its
    optimizers, if the recipe can be imported, or the class from its module by its name.

    Args:
        recipe: a recipe, a registered name, or `module:function`.
        name: the name of the class; by default the recipe's in CamelCase.

    Raises:
        ValueError: nothing of that name; see `find_recipe`.
        TypeError: a hyper-parameter has the name of an argument that all classes share.

    Example:
        >>> Plain = torch_optimizer("sgd", "Plain")
        >>> print(inspect.signature(Plain))
        (params, lr: ..., maximize=False, backend='auto')
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return _optimizer_class(find_recipe(recipe), name, module)


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


@functools.cache
def _optimizer_class(function: Recipe, name: str | None, module: str) -> type[RecipeOptimizer]:
    refuse_taken_names(function)
    cls: Any = OptimizerType(
        name or "".join(part.capitalize() for part in function.__name__.split("_")),
        (RecipeOptimizer,),
        {
            "recipe": staticmethod(function),
            "made_of": (function, name, module),
            "__doc__": class_doc(function, name),
            "__module__": module,
        },
    )
    cls.__signature__ = _signature(function)
    return cls  # type: ignore[no-any-return]


def _signature(function: Recipe) -> inspect.Signature:
    """The signature of the class that is made of a recipe."""
    hyper_parameters = inspect.signature(function).parameters.values()
    params = inspect.Parameter("params", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in SHARED.items()
    ]
    return inspect.Signature([params, *hyper_parameters, *shared])


def _reduced(cls: OptimizerType) -> Any:
    """Pickle a class by its name, as any; one that its module has not by that is made anew."""
    module = sys.modules.get(cls.__module__)
    importable = getattr(module, cls.__qualname__, None) is cls
    if importable or "made_of" not in vars(cls):
        return cls.__qualname__
    recipe, name, home = cls.made_of
    return _made_anew, (_by_name(recipe), name, home)


def _by_name(recipe: Recipe) -> Recipe | str:
    """The name that finds a recipe again, such as that of a wrapped one; else the recipe."""
    try:
        found = find_recipe(name := name_of(recipe))
    except (ImportError, TypeError, ValueError):
        return recipe
    return name if found is recipe else recipe


def _made_anew(recipe: Recipe | str, name: str | None, module: str) -> type[RecipeOptimizer]:
    return _optimizer_class(find_recipe(recipe), name, module)


copyreg.pickle(OptimizerType, _reduced)
