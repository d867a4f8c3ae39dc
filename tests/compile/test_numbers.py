"""Hyper-parameters of any type of number, and the bounds of caches when they change."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import _dispatch as dispatch
from spherenorm.compile._guard import Guard
from tests.compile.test_paths import Branches, randn

BACKENDS = ("auto", "rule", "compiled")
TYPES = (np.float32, np.float64, np.float16, Fraction)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_of_any_type_are_computed_with_in_double(backend, kind, traced):
    """Adam by hand, with rates of a schedule and betas as numpy has them."""
    rates = [kind(number) for number in (0.5, 0.3, 0.1, 0.7)]
    betas = kind(0.9), kind(0.99)
    weight = randn(4, 3).requires_grad_()
    expected, m, v = weight.detach().clone(), 0.0, 0.0
    optimizer = optim.Adam([weight], betas=betas, eps=1e-8, backend=backend)
    b1, b2 = map(float, betas)
    for step, lr in enumerate(rates, 1):
        optimizer.param_groups[0]["lr"] = lr
        weight.grad = randn(4, 3, seed=step)
        optimizer.step()
        m = b1 * m + (1 - b1) * weight.grad
        v = b2 * v + (1 - b2) * weight.grad**2
        root = (v / (1 - b2**step)).sqrt() + 1e-8
        expected = expected - float(lr) * (m / (1 - b1**step)) / root
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-13, atol=1e-13)
    assert len(traced) <= 2  # the weight's shape, and the small one that it is compared on
    assert len(optimizer._dispatcher._proven) <= 1


def test_a_number_of_any_type_is_pythons_in_a_rule():
    for kind in TYPES:
        rule = r.HeavyBall(kind(0.5))
        assert type(rule.beta) is float
        assert Guard.of(rule).key == Guard.of(r.HeavyBall(0.25)).key
    assert type(sn.bind("sgd", lr=np.int64(1)).hyper_parameters["lr"]) is int
    assert sn.bind("adam", betas=[np.float32(0.5), 0.9]).hyper_parameters["betas"] == [0.5, 0.9]


@pytest.mark.parametrize("value", [np.float32("nan"), np.float64(-1), Fraction(-1, 2)])
def test_a_number_of_any_type_lies_in_its_interval(value):
    with pytest.raises(ValueError, match=r"StepSize: lr must be in \[0, ∞\), got"):
        r.StepSize(value)


@pytest.mark.parametrize("backend", ["auto", "compiled"])
def test_each_group_may_have_another_rule(backend, monkeypatch, traced):
    """Groups of more rules than one group would have are recorded once."""
    monkeypatch.setattr(dispatch, "MOST_RULES", 1)
    weights = [randn(4, 3, seed=seed).requires_grad_() for seed in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "weight_decay": 0.1}]
    optimizer = optim.SGD(groups, lr=0.1, backend=backend)
    expected = [weight.detach().clone() for weight in weights]
    counts = []
    for step in range(3):
        for weight in weights:
            weight.grad = randn(4, 3, seed=step)
        optimizer.step()
        counts.append(len(traced))
        expected = [
            w - 0.1 * (weights[0].grad + decay * w)
            for w, decay in zip(expected, (0, 0.1), strict=True)
        ]
    torch.testing.assert_close([w.detach() for w in weights], expected, rtol=1e-13, atol=1e-13)
    assert {line.path for line in sn.explain(optimizer)} == {"C++ kernel"}
    assert {*counts, len(traced)} == {counts[0]}


def test_what_is_proven_of_rules_that_change_is_bounded(monkeypatch):
    monkeypatch.setattr(dispatch, "MOST_RULES", 4)

    def growing(lr=0.1, count=1):
        return sn.chain(*[Branches(0.6)] * count, r.StepSize(lr))

    weight = randn(4, 3).requires_grad_()
    optimizer = sn.torch_optimizer(growing, "Growing")([weight], backend="rule")
    for count in range(1, 12):
        optimizer.param_groups[0]["count"] = count
        weight.grad = randn(4, 3)
        optimizer.step()
        assert 1 <= len(optimizer._dispatcher._proven) <= 4
