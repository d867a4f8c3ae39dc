"""The promise "law" of `spherenorm.testing.check`."""

from __future__ import annotations

from spherenorm.testing import RefusedError, Subject
from spherenorm_theory.laws import norm_growth


def law(subject: Subject) -> str:
    """A recipe has a norm-growth law that holds for its code, or there is a reason why not.

    `norm_growth` compares each law with float64 steps of the recipe before it is returned.
    """
    recipe, values = subject.bound.recipe, subject.bound.hyper_parameters
    given = {name: value for name, value in values.items() if value != subject.bound.defaults[name]}
    try:
        found = norm_growth(recipe, **given)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    lines = [line.strip() for line in str(found).splitlines()]
    return next((line for line in lines if line.startswith("law ")), lines[0])
