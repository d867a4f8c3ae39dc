"""`torch.optim.Optimizer` classes made from recipes, and the drop-in classes of the library's own.

    opt = spherenorm.optim.AdamP(model.parameters(), lr=1e-3, weight_decay=1e-2)

Everything a torch optimizer does is here: param_groups, schedulers, state_dict, hooks, closures, pickling.
"""

from __future__ import annotations

import copyreg
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from spherenorm import recipes
from spherenorm.compile import step_compiled, step_eager
from spherenorm.registry import Recipe, build, defaults, find_recipe, reference
from spherenorm.rule import Rule, refuse_unless_real
from spherenorm.views import View

__all__ = ["SGD", "SGDG", "SGDP", "SGDW", "Adam", "AdamG", "AdamP", "AdamW", "RMSprop", "RecipeOptimizer", "torch_optimizer"]

_SHARED = {"maximize": False, "compile": False, "trace": True}
_OF_TORCH = {"amsgrad": (False,), "foreach": (None, False), "fused": (None, False), "capturable": (False,), "differentiable": (False,)}
"""Arguments of torch.optim that are taken at values that ask for nothing."""
_NOT_HYPER_PARAMETERS = ("params", "param_names", "recipe", *_SHARED)


class _OptimizerType(type):
    """Optimizer classes pickle, and are called as the variable of their module that holds them."""

    made_of: tuple[Recipe, str | None, str]

    def settle(cls) -> bool:
        """Take the name of the variable that holds the class, unless it was made with one.

        True if a variable of its name holds it.
        """
        variables = dict(getattr(sys.modules.get(cls.__module__), "__dict__", {}))
        names = [name for name, value in variables.items() if value is cls]
        nameless = "made_of" in vars(cls) and cls.made_of[1] is None
        if nameless and names and cls.__qualname__ not in names:
            cls.__name__ = cls.__qualname__ = min(names, key=lambda name: name.startswith("_"))
        return cls.__qualname__ in names

    def __repr__(cls) -> str:
        cls.settle()
        return super().__repr__()


def _reduced(cls: _OptimizerType) -> Any:
    """By the variable, as any class; one that `torch_optimizer` made and none holds, made anew."""
    if cls.settle() or "made_of" not in vars(cls):
        return cls.__qualname__
    return _optimizer_class, cls.made_of


copyreg.pickle(_OptimizerType, _reduced)


