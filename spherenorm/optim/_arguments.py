"""The arguments of an optimizer: its recipe's, those that all share, and other libraries' names."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from spherenorm._registry import (
    Recipe,
    defaults_of,
    find_recipe,
    is_own,
    name_of,
    recipe_names,
)
from spherenorm._views import View

SHARED = {"maximize": False, "backend": "auto"}
"""The arguments that every optimizer has beside its hyper-parameters, with their defaults."""
HOW = ("backend",)
"""The arguments that choose how a step runs. They are no state: checkpoints do not hold them."""
_NOT_HYPER_PARAMETERS = ("params", "param_names", "recipe", *SHARED)
_OF_TORCH = {
    "amsgrad": "this library does not have it",
    "foreach": 'leave it out; backend="auto" steps all weights in one kernel where it can',
    "fused": 'leave it out; backend="auto" steps all weights in one kernel where it can',
    "capturable": "leave it out; a compiled step can be captured in a CUDA graph as it is",
    "differentiable": "use spherenorm.functional, whose steps can be differentiated",
}
"""Arguments of torch.optim that are taken at False and None, and what to do instead otherwise."""
OTHER_NAMES = {
    "lr": ("learning_rate", "step_size"),
    "weight_decay": ("wd", "weight_decay_rate"),
    "betas": ("beta1", "beta2", "momentum", "mom"),
    "momentum": ("beta", "beta1", "betas", "mom"),
    "eps": ("epsilon",),
    "backend": ("compile", "trace"),
}
"""The names that arguments have in other libraries, and had in this one."""


def require_truth(maximize: Any) -> bool:
    """Return `maximize` if it is True or False; any other value would count as one of them.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(maximize, bool):
        raise TypeError(f"maximize must be True or False, got {maximize!r}")
    return maximize


def refuse_taken_names(recipe: Recipe) -> None:
    """Refuse a recipe with a hyper-parameter that is called as another argument of optimizers.

    Raises:
        TypeError: it has one.
    """
    for name in defaults_of(recipe):
        if name in ("self", *_NOT_HYPER_PARAMETERS):
            raise TypeError(
                f"recipe {name_of(recipe)!r} has a hyper-parameter {name!r}, which is the name of "
                "an argument or an entry that every optimizer has; give it another name"
            )


def bind_arguments(
    optimizer: str, recipe: Recipe, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of each hyper-parameter, as it is called or its default.

    Args:
        optimizer: the name of the class, for the message.
        recipe: whose hyper-parameters they are.
        positional, named: the arguments of the call beside those that all optimizers share.

    Raises:
        TypeError: the recipe has no such hyper-parameter, or one has no value; an argument of
            torch.optim is not False or None.
    """
    known = defaults_of(recipe)
    refuse_torch_arguments(named, known)
    given = {name: v for name, v in named.items() if name in known or name not in _OF_TORCH}
    try:
        bound = inspect.signature(recipe).bind(*positional, **given)
    except TypeError as error:
        meant = next(filter(None, (_meant(name, [*known, *SHARED]) for name in given)), None)
        all_of_them = f"its hyper-parameters are {', '.join(known)}"
        hint = f"did you mean {meant!r}?" if meant else all_of_them
        raise TypeError(f"{optimizer}: {error}; {hint}") from None
    bound.apply_defaults()
    return {name: as_saved(value) for name, value in bound.arguments.items()}


def as_saved(value: Any) -> Any:
    """Replace views by their names: a state_dict that holds an object of another class does not
    load with `weights_only=True`."""
    if type(value) in (tuple, list):
        return type(value)(map(as_saved, value))
    return str(value) if isinstance(value, View) else value


def refuse_torch_arguments(arguments: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse arguments of torch.optim that a recipe does not have, unless they are switched off.

    Raises:
        TypeError: one is switched on; the message says what to do instead.
    """
    for name, instead in _OF_TORCH.items():
        if name not in known and arguments.get(name):
            raise TypeError(f"{name}={arguments[name]!r} is an argument of torch.optim: {instead}")


def refuse_near_misses(entries: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse an entry of a param_group that is nearly a hyper-parameter, or another recipe's.

    Entries of the user's own, such as a group's name, are kept.

    Raises:
        ValueError: an entry is another library's name of one, misspelled, or a hyper-parameter of
            this library's recipes that the group's own does not have, and that is switched on.
    """
    for name in sorted(set(entries) - {*known, *_NOT_HYPER_PARAMETERS}):
        if meant := _meant(name, [*known, *_NOT_HYPER_PARAMETERS]):
            raise ValueError(f"param_group entry {name!r}: did you mean {meant!r}?")
        if name in _hyper_parameters() and entries[name] not in (0, False, None):
            lack = f"its recipe has no such hyper-parameter, but {', '.join(known)}"
            raise ValueError(f"param_group entry {name!r}: {lack}")


@functools.cache
def _hyper_parameters() -> frozenset[str]:
    """The names of hyper-parameters in this library's recipes."""
    own = (find_recipe(name) for name in recipe_names())
    own = (each for each in own if is_own(each))
    return frozenset().union(*map(defaults_of, own))


def refuse_modules(params: Any) -> None:
    """Refuse a module, or its method that was not called, in the place of parameters.

    Raises:
        TypeError: `params` is a module or another callable.
    """
    if callable(params) and not isinstance(params, torch.nn.ParameterList):
        module = isinstance(params, torch.nn.Module)
        got = f"a {type(params).__name__}" if module else f"{params!r}, which was not called"
        raise TypeError(f"params must be parameters, such as model.parameters(), got {got}")


def _meant(name: str, known: Collection[str]) -> str | None:
    """The known name that an unknown one stands for, in another library or misspelled."""
    if name in known:
        return None
    others = [ours for ours, theirs in OTHER_NAMES.items() if name in theirs and ours in known]
    return next(iter([*others, *difflib.get_close_matches(name, known, n=1, cutoff=0.85)]), None)
