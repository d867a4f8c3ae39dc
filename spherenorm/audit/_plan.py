"""`TreatmentPlan`: what recipes do to one weight, by its treatment."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from spherenorm import metrics
from spherenorm._chain import sphere_of
from spherenorm._manifold import Sphere
from spherenorm._registry import Bound, bind
from spherenorm._tree import Node
from spherenorm._views import View
from spherenorm.audit._roles import MATRICES, ROLES, RoleName
from spherenorm.audit._treatment import EUCLIDEAN, Treatment
from spherenorm.rules import (
    InvarianceTest,
    NormalizedUpdate,
    OrthogonalityRegularization,
    Orthogonalize,
    RadialProjection,
    RadiusPin,
)

_TINY = 0.1
"""A unit of this share of `smallest_norm`, such as a pruned channel, is not put on a sphere."""


@dataclass(frozen=True)
class TreatmentPlan:
    """The recipes, and what they do to scale-invariant weights.

    Attributes:
        main: the recipe that was asked for.
        rest: for weights that `main` does not suit; None if there must be none.
        by_role: recipes for parameters of some roles, which come before `main`.
        for_matrices: `main` suits hidden matrices, convolutions and stacks of matrices alone.
        sphere: the manifold of `main`, if it is a sphere.
        fixed: the view that `main` projects in without a test, if any.
        orthogonal: `main` turns the units of a weight apart by an `alpha` that the user did not
            choose. It is 0 where units outnumber entries: they cannot be orthogonal, and the term
            competes with the loss for good.
        smallest_norm: weights of smaller units are Euclidean where `main` keeps norms.
    """

    main: Bound
    rest: Bound | None
    by_role: Mapping[RoleName, Bound]
    for_matrices: bool
    sphere: Sphere | None
    fixed: View | None
    orthogonal: bool
    smallest_norm: float

    @classmethod
    def of(
        cls,
        main: Bound,
        rest: Bound | None,
        by_role: Mapping[RoleName, Bound],
        chosen: Collection[str],
        smallest_norm: float,
    ) -> TreatmentPlan:
        """The plan; `chosen` are the hyper-parameters that the user gave.

        Raises:
            ValueError: a recipe has a test whose views it does not take; there is no such role;
                `smallest_norm` is negative.
        """
        if unknown := [role for role in by_role if role not in ROLES]:
            raise ValueError(f"by_role must name {', '.join(ROLES)}, got {unknown[0]!r}")
        if not smallest_norm >= 0:
            raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
        sphere = sphere_of(main.rule)
        projections = [r.view for r in main.rule.tree() if isinstance(r, RadialProjection)]
        fixed = next((view for view in projections if view is not None), None)
        fixed = sphere.view if sphere is not None else fixed
        for_matrices = any(map(_is_for_matrices, main.rule.tree()))
        usual: Bound | None = main
        if for_matrices:
            fixed = usual = None
        elif fixed is not None:
            usual = bind("sgd", lr=0.01, momentum=0.9, nesterov=True)
        orthogonal = (
            any(isinstance(rule, OrthogonalityRegularization) for rule in main.rule.tree())
            and "alpha" not in chosen
            and main.hyper_parameters.get("alpha", 0) == main.defaults.get("alpha") != 0
        )
        for bound in filter(None, (main, rest, *by_role.values())):
            _without_test(bound)  # called for its errors
        rest = usual if rest is None else rest
        return cls(main, rest, by_role, for_matrices, sphere, fixed, orthogonal, smallest_norm)

    @property
    def keeps_norms(self) -> bool:
        """True if `main` projects invariant weights, so that their norms hardly grow."""
        return self.fixed is not None or "views" in self.main.defaults

    def group(
        self, name: str, weight: Tensor, treatment: Treatment
    ) -> tuple[str, Bound, View | None, str]:
        """Treatment, recipe, view and reason of one weight.

        Raises:
            ValueError: all recipes refuse the weight.
        """
        if treatment.role.role in self.by_role or self.for_matrices:
            return self._by_role(name, weight, treatment)
        view, reason = treatment.view, treatment.reason
        objection = self._objection(weight, treatment)
        if objection:
            view, reason = None, f"{reason}; {objection}"
        if view is None and (self.keeps_norms or treatment.chosen):
            word, bound = EUCLIDEAN, self._rest_of(name, weight, reason)
        elif view is None or not self.keeps_norms:
            word, bound = EUCLIDEAN, self.main
        else:
            word, bound, note = self._in_view(weight, view)
            reason += note
        if refusal := _refusal(bound, weight):
            bound, view, word = self._rest_of(name, weight, refusal), None, EUCLIDEAN
            reason += f"; the recipe refuses it: {refusal}"
        return word, bound, view, reason

    def _by_role(
        self, name: str, weight: Tensor, treatment: Treatment
    ) -> tuple[str, Bound, View | None, str]:
        """As `group`, of a weight whose role decides."""
        role, view = treatment.role.role, treatment.view
        if role in self.by_role:
            return EUCLIDEAN, _without_test(self.by_role[role]), view, "its role has a recipe"
        bound, refusal = self.main, ""
        units = "channel" if role == "experts" else ""
        units = str(view) if treatment.chosen else units
        if role not in MATRICES or (treatment.chosen and view is None):
            refusal = f"it is for hidden matrices, not {role}"
        elif units and "view" not in bound.defaults:
            refusal = f"it takes no view, such as {units}"
        elif units:
            bound = bound.replace(view=units)
        if refusal := refusal or _refusal(bound, weight):
            why = f"{bound.name}: {refusal}"
            return EUCLIDEAN, self._rest_of(name, weight, refusal), view, why
        return EUCLIDEAN, bound, view, treatment.reason

    def _rest_of(self, name: str, weight: Tensor, refusal: str) -> Bound:
        """The recipe of a weight that `main` does not take.

        Raises:
            ValueError: there is none, or it does not take the weight either.
        """
        bound = None if self.rest is None else _without_test(self.rest)
        if bound is None or _refusal(bound, weight):
            raise ValueError(f"{name}: {self.main.name} refuses it ({refusal}); give a rest")
        return bound

    def _objection(self, weight: Tensor, treatment: Treatment) -> str:
        """A reason why an invariant weight is left alone; empty if there is none."""
        view = treatment.view
        if view is None or not self.keeps_norms:
            return ""
        if self.fixed is not None and "view" not in self.main.defaults and view != self.fixed:
            return f"the recipe's view is {self.fixed}"
        if self.sphere is not None and treatment.up_to_eps:
            return (
                "on the sphere it would change the outputs; an override"
                f" {str(view)!r}, or a larger tolerance, puts it there"
            )
        norms = metrics.norm(weight.detach(), view)
        if self.sphere is not None and bool((norms == 0).any()):
            return "a zero unit cannot move on a sphere"
        norm = float(norms.median()) if norms.numel() else 0.0
        if norm < self.smallest_norm and not treatment.chosen:
            return f"norm {norm:.2g}: so small that plain steps are to find its scale"
        least = float(norms.min()) if norms.numel() else math.inf
        if self.sphere is not None and least < _TINY * self.smallest_norm and not treatment.chosen:
            return (
                f"a unit of norm {least:.2g}, which an eps may outweigh, would be as large as all"
            )
        return ""

    def _in_view(self, weight: Tensor, view: View) -> tuple[str, Bound, str]:
        """Treatment, recipe and a note on an invariant weight."""
        bound, note = self.main, ""
        if self.fixed is None:
            return "projected", bound.replace(views=(str(view),)), note
        if "view" in bound.defaults:
            bound = bound.replace(view=str(view))
        size = view.size(weight)
        units = weight.numel() // max(size, 1)
        if self.orthogonal and units > size:
            bound = bound.replace(alpha=0)
            note = f"; alpha=0: {units} units of {size} entries cannot be orthogonal"
        return ("projected" if self.sphere is None else "sphere"), bound, note


def _is_for_matrices(rule: Node) -> bool:
    """True for a rule that orthogonalizes, holds a norm, or gives steps a length of 1."""
    one = isinstance(rule, NormalizedUpdate) and rule.length == "one"
    return one or isinstance(rule, Orthogonalize | RadiusPin)


def _refusal(bound: Bound, weight: Tensor) -> str:
    """The words in which a recipe refuses a weight; empty if it takes it."""
    try:
        bound.rule.init(weight.detach())
    except ValueError as error:
        return str(error)
    return ""


def _without_test(bound: Bound) -> Bound:
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