class RecipeOptimizer(Optimizer, metaclass=_OptimizerType):
    """A torch optimizer that steps each weight by the rule of its param_group's recipe. Made by `torch_optimizer`.

    Args:
        params: parameters, named parameters, or param_groups. A group may override any hyper-parameter, and may name
            another recipe under "recipe" (a registered name or `module:function`), whose own defaults then hold for it.
        maximize: ascend instead of descend.
        compile: step by compiled code, in place: the same rule at the speed of a hand-written kernel (the first step
            takes seconds; kernels are cached on disk). See `spherenorm.compile`.
        trace: without `compile`, the rule's own Python code runs once for each shape of weight, and what it did is repeated
            with reused buffers (equal to rounding); False runs it at every step, for breakpoints and prints in a rule, two
            to five times slower.
        *args, **hyper_parameters: those of the recipe, in its order. amsgrad, foreach, fused, capturable and differentiable,
            which torch.optim has, are taken at values that ask for nothing (False, or None where that is the default).

    The state of a parameter is its rule's, under the rule's names; in half precision it is kept in float32.

    Raises:
        TypeError: an unknown hyper-parameter, or a parameter that is complex or integer.
        ValueError: a hyper-parameter outside its interval. Neither changes anything.
    """

    recipe: ClassVar[Recipe]

    def __init__(
        self, params: ParamsT, *args: Any, maximize: bool = False, compile: bool = False, trace: bool = True, **hyper_parameters: Any
    ) -> None:
        type(self).settle()
        for name in _OF_TORCH.keys() & hyper_parameters.keys() - defaults(self.recipe).keys():
            if any(hyper_parameters[name] is nothing for nothing in _OF_TORCH[name]):
                del hyper_parameters[name]
        try:
            bound = inspect.signature(self.recipe).bind(*args, **hyper_parameters)
        except TypeError as error:
            _refuse_misspelled(hyper_parameters, self.recipe)
            raise TypeError(f"{type(self).__name__}: {error}; its hyper-parameters are {', '.join(defaults(self.recipe))}") from None
        bound.apply_defaults()
        arguments = {name: _as_saved(value) for name, value in bound.arguments.items()}
        shared = {"maximize": maximize, "compile": compile, "trace": trace, "recipe": reference(self.recipe)}
        super().__init__(params, {**arguments, **shared})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class. Its `params` may be a tensor, tensors, or (name, tensor) pairs."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        group = _Group(param_group)
        if "params" not in group:
            raise ValueError(f"a param_group needs params, got {sorted(group)}")
        if not isinstance(group["params"], Tensor | set):
            group["params"] = list(group["params"])
        recipe = find_recipe(group.get("recipe", self.recipe))
        group["recipe"] = reference(recipe)
        if recipe is not self.recipe and find_recipe(group["recipe"]) is not recipe:
            raise ValueError(f"recipe {group['recipe']!r} of a param_group must be importable by that name")
        group_defaults = (
            self.defaults
            if recipe is self.recipe
            else {
                **defaults(recipe),
                **{name: self.defaults[name] for name in _SHARED},
            }
        )
        for name, default in group_defaults.items():
            if group.setdefault(name, default) is inspect.Parameter.empty:
                raise ValueError(f"recipe {group['recipe']!r} needs {name}, and the param_group does not set it")
            group[name] = _as_saved(group[name])
        for name in _SHARED:
            if not isinstance(group[name], bool):
                raise TypeError(f"{name} must be True or False, got {group[name]!r}")
        _refuse_misspelled(group, recipe)
        self._rule({name: _as_number(value) for name, value in group.items()})
        self._check_dtypes(group["params"])
        self._check_shapes(group["params"], self._rule(group))
        super().add_param_group(group)
        for name in self.defaults.keys() - group_defaults.keys() - {"recipe"}:
            del group[name]  # a hyper-parameter of this class that the group's own recipe does not have

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every parameter that has a gradient; `closure` reevaluates the model and returns the loss.

        Raises:
            TypeError: a sparse gradient; ValueError: a hyper-parameter has left its interval. Neither changes anything.
        """
        if torch.compiler.is_compiling():
            # What runs here is made already, and Dynamo goes around it. (As a decorator this would import Dynamo with us.)
            return torch.compiler.disable(self._step_now)(closure)  # type: ignore[no-any-return,no-untyped-call]
        return self._step_now(closure)

    @torch.no_grad()
    def _step_now(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rules = [self._rule(group) for group in self.param_groups]
        self._check_gradients()
        for rule, group in zip(rules, self.param_groups, strict=True):
            weights = [weight for weight in group["params"] if weight.grad is not None]
            grads = [-weight.grad if group["maximize"] else weight.grad for weight in weights]
            names = set(rule.state_names)
            for weight in weights:
                if self.state[weight].keys() != names:
                    self._complete_state(weight, rule)
            states = [self.state[weight] for weight in weights]
            made = self._recipe(group), self._hyper_parameters(group), rule
            if group["compile"]:
                step_compiled(*made, weights, grads, states)
            else:
                step_eager(*made, weights, grads, states, group["trace"])
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict`, bit by bit: of this class, or of the optimizer it stands in for (torch.optim, `adamp`).

        Hyper-parameters that the other optimizer does not have keep their present values; entries of its state that this
        one does not have are left out.

        Raises:
            ValueError: the state has other shapes, or belongs to another recipe or to amsgrad. Nothing changes then.
        """
        state_dict = dict(state_dict)
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError(f"a state_dict has state and param_groups, this one has {sorted(state_dict)}")
        saved_groups = [_Group(group) for group in state_dict["param_groups"]]
        if len(saved_groups) != len(self.param_groups):
            raise ValueError(f"the state_dict has {len(saved_groups)} param_groups, the optimizer {len(self.param_groups)}")
        restored: dict[Tensor, dict[str, Tensor]] = {}
        for saved_group, group in zip(saved_groups, self.param_groups, strict=True):
            if saved_group.setdefault("recipe", group["recipe"]) != group["recipe"]:
                raise ValueError(f"the state_dict is of recipe {saved_group['recipe']!r}, the param_group of {group['recipe']!r}")
            if saved_group.get("amsgrad") and "amsgrad" not in self._hyper_parameters(group):
                raise ValueError(f"the state_dict was made with amsgrad=True, which recipe {group['recipe']!r} does not have")
            if len(saved_group["params"]) != len(group["params"]):
                raise ValueError(
                    f"the state_dict's param_group has {len(saved_group['params'])} parameters, the optimizer's {len(group['params'])}"
                )
            for name, value in group.items():
                saved_group.setdefault(name, value)
            rule = self._rule(saved_group)
            for key, weight in zip(saved_group["params"], group["params"], strict=True):
                saved = {name: value for name, value in state_dict["state"].get(key, {}).items() if value is not None}
                if saved:
                    restored[weight] = self._restore(weight, rule.init(weight), saved)
        super().load_state_dict({**state_dict, "param_groups": saved_groups})
        # torch would have cast the state to the weight's dtype: a float32 momentum of a bfloat16 weight must stay whole.
        self.state.update(restored)

    def _recipe(self, group: Mapping[str, Any]) -> Recipe:
        return self.recipe if group["recipe"] == reference(self.recipe) else find_recipe(group["recipe"])

    def _hyper_parameters(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in defaults(self._recipe(group))}

    def _rule(self, group: Mapping[str, Any]) -> Rule:
        """The group's rule at its present hyper-parameters."""
        return build(self._recipe(group), self._hyper_parameters(group))

    def _complete_state(self, weight: Tensor, rule: Rule) -> None:
        """At a first step, and where a schedule has switched a rule on or off.

        Cloned, since states are written to, and a rule may begin with the weight itself, or with one tensor for several.
        """
        old = self.state[weight]
        self.state[weight] = {name: old[name] if name in old else fresh.clone() for name, fresh in rule.init(weight).items()}

    def _check_dtypes(self, params: Any) -> None:
        first = sum(len(group["params"]) for group in self.param_groups)
        for index, entry in enumerate([params] if isinstance(params, Tensor) else params, first):
            name, weight = entry if isinstance(entry, tuple) else (None, entry)
            if isinstance(weight, Tensor):
                refuse_unless_real(weight, _describe(index, weight, name))

    def _check_shapes(self, params: Any, rule: Rule) -> None:
        """Let the rule refuse a weight now, not when others have been stepped."""
        first = sum(len(group["params"]) for group in self.param_groups)
        for index, entry in enumerate([params] if isinstance(params, Tensor) else params, first):
            name, weight = entry if isinstance(entry, tuple) else (None, entry)
            if isinstance(weight, Tensor):
                try:
                    rule.init(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
                except ValueError as error:
                    raise ValueError(f"{_describe(index, weight, name)}: {error}") from error

    def _check_gradients(self) -> None:
        index = 0
        for group in self.param_groups:
            for weight, name in zip(group["params"], group.get("param_names", [None] * len(group["params"])), strict=True):
                if weight.grad is not None and weight.grad.is_sparse:
                    raise TypeError(f"{_describe(index, weight, name)} has a sparse gradient; pass sparse=False to its embedding")
                index += 1

    def _restore(self, weight: Tensor, template: dict[str, Tensor], saved: Mapping[str, Any]) -> dict[str, Tensor]:
        """`saved` in the dtypes and on the device of `template`."""
        index = [id(w) for group in self.param_groups for w in group["params"]].index(id(weight))
        if not saved.keys() >= template.keys():
            raise ValueError(f"{_describe(index, weight)}: the state_dict holds {sorted(saved)}, the recipe's state is {sorted(template)}")
        state = {}
        for name, fresh in template.items():
            value = torch.as_tensor(saved[name])
            if value.shape != fresh.shape:
                raise ValueError(
                    f"{_describe(index, weight)}: {name} has shape {tuple(value.shape)} in the state_dict, not {tuple(fresh.shape)}"
                )
            state[name] = torch.empty_like(fresh).copy_(value)
        return state


def _describe(index: int, weight: Tensor, name: str | None = None) -> str:
    return f"parameter {index}{f' ({name})' if name else ''} of shape {tuple(weight.shape)}"


def _as_number(value: Any) -> Any:
    """The number that a tensor on the CPU holds, so that its interval can be checked."""
    if isinstance(value, tuple | list):
        return type(value)(_as_number(v) for v in value)
    return value.item() if isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim else value


def _as_saved(value: Any) -> Any:
    """Views by name: a state_dict that holds an object of another class does not load with `weights_only=True`."""
    if type(value) in (tuple, list):
        return type(value)(map(_as_saved, value))
    return str(value) if isinstance(value, View) else value


class _Group(dict[str, Any]):
    """A param_group in which the momentum has two names: its recipe's, and that of the optimizer's class.

    torch's CyclicLR and OneCycleLR set `momentum` or the first of `betas` in all groups, whichever the class has; a group of
    another recipe takes either for its own.
    """

    def __missing__(self, name: str) -> Any:
        if name == "betas" and "momentum" in self:
            return (self["momentum"],)
        if name == "momentum" and "betas" in self:
            return self["betas"][0]
        raise KeyError(f"{name}: a param_group of recipe {self.get('recipe')!r} has none")

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "betas" and name not in self and "momentum" in self:
            name, value = "momentum", value[0]
        elif name == "momentum" and name not in self and "betas" in self:
            name, value = "betas", (value, *self["betas"][1:])
        super().__setitem__(name, value)

    def __reduce__(self) -> Any:
        return _Group, (dict(self),)  # at once: entry by entry, the first of two names would take the other's value


def _refuse_misspelled(group: Mapping[str, Any], recipe: Recipe) -> None:
    """torch allows any extra entry in a group; one that nearly is a hyper-parameter is a mistake."""
    known = [*defaults(recipe), *_NOT_HYPER_PARAMETERS]
    for name in group:
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.85)
        if close and name not in known:
            raise ValueError(f"param_group entry {name!r}: did you mean {close[0]!r}?")


