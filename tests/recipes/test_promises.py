"""Every promise of `spherenorm.testing.PROPERTIES`, by every recipe.

`compile/` and `sharded/` hold "compiled" and "sharded" for all of `ROWS`; "law" is theory's.
"""

import pytest

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS
from tests.recipes.users import USERS

pytestmark = ANY_WEIGHTS

ELSEWHERE = ("compiled", "sharded", "law")
WITHOUT_BUFFER = ("sgd-lr=0.05", "vmap")
KNOWN = pytest.mark.xfail(
    strict=True, reason="vmap over momentum starts from the state of momentum 0, without buffer"
)
CASES = [
    pytest.param(
        row,
        promise,
        id=f"{row}-{promise}",
        marks=[KNOWN] if (str(row), promise) == WITHOUT_BUFFER else [],
    )
    for row in [*ROWS, *USERS]
    for promise in sn.testing.PROPERTIES
    if promise not in ELSEWHERE
]


@pytest.mark.parametrize(("row", "promise"), CASES)
def test_a_promise(row, promise):
    report = sn.testing.check(row.recipe, only=(promise,), **row.settings)
    assert report[promise].verdict == "holds", report


@pytest.mark.parametrize("row", USERS, ids=str)
def test_users_recipes_are_recorded_or_refused(row):
    """One that looks at all weights together has no record, and the check says so."""
    together = str(row) == "prodigy"
    finding = sn.testing.check(row.recipe, only=("compiled",))["compiled"]
    assert finding.verdict == ("refused" if together else "holds"), finding
    assert not together or "Prodigy" in finding.why
