"""Bridges to other libraries, none of which the library needs: timm."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable
from typing import Any

from spherenorm.optim.optimizer import RecipeOptimizer, builtin_class, torch_optimizer
from spherenorm.registry import Recipe, find_recipe, recipe_names

__all__ = ["register_timm"]


def register_timm(*recipes: str | Recipe) -> list[str]:
    """Register recipes with timm, for `create_optimizer_v2(model, opt="sn-adamp")` and `train.py`.

    The names are "sn-" and the recipe's, with "-" for "_", since timm has an AdamP of its own. timm
    gives each optimizer a weight decay; a recipe without one takes 0 only. Of param_groups with
    recipes of their own, pass timm `param_group_fn`, as docs/integrations.md shows.

    Args:
        *recipes: recipes, or their names; none: all that are registered.

    Returns:
        The names in timm.

    Raises:
        ModuleNotFoundError: timm is not installed; the message says how.
        ValueError: there is no recipe of a name.

    Example:
        >>> try:
        ...     print(sn.contrib.register_timm("adamp"))
        ... except ModuleNotFoundError:
        ...     print(["sn-adamp"])
        ['sn-adamp']
    """
    if not importlib.util.find_spec("timm"):
        raise ModuleNotFoundError("register_timm needs timm: pip install timm", name="timm")
    from timm.optim._optim_factory import OptimInfo, default_registry

    names = []
    for recipe in map(find_recipe, recipes or recipe_names()):
        cls = builtin_class(recipe) or torch_optimizer(recipe)
        arguments = inspect.signature(cls).parameters
        name = f"sn-{recipe.__name__.replace('_', '-').lower()}"
        names.append(name)
        default_registry.register(
            OptimInfo(
                name=name,
                opt_class=cls if "weight_decay" in arguments else _ignoring_zero_decay(cls),
                description=(inspect.getdoc(recipe) or "").partition("\n")[0],
                has_eps="eps" in arguments,
                has_momentum="momentum" in arguments,
                has_betas="betas" in arguments,
            )
        )
    return names


def _ignoring_zero_decay(cls: type[RecipeOptimizer]) -> Any:
    """Return a function that makes optimizers of a class that has no weight decay.

    timm gives every optimizer a `weight_decay`, which may only be 0 here.
    """

    def make(params: Iterable[Any], **hyper_parameters: Any) -> RecipeOptimizer:
        params = [*params]
        is_grouped = isinstance(params[0], dict)
        groups = [dict(group) for group in (params if is_grouped else [{"params": params}])]
        for options in (hyper_parameters, *groups):
            if options.pop("weight_decay", 0.0):
                raise ValueError(f"{cls.__name__} has no weight_decay; pass 0 to timm")
        return cls(groups, **hyper_parameters)

    return make
