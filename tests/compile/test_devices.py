"""Every recipe on a second device: the CPU's numbers, no wait, states beside weights.

Also what a batch of weights on a device keeps there, and for how long.
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import spherenorm as sn
from spherenorm.compile import batched, run
from tests.harness.recipes import EVERY_RECIPE

ROOT = Path(__file__).parents[2]


ALWAYS = ("sgdp", "adamp", "muon", "soap", "prodigy", "schedulefree_adamw", "hyperball(adam)")
"""One recipe of each kind of step; the others take minutes, and are long tests."""
OTHERS = tuple(recipe for recipe in EVERY_RECIPE if recipe not in ALWAYS)


def differences_of(recipes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return sentences on what differs from the CPU, by recipe and case."""
    command = [sys.executable, "-m", "tests.harness.simulated_device", *recipes]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def differences() -> dict[str, dict[str, str]]:
    return differences_of(ALWAYS)


@pytest.fixture(scope="module")
def other_differences() -> dict[str, dict[str, str]]:
    return differences_of(OTHERS)


COMPILER = pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja")), reason="the device has to be compiled"
)


@COMPILER
@pytest.mark.parametrize("recipe", [*ALWAYS, "sweep"])
def test_a_step_on_a_device_is_that_on_the_cpu(recipe, differences):
    assert differences[recipe]
    assert not {case: words for case, words in differences[recipe].items() if words}


@COMPILER
@pytest.mark.long
@pytest.mark.parametrize("recipe", OTHERS)
def test_a_step_of_any_other_recipe_on_a_device_is_that_on_the_cpu(recipe, other_differences):
    assert other_differences[recipe]
    assert not {case: words for case, words in other_differences[recipe].items() if words}


@pytest.fixture
def batches(choose, monkeypatch):
    """Weak references to the batches that are made, with the batched executor on the CPU."""
    choose("batched")
    made = []
    right = batched.WeightBatch.__init__

    def noted(self, *arguments):
        right(self, *arguments)
        made.append(weakref.ref(self))

    monkeypatch.setattr(batched.WeightBatch, "__init__", noted)
    return made


def weights_of(count):
    weights = [torch.nn.Parameter(torch.randn(300 + i, 40)) for i in range(count)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights


def test_an_elementwise_step_keeps_no_vector_of_entries(batches):
    """Index vectors of all entries took 16 bytes a weight, beside 4 of the weight itself."""
    weights = weights_of(2)
    for recipe, bytes_per_entry in {"lion": 0, "adamw": 4, "adamp": 8}.items():
        optimizer = sn.torch_optimizer(recipe)(weights, lr=0.1)
        optimizer.step()
        batch = batches[-1]()
        assert batch.sizes == [12000, 12040]
        assert batch.index_bytes <= bytes_per_entry * 24040 + 4 * 601


def test_weights_that_have_gradients_again_take_up_their_batch(batches):
    weights = weights_of(3)
    optimizer = sn.optim.AdamP(weights, lr=0.1)
    grads = [w.grad for w in weights]
    twins = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    own_code = sn.optim.AdamP(twins, lr=0.1, backend="rule")
    missing_at = [None, 0, 1, None, 0, 1, None]
    n_made = []
    for missing in missing_at:
        for i, (weight, twin) in enumerate(zip(weights, twins, strict=True)):
            weight.grad = twin.grad = None if i == missing else grads[i]
        optimizer.step()
        own_code.step()
        n_made.append(len(batches))
    assert n_made[2] == n_made[-1] > n_made[1] > n_made[0]
    for weight, twin in zip(weights, twins, strict=True):
        torch.testing.assert_close(weight, twin, rtol=1e-5, atol=1e-6)
    assert len({row.path for row in sn.explain(optimizer)}) == 1


def test_an_optimizer_keeps_few_batches(batches, monkeypatch):
    monkeypatch.setattr(run, "MAX_KEPT_BATCHES", 2)
    weights = weights_of(4)
    optimizer = sn.optim.AdamW(weights, lr=0.1)
    grads = [w.grad for w in weights]
    for _ in range(2):
        for missing in range(4):
            for i, weight in enumerate(weights):
                weight.grad = None if i == missing else grads[i]
            optimizer.step()
    gc.collect()
    assert sum(batch() is not None for batch in batches) == 2
