"""Weights, gradients and states that lie in each other's memory step as if each had its own."""

from __future__ import annotations

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from tests.compile.twins import drawn, paths
from tests.harness import refuses

BACKENDS = pytest.mark.parametrize("backend", ["auto", "rule"])
LR, DECAY, MOMENTUM = 0.25, 0.5, 0.5


def sgdw(weights, backend):
    return optim.SGDW(weights, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, backend=backend)


def moved(weight, grad, momentum=0.0):
    """One step of SGDW by hand."""
    return weight - LR * (grad + MOMENTUM * momentum) - LR * DECAY * weight


def gradient_of_data(x, y):
    y.grad = x.data.view(y.shape)


def gradient_by_autograd(x, y):
    (y.grad,) = torch.autograd.grad(y + 0, y, grad_outputs=x.detach().view(y.shape))


def part_of_another(x, y):
    """All but its first entry lies in the other weight."""
    memory = torch.cat([torch.ones(1, dtype=x.dtype), x.detach().view(-1)])
    x.data = memory[1:].view(x.shape)
    y.grad = memory[:-1].view(y.shape)


def two_weights():
    weights = [w.requires_grad_() for w in drawn([(4, 3)] * 2)]
    for weight, grad in zip(weights, drawn([(4, 3)] * 2, seed=1), strict=True):
        weight.grad = grad
    return weights


@BACKENDS
@pytest.mark.parametrize("share", [gradient_of_data, gradient_by_autograd, part_of_another])
def test_a_gradient_in_another_weights_memory_is_read_before_that_moves(share, backend):
    x, y = two_weights()
    share(x, y)
    expected = [moved(w.detach(), w.grad.clone()) for w in (x, y)]
    sgdw([x, y], backend).step()
    torch.testing.assert_close([x.detach(), y.detach()], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("share", [gradient_of_data, part_of_another])
def test_memory_that_overlaps_is_no_job_for_an_executor(share):
    x, y = two_weights()
    share(x, y)
    before = [w.detach().clone() for w in (x, y)]
    optimizer = sgdw([x, y], "compiled")
    assert paths(optimizer) == {"error"}
    with refuses("memory", "overlaps", by=sn.BackendError):
        optimizer.step()
    assert all(map(torch.equal, (x, y), before))


@BACKENDS
def test_a_gradient_in_a_states_memory_is_read_before_that_changes(backend):
    weights = two_weights()
    optimizer = sgdw(weights, backend)
    for _ in range(2):  # at the second step a plan holds
        optimizer.step()
    states = [optimizer.state[weight]["momentum_buffer"] for weight in weights]
    weights[1].grad = states[0]
    both = zip(weights, states, strict=True)
    expected = [moved(weight.detach(), weight.grad.clone(), state) for weight, state in both]
    optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=0, atol=1e-15)


@BACKENDS
@pytest.mark.parametrize("start", [0, 3])
def test_a_state_in_other_memory_gets_its_own(start, backend):
    """In the memory of another weight, of its own gradient, and of another weight's state."""
    weights = [w.requires_grad_() for w in drawn([(4, 3)] * 3)]
    optimizer = sgdw(weights, backend)
    for weight, grad in zip(weights, drawn([(4, 3)] * 3, seed=5), strict=True):
        weight.grad = grad
    optimizer.step()
    (memory,) = drawn([(18,)], seed=6)
    weights[0].data = memory[:12].view(4, 3)
    states = [memory[start : start + 12].view(4, 3), weights[1].grad, memory[6:].view(4, 3)]
    for weight, state in zip(weights, states, strict=True):
        optimizer.state[weight]["momentum_buffer"] = state
    both = list(zip(weights, states, strict=True))
    wanted = [MOMENTUM * state + weight.grad for weight, state in both]
    expected = [moved(weight.detach(), weight.grad, state.clone()) for weight, state in both]
    optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=0, atol=1e-15)
    found = [optimizer.state[weight]["momentum_buffer"] for weight in weights]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)


@BACKENDS
@pytest.mark.parametrize("groups", [1, 2])
def test_weights_that_share_a_state_step_each_from_the_old_one(groups, backend):
    weights = two_weights()
    optimizer = sgdw(weights if groups == 1 else [{"params": [w]} for w in weights], backend)
    optimizer.step()
    old = optimizer.state[weights[0]]["momentum_buffer"].clone()
    optimizer.state[weights[1]].update(optimizer.state[weights[0]])
    expected = [moved(w.detach(), w.grad, old) for w in weights]
    optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=0, atol=1e-15)


def overlapping():
    (memory,) = drawn([(25,)])
    weights = [torch.nn.Parameter(memory[0:10]), torch.nn.Parameter(memory[5:25])]
    for weight, grad in zip(weights, drawn([(10,), (20,)], seed=1), strict=True):
        weight.grad = grad
    return memory, weights


