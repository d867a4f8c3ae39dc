"""Every recipe on a second device: the CPU's numbers, no wait, states beside weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.recipes import EVERY_RECIPE

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja")), reason="the device has to be compiled"
)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, str]]:
    """Sentences on what differs from the CPU, by recipe and case (see `simulated_device`)."""
    command = [sys.executable, "-m", "tests.harness.simulated_device"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("recipe", [*EVERY_RECIPE, "sweep"])
def test_a_step_on_a_device_is_that_on_the_cpu(recipe, found):
    assert found[recipe]
    assert not {case: said for case, said in found[recipe].items() if said}
