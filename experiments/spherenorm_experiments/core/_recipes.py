"""Recipes: looked up by name, and bound to the hyper-parameters of a run."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from spherenorm import Bound, Rule, bind
from spherenorm.support import located
from spherenorm_experiments.core._errors import RecipeError, users_code
from spherenorm_experiments.core._spec import Spec
from spherenorm_experiments.core._typed import fits, hints_of


def load_recipe(name: str) -> Bound:
    """The recipe called `name`, a registered name or `module:function`, at its defaults.

    Raises:
        RecipeError: the name or its module is wrong; the message has the name.
    """
    with users_code("recipe", name, RecipeError):
        return bind(name)


def bind_spec(spec: Spec, recipe: Bound) -> Bound:
    """Bind the recipe of a run to its hyper-parameters, at the first point of a sweep.

    The rule of what it returns is made already.

    Args:
        recipe: the spec's, at any hyper-parameters.

    Raises:
        ValueError: an unknown hyper-parameter, a value outside its interval or of another type, a
            schedule for a recipe without a learning rate, a sweep with unequal columns, or a recipe
            that makes another rule each time.
    """
    bound = recipe.replace(**spec.first_point)
    if spec.schedule != "constant" and "lr" not in bound.defaults:
        lack = f"recipe {spec.recipe!r} has no lr for the schedule {spec.schedule!r}"
        raise ValueError(f"{lack}; use schedule=constant")
    _require_types(spec, bound)
    _require_equal_lengths(spec)
    try:
        made, again = rule_text(bound.rule), rule_text(bound.replace().rule)
    except (Exception, SystemExit) as error:  # a user's recipe may raise anything
        given = ", ".join(f"{name}={json.dumps(v)}" for name, v in spec.first_point.items())
        raise ValueError(
            f"recipe {spec.recipe!r} with {given or 'its defaults'}: {located(error)}"
        ) from error
    if made != again:  # its runs could not be told apart, nor found again
        differs = f"makes another rule each time: {made}, then {again}"
        raise ValueError(f"recipe {spec.recipe!r} {differs}; let its hyper-parameters decide")
    return bound


def rule_text(rule: Rule) -> str:
    """The composition with its numbers, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(rule))


def _require_types(spec: Spec, bound: Bound) -> None:
    points = spec.points
    hints = hints_of(bound.recipe, bound.defaults)
    for name, value in spec.hyper_parameters.items():
        values = value if name in points else [value]
        if not all(fits(single, hints[name]) for single in values):
            wrong = f"{name}={json.dumps(value)} is no value for recipe {spec.recipe!r}"
            raise ValueError(f"{wrong}; one is {_shown(bound.defaults[name])}")


def _require_equal_lengths(spec: Spec) -> None:
    points = spec.points
    if len({len(values) for values in points.values()}) > 1 or [] in points.values():
        counts = ", ".join(f"{name} has {len(values)}" for name, values in points.items())
        need = "the points of a sweep need one value of each swept hyper-parameter"
        raise ValueError(f"{need} of {spec.recipe!r}: {counts}")


def _shown(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "of its own choice"
    return json.dumps(default, default=str)
