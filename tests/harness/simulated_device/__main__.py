"""Step every recipe on devices that are not there, and print a JSON object of what differs.

    python -m tests.harness.simulated_device [RECIPE ...]

For each recipe, an object of cases: "" if the steps gave the CPU's numbers within rounding and no
operation waited for the device, or a sentence. A case has two groups, a schedule, gradients that
are missing at some steps, and a checkpoint that goes to the CPU and back.
"""

from __future__ import annotations

import functools
import io
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.lr_scheduler import LambdaLR

import spherenorm as sn
from benchmarks.launches import Launches, count_launches
from spherenorm.compile import BATCHED_DEVICES
from spherenorm.numerics import _computes_in_float64
from spherenorm.record import Unsupported
from tests.harness import simulated_device
from tests.harness.recipes import (
    EVERY_RECIPE,
    accepted_shapes,
    draw_gradients,
    make_optimizer,
    optimizer_of,
    snapshot,
)

DEVICES = {
    "one device": ["sim:0"],
    "another index": ["sim:1"],
    "two devices": ["sim:0", "sim:1"],
    "device and CPU": ["sim:0", "cpu"],
    "CPU and device": ["cpu", "sim:0"],
}
RATES = {"a rate on another device": "sim:1", "a rate on the CPU": "cpu"}
CASES = (*DEVICES, "batched", "batched on two devices", *RATES, "no float64")
FAKE_DEVICES = {
    "fake cuda:0": ["cuda:0"],
    "fake cuda:1": ["cuda:1"],
    "fake cuda:0 and cuda:1": ["cuda:0", "cuda:1"],
    "fake CPU and cuda:1": ["cpu", "cuda:1"],
}
READS_CONDITIONS = ("soap", "shampoo")
"""Recipes that do work every k steps, for which the host reads a counter on the device."""
SUMS_OVER_WEIGHTS = ("prodigy", "dadapt_sgd")
"""Recipes whose sums cross from device to device."""

N_STEPS, SAVED_AFTER, COUNTED_FROM = 6, 1, 4
"""Steps in all; the step that a checkpoint follows; the first step that must not wait, since what
happens in it has happened before: the first weight has no gradient at odd steps."""


def trained(recipe: str, devices: Sequence[str], rate: Any = None) -> dict[str, Tensor]:
    """Return weights and states after the steps; count what waits in the last ones."""
    options = {} if rate is None else {"lr": rate}
    weights, optimizer = make_optimizer(recipe, devices, n_groups=2, **options)
    schedule = None if rate is not None else LambdaLR(optimizer, lambda step: 1 / (1 + step))
    waits.clear()
    for step in range(N_STEPS):
        draw_gradients(weights, step)
        if step % 2:
            weights[0].grad = None
        extension.reset_waits()
        optimizer.step()
        if step >= COUNTED_FROM:
            waits.update(extension.waits())
        if schedule is not None:
            schedule.step()
        if step == SAVED_AFTER:
            saved = on_cpu([optimizer.state_dict(), schedule and schedule.state_dict()])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                optimizer = optimizer_of(recipe, weights, n_groups=2, **options)
            if schedule is not None:
                schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
                schedule.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[0])
    for weight in weights:
        for name, value in optimizer.state[weight].items():
            assert value.device == weight.device, f"state {name!r} is on {value.device}"
    return snapshot(weights, optimizer)


def on_cpu(objects: Any) -> Any:
    """Return what a checkpoint holds that was loaded on a machine without the device."""
    file = io.BytesIO()
    torch.save(objects, file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


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


@functools.cache
def expected_of(recipe: str, has_schedule: bool) -> dict[str, Tensor]:
    return trained(recipe, ["cpu"], None if has_schedule else 0.01)


def described(recipe: str, case: str) -> str:
    """Run a case; return what is wrong."""
    expected = expected_of(recipe, case not in RATES)
    tolerance = 1e-4 if case == "no float64" else 1e-5  # sums over weights are float32 then
    set_float64(case != "no float64")
    devices, rate = DEVICES.get(case, ["sim:0"]), None
    if "batched" in case:
        BATCHED_DEVICES.add("sim")
    if case == "batched on two devices":
        devices = ["sim:0", "sim:1"]
    try:
        if case in RATES:
            rate = torch.tensor(0.01, dtype=torch.float64, device=RATES[case])
        ours = trained(recipe, devices, rate)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        set_float64(True)
        BATCHED_DEVICES.discard("sim")
    crosses = "cpu" in devices and recipe in SUMS_OVER_WEIGHTS
    if waits and recipe not in READS_CONDITIONS and not crosses:
        return f"waits: {dict(waits)}"
    return difference(ours, expected, tolerance)


def described_fake(recipe: str, devices: Sequence[str]) -> str:
    """Step by the rule's own code on fake tensors, which have devices and no numbers."""
    launches = Launches()
    try:
        with FakeTensorMode(), torch.no_grad():
            rule = sn.find_recipe(recipe)()
            params = {
                str(i): torch.empty(shape, device=devices[i % len(devices)])
                for i, shape in enumerate(accepted_shapes(recipe))
            }
            grads = {name: torch.empty_like(w) for name, w in params.items()}
            states = sn.functional.init(rule, params)
            with launches:
                new_params, states = sn.functional.step(rule, params, grads, states)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, weight in params.items():
        for what, x in {"weight": new_params[name], **states[name]}.items():
            if x.device != weight.device:
                return f"{what} {name} is on {x.device}, not on {weight.device}"
    crosses = len(devices) > 1 and recipe in SUMS_OVER_WEIGHTS
    return f"waits: {launches.waits}" if launches.waits and not crosses else ""


def described_fake_batch(recipe: str) -> str:
    """Step batched on fake tensors, if the recipe has such a step."""
    try:
        launches = count_launches(recipe, accepted_shapes(recipe))
    except Unsupported:
        return ""
    return f"waits: {launches.waits}" if launches.waits else ""


def described_sweeps() -> dict[str, str]:
    """Sweep with the rates as a list, and as tensors on the CPU and on the device."""
    results, here = {}, {"w": torch.ones(2)}

    def swept(start: dict[str, Tensor], rates: Any, steps: int) -> dict[str, Tensor]:
        return sn.functional.sweep(
            "adamw", lambda p: (p["w"] ** 2).sum(), start, {"lr": rates}, steps=steps,
            schedule=lambda t: 1 / (1 + t),
        ).params  # fmt: skip

    rates = [0.1, 0.2, 0.3]
    for steps in (2, 9):
        expected = swept(here, rates, steps)
        for kind in ("list", "cpu", "sim:1"):
            given = rates if kind == "list" else torch.tensor(rates, device=kind)
            ours = swept({name: w.to("sim:1") for name, w in here.items()}, given, steps)
            results[f"{steps} steps, rates: {kind}"] = difference(ours, expected, 1e-5)
    return results


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    recipes = sys.argv[1:] or EVERY_RECIPE
    # Before the device is loaded, whose guard for "cuda" lets torch look for CUDA's kernels.
    sentences = {name: {"fake batched": described_fake_batch(name)} for name in recipes}
    extension = simulated_device.load()
    waits = Counter[str]()
    for name in recipes:
        sentences[name] |= {case: described(name, case) for case in CASES}
        for case, devices in FAKE_DEVICES.items():
            sentences[name][case] = described_fake(name, devices)
    sentences["sweep"] = described_sweeps()
    print(json.dumps(sentences))
