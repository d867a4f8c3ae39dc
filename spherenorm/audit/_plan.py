"""`TreatmentPlan`: what recipes do to one weight, by its treatment."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from spherenorm import metrics
from spherenorm._chain import sphere_of
from spherenorm._manifold import Sphere
from spherenorm._registry import Bound, bind
from spherenorm._views import View
from spherenorm.audit._treatment import Treatment
from spherenorm.rules import InvarianceTest, OrthogonalityRegularization, RadialProjection

_TINY = 0.1
"""A unit of this share of `smallest_norm`, such as a pruned channel, is not put on a sphere."""


@dataclass(frozen=True)
class TreatmentPlan:
    """The recipes, and what they do to scale-invariant weights.

    Attributes:
        main: the recipe that was asked for.
        rest: for weights that `main` does not suit.
        sphere: the manifold of `main`, if it is a sphere.
        fixed: the view that `main` projects in without a test, if any.
        orthogonal: `main` turns the units of a weight apart by an `alpha` that the user did not
            choose. It is 0 where units outnumber entries: they cannot be orthogonal, and the term
            competes with the loss for good.
        smallest_norm: weights of smaller units are Euclidean where `main` keeps norms.
    """

    main: Bound
    rest: Bound
    sphere: Sphere | None
    fixed: View | None
    orthogonal: bool
    smallest_norm: float

    @classmethod
    def of(
        cls, main: Bound, rest: Bound | None, chosen: Collection[str], smallest_norm: float
    ) -> TreatmentPlan:
        """The plan; `chosen` are the hyper-parameters that the user gave.

        Raises:
            ValueError: a recipe has a test whose views it does not take; `smallest_norm` is
                negative.
        """
        if not smallest_norm >= 0:
            raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
        sphere = sphere_of(main.rule)
        projections = [r.view for r in main.rule.tree() if isinstance(r, RadialProjection)]
        fixed = next((view for view in projections if view is not None), None)
        fixed = sphere.view if sphere is not None else fixed
        usual = bind("sgd", lr=0.01, momentum=0.9, nesterov=True) if fixed is not None else main
        orthogonal = (
            any(isinstance(rule, OrthogonalityRegularization) for rule in main.rule.tree())
            and "alpha" not in chosen
            and main.hyper_parameters.get("alpha", 0) == main.defaults.get("alpha") != 0
        )
        for bound in filter(None, (main, rest)):
            _without_test(bound)  # called for its errors
        rest = usual if rest is None else rest
        return cls(main, rest, sphere, fixed, orthogonal, smallest_norm)

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
        view, reason = treatment.view, treatment.reason
        objection = self._objection(weight, treatment)
        if objection:
            view, reason = None, f"{reason}; {objection}"
        if view is None and (self.keeps_norms or treatment.chosen):
            word, bound = "euclidean", _without_test(self.rest)
        elif view is None or not self.keeps_norms:
            word, bound = "euclidean", self.main
        else:
            word, bound, note = self._in_view(weight, view)
            reason += note
        if refusal := _refusal(bound, weight):
            bound, view, word = _without_test(self.rest), None, "euclidean"
            if _refusal(bound, weight):
                raise ValueError(f"{name}: {self.main.name} refuses it ({refusal}); give a rest")
            reason += f"; the recipe refuses it: {refusal}"
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