@BACKENDS
def test_weights_that_overlap_step_one_after_the_other(backend):
    memory, weights = overlapping()
    expected = memory.clone()
    for part, weight in ((slice(0, 10), weights[0]), (slice(5, 25), weights[1])):
        expected[part] = moved(expected[part].clone(), weight.grad)
    optimizer = sgdw(weights, backend)
    assert paths(optimizer) == {"rule"}
    optimizer.step()
    torch.testing.assert_close(memory, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("make", ["weight", "gradient", "state", "conjugate"])
def test_memory_that_holds_the_negative_is_read_as_what_it_means(make):
    start, grad = drawn([(5, 4)] * 2)
    weight = (torch._neg_view(-start) if make == "weight" else start.clone()).requires_grad_()
    optimizer = sgdw([weight], "auto")
    expected, momentum = start, torch.zeros_like(start)
    for _ in range(3):
        weight.grad = {
            "gradient": torch._neg_view(-grad),
            "conjugate": torch.complex(grad, -grad).conj().imag,
        }.get(make, grad)
        if make == "state" and optimizer.state:
            state = optimizer.state[weight]
            state["momentum_buffer"] = torch._neg_view(-state["momentum_buffer"])
        expected, momentum = moved(expected, grad, momentum), MOMENTUM * momentum + grad
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("backend", ["auto", "compiled"])
def test_a_gradient_of_another_dtype(backend):
    weight, twin = (torch.ones(4, 3, requires_grad=True) for _ in range(2))
    gradient = torch.linspace(-1, 1, 12).view(4, 3).bfloat16()
    try:
        weight.grad_dtype = torch.bfloat16
        weight.grad = gradient
    except (RuntimeError, AttributeError):
        pytest.skip("this torch wants gradients of the weight's dtype")
    twin.grad = gradient.float()
    optim.AdamP([weight], backend="auto").step()
    optim.AdamP([twin], backend="rule").step()
    torch.testing.assert_close(weight.detach(), twin.detach(), rtol=2e-5, atol=2e-6)


def in_half(weight):
    """Another dtype of the same size, at the same place."""
    weight.data = weight.data.view(torch.float16)


def transposed(weight):
    """The strides of (8, 1) are those of (1, 8)."""
    weight.data = weight.data.t()


def negated(weight):
    weight.data = torch._neg_view(weight.data)


IN_PLACE = {
    "dtype": (in_half, (6, 4), torch.bfloat16),
    "shape": (transposed, (8, 1), torch.float64),
    "sign": (negated, (8, 3), torch.float64),
}


@pytest.mark.parametrize("executor", ["kernel", "batched"])
@pytest.mark.parametrize("change", IN_PLACE)
def test_a_weight_that_is_another_at_its_place_is_read_anew(change, executor, choose):
    choose(executor)
    relay, shape, dtype = IN_PLACE[change]

    def rows(lr=LR):
        return sn.chain(sn.rules.NormalizedUpdate("channel"), sn.rules.StepSize(lr))

    weight = torch.nn.Parameter(drawn([shape])[0].to(dtype))
    optimizer = sn.torch_optimizer(rows)([weight])
    for changed in (False, True):
        weight.grad = None
        if changed:
            relay(weight)
        weight.grad = drawn([weight.shape], seed=1)[0].to(weight.dtype)
        expected = rows().step(weight.detach().clone(), weight.grad, {})[0]
        optimizer.step()
        rounding = torch.finfo(weight.dtype).eps
        torch.testing.assert_close(weight.detach(), expected, rtol=rounding, atol=rounding)


@BACKENDS
def test_weights_of_two_groups_that_overlap_step_one_after_the_other(backend):
    memory = torch.zeros(4)
    weights = [torch.nn.Parameter(memory) for _ in range(2)]
    optimizer = optim.SGD([{"params": [w]} for w in weights], lr=1.0, backend=backend)
    for weight, grad in zip(weights, (1.0, 10.0), strict=True):
        weight.grad = torch.full((4,), grad)
    optimizer.step()
    assert memory.tolist() == [-11.0] * 4


@pytest.mark.parametrize("executor", ["kernel", "batched"])
def test_rows_without_entries_have_states_that_step(executor, choose):
    choose(executor)

    def gained(lr=LR):
        gain = sn.chain(sn.rules.DecoupledDecay(0.5), sn.rules.StepSize(lr))
        return sn.chain(
            sn.rules.GainAndDirection(sn.rules.StepSize(lr), gain, "channel", start="one")
        )

    weight = torch.nn.Parameter(torch.randn(5, 0))
    optimizer, state = sn.torch_optimizer(gained)([weight]), gained().init(weight.detach())
    for _ in range(2):
        weight.grad = torch.zeros(5, 0)
        optimizer.step()
        state = gained().step(weight.detach(), weight.grad, state)[1]
    for name, value in state.items():
        torch.testing.assert_close(optimizer.state[weight][name], value)
