"""Tables of cases of which the suite runs a part, and `make test-long` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], kept: int) -> list[Any]:
    """Mark cases of a table as long tests, all but some that are evenly spread.

    Args:
        cases: values for `pytest.mark.parametrize`; those that are long already stay so.
        kept: number of cases that the suite runs.
    """
    table = list(cases)
    indices = {i * len(table) // kept for i in range(kept)}
    return [case if i in indices else _as_long(case) for i, case in enumerate(table)]


def _as_long(case: Any) -> Any:
    if hasattr(case, "marks"):  # a pytest.param
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.long], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
