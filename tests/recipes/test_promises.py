"""Every promise of `spherenorm.testing.PROPERTIES`, by every recipe.

`compile/` and `sharded/` hold "compiled" and "sharded" of the recipes outside the zoo, and theory
"law".
"""

import pytest

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, ZOO
from tests.harness.tables import mostly_long

pytestmark = ANY_WEIGHTS

ELSEWHERE = ("compiled", "sharded", "law")
KEPT = ("sgdp", "adamp", "rmsprop", "adamg", "adamh", "normuon", "mdmuon", "apart")
"""Recipes that hold all kinds of states together; `optim/` resumes the others."""

SLOW = {"acts": 18, "vmap": 18, "compiled": 11, "resumes": 14}
"""Promises that take long, and of how many rows the suite tries them."""


def rows_of(promise):
    """Return cases of the rows that a promise is tried on here."""
    rows = [row for row in [*ROWS, *ZOO] if is_tried_here(row, promise)]
    cases = [pytest.param(row, promise, id=f"{row}-{promise}") for row in rows]
    return mostly_long(cases, kept=SLOW.get(promise, (len(cases) + 1) // 2))


def is_tried_here(row, promise):
    if promise == "resumes":
        return row not in ROWS or str(row).startswith(KEPT)
    return promise not in ELSEWHERE or (promise == "compiled" and row in ZOO)


CASES = [case for promise in sn.testing.PROPERTIES for case in rows_of(promise)]


@pytest.mark.parametrize(("row", "promise"), CASES)
def test_a_promise(row, promise):
    report = sn.testing.check(row.recipe, only=(promise,), **row.settings)
    expected = "refused" if promise == "compiled" and row.together else "holds"
    assert report[promise].verdict == expected, report
