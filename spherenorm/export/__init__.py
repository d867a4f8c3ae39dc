"""Export: write the step of a recipe as one file of plain torch.

The recipe runs with tensors in the place of its hyper-parameters, so that the recorder sees their
arithmetic too, and each recorded operation is printed as Python. What depends on hyper-parameters
and the step count alone becomes arithmetic of Python numbers; numbers that differ between shapes
become functions of the shape. Recipes are recorded in float64 and in float32, so that constants of
`torch.finfo` and conversions to float64 are printed as such. The file is compared with the rule in
float64, float32 and bfloat16 before it is returned.

`expressions.py` prints one operation, `dtypes.py` joins the records of two dtypes, `functions.py`
prints one function, `recipe.py` the functions of one recipe for all kinds of shapes, and `file.py`
the file of a recipe or of a partition.
"""

from __future__ import annotations

from typing import Any

from spherenorm.export.file import ExportedFile
from spherenorm.export.recipe import ExportError
from spherenorm.optim import torch_optimizer
from spherenorm.partition import Partition
from spherenorm.registry import Recipe, bind

__all__ = ["ExportError", "export"]


def export(recipe: str | Recipe | Partition, name: str | None = None, /, **settings: Any) -> str:
    """Return the source of an optimizer that takes a recipe's steps and needs only torch.

    The numeric hyper-parameters of the recipe are arguments of the class and entries of its
    `param_groups`; the other ones (views, strings, booleans) are fixed when the file is written.
    The file is for reading and vendoring: it steps one weight after another. Before it is returned,
    it has taken the same steps as the rule on weights of every kind of shape, and around each knot
    of a schedule. Schedules follow `group["clock"]`, the count of a group's steps, as they do in
    the library's optimizers: a weight without a gradient for some steps has the numbers of all
    others.

    Of a partition, or of a recipe that returns one, the file has the steps of all labels, and its
    class takes param_groups with a label each:

        Both([{"label": "matrix", "params": matrices}, {"label": "*", "params": others}])

    Args:
        recipe: a recipe, its name, or "module:function"; or a partition, whose labels have recipes.
        name: the name of the class; by default the recipe's name in CamelCase, or Partition.
        **settings: hyper-parameters; numbers become the defaults of the class.

    Raises:
        ExportError: the step draws random numbers, or has an operation that cannot be printed,
            which the message names; or the file differs from the rule.
        ValueError: there is no such recipe or hyper-parameter, or `name` is not an identifier.

    Example:
        >>> text = sn.export("lion", lr=1e-3)
        >>> print(next(line.strip() for line in text.splitlines() if "__init__" in line))
        def __init__(self, params, lr=0.001, betas=(0.9, 0.99), weight_decay=0.0):
    """
    if name is not None and not name.isidentifier():
        raise ValueError(f"name must be that of a class, got {name!r}")
    if isinstance(recipe, Partition):
        if settings:
            raise ValueError(
                f"export: a partition has its numbers already, got {', '.join(settings)}; give "
                "them to the recipes of its labels"
            )
        file = ExportedFile.of_partition(recipe, name or "Partition")
    else:
        bound = bind(recipe, **settings)
        class_name = name or torch_optimizer(bound.recipe).__name__
        if isinstance(bound.rule, Partition):
            file = ExportedFile.of_partition(bound.rule, class_name, bound)
        else:
            file = ExportedFile.of_recipe(bound, class_name)
    file.verify()
    return file.text()
