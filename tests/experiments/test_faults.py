"""The planted faults fit the code; `python -m tests.experiments.faults` runs them."""

from pathlib import Path

import pytest

from tests.experiments.planted import FAULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code_and_its_tests_exist(fault):
    for file, old, new in fault.edits:
        assert (ROOT / file).read_text().count(old) == 1
        assert old != new
    for test in fault.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name}(" in text


def test_the_names_tell_the_faults_apart():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25
