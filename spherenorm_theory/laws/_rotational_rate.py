"""The rate at which `rotational(recipe)` turns as the recipe itself does in equilibrium."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from spherenorm import Recipe, bind
from spherenorm_theory.laws._equilibrium import equilibrium
from spherenorm_theory.laws._homogeneity import NoEquilibriumError


def rotational_rate(recipe: str | Recipe, **hyper_parameters: Any) -> Callable[[float], float]:
    """The learning rate of `rotational(recipe)`, as a function of the learning rate of the recipe.

    The equilibrium that is derived from the recipe's code has an effective step e, the length of
    the chord from w / |w| to w' / |w'|. A step of `rotational` turns by arctan(rate) on average,
    and exactly without `zero_mean` and memory, so

        rate = tan(2 arcsin(e / 2)),    e = sqrt(2 lr weight_decay (1 - beta1) / (1 + beta1))

    for AdamW and a small lr. A schedule of the rate is then the function of one of lr.

    Args:
        recipe: its name, or a function.
        **hyper_parameters: of the recipe, but for lr; its weight decay, above all.

    Raises:
        NoEquilibriumError: the recipe has no equilibrium, or none in closed form; or, of the
            function, it does not settle at this lr.

    Example:
        >>> rate = rotational_rate("sgd", weight_decay=0.1, momentum=0.9)
        >>> round(rate(0.1), 4), round(rate(0.05), 4)
        (0.103, 0.0727)

    Source: Kosson et al. 2024 (rotational equilibrium), Section 3.
    """
    bound = bind(recipe, **hyper_parameters)
    held = {name: x for name, x in bound.hyper_parameters.items() if name != "lr"}
    held |= {"eps": 0.0} if "eps" in held else {}  # which spoils the closed form, and is small
    law = equilibrium(recipe, **{name: x for name, x in held.items() if x is not None})
    symbol = law.traced.symbols["lr"]

    def rate(lr: float) -> float:
        chord = law.rotation({symbol: lr})
        if chord >= math.sqrt(2):
            raise NoEquilibriumError(f"{law.name}: at lr={lr:g} a step turns by a right angle")
        return math.tan(2 * math.asin(chord / 2))

    return rate
