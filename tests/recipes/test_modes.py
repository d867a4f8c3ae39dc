"""A step is a function of its arguments: a mode around it changes no bit of its numbers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

import spherenorm as sn
from tests.harness.recipes import EVERY_RECIPE, draw_gradients, make_optimizer, snapshot
from tests.harness.tables import mostly_long

STEPS = 4

Mode = Callable[[], AbstractContextManager[object]]


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def anomaly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.autograd.set_detect_anomaly(True):
            yield


MODES: dict[str, Mode] = {
    "autocast bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", torch.float16),
    "default dtype": default_dtype,
    "default device": default_device,
    "deterministic": deterministic,
    "inference": torch.inference_mode,
    "anomaly": anomaly,
}


def trained(recipe: str, backend: str, mode: Mode) -> dict[str, Tensor]:
    """The weights and states after steps of which the first and the third are inside the mode."""
    weights, optimizer = make_optimizer(recipe, backend=backend)
    for step in range(STEPS):
        draw_gradients(weights, step)
        with mode() if step % 2 == 0 else nullcontext():
            optimizer.step()
    return snapshot(weights, optimizer)


def assert_equal_bits(actual: dict[str, Tensor], reference: dict[str, Tensor], what: str) -> None:
    assert actual.keys() == reference.keys()
    for name, value in reference.items():
        assert actual[name].dtype is value.dtype, f"{what}: {name}"
        assert torch.equal(actual[name], value), f"{what}: {name}"


@pytest.mark.filterwarnings("ignore:optimizers step by")
@pytest.mark.parametrize("backend", ["rule", "auto"])
@pytest.mark.parametrize("recipe", mostly_long(EVERY_RECIPE, kept=14))
def test_a_step_inside_a_mode_is_the_step_outside(recipe, backend):
    outside = trained(recipe, backend, nullcontext)
    for name, mode in MODES.items():
        assert_equal_bits(trained(recipe, backend, mode), outside, name)


@functools.cache
def start(recipe: str) -> dict[str, Tensor]:
    weights, _ = make_optimizer(recipe)
    return {str(i): w.detach() for i, w in enumerate(weights)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", mostly_long(EVERY_RECIPE, kept=14))
def test_the_pure_forms_inside_autocast_are_those_outside(recipe, dtype):
    rule, params = sn.find_recipe(recipe)(), start(recipe)
    grads = {name: torch.randn(w.shape, generator=torch.Generator().manual_seed(3))
             for name, w in params.items()}  # fmt: skip

    def run() -> dict[str, Tensor]:
        state = sn.functional.init(rule, params)
        new_params, state = sn.functional.step(rule, params, grads, state)
        new_params, state = sn.functional.step(rule, new_params, grads, state)
        evaluated = {f"read {n}": rule.eval_weight(w, state[n]) for n, w in new_params.items()}
        return (
            new_params | evaluated | {f"{n} {k}": x for n, s in state.items() for k, x in s.items()}
        )

    outside = run()
    with torch.autocast("cpu", dtype):
        assert_equal_bits(run(), outside, str(dtype))


def transformed(kind: str, rule: sn.Rule) -> Callable[..., Tensor]:
    """The weight after a step, of a weight and a gradient, by a transform of torch."""

    def step(weight: Tensor, grad: Tensor) -> Tensor:
        return rule.step(weight, grad, rule.init(weight))[0]

    if kind == "compile":
        return torch.compile(step, fullgraph=True, backend="eager")  # type: ignore[no-any-return]
    return torch.vmap(step)


@pytest.mark.parametrize("kind", [pytest.param("compile", marks=pytest.mark.long), "vmap"])
@pytest.mark.parametrize("recipe", ["adamw", "muon"])
def test_a_transformed_step_inside_autocast_is_that_outside(kind, recipe):
    step = transformed(kind, sn.find_recipe(recipe)())
    weight, grad = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    outside = step(weight, grad)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(step(weight, grad), outside)


@pytest.mark.parametrize("steps", [2, 9])
def test_a_sweep_inside_autocast_casts_the_loss_and_not_the_step(steps):
    """With 9 steps it is traced, and replayed inside autocast."""
    params, data = {"w": torch.randn(1, 6, 5)}, torch.randn(5, 5)

    def loss(params: dict[str, Tensor]) -> Tensor:
        return (params["w"] @ data).float().square().mean()

    def loss_in_autocast(params: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(params)

    def sweep(loss: Callable[..., Tensor]) -> Tensor:
        return sn.functional.sweep("muon", loss, params, {"lr": [0.1, 0.2]}, steps=steps).params[
            "w"
        ]

    expected = sweep(loss_in_autocast)
    assert not torch.equal(expected, sweep(loss))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sweep(loss), expected)