def torch_optimizer(recipe: Recipe | str, name: str | None = None) -> type[RecipeOptimizer]:
    """The `torch.optim.Optimizer` class of a recipe; its arguments and their defaults are the recipe's.

    Args:
        recipe: a recipe, a registered name, or `module:function`.
        name: the name of the class; by default that of the variable of the calling module which
            holds it when it is first used, or else the recipe's in CamelCase.

    The class belongs to the module that calls this. It pickles, and so do its optimizers, if the
    variable or the recipe can be imported.

        SGDPNesterov = sn.torch_optimizer(sgdp_nesterov)
        print(SGDPNesterov)  # <class 'mymodule.SGDPNesterov'>

    Raises:
        ValueError: nothing of that name; see `find_recipe`.
    """
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return _optimizer_class(find_recipe(recipe), name, module)


@functools.cache
def _optimizer_class(function: Recipe, name: str | None, module: str) -> type[RecipeOptimizer]:
    doc = f"{inspect.getdoc(function) or ''}\n\nA torch.optim.Optimizer; see `RecipeOptimizer` for what all of them share."
    cls: Any = _OptimizerType(
        name or "".join(part.capitalize() for part in function.__name__.split("_")),
        (RecipeOptimizer,),
        {
            "recipe": staticmethod(function),
            "made_of": (function, name, module),
            "__doc__": doc,
            "__module__": module,
        },
    )
    hyper_parameters = inspect.signature(function).parameters.values()
    params = inspect.Parameter("params", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    shared = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in _SHARED.items()]
    cls.__signature__ = inspect.Signature([params, *hyper_parameters, *shared])
    return cls  # type: ignore[no-any-return]


SGD = torch_optimizer(recipes.sgd, "SGD")
SGDW = torch_optimizer(recipes.sgdw, "SGDW")
SGDP = torch_optimizer(recipes.sgdp, "SGDP")
Adam = torch_optimizer(recipes.adam, "Adam")
AdamW = torch_optimizer(recipes.adamw, "AdamW")
AdamP = torch_optimizer(recipes.adamp, "AdamP")
RMSprop = torch_optimizer(recipes.rmsprop, "RMSprop")
SGDG = torch_optimizer(recipes.sgdg, "SGDG")
AdamG = torch_optimizer(recipes.adamg, "AdamG")
