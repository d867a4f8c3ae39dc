"""The comparison of a path with the rule's own code, before it steps anything."""

import functools

import pytest
import torch

from spherenorm import recipes
from spherenorm.compile._check import TOLERANCE, difference

CPU = torch.device("cpu")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
WHOLE = {name: getattr(recipes, name)(lr=0.1) for name in ("adamp", "sgdp", "sgdg", "adamg")}


def off_by(rule, shape, dtype, entry, factor):
    """The verdict on a step one of whose results is scaled."""

    def run(weight, grad, state):
        moved, new = rule.step(weight, grad, state)
        weight.copy_(moved if entry != "weight" else weight + factor * (moved - weight))
        state.update({n: value * (factor if n == entry else 1) for n, value in new.items()})

    return difference(rule, run, shape, dtype, CPU)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shape", [(3, 2), (2,), (), (0, 3), (3, 2, 2, 2)], ids=str)
def test_the_same_step_is_the_same(name, shape, dtype):
    assert off_by(WHOLE[name], shape, dtype, None, 1) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entry", ["exp_avg", "exp_avg_sq", "step"])
def test_a_state_that_is_off_by_a_tenth_is_found(entry, dtype):
    """In half precision too, whose states are float32."""
    said = off_by(WHOLE["adamp"], (3, 2), dtype, entry, 1.1)
    assert said.startswith(f"the state '{entry}' is off by ")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_a_weight_that_is_off_by_a_hundredth_of_its_way_is_found(name, dtype):
    """In half precision by its whole way."""
    off = 1.01 if dtype in DTYPES[:2] else 2.0
    said = off_by(WHOLE[name], (3, 2), dtype, "weight", off)
    assert said.startswith("the weight is off by ")


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("shape", [(2,), (5, 1)], ids=str)
def test_what_cancels_out_may_differ_by_roundings(shape, dtype):
    """A unit of one entry has no tangential part but roundings of its gradient."""
    rule = WHOLE["sgdg"]

    def run(weight, grad, state):
        moved, new = rule.step(weight, grad, state)
        weight.copy_(moved)
        noise = 0.5 * torch.finfo(dtype).eps
        state.update({n: value + noise for n, value in new.items()})

    assert difference(rule, run, shape, dtype, CPU) is None


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("alpha", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(5, 1), (1, 1)], ids=str)
def test_units_that_cannot_move_are_compared_up_to_rounding(shape, alpha, dtype):
    """Their tangential part is rounding, which AdamG divides by the root of eps."""
    rule = recipes.adamg(lr=0.05, alpha=alpha)
    generator = torch.Generator().manual_seed(1)

    def rounded(x):
        sign = torch.randint(-1, 2, x.shape, generator=generator)
        return x + sign * x.abs() * torch.finfo(dtype).eps

    def run(weight, grad, state):
        moved, new = rule.step(rounded(weight), rounded(grad), state)
        weight.copy_(moved)
        state.update(new)

    assert difference(rule, run, shape, dtype, CPU) is None


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("name", ["sgdp", "sgdg", "adamg"])
def test_a_small_fault_is_no_rounding(name, dtype):
    entry = WHOLE[name].state_names[0]
    said = off_by(WHOLE[name], (3, 2), dtype, entry, 1 + 100 * TOLERANCE[dtype])
    assert said.startswith(f"the state '{entry}' is off by ")


def test_a_path_that_takes_a_weights_memory_as_it_is_is_found():
    """That of a negative view holds the other sign."""
    rule = WHOLE["sgdp"]

    def run(weight, grad, state, resolved):
        held = torch._neg_view(weight) if weight.is_neg() and not resolved else weight
        moved, new = rule.step(held, grad, state)
        weight.copy_(moved)
        state.update(new)

    for resolved in (True, False):
        said = difference(
            rule, functools.partial(run, resolved=resolved), (3, 2), torch.float64, CPU, True
        )
        assert (said is None) is resolved
