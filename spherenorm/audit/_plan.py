"""`TreatmentPlan`: what recipes do to one weight, by its treatment."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from spherenorm import metrics
from spherenorm._manifold import Sphere, sphere_of
from spherenorm._registry import Bound, bind
from spherenorm._views import View
from spherenorm.audit._routes import Routes, is_for_matrices, refusal
from spherenorm.audit._treatment import EUCLIDEAN, Treatment
from spherenorm.audit._uses import RoleName
from spherenorm.rules import OrthogonalityRegularization, RadialProjection

_TINY = 0.1
"""A unit of this share of `smallest_norm`, such as a pruned channel, is not put on a sphere."""


@dataclass(frozen=True)
class TreatmentPlan:
    """The recipes, and what they do to scale-invariant weights.

    Attributes:
        routes: the recipe that was asked for, and the others.
        sphere: the manifold of `main`, if it is a sphere.
        fixed: the view that `main` projects in without a test, if any.
        orthogonal: `main` turns the units of a weight apart by an `alpha` that the user did not
            choose. It is 0 where units outnumber entries: they cannot be orthogonal, and the term
            competes with the loss for good.
        smallest_norm: weights of smaller units are Euclidean where `main` keeps norms.
    """

    routes: Routes
    sphere: Sphere | None
    fixed: View | None
    orthogonal: bool
    smallest_norm: float

    @property
    def main(self) -> Bound:
        """The recipe that was asked for."""
        return self.routes.main

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
        if self.routes.decides(treatment):
            bound, reason = self.routes.of(name, weight, treatment)
            return EUCLIDEAN, bound, treatment.view, reason
        view, reason = treatment.view, treatment.reason
        objection = self._objection(weight, treatment)
        if objection:
            view, reason = None, f"{reason}; {objection}"
        if view is None and (self.keeps_norms or treatment.chosen):
            word, bound = EUCLIDEAN, self.routes.other(name, weight, reason)
        elif view is None or not self.keeps_norms:
            word, bound = EUCLIDEAN, self.main
        else:
            word, bound, note = self._in_view(weight, view)
            reason += note
        if refused := refusal(bound, weight):
            bound, view, word = self.routes.other(name, weight, refused), None, EUCLIDEAN
            reason += f"; the recipe refuses it: {refused}"
        return word, bound, view, reason

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


def plan_treatments(
    main: Bound,
    rest: Bound | None,
    by_role: Mapping[RoleName, Bound],
    chosen: Collection[str],
    smallest_norm: float,
) -> TreatmentPlan:
    """The plan of recipes for scale-invariant weights, and for roles.

    Args:
        main, rest, by_role: see `Routes`; None for `rest` takes what is usual beside `main`.
        chosen: the hyper-parameters that the user gave.
        smallest_norm: see `TreatmentPlan`.

    Raises:
        ValueError: a recipe has a test whose views it does not take; there is no such role;
            `smallest_norm` is negative.
    """
    if not smallest_norm >= 0:
        raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
    sphere = sphere_of(main.rule)
    projections = [r.view for r in main.rule.tree() if isinstance(r, RadialProjection)]
    fixed = next((view for view in projections if view is not None), None)
    fixed = sphere.view if sphere is not None else fixed
    for_matrices = is_for_matrices(main.rule)
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
    routes = Routes(main, usual if rest is None else rest, by_role, for_matrices)
    return TreatmentPlan(routes, sphere, fixed, orthogonal, smallest_norm)
