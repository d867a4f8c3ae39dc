"""Covering arrays: every pair of conditions once, in few cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Case = dict[str, Any]


def pairs(
    conditions: Mapping[str, Sequence[Any]],
    allowed: Callable[[Case], bool] = lambda case: True,
    seed: int = 0,
) -> list[Case]:
    """Cases in which any two values of any two conditions occur together at least once.

    The greedy algorithm of Cohen et al. (1997), "The AETG system": each new case starts with a pair
    that is not covered yet, and takes for each further condition the value that covers most.

    Args:
        conditions: the values of each condition, by its name.
        allowed: tells of a case, which may be partial, whether it makes sense. A pair that stands
            in no allowed case is left out.
        seed: of the order in which conditions are filled; another seed gives other cases.

    Example:
        >>> [list(case.values()) for case in pairs({"a": (0, 1), "b": (0, 1), "c": (0, 1)})]
        [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    drawn = random.Random(seed)
    names = list(conditions)
    places = {name: range(len(values)) for name, values in conditions.items()}
    missing = [
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i, j in itertools.product(places[a], places[b])
    ]
    missing = dict.fromkeys(missing)

    def values(case: Mapping[str, int]) -> Case:
        return {name: conditions[name][case[name]] for name in names if name in case}

    def gain(case: Mapping[str, int], name: str, place: int) -> int:
        others = [(other, at) for other, at in case.items() if other != name]
        ordered = (
            tuple(sorted((o, (name, place)), key=lambda x: names.index(x[0]))) for o in others
        )
        return sum(pair in missing for pair in ordered)

    def filled(case: dict[str, int], left: list[str]) -> dict[str, int] | None:
        if not left:
            return case
        name, *rest = left
        for place in sorted(places[name], key=lambda place: -gain(case, name, place)):
            longer = {**case, name: place}
            if allowed(values(longer)) and (found := filled(longer, rest)) is not None:
                return found
        return None

    cases = []
    while missing:
        pair = next(iter(missing))
        start = dict(pair)
        left = [name for name in names if name not in start]
        drawn.shuffle(left)
        case = filled(start, left) if allowed(values(start)) else None
        del missing[pair]
        if case is not None:
            cases.append(values(case))
            for covered in itertools.combinations(((name, case[name]) for name in names), 2):
                missing.pop(covered, None)
    return cases
