"""The library's optimizers by name in timm."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable
from typing import Any

from spherenorm.optim.optimizer import RecipeOptimizer, own_class, torch_optimizer
from spherenorm.registry import Recipe, find_recipe, recipe_names


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
        ...     print(sn.optim.register_timm("adamp"))
        ... except ModuleNotFoundError:
        ...     print(["sn-adamp"])
        ['sn-adamp']
    """
    if not importlib.util.find_spec("timm"):
        raise ModuleNotFoundError("register_timm needs timm: pip install timm", name="timm")
    from timm.optim._optim_factory import OptimInfo, default_registry

    registered = []
    for recipe in map(find_recipe, recipes or recipe_names()):
        cls = own_class(recipe) or torch_optimizer(recipe)
        takes = inspect.signature(cls).parameters
        registered.append(f"sn-{recipe.__name__.replace('_', '-').lower()}")
        default_registry.register(
            OptimInfo(
                name=registered[-1],
                opt_class=cls if "weight_decay" in takes else _undecayed(cls),
                description=(inspect.getdoc(recipe) or "").partition("\n")[0],
                has_eps="eps" in takes,
                has_momentum="momentum" in takes,
                has_betas="betas" in takes,
            )
        )
    return registered


def _undecayed(cls: type[RecipeOptimizer]) -> Any:
    """The class of a recipe without weight decay, to which timm gives one all the same."""

    def make(params: Iterable[Any], **given: Any) -> RecipeOptimizer:
        each = [*params]
        groups = [dict(x) for x in (each if isinstance(each[0], dict) else [{"params": each}])]
        for options in (given, *groups):
            if options.pop("weight_decay", 0.0):
                raise ValueError(f"{cls.__name__} has no weight_decay; pass 0 to timm")
        return cls(groups, **given)

    return make
