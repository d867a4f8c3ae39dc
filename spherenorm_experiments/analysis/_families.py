"""Families: the claims of a study, whose p-values pay for their number and for their looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spherenorm_experiments.analysis._decisions import Decision
from spherenorm_experiments.analysis._statistics import holm, price

PRIMARY_WEIGHT = 4.0
"""A primary claim counts this often among the claims of its study."""


def adjusted(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions of a study with their p-values adjusted for their looks and their number.

    Holm's procedure with weights: primary claims count `PRIMARY_WEIGHT` times. A verdict of
    equivalence is adjusted by the same weights, all at once.

    Raises:
        ValueError: two claims have one name.
    """
    names = [decision.claim.name for decision in decisions]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two claims have the name {twice[0]!r}")
    tested = [i for i, each in enumerate(decisions) if each.is_test]
    weights = [PRIMARY_WEIGHT if decisions[i].claim.primary else 1.0 for i in tested]
    prices = [price(decisions[i].looks) for i in tested]
    raw = [factor * (decisions[i].p or 0.0) for i, factor in zip(tested, prices, strict=True)]
    adjusted = list(decisions)
    for i, weight, factor, p in zip(tested, weights, prices, holm(raw, weights), strict=True):
        equivalent = decisions[i].p_equivalent
        if equivalent is not None:
            equivalent = min(1.0, factor * equivalent * sum(weights) / weight)
        adjusted[i] = replace(decisions[i], p=p, p_equivalent=equivalent)
    return adjusted
