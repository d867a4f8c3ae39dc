"""Export: the step of a recipe as one file of plain torch, printed from its record.

The recipe runs on tensors in the place of its numbers, so that the record has its own arithmetic,
too. What depends on hyper-parameters and the counter alone is printed as Python's arithmetic, and
numbers that differ between three shapes as functions of the shape. Before the text is given away it
has run beside the rule, with the same steps.
"""

from __future__ import annotations

from typing import Any

from spherenorm.export.file import ExportError, Written
from spherenorm.optim import torch_optimizer
from spherenorm.registry import Recipe, bind

__all__ = ["ExportError", "export"]


def export(recipe: str | Recipe, name: str | None = None, /, **settings: Any) -> str:
    """The source of an optimizer that takes a recipe's steps and needs nothing but torch.

    Its hyper-parameters are those of the recipe that are numbers, in `param_groups` as usual; the
    other arguments (views, strings, True and False) are decided when the file is written. A step of
    entries alone is on lists of weights, by torch's `_foreach_` operations. The text has run beside
    the rule, on weights of all kinds, before it is returned.

    Args:
        recipe: a recipe, its name, or `module:function`.
        name: of the class; by default the recipe's in CamelCase.
        **settings: hyper-parameters; the numbers become the class's defaults.

    Raises:
        ExportError: the step measures all weights at once, draws random numbers, or has an
            operation without a word, which the message names; or the text differs from the rule.
        ValueError: there is no such recipe or hyper-parameter; `name` is no name of a class.

    Example:
        >>> text = sn.export("lion", lr=1e-3)
        >>> print(next(line.strip() for line in text.splitlines() if "__init__" in line))
        def __init__(self, params, lr=0.001, betas=(0.9, 0.99), weight_decay=0.0):
    """
    if name is not None and not name.isidentifier():
        raise ValueError(f"name must be that of a class, got {name!r}")
    bound = bind(recipe, **settings)
    if bound.rule.needs_global_sums:
        raise ExportError(f"{bound.name} measures all weights of an optimizer at once")
    written = Written(bound, name or torch_optimizer(bound.recipe).__name__)
    text = written.text()
    written.hold(text)
    return text
