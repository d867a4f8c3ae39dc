"""Recipes: looked up by name, and bound to the hyper-parameters of a run."""

from __future__ import annotations

import inspect
import json
from typing import Any

from experiments.core._errors import RecipeError, one_line
from experiments.core._spec import Spec
from experiments.core._typed import fits, hints_of
from spherenorm import Bound, bind

__all__ = ["bind_spec", "load_recipe"]


def load_recipe(name: str) -> Bound:
    """The recipe called `name`, a registered name or `module:function`, at its defaults.

    Raises:
        RecipeError: the name or its module is wrong; the message has the name.
    """
    try:
        return bind(name)
    except Exception as error:  # a user's module may raise anything
        text = str(error)
        message = text if repr(name) in text else f"recipe {name!r}: {one_line(error)}"
        raise RecipeError(message) from error


def bind_spec(spec: Spec, recipe: Bound) -> Bound:
    """Bind the recipe of a run to its hyper-parameters, at the first point of a sweep.

    The rule of what it returns is made already.

    Args:
        recipe: the spec's, at any hyper-parameters.

    Raises:
        ValueError: an unknown hyper-parameter, a value outside its interval or of another type, a
            schedule for a recipe without a learning rate, or a sweep with unequal columns.
    """
    bound = recipe.replace(**spec.first_point)
    if spec.schedule != "constant" and "lr" not in bound.defaults:
        lack = f"recipe {spec.recipe!r} has no lr for the schedule {spec.schedule!r}"
        raise ValueError(f"{lack}; use schedule=constant")
    _require_types(spec, bound)
    _require_equal_lengths(spec)
    try:
        bound.rule  # noqa: B018  (made now, for its errors)
    except Exception as error:  # a user's recipe may raise anything
        given = ", ".join(f"{name}={json.dumps(v)}" for name, v in spec.first_point.items())
        raise ValueError(
            f"recipe {spec.recipe!r} with {given or 'its defaults'}: {one_line(error)}"
        ) from error
    return bound


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
