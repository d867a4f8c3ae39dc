"""Numbers that a recipe computes with before a rule sees them."""

from __future__ import annotations

from typing import Any

from spherenorm.fields import Interval, check_number


def refuse_outside(interval: str, **numbers: Any) -> None:
    """Refuse numbers, by name, that are not in an interval; tensors are taken as they are.

    Raises:
        ValueError, TypeError: one is not in it, or is no number.
    """
    for name, value in numbers.items():
        check_number(value, Interval.parse(interval), f"{name} must be")
