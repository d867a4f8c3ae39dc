"""The names of optimizer classes, which are those of the variables that hold them."""

from __future__ import annotations

import sys

from spherenorm._registry import Recipe

__all__ = ["OptimizerType"]


class OptimizerType(type):
    """The type of optimizer classes, which are called as the variable that holds them.

    Attributes:
        made_of: the recipe, the name that was asked for, and the module, of a class that
            `torch_optimizer` made.
    """

    made_of: tuple[Recipe, str | None, str]

    @property
    def is_made(cls) -> bool:
        """True for a class that `torch_optimizer` made, False for its subclasses."""
        return "made_of" in vars(cls)

    def settle(cls) -> bool:
        """Take the name of the variable that holds the class, unless it was made with one.

        Returns:
            True if a variable of its name, in its module, holds it.
        """
        variables = dict(getattr(sys.modules.get(cls.__module__), "__dict__", {}))
        names = [name for name, value in variables.items() if value is cls]
        nameless = cls.is_made and cls.made_of[1] is None
        if nameless and names and cls.__qualname__ not in names:
            cls.__name__ = cls.__qualname__ = min(names, key=lambda name: name.startswith("_"))
        return cls.__qualname__ in names

    def __repr__(cls) -> str:
        cls.settle()
        return super().__repr__()
