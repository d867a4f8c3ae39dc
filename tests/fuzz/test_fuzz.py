"""A few hundred random cases, and planted faults; `python -m tests.fuzz` runs thousands.

The cases of the path "dtensor" are taken in tests/sharded, where two processes run already.
"""

import re

import pytest

from tests.fuzz import derivatives, faults
from tests.fuzz.__main__ import outcomes
from tests.fuzz.cases import LIMITS, draw_case, draw_structure
from tests.fuzz.compare import outcome
from tests.fuzz.paths import run

CASES = {
    **{"auto": range(15), "rule": range(30), "sweep": range(6), "derivative": range(6)},
    **{"compiled": range(6), "batched": range(15), "shim": range(2)},
}


RECORDED = ("compiled", "batched", "shim")


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_our_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPHERENORM_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.mark.parametrize("path", CASES)
def test_a_path_steps_as_the_rule_does(path):
    """Kernels fuse operations and split them, so that rounding of operations may be seen there."""
    wrong = {"different"} if path in RECORDED else {"different", "of operations"}
    found = [each for each in outcomes(path, 0, CASES[path]) if each.kind in wrong]
    assert not found, "\n".join(each.line(seed=0) for each in found)


def test_a_number_that_moves_in_steps_is_no_fault_of_derivatives():
    """The case has a beta of 1e-12, of which 1 - beta keeps four digits."""
    assert derivatives.outcome(draw_case("derivative", 6, 49)).kind != "different"


@pytest.mark.parametrize(
    "number", [pytest.param(1517, marks=pytest.mark.long), 2404], ids=["a root", "a clip"]
)
def test_a_scale_that_no_width_sees_is_no_fault_of_derivatives(number):
    """Torch is right in both cases, to twelve digits of differences in multiple precision."""
    found = derivatives.outcome(draw_case("derivative", 7, number))
    assert found.kind == "unresolved"
    assert "differences" in found.detail


@pytest.mark.parametrize("number", [737, 757, 2701])
def test_a_width_without_noise_by_chance_does_not_count(number):
    """Rounding decides for or against one number, and alike at all nine points of some width."""
    line = derivatives.draw_line(draw_case("derivative", 7, number))
    wanted = derivatives.differences(line)
    for modes in (("jvp",), ("jvp",) * 2):
        assert derivatives.judge(line, modes, wanted)[0] in ("equal", "unresolved")


def of_fault(reaches, planted, path, most):
    """The outcomes of cases that have the rule, with the fault in the path, or in what derives."""

    def faulty(case, gradients):
        with planted():
            return run("rule", case, gradients)

    limits = LIMITS[path]
    for number in range(most):
        structure = draw_structure(0, number // limits.same, limits)
        if not re.search(reaches, structure.source):
            continue
        case = draw_case(path, 0, number)
        if path == "rule":
            yield outcome("rule", case, faulty)
        else:
            with planted():
                yield derivatives.outcome(case)


LONG = (
    *("dampening dropped", "a state transposed", "rows of one entry not projected"),
    *("one row turned by 1 % more", "one row turned backwards", "one row carried 1 % too long"),
    *("the bias correction off by one", "eps inside the root", "an early overflow"),
    *("one row lost on a long move", "a scale of 0 without a derivative"),
)
"""Faults that take a search of seconds to find."""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param(path, name, marks=[pytest.mark.long] * (name in LONG))
        for path, table in (("rule", faults.FAULTS), ("derivative", faults.OF_DERIVATIVES))
        for name in table
    ],
)
def test_a_planted_fault_is_found(path, name):
    planted = (faults.FAULTS | faults.OF_DERIVATIVES)[name]
    found = (each for each in of_fault(*planted, path, 500) if "raises" not in each.detail)
    assert any(each.kind == "different" for each in found)


@pytest.mark.parametrize(("path", "most"), [("rule", 60), ("derivative", 10)])
def test_adam_written_anew_is_no_fault(path, most):
    """The control: what is found is the fault, not the way in which it is planted."""
    found = list(of_fault(*faults.CONTROL, path, most))
    assert found
    assert all(each.kind != "different" for each in found)
