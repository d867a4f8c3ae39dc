"""Step every recipe on the simulated device, and print a JSON object of what differs.

    python -m tests.harness.simulated_device

For each recipe, an object of cases: "" if five steps gave the CPU's numbers within rounding and no
operation waited for the device, or a sentence.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import spherenorm as sn
from spherenorm.compile import BATCHED_DEVICES
from spherenorm.numerics import _computes_in_float64
from tests.harness import simulated_device
from tests.harness.recipes import EVERY_RECIPE, draw_gradients, make_optimizer, snapshot

DEVICES = {
    "one device": ["sim:0"],
    "another index": ["sim:1"],
    "two devices": ["sim:0", "sim:1"],
    "device and CPU": ["sim:0", "cpu"],
    "CPU and device": ["cpu", "sim:0"],
}
READS_CONDITIONS = ("soap", "shampoo")
"""Recipes that do work every k steps, for which the host reads a counter on the device."""


def trained(recipe: str, devices: Sequence[str], rate: Any = 0.01) -> dict[str, Tensor]:
    weights, optimizer = make_optimizer(recipe, devices, lr=rate)
    for step in range(5):
        draw_gradients(weights, step)
        if step == 1:
            weights[0].grad = None
        extension.reset_waits()
        optimizer.step()
    for weight in weights:
        for name, value in optimizer.state[weight].items():
            assert value.device == weight.device, f"state {name!r} is on {value.device}"
    return snapshot(weights, optimizer)


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> str:
    """Return the first tensor that differs by more than `tolerance` of its largest entry."""
    for name, expected in theirs.items():
        if not expected.numel():
            continue
        error = (ours[name].cpu().double() - expected.double()).abs().max().item()
        if not error <= tolerance * max(expected.abs().max().item(), 1e-6):
            return f"{name} differs by {error:.1e}"
    return ""


def set_float64(supported: bool) -> None:
    extension.set_float64(supported)
    _computes_in_float64.cache_clear()


def described(recipe: str, case: str) -> str:
    """Run a case; return what is wrong."""
    expected = trained(recipe, ["cpu"])
    tolerance = 1e-4 if case == "no float64" else 1e-5  # sums over weights are float32 then
    set_float64(case != "no float64")
    if case == "batched":
        BATCHED_DEVICES.add("sim")
    try:
        devices, rate = DEVICES.get(case, ["sim:0"]), 0.01
        if case == "a rate on another device":
            rate = torch.tensor(0.01, dtype=torch.float64, device="sim:1")
        if case == "a rate on the CPU":
            rate = torch.tensor(0.01, dtype=torch.float64)
        ours = trained(recipe, devices, rate)
        waits = extension.waits()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        set_float64(True)
        BATCHED_DEVICES.discard("sim")
    mixed = "CPU" in case and "rate" not in case  # a sum over weights crosses, and waits
    if waits and recipe not in READS_CONDITIONS and not mixed:
        return f"waits: {waits}"
    return difference(ours, expected, tolerance)


CASES = (
    *DEVICES, "batched", "a rate on another device", "a rate on the CPU", "no float64"
)  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    extension = simulated_device.load()
    names = sys.argv[1:] or EVERY_RECIPE
    found = {name: {case: described(name, case) for case in CASES} for name in names}
    params, rates = {"w": torch.ones(2, device="sim:1")}, {"lr": [0.1, 0.2, 0.3]}
    for steps in (2, 9):
        here = {n: w.cpu() for n, w in params.items()}
        results = [
            sn.functional.sweep(
                "adamw", lambda p: (p["w"] ** 2).sum(), start, rates, steps=steps,
                schedule=lambda t: 1 / (1 + t),
            ).params
            for start in (params, here)
        ]  # fmt: skip
        found.setdefault("sweep", {})[f"{steps} steps"] = difference(*results, 1e-5)
    print(json.dumps(found))
