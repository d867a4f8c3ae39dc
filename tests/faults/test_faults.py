"""The planted faults fit the code; `python -m tests.faults` runs them."""

import shutil

import pytest

from tests.faults import ROOT, read_faults

FAULTS = read_faults()


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """A copy of the code."""
    folder = tmp_path_factory.mktemp("code")
    for name in ("spherenorm", "experiments"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code_and_its_tests_exist(fault, code):
    files = {path: path.read_text() for path in code.joinpath(fault.place).rglob("*.py")}
    files |= {path: path.read_text() for path in [code / fault.place] if path.is_file()}
    fault.plant(code)
    for path, text in files.items():
        path.write_text(text)
    assert fault.tests


def test_the_names_tell_the_faults_apart():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 120
