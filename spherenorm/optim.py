"""`torch.optim.Optimizer` classes made from recipes, and the drop-in classes of the library's own.

    opt = spherenorm.optim.AdamP(model.parameters(), lr=1e-3, weight_decay=1e-2)

Everything a torch optimizer does is here: param_groups, schedulers, state_dict, hooks, closures, pickling.
"""

from __future__ import annotations

import copy
import copyreg
import difflib
import functools
import inspect
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from spherenorm import recipes
from spherenorm.compile import Dispatcher, Group, Work, require_backend
from spherenorm.registry import Recipe, build, defaults, find_recipe, reference, registered
from spherenorm.rule import Rule, init_apart, refuse_unless_real
from spherenorm.views import View

__all__ = [
    "SGD",
    "SGDG",
    "SGDP",
    "SGDW",
    "Adam",
    "AdamG",
    "AdamP",
    "AdamW",
    "RMSprop",
    "RecipeOptimizer",
    "torch_optimizer",
]

_SHARED = {"maximize": False, "backend": "auto"}
_OF_TORCH = {
    "amsgrad": "this library does not have it",
    "foreach": 'use backend="compiled", which steps all weights in one kernel',
    "fused": 'use backend="compiled", which steps all weights in one kernel',
    "capturable": "leave it out; a compiled step can be captured in a CUDA graph as it is",
    "differentiable": "use spherenorm.functional, whose steps can be differentiated",
}
"""Arguments of torch.optim that are taken at False and None, and what to do instead otherwise."""
_SPELLINGS = {
    "lr": ("learning_rate", "step_size"),
    "weight_decay": ("wd", "weight_decay_rate"),
    "betas": ("beta1", "beta2", "momentum", "mom"),
    "momentum": ("beta", "beta1", "betas", "mom"),
    "eps": ("epsilon",),
    "backend": ("compile", "trace"),
}
"""The names of hyper-parameters in other libraries."""
_NOT_HYPER_PARAMETERS = ("params", "param_names", "recipe", *_SHARED)
_HOW = ("backend",)
"""The arguments that choose how a step runs. They are no state: checkpoints do not hold them."""


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
        backend: how a step runs; the numbers are those of the rule's own code on every path. "auto" records chains made
            wholly of the library's rules and repeats them in reused buffers; a rule class of yours runs its own code.
            "rule" always runs the rule's own code, for breakpoints and prints. "blocks" records your rules too, and
            "compiled" makes one kernel of them (seconds at the first step; kernels are cached on disk), if they are pure
            functions of their fields, the update and the state. `spherenorm.explain(optimizer)` tells what runs, and why.
        *args, **hyper_parameters: those of the recipe, in its order. amsgrad, foreach, fused,
            capturable and differentiable, which torch.optim has, are taken at False and None only.

    The state of a parameter is its rule's, under the rule's names; in half precision it is kept in float32.

        optimizer = sn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        print(optimizer.param_groups[0]["lr"])  # 0.1

    Raises:
        TypeError: an unknown hyper-parameter, an argument of torch.optim that is none here, a
            module for its parameters, or a parameter that is complex or integer.
        ValueError: a hyper-parameter outside its interval, an unknown backend, weights that
            FullyShardedDataParallel has flattened. Nothing changes then.

    Warns:
        UserWarning: a geometry does not suit weights of a group (see `Sphere.complaints`).
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
        type(self).settle()
        _refuse_what_has_parameters(params)
        known = defaults(self.recipe)
        _refuse_torchs(hyper_parameters, known)
        given = {n: v for n, v in hyper_parameters.items() if n in known or n not in _OF_TORCH}
        try:
            bound = inspect.signature(self.recipe).bind(*args, **given)
        except TypeError as error:
            names = [*known, *_SHARED]
            meant = next(filter(None, (_meant(name, names) for name in given)), None)
            all_of_them = f"its hyper-parameters are {', '.join(known)}"
            hint = f"did you mean {meant!r}?" if meant else all_of_them
            raise TypeError(f"{type(self).__name__}: {error}; {hint}") from None
        bound.apply_defaults()
        arguments = {name: _as_saved(value) for name, value in bound.arguments.items()}
        shared = {"maximize": maximize, "backend": backend, "recipe": reference(self.recipe)}
        super().__init__(params, {**arguments, **shared})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; see the class, also for what it raises.

            optimizer.add_param_group({"params": head.parameters(), "lr": 0.01})

        Args:
            param_group: `params`, which may be a tensor, tensors, or (name, tensor) pairs, and what
                is other than the optimizer's: hyper-parameters, "recipe", how its steps run.

        Raises:
            ValueError: also an entry that is nearly a hyper-parameter. Nothing is added then.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        group = _Group(param_group)
        if "params" not in group:
            raise ValueError(f"a param_group needs params, got {sorted(group)}")
        _refuse_what_has_parameters(group["params"])
        if not isinstance(group["params"], Tensor | set):
            group["params"] = list(group["params"])
        recipe = find_recipe(group.get("recipe", self.recipe))
        group["recipe"] = reference(recipe)
        if recipe is not self.recipe:
            if group["recipe"] == reference(self.recipe):
                raise ValueError(
                    f"recipe {group['recipe']!r} of a param_group is another function than the "
                    "optimizer's recipe of that name; give one of them another name"
                )
            if find_recipe(group["recipe"]) is not recipe:
                raise ValueError(
                    f"recipe {group['recipe']!r} of a param_group must be importable by that name"
                )
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
                raise ValueError(
                    f"recipe {group['recipe']!r} needs {name}, and the param_group does not set it"
                )
            group[name] = _as_saved(group[name])
        if not isinstance(group["maximize"], bool):
            raise TypeError(f"maximize must be True or False, got {group['maximize']!r}")
        require_backend(group["backend"])
        _refuse_torchs(group, defaults(recipe))
        for name in group.keys() - set(_NOT_HYPER_PARAMETERS):
            if meant := _meant(name, [*defaults(recipe), *_NOT_HYPER_PARAMETERS]):
                raise ValueError(f"param_group entry {name!r}: did you mean {meant!r}?")
        rule = self._checked_rule(group)
        self._check_dtypes(group["params"])
        self._check_whole(group["params"])
        self._check_shapes(group["params"], rule)
        self._warn_of_geometry(group["params"], rule)
        super().add_param_group(group)
        for name in self.defaults.keys() - group_defaults.keys() - {"recipe"}:
            del group[
                name
            ]  # a hyper-parameter of this class that the group's own recipe does not have
        group.how = {name: group.pop(name) for name in _HOW}

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
        groups = []
        completed: dict[Tensor, dict[str, Tensor]] = {}  # kept if the step succeeds
        for rule, group in zip(rules, self.param_groups, strict=True):
            works, names = [], set(rule.state_names)
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state.get(weight)
                    if state is None or state.keys() != names:
                        state = completed[weight] = _completed(state or {}, rule.init(weight))
                    grad = -weight.grad if group["maximize"] else weight.grad
                    works.append(Work(weight, grad, state))
            groups.append(Group(rule, require_backend(group["backend"]), works))
        self._dispatcher.step(groups)
        self.state.update(completed)
        return loss

    @functools.cached_property
    def _dispatcher(self) -> Dispatcher:
        """The records of this optimizer's rules; a copy starts anew."""
        return Dispatcher()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint, bit by bit: of this class, of another one whose recipe has the same
        state, or of the optimizer that this one stands in for (torch.optim, `adamp`).

        Hyper-parameters that the saved optimizer does not have keep their present values, and so
        does how a step runs. Those that only the saved recipe has are dropped, and so are entries
        of another library's state that this one does not have.

            adamp = sn.optim.AdamP(model.parameters())
            adamp.load_state_dict(adamw.state_dict())  # a run that began with AdamW

        Args:
            state_dict: what `state_dict` returned; hooks may change it before it is checked.

        Raises:
            ValueError: the state has other names or shapes, or belongs to amsgrad; the groups are
                others; a hyper-parameter is outside its interval. Nothing changes then.
        """
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            hooked = before(self, state_dict)
            state_dict = state_dict if hooked is None else hooked
        self.__setstate__(self._fitted(state_dict))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _fitted(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """The state and the param_groups that a checkpoint gives this optimizer."""
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError(f"a state_dict has state and param_groups, got {sorted(state_dict)}")
        saved_groups, rest = state_dict["param_groups"], dict(state_dict["state"])
        if (count := len(saved_groups)) != (own := len(self.param_groups)):
            raise ValueError(f"the state_dict has {count} param_groups, the optimizer {own}")
        state: defaultdict[Any, Any] = defaultdict(dict)
        groups: list[_Group] = []
        index = 0
        for saved_group, present in zip(saved_groups, self.param_groups, strict=True):
            group, rule = self._fitted_group(saved_group, present)
            groups.append(group)
            for key, weight in zip(saved_group["params"], group["params"], strict=True):
                try:
                    template = init_apart(rule, weight)
                    if key in rest:
                        state[weight] = _restored(rest.pop(key), template)
                except ValueError as error:
                    raise ValueError(f"{_describe(index, weight)}: {error}") from error
                index += 1
        state.update(rest)  # as torch does with what belongs to no parameter
        return {"state": state, "param_groups": groups}

    def _fitted_group(
        self,
        saved: Mapping[str, Any],
        present: dict[str, Any],
    ) -> tuple[_Group, Rule]:
        """`present` with the entries of a saved group, and its rule then."""
        if (count := len(saved["params"])) != (own := len(present["params"])):
            what = "the state_dict's param_group"
            raise ValueError(f"{what} has {count} parameters, the optimizer's {own}")
        called, recipe = present["recipe"], self._recipe(present)
        if saved.get("amsgrad") and "amsgrad" not in defaults(recipe):
            lacks = f"which recipe {called!r} does not have"
            raise ValueError(f"the state_dict was made with amsgrad=True, {lacks}")
        # A registered one only: a checkpoint's text neither imports nor calls anything else.
        found = registered(str(saved.get("recipe")))
        other = found[0] if len(found) == 1 and found[0] is not recipe else None
        theirs = defaults(other) if other else {}
        left_out = {"params", "recipe", *_HOW, *_SPELLINGS["backend"]}
        left_out |= theirs.keys() - present.keys()
        entries = {name: value for name, value in saved.items() if name not in left_out}
        group = _Group({**present, **copy.deepcopy(entries)}, getattr(present, "how", None))
        rule = self._checked_rule(group)
        if other:
            their_rule = build(other, {name: saved[name] for name in theirs if name in saved})
            if set(their_rule.state_names) != set(rule.state_names):
                states = f"{sorted(their_rule.state_names)} and {sorted(rule.state_names)}"
                both = f"of recipe {reference(other)!r}, the param_group of {called!r}"
                raise ValueError(f"the state_dict is {both}: their states are {states}")
        return group, rule

    def _recipe(self, group: Mapping[str, Any]) -> Recipe:
        return (
            self.recipe
            if group["recipe"] == reference(self.recipe)
            else find_recipe(group["recipe"])
        )

    def _hyper_parameters(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in defaults(self._recipe(group))}

    def _rule(self, group: Mapping[str, Any]) -> Rule:
        """The group's rule at its present hyper-parameters."""
        return build(self._recipe(group), self._hyper_parameters(group))

    def _checked_rule(self, group: Mapping[str, Any]) -> Rule:
        """`_rule`, with the numbers that tensors hold checked too."""
        self._rule({name: _as_number(value) for name, value in group.items()})
        return self._rule(group)

    def _entries(self, params: Any) -> Iterator[tuple[int, str | None, Tensor]]:
        """Index, name if it has one, and weight, of each parameter that is to be added."""
        first = sum(len(group["params"]) for group in self.param_groups)
        for index, entry in enumerate([params] if isinstance(params, Tensor) else params, first):
            name, weight = entry if isinstance(entry, tuple) else (None, entry)
            if isinstance(weight, Tensor):
                yield index, name, weight

    def _check_dtypes(self, params: Any) -> None:
        for index, name, weight in self._entries(params):
            refuse_unless_real(weight, _describe(index, weight, name))

    def _warn_of_geometry(self, params: Any, rule: Rule) -> None:
        """Pass on what the geometry of a chain, if it is one that says so, has against weights."""
        geometry: Any = getattr(rule, "geometry", None)
        if not hasattr(geometry, "complaints"):
            return
        complained: dict[str, list[str]] = {}
        for index, name, weight in self._entries(params):
            for complaint in geometry.complaints(weight):
                complained.setdefault(complaint, []).append(name or _describe(index, weight))
        sentences = []
        for complaint, those in complained.items():
            more = f" and {len(those) - 5} more" if len(those) > 5 else ""
            sentences.append(f"{', '.join(those[:5])}{more} {complaint}")
        if sentences:
            warnings.warn(f"{type(self).__name__}: {'. '.join(sentences)}", stacklevel=5)

    def _check_whole(self, params: Any) -> None:
        """Refuse what FullyShardedDataParallel has flattened: a vector does not tell its rows."""
        for index, name, weight in self._entries(params):
            _refuse_flattened(index, weight, name)

    def _check_shapes(self, params: Any, rule: Rule) -> None:
        """Let the rule refuse a weight now, not when others have been stepped."""
        for index, name, weight in self._entries(params):
            try:
                rule.init(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
            except ValueError as error:
                raise ValueError(f"{_describe(index, weight, name)}: {error}") from error
            except (RuntimeError, NotImplementedError):
                pass  # the rule reads a value of the weight; the first step asks it again

    def _check_gradients(self) -> None:
        """Refuse what no rule can step, before anything changes."""
        index = 0
        for group in self.param_groups:
            for weight, name in zip(
                group["params"],
                group.get("param_names", [None] * len(group["params"])),
                strict=True,
            ):
                _refuse_flattened(index, weight, name)  # after it came to this optimizer
                if weight.grad is not None and not _can_step(weight):
                    what = _describe(index, weight, name)
                    if weight.grad.is_sparse:
                        raise TypeError(
                            f"{what} has a sparse gradient; pass sparse=False to its embedding"
                        )
                    if weight.is_inference() and not torch.is_inference_mode_enabled():
                        raise ValueError(f"{what} is an inference tensor, which cannot be changed")
                    raise ValueError(f"{what} is expanded: several entries share one place")
                index += 1


def _completed(old: Mapping[str, Tensor], fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state at a first step, and where a schedule has switched a rule on or off.

    Cloned, since states are written to, and a rule may begin with the weight itself, or with one
    tensor for several.
    """
    return {name: old[name] if name in old else value.clone() for name, value in fresh.items()}


def _can_step(weight: Tensor) -> bool:
    """True if the weight can be written to, by a dense gradient."""
    assert weight.grad is not None
    frozen = weight.is_inference() and not torch.is_inference_mode_enabled()
    strides = zip(weight.stride(), weight.shape, strict=True) if 0 in weight.stride() else ()
    expanded = weight.numel() and any(s == 0 and length > 1 for s, length in strides)
    return not (weight.grad.is_sparse or frozen or expanded)


def _refuse_flattened(index: int, weight: Tensor, name: str | None) -> None:
    if getattr(weight, "_fsdp_flattened", False):
        raise ValueError(
            f"{_describe(index, weight, name)} was flattened by FullyShardedDataParallel"
            " and has no rows any more; use torch.distributed.fsdp.fully_shard"
        )


def _restored(saved: Mapping[str, Any], template: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
        state[name] = torch.empty_like(fresh).copy_(value)
    return state


def _describe(index: int, weight: Tensor, name: str | None = None) -> str:
    return f"parameter {index}{f' ({name})' if name else ''} of shape {tuple(weight.shape)}"


def _as_number(value: Any) -> Any:
    """The number that a tensor on the CPU holds, so that its interval can be checked."""
    if isinstance(value, tuple | list):
        return type(value)(_as_number(v) for v in value)
    return (
        value.item()
        if isinstance(value, Tensor) and value.device.type == "cpu" and not value.ndim
        else value
    )


def _as_saved(value: Any) -> Any:
    """Views by name: a state_dict that holds an object of another class does not load with `weights_only=True`."""
    if type(value) in (tuple, list):
        return type(value)(map(_as_saved, value))
    return str(value) if isinstance(value, View) else value


class _Group(dict[str, Any]):
    """A param_group in which the momentum has two names: its recipe's, and that of the optimizer's class.

    torch's CyclicLR and OneCycleLR set `momentum` or the first of `betas` in all groups, whichever the class has; a group of
    another recipe takes either for its own.

    `how` has what chooses how a step runs. It is read and set as an entry (`group["compile"]`), but
    is none: whoever saves all entries, or expects all of them in a checkpoint, does not see it.
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

    def __reduce__(self) -> Any:
        # At once: entry by entry, the first of two names would take the other's value.
        return _Group, (dict(self), self.how)


def _meant(name: str, known: Collection[str]) -> str | None:
    """The known name that an unknown one stands for, in another library or misspelled."""
    if name in known:
        return None
    others = [ours for ours, theirs in _SPELLINGS.items() if name in theirs and ours in known]
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.85)
    return next(iter([*others, *close]), None)


def _refuse_torchs(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    for name, instead in _OF_TORCH.items():
        if name not in known and arguments.get(name):
            raise TypeError(f"{name}={arguments[name]!r} is an argument of torch.optim: {instead}")


def _refuse_what_has_parameters(params: Any) -> None:
    """A module, or its method that was not called."""
    if callable(params) and not isinstance(params, torch.nn.ParameterList):
        module = isinstance(params, torch.nn.Module)
        got = f"a {type(params).__name__}" if module else f"{params!r}, which was not called"
        raise TypeError(f"params must be parameters, such as model.parameters(), got {got}")


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
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in _SHARED.items()
    ]
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
