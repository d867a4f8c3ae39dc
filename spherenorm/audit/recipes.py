"""`Recipes`: which of an optimizer's recipes steps a parameter, and in which view."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm import metrics
from spherenorm.audit.report import Audit
from spherenorm.audit.roles import Role
from spherenorm.audit.uses import MATRICES, ROLES
from spherenorm.audit.verdict import Verdict
from spherenorm.manifolds import sphere_of
from spherenorm.registry import Bound, Recipe, bind
from spherenorm.rule import Rule
from spherenorm.rules import (
    FixedNorm,
    InvarianceTest,
    NormalizedUpdate,
    OrthogonalityRegularization,
    Orthogonalize,
    RadialProjection,
)
from spherenorm.support import did_you_mean
from spherenorm.views import View, ViewLike, as_view

EUCLIDEAN = "euclidean"
_TINY = 0.1
"""A unit of this share of `smallest_norm`, such as a pruned channel, is not put on a sphere."""

Override = ViewLike | Mapping[str, Any]
"""A view; a role; "euclidean"; or entries of a param_group, of which "as" may be one of these, and
"recipe" the recipe of the weight."""


@dataclass(frozen=True)
class Wanted:
    """The word of the audit on a parameter, or of the user instead.

    Attributes:
        role: that it plays in the model.
        view: it counts as scale-invariant in this view; None: in none.
        reason: in words.
        up_to_eps: it is invariant in the limit of eps only.
        chosen: the view, or that there is none, is the user's choice.
        entries: of its param_group, that the user has set.
        recipe: that the user has set.
    """

    role: Role
    view: View | None
    reason: str
    up_to_eps: bool = False
    chosen: bool = False
    entries: Mapping[str, Any] = field(default_factory=dict)
    recipe: Bound | None = None

    def overridden(self, override: Override, weight: Tensor) -> Wanted:
        """The same with the word of the user.

        Raises:
            ValueError: a view does not fit the weight; there is no such recipe.
        """
        given = dict(override) if isinstance(override, Mapping) else {"as": override}
        word, recipe = given.pop("as", None), given.pop("recipe", None)
        wanted = replace(self, entries={**self.entries, **given})
        if recipe is not None:
            wanted = replace(wanted, recipe=without_test(bound_of(recipe, {})))
        if word is None:
            return wanted
        if word in ROLES:
            return replace(wanted, role=replace(self.role, role=word, reason="as you say"))
        view = None if word == EUCLIDEAN else as_view(word)
        if view is not None:
            view.size(torch.empty(weight.shape, device="meta"))
        return replace(wanted, view=view, reason="as you say", chosen=True, up_to_eps=False)


def wanted_of(
    parameters: Mapping[str, Tensor], audited: Audit, overrides: Mapping[str, Override]
) -> dict[str, Wanted]:
    """The treatment that each parameter is to get, by name.

    Raises:
        ValueError: the audit is of another model; a pattern matches no parameter; a view does not
            fit a weight.
    """
    shapes = {each.name: each.shape for each in audited.roles}
    if shapes != {name: tuple(weight.shape) for name, weight in parameters.items()}:
        raise ValueError("the audit is of another model: its parameters have other names or shapes")
    found = {
        each.name: Wanted(each, None, audited.skipped.get(each.name, "")) for each in audited.roles
    }
    for each in audited:
        view = None if each.view is None else as_view(each.view)
        reason, up_to_eps = f"{each.verdict}: {each.reason}", each.verdict is Verdict.UP_TO_EPS
        found[each.name] = Wanted(found[each.name].role, view, reason, up_to_eps)
    for pattern, override in overrides.items():
        matching = fnmatch.filter(parameters, pattern)
        if not matching:
            meant = did_you_mean(pattern, parameters, "it takes * for any letters")
            raise ValueError(f"overrides: no parameter is named {pattern!r}; {meant}")
        for name in matching:
            try:
                found[name] = found[name].overridden(override, parameters[name])
            except ValueError as error:
                others = f"or {EUCLIDEAN!r}, or a role: {', '.join(ROLES)}"
                raise ValueError(f"overrides: {name}: {error} ({others})") from error
    return found


Assigned = tuple[Bound, str, View | None, str]
"""The recipe of a parameter, its treatment, its view, and the reason."""


class Recipes:
    """The recipes of an optimizer, and what each is for.

    Args:
        main: that was asked for.
        rest: of weights that `main` does not suit; None takes what is usual beside `main`.
        smallest_norm: weights of smaller units are Euclidean where `main` keeps norms.

    Raises:
        ValueError: a recipe has a test whose views it does not take; `smallest_norm` is negative.
    """

    def __init__(
        self,
        main: Bound,
        rest: Bound | None,
        smallest_norm: float,
    ) -> None:
        if not smallest_norm >= 0:
            raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
        without_test(main)  # called for its errors
        self._main, self._smallest_norm = main, smallest_norm
        self._for_matrices = _is_for_matrices(main.rule)
        rules, sphere = list(main.rule.walk()), sphere_of(main.rule)
        projected = (r.view for r in rules if isinstance(r, RadialProjection) and r.view)
        self._on_sphere = sphere is not None
        self._fixed = next(projected, None) if sphere is None else sphere.view
        self._keeps_norms = self._fixed is not None or "views" in main.defaults
        if rest is None and not self._for_matrices:
            usual = bind("sgd", lr=0.01, momentum=0.9, nesterov=True)
            rest = main if self._fixed is None else usual
        self._rest = None if rest is None else without_test(rest)
        # Units that outnumber their entries cannot be orthogonal, and a term for it would compete
        # with the loss for good: an `alpha` that the user did not choose is 0 there.
        own = any(isinstance(rule, OrthogonalityRegularization) for rule in rules)
        usual_alpha = "alpha" not in main.given and main.defaults.get("alpha", 0) != 0
        self._turns_apart = own and usual_alpha

    def assign(self, weight: Tensor, wanted: Wanted) -> Assigned:
        """The recipe of a weight.

        Raises:
            ValueError: all recipes refuse the weight.
        """
        if wanted.recipe is not None:
            wanted.recipe.rule.init(weight.detach())  # called for its errors
            return wanted.recipe, EUCLIDEAN, wanted.view, "the recipe is your choice"
        try:
            bound, treatment, more = self._suited(weight, wanted)
            bound.rule.init(weight.detach())
            return bound, treatment, wanted.view, wanted.reason + more
        except ValueError as error:
            objection = f"{self._main.name}: {error}"
        try:
            if self._rest is None:
                raise ValueError("there is no rest")
            self._rest.rule.init(weight.detach())
        except ValueError as error:
            raise ValueError(f'{objection}; {error}; give a rest, such as rest="adamw"') from error
        if self._for_matrices:
            return self._rest, EUCLIDEAN, wanted.view, objection
        return self._rest, EUCLIDEAN, None, f"{wanted.reason}; {objection}"

    def _suited(self, weight: Tensor, wanted: Wanted) -> tuple[Bound, str, str]:
        """The main recipe as it suits a weight, the treatment, and more reason.

        Raises:
            ValueError: it does not suit it.
        """
        if wanted.chosen and wanted.view is None:
            raise ValueError("the weight is Euclidean, as you say")
        if self._for_matrices:
            return self._of_matrix(wanted), EUCLIDEAN, ""
        if not self._keeps_norms:
            return self._main, EUCLIDEAN, ""
        if wanted.view is None:
            raise ValueError("it keeps the norms of invariant weights alone")
        self._refuse_norms(weight, wanted, wanted.view)
        if self._fixed is None:
            return self._main.replace(views=(str(wanted.view),)), "projected", ""
        bound, size, more = self._main, max(wanted.view.size(weight), 1), ""
        if "view" in bound.defaults:
            bound = bound.replace(view=str(wanted.view))
        if self._turns_apart:
            units = weight.numel() // size
            cannot = units > size
            bound = bound.replace(alpha=0 if cannot else self._main.defaults["alpha"])
            if cannot:
                more = f"; alpha=0: {units} units of {size} entries cannot be orthogonal"
        return bound, "sphere" if self._on_sphere else "projected", more

    def _of_matrix(self, wanted: Wanted) -> Bound:
        """The recipe for matrices, of a stack of experts by itself for each."""
        if wanted.role.role not in MATRICES:
            raise ValueError(f"it is for hidden matrices, not {wanted.role.role}")
        units = str(wanted.view) if wanted.chosen else None
        if units is None and wanted.role.role == "experts":
            units = "channel"
        if units is None:
            return self._main
        if "view" not in self._main.defaults:
            raise ValueError(f"it takes no view, such as {units}")
        return self._main.replace(view=units)

    def _refuse_norms(self, weight: Tensor, wanted: Wanted, view: View) -> None:
        """Refuse an invariant weight whose norms are to change."""
        if self._fixed is not None and "view" not in self._main.defaults and view != self._fixed:
            raise ValueError(f"the recipe's view is {self._fixed}")
        if self._on_sphere and wanted.up_to_eps:
            raise ValueError(
                "on the sphere it would change the outputs; an override"
                f" {str(view)!r}, or a larger tolerance, puts it there"
            )
        norms = metrics.norm(weight.detach(), view)
        least, norm = (float(norms.min()), float(norms.median())) if norms.numel() else (0.0, 0.0)
        if self._on_sphere and least == 0:
            raise ValueError("a zero unit cannot move on a sphere")
        if norm < self._smallest_norm and not wanted.chosen:
            raise ValueError(f"norm {norm:.2g}: so small that plain steps are to find its scale")
        if self._on_sphere and least < _TINY * self._smallest_norm and not wanted.chosen:
            raise ValueError(
                f"a unit of norm {least:.2g}, which an eps may outweigh, would be as large as all"
            )


def bound_of(recipe: str | Recipe | Bound, hyper_parameters: Mapping[str, Any]) -> Bound:
    """A recipe with these hyper-parameters, whose rule could be made."""
    given = recipe if isinstance(recipe, Bound) else bind(recipe)
    bound = given.replace(**hyper_parameters)
    bound.rule  # noqa: B018  (made now, for its errors)
    return bound


def _is_for_matrices(rule: Rule) -> bool:
    """True for a rule that orthogonalizes, holds a norm, or gives steps a length of 1."""
    return any(
        isinstance(each, Orthogonalize | FixedNorm)
        or (isinstance(each, NormalizedUpdate) and each.length == "one")
        for each in rule.walk()
    )


def without_test(bound: Bound) -> Bound:
    """The recipe with no test for invariance, so that it projects nothing.

    Raises:
        ValueError: it has a test whose views it does not take.
    """
    if "views" in bound.defaults:
        bound = bound.replace(views=())
    if any(isinstance(rule, InvarianceTest) and rule.views for rule in bound.rule.walk()):
        raise ValueError(
            f"recipe {bound.name!r} tests views that cannot be set, so that it might project"
            " weights that are not invariant; give it a hyper-parameter views"
        )
    return bound
