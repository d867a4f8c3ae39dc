"""`torch_optimizer`: optimizer classes made of recipes, and how they pickle."""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
from typing import Any

from spherenorm._registry import Recipe, find_recipe
from spherenorm.optim._arguments import SHARED, refuse_taken_names
from spherenorm.optim._help import class_doc
from spherenorm.optim._optimizer import OptimizerType, RecipeOptimizer


def torch_optimizer(recipe: Recipe | str, name: str | None = None) -> type[RecipeOptimizer]:
    """The `torch.optim.Optimizer` class of a recipe.

    Its arguments and their defaults are the recipe's; see `RecipeOptimizer` for those that all
    classes share. The class belongs to the module that calls this. It pickles, and so do its
    optimizers, if the variable or the recipe can be imported.

    Args:
        recipe: a recipe, a registered name, or `module:function`.
        name: the name of the class; by default that of the variable of the calling module which
            holds it when it is first used, or else the recipe's in CamelCase.

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
    """Pickle a class by its variable, as any; one that no variable holds is made anew."""
    return cls.__qualname__ if cls.settle() or not cls.is_made else (_optimizer_class, cls.made_of)


copyreg.pickle(OptimizerType, _reduced)
