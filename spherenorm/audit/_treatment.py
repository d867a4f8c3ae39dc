"""Treatments: what a recipe is to do with a weight, from its verdict or as the user says."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._views import View, ViewLike, as_view
from spherenorm.audit._report import Audit
from spherenorm.audit._roles import Role
from spherenorm.audit._uses import ROLES
from spherenorm.audit._verdict import Verdict
from spherenorm.support import did_you_mean

EUCLIDEAN = "euclidean"
Override = ViewLike | Mapping[str, Any]
"""A view; a role; "euclidean"; or entries of a param_group, of which "as" may be one of these."""


@dataclass(frozen=True)
class Treatment:
    """The way in which one parameter is to be stepped.

    Attributes:
        view: the parameter counts as scale-invariant in this view; None: in none, Euclidean.
        reason: in words.
        role: that the parameter plays in the model.
        entries: of its param_group, that the user has set.
        chosen: the view, or that there is none, is the user's choice.
        up_to_eps: the weight is invariant in the limit of eps only.
    """

    view: View | None
    reason: str
    role: Role
    entries: Mapping[str, Any] = field(default_factory=dict)
    chosen: bool = False
    up_to_eps: bool = False


def treat(
    parameters: Mapping[str, Tensor], audited: Audit, overrides: Mapping[str, Override]
) -> dict[str, Treatment]:
    """The treatment of each parameter.

    Args:
        parameters: by name.
        audited: the audit of the model that has them.
        overrides: by name or pattern ("blocks.*.weight"); of several that match, the last counts
            for the view, and each for its entries.

    Raises:
        ValueError: the audit is of another model; a pattern matches no parameter; a view does not
            fit a weight.
    """
    found = {each.name: each for each in audited}
    skipped = {each.name: each for each in audited.skipped}
    shapes = {each.name: each.shape for each in (*audited, *audited.skipped)}
    if shapes != {name: tuple(weight.shape) for name, weight in parameters.items()}:
        raise ValueError("the audit is of another model: its parameters have other names or shapes")
    roles = {each.name: each for each in audited.roles}
    treatments = {}
    for name in parameters:
        if name in skipped:
            treatments[name] = Treatment(None, skipped[name].reason, roles[name])
        else:
            view = found[name].view
            reason = f"{found[name].verdict}: {found[name].reason}"
            treatments[name] = Treatment(
                None if view is None else as_view(view),
                reason,
                roles[name],
                up_to_eps=found[name].verdict is Verdict.UP_TO_EPS,
            )
    for pattern, override in overrides.items():
        names = _matching(pattern, parameters)
        for name in names:
            treatments[name] = _overridden(treatments[name], override, name, parameters[name])
    return treatments


def _matching(pattern: str, names: Iterable[str]) -> list[str]:
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        meant = did_you_mean(pattern, names, "it takes * for any letters")
        raise ValueError(f"overrides: no parameter is named {pattern!r}; {meant}")
    return matching


def _overridden(before: Treatment, override: Override, name: str, weight: Tensor) -> Treatment:
    entries = dict(override) if isinstance(override, Mapping) else {"as": override}
    if "as" not in entries:
        return replace(before, entries={**before.entries, **entries})
    wanted = entries.pop("as")
    entries = {**before.entries, **entries}
    if wanted in ROLES:
        role = replace(before.role, role=wanted, reason="as you say")
        return replace(before, role=role, entries=entries)
    view = None
    if wanted != EUCLIDEAN:
        try:
            view = as_view(wanted)
            view.size(torch.empty(weight.shape, device="meta"))
        except ValueError as error:
            others = f"or {EUCLIDEAN!r}, or a role: {', '.join(ROLES)}"
            raise ValueError(f"overrides: {name}: {error} ({others})") from error
    return Treatment(view, "as you say", before.role, entries, chosen=True)
