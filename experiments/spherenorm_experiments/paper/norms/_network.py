"""The parts that the studies of the small network share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spherenorm_experiments.claims import Side, derive
from spherenorm_experiments.results import Key, Result
from spherenorm_experiments.samples import Comparison, Sample, Values, spread

NESTEROV: dict[str, Any] = {"momentum": 0.9, "nesterov": True}
"""The momentum of SGD and SGDP."""

SEEDS = {"smoke": 2, "small": 6, "evidence": 12, "full": 12}

MEASURES: dict[str, tuple[Key, str]] = {"path on sphere": ("path", ".3g")}


def grown(item: Result) -> float | None:
    """The growth of the norm that the paper's Table 1 has: from the first epoch to the last."""
    last, first = (item.summary.get(key) for key in ("norm_last", "norm_first_epoch"))
    return None if last is None or first is None else float(last - first)


def of_all(function: Callable[[Sequence[Values]], Sample], sides: Sequence[Side]) -> Side:
    """A function of the numbers of several sides."""
    return derive(lambda *parts: function(parts), *sides)


def spread_of(sides: Sequence[Side], how: Comparison = "difference") -> Side:
    """Largest minus, or over, smallest of several sides."""
    return of_all(lambda parts: spread(parts, how), sides)
