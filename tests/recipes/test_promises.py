"""Every promise of `spherenorm.testing.PROPERTIES`, by every recipe.

`compile/` and `sharded/` hold "compiled" and "sharded" of the recipes outside the zoo, and theory
"law".
"""

import pytest

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, ZOO

pytestmark = ANY_WEIGHTS

ELSEWHERE = ("compiled", "sharded", "law")
KEPT = ("sgdp", "adamp", "rmsprop", "adamg", "adamh", "normuon", "mdmuon", "apart")
"""Recipes that hold all kinds of states together; `optim/` resumes the others."""

CASES = [
    pytest.param(row, promise, id=f"{row}-{promise}")
    for row in [*ROWS, *ZOO]
    for promise in sn.testing.PROPERTIES
    if (promise not in ELSEWHERE or (promise == "compiled" and row in ZOO))
    and (promise != "resumes" or row not in ROWS or str(row).startswith(KEPT))
]


@pytest.mark.parametrize(("row", "promise"), CASES)
def test_a_promise(row, promise):
    report = sn.testing.check(row.recipe, only=(promise,), **row.settings)
    expected = "refused" if promise == "compiled" and row.together else "holds"
    assert report[promise].verdict == expected, report
