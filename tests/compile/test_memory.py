"""Weights, gradients and states that lie in each other's memory, or keep their negative there."""

from __future__ import annotations

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.compile.test_paths import Products

BACKENDS = ("auto", "rule", "compiled")
LR, DECAY, MOMENTUM = 0.25, 0.5, 0.5


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sgdw(weights, backend, **options):
    settings = {"lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM}
    return optim.SGDW(weights, backend=backend, **{**settings, **options})


def moved(weight, grad, momentum=0.0):
    """One step of SGDW by hand."""
    return weight - LR * (grad + MOMENTUM * momentum) - LR * DECAY * weight


def gradient_of_data(x, y):
    y.grad = x.data.view(y.shape)


def gradient_by_backward(x, y):
    y.view(-1).backward(x.detach().view(-1))


def gradient_by_autograd(x, y):
    (y.grad,) = torch.autograd.grad(y + 0, y, grad_outputs=x.detach().view(y.shape))


def part_of_another(x, y):
    """All but its first entry lies in the other weight."""
    memory = torch.cat([randn(1, seed=7), x.detach().view(-1)])
    x.data = memory[1:].view(x.shape)
    y.grad = memory[:-1].view(y.shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "share", [gradient_of_data, gradient_by_backward, gradient_by_autograd, part_of_another]
)
def test_a_gradient_in_another_weights_memory_is_read_before_that_moves(share, backend):
    x, y = (randn(4, 3, seed=seed).requires_grad_() for seed in (0, 1))
    x.grad = randn(4, 3, seed=2)
    share(x, y)
    expected = [moved(w.detach(), w.grad.clone()) for w in (x, y)]
    sgdw([x, y], backend).step()
    torch.testing.assert_close([x.detach(), y.detach()], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_in_a_states_memory_is_read_before_that_changes(backend):
    weights = [randn(4, 3, seed=seed).requires_grad_() for seed in (0, 1)]
    optimizer = sgdw(weights, backend)
    for weight in weights:
        weight.grad = randn(4, 3, seed=2)
    optimizer.step()
    states = [optimizer.state[weight]["momentum_buffer"] for weight in weights]
    weights[1].grad = states[0]
    expected = [
        moved(weight.detach(), weight.grad.clone(), state)
        for weight, state in zip(weights, states, strict=True)
    ]
    optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", [0, 3])
def test_a_state_in_other_memory_gets_its_own(start, backend):
    """In the memory of another weight, of its own gradient, and of another weight's state."""
    weights = [randn(4, 3, seed=seed).requires_grad_() for seed in range(3)]
    optimizer = sgdw(weights, backend)
    for weight in weights:
        weight.grad = randn(4, 3, seed=5)
    optimizer.step()
    memory = randn(18, seed=6)
    weights[0].data = memory[:12].view(4, 3)
    states = [memory[start : start + 12].view(4, 3), weights[1].grad, memory[6:].view(4, 3)]
    for weight, state in zip(weights, states, strict=True):
        optimizer.state[weight]["momentum_buffer"] = state
    wanted = [MOMENTUM * state + weight.grad for weight, state in zip(weights, states, strict=True)]
    expected = [
        moved(weight.detach(), weight.grad, state.clone())
        for weight, state in zip(weights, states, strict=True)
    ]
    optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=0, atol=1e-15)
    for weight, state in zip(weights, wanted, strict=True):
        torch.testing.assert_close(
            optimizer.state[weight]["momentum_buffer"], state, rtol=0, atol=1e-15
        )


def overlapping():
    memory = randn(25)
    weights = [torch.nn.Parameter(memory[0:10]), torch.nn.Parameter(memory[5:25])]
    for seed, weight in enumerate(weights, 1):
        weight.grad = randn(len(weight), seed=seed)
    return memory, weights


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_weights_that_overlap_step_one_after_the_other(backend):
    memory, weights = overlapping()
    expected = memory.clone()
    for part, weight in ((slice(0, 10), weights[0]), (slice(5, 25), weights[1])):
        expected[part] = moved(expected[part].clone(), weight.grad)
    optimizer = sgdw(weights, backend)
    reason = "its memory overlaps another weight's"
    if backend != "rule":
        assert [line.reason for line in sn.explain(optimizer)] == [reason] * 2
    optimizer.step()
    torch.testing.assert_close(memory, expected, rtol=0, atol=1e-15)


def test_weights_that_overlap_are_no_job_for_a_kernel():
    memory, weights = overlapping()
    before = memory.clone()
    optimizer = sgdw(weights, "compiled")
    assert [line.path for line in sn.explain(optimizer)] == ["error"] * 2
    with pytest.raises(sn.BackendError, match="its memory overlaps another weight's"):
        optimizer.step()
    assert torch.equal(memory, before)


def test_weights_side_by_side_in_one_memory_do_not_overlap():
    memory = randn(25)
    weights = [torch.nn.Parameter(memory[:12].view(4, 3)), torch.nn.Parameter(memory[12:])]
    assert [line.path for line in sn.explain(sgdw(weights, "auto"))] == ["C++ kernel"] * 2


def of_products(lr=LR, momentum=MOMENTUM):
    """Only Inductor compiles it."""
    return sn.chain(Products(), r.HeavyBall(momentum), r.StepSize(lr))


@pytest.mark.parametrize("what", ["weight", "gradient", "state", "conjugate"])
def test_what_memory_holds_as_its_negative_goes_to_inductor_as_it_is(what):
    start, grads = randn(5, 4), [randn(5, 4, seed=seed) for seed in (1, 2)]
    rule = of_products()
    expected, state = start.clone(), rule.init(start)
    for grad in grads:
        expected, state = rule.step(expected, grad, state)
    weight = start.clone().requires_grad_()
    if what == "weight":
        weight = torch._neg_view(-start).requires_grad_()
    optimizer = sn.torch_optimizer(of_products, "OfProducts")([weight], backend="compiled")
    for grad in grads:
        weight.grad = grad
        if what == "gradient":
            weight.grad = torch._neg_view(-grad)
        elif what == "conjugate":
            weight.grad = torch.complex(grad, -grad).conj().imag
        elif what == "state" and optimizer.state:
            buffer = optimizer.state[weight]["momentum"]
            optimizer.state[weight]["momentum"] = torch._neg_view(-buffer)
        optimizer.step()
    assert [line.path for line in sn.explain(optimizer)] == ["Inductor"]
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
