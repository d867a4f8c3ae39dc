"""Matrices of one kind step as one stack, beside weights that take kernels, as each does alone."""

import pytest
import torch

import spherenorm as sn
from tests.harness import ROWS, gradient

MATRICES = [row for row in ROWS if row.fewest == 2]
ROUNDED = ("mdmuon", "muonsphere", "spel")
"""Recipes whose stacks differ from single matrices by rounding; all others equal bits.

The gains of `mdmuon` are sums over columns, which a stack adds in another order. Products of the
others are batched, and on some processors torch's library rounds these otherwise than single ones.
"""


def steps_of(optimizer, weights, count=4):
    for step in range(count):
        for i, weight in enumerate(weights):
            generator = torch.Generator().manual_seed(10 * step + i)
            drawn = gradient("random", weight.detach().double(), generator, step)
            weight.grad = drawn.to(weight.dtype)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()


def drawn(dtype, shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", MATRICES, ids=str)
def test_equal_matrices_step_as_each_alone(row, dtype):
    shapes = [(6, 4), (4, 6), (6, 4), (3, 2, 2, 2), (6, 4)]
    together, alone = drawn(dtype, shapes), drawn(dtype, shapes)
    one, other = row.optimizer(together), row.optimizer(alone, backend="rule")
    steps_of(one, together)
    steps_of(other, alone)
    off = torch.finfo(dtype).eps if str(row).startswith(ROUNDED) else 0
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=8 * off, atol=8 * off)
        for name, value in one.state[ours].items():
            expected = other.state[theirs][name]
            single = 8 * torch.finfo(value.dtype).eps * bool(off)
            torch.testing.assert_close(value, expected, rtol=single, atol=single)
            assert value.untyped_storage().nbytes() == value.nbytes  # a checkpoint of its own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_iteration_in_half_precision_does_not_hang_on_other_weights(dtype):
    """It rounds a product and a sum at once, which a stack does not: each steps alone."""
    together, alone = drawn(dtype, [(16, 12)] * 3), drawn(dtype, [(16, 12)] * 3)
    for weights, backend in ((together, "auto"), (alone, "rule")):
        optimizer = sn.optim.Muon(weights, lr=0.02, precision="bfloat16", backend=backend)
        steps_of(optimizer, weights)
    assert all(map(torch.equal, together, alone))


def test_groups_of_kernels_and_of_matrices_follow_what_changes_between_steps():
    """A plan that lasts: rates change at each step, then a state, a gradient's memory, a group."""
    shapes = [(6, 4), (6, 4), (5,), (7, 3)]

    def made(backend):
        weights = drawn(torch.float32, shapes)
        groups = [{"params": weights[:2], "recipe": "muon"}, {"params": weights[2:]}]
        return sn.optim.AdamW(groups, lr=0.01, backend=backend), weights

    (fast, ours), (own, theirs) = made("auto"), made("rule")
    for optimizer, weights in ((fast, ours), (own, theirs)):
        steps_of(optimizer, weights)
        optimizer.state[weights[0]]["momentum_buffer"] = torch.ones(6, 4)
        optimizer.state[weights[2]]["exp_avg"].mul_(2)
        steps_of(optimizer, weights)
        optimizer.param_groups[0]["nesterov"] = False
        weights[1].grad = None
        optimizer.step()
        steps_of(optimizer, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, ours[:2], theirs[:2]))
