"""Recipes: looked up by name, and bound to the hyper-parameters of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from spherenorm import Bound, Rule, bind, sphere_of
from spherenorm.support import describe_with_user_line
from spherenorm_experiments.errors import RecipeError, users_code
from spherenorm_experiments.lookup import as_hinted, hints_of
from spherenorm_experiments.spec import EUCLIDEAN_REST, Spec


def load_recipe(name: str) -> Bound:
    """The recipe called `name`, a registered name or `module:function`, at its defaults.

    Raises:
        RecipeError: the name or its module is wrong; the message has the name.
    """
    with users_code("recipe", name, RecipeError):
        return bind(name)


def bind_recipe(recipe: Bound, name: str, given: Mapping[str, Any], schedule: str) -> Bound:
    """Bind a recipe to the hyper-parameters of a run; its rule is made already.

    Raises:
        ValueError: an unknown hyper-parameter, a value outside its interval or of another type, a
            schedule for a recipe without a learning rate, or a recipe that makes another rule each
            time.
    """
    bound = recipe.replace(**given)
    if schedule != "constant" and "lr" not in bound.defaults:
        lack = f"recipe {name!r} has no lr for the schedule {schedule!r}"
        raise ValueError(f"{lack}; use schedule=constant")
    hints = hints_of(bound.recipe, bound.defaults)
    for own, value in given.items():
        if isinstance(value, bool) and hints[own] == float | None:
            raise ValueError(f"{own}={json.dumps(value)} is no value for recipe {name!r}")
        as_hinted(value, hints[own], f"recipe {name!r}", own)
    try:
        made, again = rule_text(bound.rule), rule_text(bound.replace().rule)
    except (Exception, SystemExit) as error:  # a user's recipe may raise anything
        shown = ", ".join(f"{own}={json.dumps(v)}" for own, v in given.items()) or "its defaults"
        raise ValueError(
            f"recipe {name!r} with {shown}: {describe_with_user_line(error)}"
        ) from error
    if made != again:  # a resumed run would go on with another one
        differs = f"makes another rule each time: {made}, then {again}"
        raise ValueError(f"recipe {name!r} {differs}; let its hyper-parameters decide")
    return bound


def recipes_of(spec: Spec) -> tuple[Bound, Bound | None]:
    """The recipe of a run, and that of the weights which it does not take.

    Raises:
        ValueError: see `bind_recipe`.
    """
    recipe = load_recipe(spec.recipe)
    bound = bind_recipe(recipe, spec.recipe, spec.hyper_parameters, spec.schedule)
    if spec.rest is None and sphere_of(bound.rule) is None:
        return bound, None
    chosen = dict(spec.rest or EUCLIDEAN_REST)
    return bound, load_recipe(chosen.pop("recipe")).replace(**chosen)


def rule_text(rule: Rule) -> str:
    """The composition with its numbers, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(rule))
