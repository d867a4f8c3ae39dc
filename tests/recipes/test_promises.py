"""Every promise of `spherenorm.testing.PROPERTIES`, by every recipe.

`compile/` and `sharded/` hold "compiled" and "sharded", and theory "law".
"""

import pytest

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, ZOO
from tests.recipes.users import USERS

pytestmark = ANY_WEIGHTS

ELSEWHERE = ("compiled", "sharded", "law")
KEPT = ("sgdp", "adamp", "rmsprop", "adamg", "adamh", "normuon", "mdmuon", "apart")
"""Recipes that hold all kinds of states together; `optim/` resumes the others."""

CASES = [
    pytest.param(row, promise, id=f"{row}-{promise}")
    for row in [*ROWS, *USERS, *ZOO]
    for promise in sn.testing.PROPERTIES
    if promise not in ELSEWHERE
    and (promise != "resumes" or row not in ROWS or str(row).startswith(KEPT))
]


@pytest.mark.parametrize(("row", "promise"), CASES)
def test_a_promise(row, promise):
    report = sn.testing.check(row.recipe, only=(promise,), **row.settings)
    assert report[promise].verdict == "holds", report
