"""Recorded steps against the rule's own code: which are made, and when."""

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import _dispatch as dispatch
from spherenorm.compile import _paths as paths
from tests.compile.twins import Twins, assert_close, random_weights
from tests.harness.rows import Row
from tests.harness.gradients import FAMILIES


@pytest.fixture
def no_fallback(monkeypatch):
    """Fail where no kernel steps."""
    original = dispatch.Dispatcher._assigned

    def checked(dispatcher, asked, most):
        assigned = original(dispatcher, asked, most)
        for _, path in assigned:
            kernel = isinstance(path, paths.Specialization)
            assert kernel or asked.group.backend == "rule", f"no kernel: {path.reason}"
        return assigned

    monkeypatch.setattr(dispatch.Dispatcher, "_assigned", checked)


def against_own_code(recipe, family="row_tangential"):
    twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights([(6, 5)]))
    for step in range(4):
        twins.step(family, step)
        twins.agree()


class Exotic(sn.Rule):
    """Each operation that the library's own rules leave out."""

    def update(self, update, state):
        d, w = update.direction, update.weight
        total, rows = (d * d).sum(), (d * d).sum(1, keepdim=True)
        one, each = everything(total / 7, total / 9), everything(rows, rows / 3)
        direction = everything(d, w) - 0.1 * one * w + torch.where(one < 1, each, 0.0)
        return sn.Update(w, update.grad, direction), {}


def everything(x, y):
    x = torch.maximum(x.abs().reciprocal().clamp_max(3.0), x.tanh()) + (
        1.0 - x.sign()
    ) * torch.rsqrt(1 + x.square())
    x = torch.where((x > 0.5) & ~(x >= 2) | (y <= -1), x.cos(), torch.exp(-x)) - torch.log(
        x.abs() + 1
    )
    x = torch.where(x != y, 2.0**x, x) / (2.0 - x.sinc()) + torch.minimum(x.sin(), y) * torch.sqrt(
        x.abs()
    )
    return torch.rsub(x, y) - 0.3 * torch.where(x == y, x, x**3)


def test_every_operation(no_fallback):
    def exotic(lr=0.1):
        return sn.chain(Exotic(), r.StepSize(lr))

    for family in FAMILIES:
        against_own_code(exotic, family=family)


class Combined(sn.Rule):
    """Sums like averages, products that two sums use, a scaled product that is subtracted."""

    state_names = ("mean", "along")

    def __init__(self, first, second):
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "second", second)

    def update(self, update, state):
        d, w = update.direction, update.weight
        mean = self.first * state["mean"] + (1 - self.second) * d
        product = d * w
        direction = (
            (mean + product) - self.second * (w * mean) - (d - product).tanh() * (1 - self.first)
        )
        along = d * mean
        return sn.Update(w, update.grad, direction + along), {"mean": mean, "along": along}


def test_what_looks_like_a_shorter_form_and_is_none(no_fallback):
    def combined(lr=0.1, first=0.3, second=0.6):
        return sn.chain(Combined(first, second), r.StepSize(lr))

    against_own_code(combined)


def test_numbers_of_any_kind_are_traced_once(traced):
    """A tensor, which rounds otherwise than a Python number, once more.

    NumPy's float32, which rounds otherwise as well, is left to the rule's own code.
    """
    w = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    w.grad = torch.ones_like(w)
    optimizer = optim.SGD([w], lr=0.125, weight_decay=0.011)
    of_tensors = [torch.tensor(0.25), torch.tensor(0.5)]
    numbers = [(0.25, 1), (0.5, 1), (1, 1), (0, 1), (0.0, 1), (np.float64(0.25), 1)]
    numbers += [(np.float32(0.25), 1)]
    for lr, traces in [*numbers, *((lr, 2) for lr in of_tensors)]:
        optimizer.param_groups[0]["lr"] = lr
        before = w.detach().clone()
        optimizer.step()
        expected = before - float(lr) * (1 + 0.011 * before)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-12, atol=0)
        assert len(traced) == traces


