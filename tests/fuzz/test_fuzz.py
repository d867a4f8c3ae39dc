"""A few hundred random cases, and planted faults; `python -m tests.fuzz` runs thousands."""

import pytest
import torch.distributed as dist

from tests.fuzz import derivatives
from tests.fuzz.cases import draw_case
from tests.fuzz.faults import FAULTS, OF_DERIVATIVES, planted
from tests.fuzz.outcome import outcome, outcomes
from tests.fuzz.paths import run

FUSED = {"compiled", "dtensor"}
"""Paths that fuse operations or split them, so that rounding of operations may be seen there."""
CASES = {"auto": 60, "rule": 40, "sweep": 16, "compiled": 40, "dtensor": 8, "derivative": 8}


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_our_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPHERENORM_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.mark.parametrize("path", CASES)
def test_a_path_steps_as_the_rule_does(path):
    if path == "dtensor" and not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    faults = {"different"} if path in FUSED else {"different", "of operations"}
    different = [
        found.line(seed=0)
        for found in outcomes(path, 0, range(CASES[path]))
        if found.kind in faults
    ]
    assert not different, "\n".join(different)


LONG = (
    "a state transposed",
    "rows of one entry not projected",
    "a power without a second derivative at 0",
    "one row turned backwards",
    "one row lost on a long move",
    "one row turned by 1 % more",
    "dampening dropped",
    "an early overflow",
    "beta2 for beta1",
    "the bias correction off by one",
    "eps inside the root",
    "decay twice",
    "a scale of 0 without a derivative",
)
"""Faults that take a search of seconds to find."""


def test_a_number_that_moves_in_steps_is_no_fault_of_derivatives():
    """The case has a beta of 1e-12, of which 1 - beta keeps four digits."""
    assert derivatives.outcome(draw_case("derivative", 6, 49)).kind != "different"


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in FAULTS]
)
def test_a_planted_fault_is_found(fault):
    def faulty(case, gradients):
        with planted(fault):
            return run("rule", case, gradients)

    for number in range(500):
        case = draw_case("rule", 0, number)
        found = outcome("rule", case, faulty)
        if found.kind == "different" and not found.detail.startswith("the rule's own code"):
            return
    pytest.fail(f"{number + 1} cases do not find it")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in OF_DERIVATIVES],
)
def test_a_planted_fault_of_derivatives_is_found(fault):
    for number in range(100):
        with planted(fault):
            found = derivatives.outcome(draw_case("derivative", 0, number))
        if found.kind == "different" and "raises" not in found.detail:
            return
    pytest.fail(f"{number + 1} cases do not find it")
