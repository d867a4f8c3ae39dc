"""Covering arrays: every pair of conditions once, in few cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Case = dict[str, Any]


def pairs(
    conditions: Mapping[str, Sequence[Any]],
    allowed: Callable[[Case], bool] = lambda case: True,
    seed: int = 0,
    strength: int = 2,
) -> list[Case]:
    """Cases in which any two values of any two conditions occur together at least once.

    The greedy algorithm of Cohen et al. (1997), "The AETG system": each new case starts with a pair
    that is not covered yet, and takes for each further condition the value that covers most.

    Args:
        conditions: the values of each condition, by its name.
        allowed: tells of a case, which may be partial, whether it makes sense. A pair that stands
            in no allowed case is left out.
        seed: of the order in which conditions are filled; another seed gives other cases.
        strength: how many values occur together; of 1, each value occurs at least once.

    Example:
        >>> [list(case.values()) for case in pairs({"a": (0, 1), "b": (0, 1), "c": (0, 1)})]
        [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    drawn = random.Random(seed)
    names = list(conditions)
    places = {name: range(len(values)) for name, values in conditions.items()}
    missing = {
        tuple(zip(some, at, strict=True)): None
        for some in itertools.combinations(names, strength)
        for at in itertools.product(*(places[name] for name in some))
    }

    def covered(case: Mapping[str, int]) -> Iterator[tuple[tuple[str, int], ...]]:
        return itertools.combinations(
            ((name, case[name]) for name in names if name in case), strength
        )

    def values(case: Mapping[str, int]) -> Case:
        return {name: conditions[name][case[name]] for name in names if name in case}

    def gain(case: Mapping[str, int], name: str, place: int) -> int:
        longer = {**case, name: place}
        return sum((name, place) in each and each in missing for each in covered(longer))

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
        first = next(iter(missing))
        start = dict(first)
        left = [name for name in names if name not in start]
        drawn.shuffle(left)
        case = filled(start, left) if allowed(values(start)) else None
        del missing[first]
        if case is not None:
            cases.append(values(case))
            for each in covered(case):
                missing.pop(each, None)
    return cases