def test_a_recorded_rule_runs_no_more():
    calls = []

    class Counting(sn.Rule):
        def update(self, update, state):
            calls.append(type(update.weight))
            return update, {}

    def counting(lr=0.1):
        return sn.chain(Counting(), r.StepSize(lr))

    w = torch.ones(2, 2, requires_grad=True)
    w.grad = torch.ones(2, 2)
    for backend, expected in (("rule", 1), ("auto", 1), ("compiled", 0)):
        optimizer = sn.torch_optimizer(counting)([w], backend=backend)
        optimizer.step()
        for _ in range(3):
            calls.clear()
            optimizer.step()
            assert len(calls) == expected


@pytest.mark.parametrize("cls", [optim.AdamP, optim.SGD])
def test_a_gradient_that_lies_across_its_weight(cls):
    results = []
    for backend in ("auto", "rule"):
        memory = torch.linspace(-1, 2, 13, dtype=torch.float64)
        weight = torch.nn.Parameter(memory[1:].view(4, 3))
        weight.grad = memory[:-1].view(4, 3)
        cls([weight], lr=0.1, backend=backend).step()
        results.append(weight.detach().clone())
    assert_close(*results)


def test_a_gradient_of_another_dtype():
    for backend in ("auto", "compiled"):
        weight = torch.ones(4, 3, requires_grad=True)
        twin = weight.detach().clone().requires_grad_()
        gradient = torch.linspace(-1, 1, 12).view(4, 3).bfloat16()
        try:
            weight.grad_dtype = torch.bfloat16
            weight.grad = gradient
        except (RuntimeError, AttributeError):
            pytest.skip("this torch wants gradients of the weight's dtype")
        twin.grad = gradient.float()
        optim.AdamP([weight], backend=backend).step()
        optim.AdamP([twin], backend="rule").step()
        assert_close(weight.detach(), twin.detach())


def test_what_was_made_in_inference_mode_is_not_written_to():
    weight = torch.ones(4, 3, requires_grad=True)
    twin = weight.detach().clone().requires_grad_()
    optimizers = optim.AdamP([weight]), optim.AdamP([twin], backend="rule")
    weight.grad, twin.grad = torch.ones(4, 3), torch.ones(4, 3)
    with torch.inference_mode():
        for optimizer in optimizers:
            optimizer.step()
    for optimizer in optimizers:
        optimizer.step()
    assert_close(weight.detach(), twin.detach())


def test_another_default_device(no_fallback):
    """Nothing of a step goes to a device that the weight is not on."""

    class Limited(sn.Rule):
        def update(self, update, state):
            return sn.Update(
                update.weight,
                update.grad,
                update.direction.clamp_min(-0.5) + (update.direction > 0),
            ), {}

    def limited(lr=0.1):
        return sn.chain(Limited(), r.StepSize(lr))

    for cls in (sn.torch_optimizer(limited), optim.AdamP):
        weight, twin = (torch.linspace(-1, 1, 12).view(4, 3).requires_grad_() for _ in range(2))
        weight.grad = twin.grad = torch.linspace(1, -1, 12).view(4, 3)
        first, second = cls([weight], backend="compiled"), cls([twin], backend="rule")
        with torch.device("meta"):
            first.step()
        second.step()
        assert_close(weight.detach(), twin.detach())


def test_a_state_of_another_shape_is_refused_and_nothing_changes():
    weight = torch.ones(4, 6, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.grad = torch.ones(4, 6)
    optimizer.step()
    before = weight.detach().clone()
    weight.data = weight.data.view(6, 4)
    weight.grad = torch.ones(6, 4)
    with pytest.raises(ValueError, match=r"its state 'momentum_buffer' is .* needs"):
        optimizer.step()
    assert torch.equal(weight.detach().view(4, 6), before)


@pytest.mark.parametrize("apart", [False, True], ids=["one group", "two groups"])
def test_weights_that_share_a_state_step_as_by_the_rules_own_code(apart):
    """Each from the old state; none sees what the other has made of it."""
    results = []
    for backend in ("rule", "auto"):
        weights = [torch.ones(3, 2, requires_grad=True) for _ in range(2)]
        groups = [{"params": [w]} for w in weights] if apart else weights
        optimizer = optim.SGD(groups, lr=0.1, momentum=0.9, backend=backend)
        for w in weights:
            w.grad = torch.ones(3, 2)
        optimizer.step()
        first, second = (optimizer.state[w] for w in weights)
        second.update(first)
        optimizer.step()
        results.append([w.detach().clone() for w in weights])
