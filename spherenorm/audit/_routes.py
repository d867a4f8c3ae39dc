"""`Routes`: the recipe of a weight by its role, and of what a recipe does not take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spherenorm._registry import Bound
from spherenorm.audit._treatment import Treatment
from spherenorm.audit._uses import MATRICES, ROLES, RoleName
from spherenorm.core import Rule
from spherenorm.rules import InvarianceTest, NormalizedUpdate, Orthogonalize, RadiusPin


@dataclass(frozen=True)
class Routes:
    """The recipes that roles decide on.

    Attributes:
        main: the recipe that was asked for.
        rest: for weights that `main` does not suit; None if there must be none.
        by_role: recipes for parameters of some roles, which come before `main`.
        for_matrices: `main` suits hidden matrices, convolutions and stacks of matrices alone.

    Raises:
        ValueError: a recipe has a test whose views it does not take; there is no such role.
    """

    main: Bound
    rest: Bound | None
    by_role: Mapping[RoleName, Bound]
    for_matrices: bool

    def __post_init__(self) -> None:
        if unknown := [role for role in self.by_role if role not in ROLES]:
            raise ValueError(f"by_role must name {', '.join(ROLES)}, got {unknown[0]!r}")
        for bound in filter(None, (self.main, self.rest, *self.by_role.values())):
            without_test(bound)  # called for its errors

    def decides(self, treatment: Treatment) -> bool:
        """True if the role of a weight decides which recipe it gets."""
        return self.for_matrices or treatment.role.role in self.by_role

    def of(self, name: str, weight: Tensor, treatment: Treatment) -> tuple[Bound, str]:
        """The recipe of a weight whose role decides, and the reason.

        Raises:
            ValueError: all recipes refuse the weight.
        """
        role, view, chosen = treatment.role.role, treatment.view, treatment.chosen
        bound, reason, objection = self.main, treatment.reason, ""
        if role in self.by_role:
            bound, reason = without_test(self.by_role[role]), "its role has a recipe"
        elif role not in MATRICES:
            objection = f"it is for hidden matrices, not {role}"
        units = str(view) if chosen and view else "channel" if role == "experts" else ""
        if is_for_matrices(bound.rule) and not objection:
            if chosen and view is None:
                objection = "the weight is Euclidean, as you say"
            elif units and "view" not in bound.defaults:
                objection = f"it takes no view, such as {units}"
            elif units:
                bound = bound.replace(view=units)
        if objection := objection or refusal(bound, weight):
            return self.other(name, weight, objection), f"{bound.name}: {objection}"
        return bound, reason

    def other(self, name: str, weight: Tensor, objection: str) -> Bound:
        """The recipe of a weight that `main` does not take.

        Raises:
            ValueError: there is none, or it does not take the weight either.
        """
        bound = None if self.rest is None else without_test(self.rest)
        if bound is None or refusal(bound, weight):
            why = f"{name}: {self.main.name} refuses it ({objection})"
            raise ValueError(f'{why}; give a rest, such as rest="adamw"')
        return bound


def is_for_matrices(rule: Rule) -> bool:
    """True for a rule that orthogonalizes, holds a norm, or gives steps a length of 1."""
    return any(
        isinstance(each, Orthogonalize | RadiusPin)
        or (isinstance(each, NormalizedUpdate) and each.length == "one")
        for each in rule.tree()
    )


def refusal(bound: Bound, weight: Tensor) -> str:
    """The words in which a recipe refuses a weight; empty if it takes it."""
    try:
        bound.rule.init(weight.detach())
    except ValueError as error:
        return str(error)
    return ""


def without_test(bound: Bound) -> Bound:
    """The recipe with no test for invariance, so that it projects nothing.

    Raises:
        ValueError: it has a test whose views it does not take.
    """
    if "views" in bound.defaults:
        bound = bound.replace(views=())
    if any(isinstance(rule, InvarianceTest) and rule.views for rule in bound.rule.tree()):
        raise ValueError(
            f"recipe {bound.name!r} tests views that cannot be set, so that it might project"
            " weights that are not invariant; give it a hyper-parameter views"
        )
    return bound
