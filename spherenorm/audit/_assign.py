"""`Recipes`: which of an optimizer's recipes steps a parameter, and in which view."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm import metrics
from spherenorm._manifold import sphere_of
from spherenorm._registry import Bound, bind
from spherenorm._views import View, ViewLike, as_view
from spherenorm.audit._report import Audit
from spherenorm.audit._roles import Role
from spherenorm.audit._uses import MATRICES, ROLES, RoleName
from spherenorm.audit._verdict import Verdict
from spherenorm.core import Rule
from spherenorm.rules import (
    InvarianceTest,
    NormalizedUpdate,
    OrthogonalityRegularization,
    Orthogonalize,
    RadialProjection,
    RadiusPin,
)
from spherenorm.support import did_you_mean

EUCLIDEAN = "euclidean"
_TINY = 0.1
"""A unit of this share of `smallest_norm`, such as a pruned channel, is not put on a sphere."""

Override = ViewLike | Mapping[str, Any]
"""A view; a role; "euclidean"; or entries of a param_group, of which "as" may be one of these."""


@dataclass(frozen=True)
class Wanted:
    """The finding of the audit on a parameter, or the word of the user instead.

    Attributes:
        view: it counts as scale-invariant in this view; None: in none.
        reason: in words.
        role: that it plays in the model.
        up_to_eps: it is invariant in the limit of eps only.
        chosen: the view, or that there is none, is the user's choice.
        entries: of its param_group, that the user has set.
    """

    view: View | None
    reason: str
    role: Role
    up_to_eps: bool = False
    chosen: bool = False
    entries: Mapping[str, Any] = field(default_factory=dict)

    def overridden(self, override: Override, name: str, weight: Tensor) -> Wanted:
        """The same with the word of the user.

        Raises:
            ValueError: a view does not fit the weight.
        """
        given = dict(override) if isinstance(override, Mapping) else {"as": override}
        wanted = given.pop("as", None)
        found = replace(self, entries={**self.entries, **given})
        if wanted is None:
            return found
        if wanted in ROLES:
            return replace(found, role=replace(self.role, role=wanted, reason="as you say"))
        view = None
        if wanted != EUCLIDEAN:
            try:
                view = as_view(wanted)
                view.size(torch.empty(weight.shape, device="meta"))
            except ValueError as error:
                others = f"or {EUCLIDEAN!r}, or a role: {', '.join(ROLES)}"
                raise ValueError(f"overrides: {name}: {error} ({others})") from error
        return replace(found, view=view, reason="as you say", chosen=True, up_to_eps=False)


def wanted_of(
    parameters: Mapping[str, Tensor], audited: Audit, overrides: Mapping[str, Override]
) -> dict[str, Wanted]:
    """The treatment that each parameter is to get.

    Args:
        parameters: by name.
        audited: the audit of the model that has them.
        overrides: by name or pattern ("blocks.*.weight"); of several that match, the last counts
            for the view, and each for its entries.

    Raises:
        ValueError: the audit is of another model; a pattern matches no parameter; a view does not
            fit a weight.
    """
    shapes = {each.name: each.shape for each in audited.roles}
    if shapes != {name: tuple(weight.shape) for name, weight in parameters.items()}:
        raise ValueError("the audit is of another model: its parameters have other names or shapes")
    reasons = audited.skipped | {each.name: f"{each.verdict}: {each.reason}" for each in audited}
    views = {each.name: as_view(each.view) for each in audited if each.view is not None}
    up_to_eps = {each.name for each in audited if each.verdict is Verdict.UP_TO_EPS}
    found = {
        role.name: Wanted(views.get(role.name), reasons[role.name], role, role.name in up_to_eps)
        for role in audited.roles
    }
    for pattern, override in overrides.items():
        matching = [name for name in parameters if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            meant = did_you_mean(pattern, parameters, "it takes * for any letters")
            raise ValueError(f"overrides: no parameter is named {pattern!r}; {meant}")
        for name in matching:
            found[name] = found[name].overridden(override, name, parameters[name])
    return found


Assigned = tuple[Bound, str, View | None, str]
"""The recipe of a parameter, its treatment, its view, and the reason."""


class Recipes:
    """The recipes of an optimizer, and what each is for.

    Args:
        main: that was asked for.
        rest: of weights that `main` does not suit; None takes what is usual beside `main`.
        by_role: of parameters of some roles, which come before `main`.
        chosen: the hyper-parameters of `main` that the user gave.
        smallest_norm: weights of smaller units are Euclidean where `main` keeps norms.

    Attributes:
        for_matrices: `main` suits hidden matrices, convolutions and stacks of matrices alone.
        keeps_norms: `main` projects invariant weights, so that their norms hardly grow.

    Raises:
        ValueError: a recipe has a test whose views it does not take; there is no such role;
            `smallest_norm` is negative.
    """

    def __init__(
        self,
        main: Bound,
        rest: Bound | None,
        by_role: Mapping[RoleName, Bound],
        chosen: Collection[str],
        smallest_norm: float,
    ) -> None:
        if not smallest_norm >= 0:
            raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
        if unknown := [role for role in by_role if role not in ROLES]:
            raise ValueError(f"by_role must name {', '.join(ROLES)}, got {unknown[0]!r}")
        _without_test(main)  # called for its errors
        self.main, self.smallest_norm = main, smallest_norm
        self.by_role = {role: _without_test(bound) for role, bound in by_role.items()}
        self.for_matrices = _is_for_matrices(main.rule)
        rules, sphere = list(main.rule.tree()), sphere_of(main.rule)
        projected = (r.view for r in rules if isinstance(r, RadialProjection) and r.view)
        fixed = next(projected, None) if sphere is None else sphere.view
        self._on_sphere = sphere is not None
        self._fixed = None if self.for_matrices else fixed
        self.keeps_norms = self._fixed is not None or "views" in main.defaults
        if rest is None and not self.for_matrices:
            usual = bind("sgd", lr=0.01, momentum=0.9, nesterov=True)
            rest = main if self._fixed is None else usual
        self._rest = None if rest is None else _without_test(rest)
        # Units that outnumber their entries cannot be orthogonal, and a term for it would compete
        # with the loss for good: an `alpha` that the user did not choose is 0 there.
        own = any(isinstance(rule, OrthogonalityRegularization) for rule in rules)
        alpha = main.hyper_parameters.get("alpha", 0)
        usual_alpha = "alpha" not in chosen and alpha == main.defaults.get("alpha") != 0
        self._turns_apart = own and usual_alpha

    def assign(self, name: str, weight: Tensor, wanted: Wanted) -> Assigned:
        """The recipe of a weight.

        Raises:
            ValueError: all recipes refuse the weight.
        """
        if self.for_matrices or wanted.role.role in self.by_role:
            return self._by_role(name, weight, wanted)
        bound, treatment, view, reason = self.main, EUCLIDEAN, wanted.view, wanted.reason
        if view is not None and self.keeps_norms:
            if objection := self._objection(weight, wanted, view):
                view, reason = None, f"{reason}; {objection}"
            else:
                bound, treatment, view, reason = self._in_view(weight, view, reason)
        if view is None and (self.keeps_norms or wanted.chosen):
            bound = self._other(name, weight, reason)
        if refused := _refusal(bound, weight):
            reason = f"{reason}; the recipe refuses it: {refused}"
            return self._other(name, weight, refused), EUCLIDEAN, None, reason
        return bound, treatment, view, reason

    def _by_role(self, name: str, weight: Tensor, wanted: Wanted) -> Assigned:
        """The recipe of a weight whose role decides."""
        role, view = wanted.role.role, wanted.view
        bound, reason, objection = self.main, wanted.reason, ""
        if role in self.by_role:
            bound, reason = self.by_role[role], "its role has a recipe"
        elif role not in MATRICES:
            objection = f"it is for hidden matrices, not {role}"
        units = str(view) if wanted.chosen and view else "channel" if role == "experts" else ""
        if not objection and _is_for_matrices(bound.rule):
            if wanted.chosen and view is None:
                objection = "the weight is Euclidean, as you say"
            elif units and "view" not in bound.defaults:
                objection = f"it takes no view, such as {units}"
            elif units:
                bound = bound.replace(view=units)
        if objection := objection or _refusal(bound, weight):
            reason, bound = f"{bound.name}: {objection}", self._other(name, weight, objection)
        return bound, EUCLIDEAN, view, reason

    def _other(self, name: str, weight: Tensor, objection: str) -> Bound:
        """The recipe of a weight that `main` does not take.

        Raises:
            ValueError: there is none, or it does not take the weight either.
        """
        if self._rest is None or _refusal(self._rest, weight):
            why = f"{name}: {self.main.name} refuses it ({objection})"
            raise ValueError(f'{why}; give a rest, such as rest="adamw"')
        return self._rest

    def _objection(self, weight: Tensor, wanted: Wanted, view: View) -> str:
        """A reason why an invariant weight is left alone; empty if there is none."""
        if self._fixed is not None and "view" not in self.main.defaults and view != self._fixed:
            return f"the recipe's view is {self._fixed}"
        if self._on_sphere and wanted.up_to_eps:
            return (
                "on the sphere it would change the outputs; an override"
                f" {str(view)!r}, or a larger tolerance, puts it there"
            )
        norms = metrics.norm(weight.detach(), view)
        least, norm = (float(norms.min()), float(norms.median())) if norms.numel() else (0.0, 0.0)
        if self._on_sphere and least == 0:
            return "a zero unit cannot move on a sphere"
        if wanted.chosen:
            return ""
        if norm < self.smallest_norm:
            return f"norm {norm:.2g}: so small that plain steps are to find its scale"
        if self._on_sphere and least < _TINY * self.smallest_norm:
            return (
                f"a unit of norm {least:.2g}, which an eps may outweigh, would be as large as all"
            )
        return ""

    def _in_view(self, weight: Tensor, view: View, reason: str) -> Assigned:
        """The recipe of an invariant weight, in its view."""
        if self._fixed is None:
            return self.main.replace(views=(str(view),)), "projected", view, reason
        bound, size = self.main, max(view.size(weight), 1)
        if "view" in bound.defaults:
            bound = bound.replace(view=str(view))
        if self._turns_apart and (units := weight.numel() // size) > size:
            bound = bound.replace(alpha=0)
            reason += f"; alpha=0: {units} units of {size} entries cannot be orthogonal"
        return bound, "sphere" if self._on_sphere else "projected", view, reason


def _is_for_matrices(rule: Rule) -> bool:
    """True for a rule that orthogonalizes, holds a norm, or gives steps a length of 1."""
    return any(
        isinstance(each, Orthogonalize | RadiusPin)
        or (isinstance(each, NormalizedUpdate) and each.length == "one")
        for each in rule.tree()
    )


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
