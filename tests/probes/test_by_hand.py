"""Probes against loops by hand, and the plain formulas of their numbers."""

import itertools
import math
import random
from dataclasses import dataclass, fields
from functools import partial

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.probes.products import SMALL_MATRIX
from tests.probes.models import (
    NUMBERS,
    OPTIMIZERS,
    SPECTRA,
    ByHand,
    Model,
    backward,
    train,
)

# Loops, each of an optimizer, a model or None, and a function that takes the optimizer's steps.


class Jump(torch.optim.Optimizer):
    """Its step gives each weight the value that it is told."""

    def __init__(self, targets):
        self.targets = targets
        super().__init__(list(targets), {})

    @torch.no_grad()
    def step(self):
        for weight, target in self.targets.items():
            weight.copy_(target)


LAYOUTS = (
    lambda x: x,
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: torch.stack([x, x], -1)[..., 0],  # strided
)


def jumps(dtype):
    """Weights of any layout and size that step by any distance; some with zero rows."""

    def loop():
        targets, draw = {}, random.Random(3)
        shapes = (4, 6), (2, 3, 2), (6, 3, 2, 2), (4, 9)
        for laid_out, shape in [*itertools.product(LAYOUTS, shapes), (LAYOUTS[0], (700, 300))]:
            scale = 10.0 ** draw.choice([-3, 0, 2] if dtype == torch.float16 else [-12, 0, 9])
            w, d, g = torch.randn(3, *shape, dtype=torch.float64)
            if draw.random() < 0.3:
                w[0], g[-1] = 0, 0
            move = 10.0 ** draw.choice([-4, -2, 0])
            values = scale * w, scale * (w + move * d), g / scale**0.5
            before, after, grad = (laid_out(x.to(dtype)) for x in values)
            weight = nn.Parameter(before.clone(memory_format=torch.preserve_format))
            weight.grad, targets[weight] = grad, after
        return Jump(targets), None, lambda optimizer: optimizer.step()

    return loop


def trained(kind):
    def loop():
        model = Model()
        return OPTIMIZERS[kind](model), model, lambda optimizer: train(model, optimizer, 9)

    return loop


def with_closures():
    """And with accumulated gradients."""
    model = Model()

    def closure():
        optimizer.zero_grad()
        return backward(model, 0)

    def run(optimizer):
        optimizer.step(closure)
        optimizer.step(closure)
        optimizer.zero_grad()
        backward(model, 1)
        backward(model, 2)
        optimizer.step()

    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, model, run


def nearly_tangential(weight):
    """A gradient of cosine 1e-3 with each row."""
    noise = torch.randn_like(weight)
    w = weight.detach() / weight.detach().norm(dim=1, keepdim=True)
    tangential = noise - w * (w * noise).sum(1, keepdim=True)
    return tangential / tangential.norm(dim=1, keepdim=True) + 1e-3 * w


def groups_that_change():
    """A weight gets another group, a group another threshold, a weight another type."""
    weights = [nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 8))]
    groups = [{"params": weights[:1], "delta": 1e-9}, {"params": weights[1:], "delta": 0.1}]

    def run(optimizer):
        for step in range(4):
            for weight in weights:
                weight.grad = nearly_tangential(weight)
            optimizer.step()
            first, second = optimizer.optimizer.param_groups
            first["params"], second["params"] = weights, []
            first["delta"] = 0.1 if step else first["delta"]
            if step == 2:
                weights[0].data, weights[0].grad = weights[0].data.double(), None
                optimizer.optimizer.state.clear()

    return sn.optim.SGDP(groups, lr=0.1), None, run


@dataclass(frozen=True)
class LargeOnTheWhole(r.ScaleInvarianceTest):
    """A test of a user's own, which looks at all units of a weight together."""

    def decide(self, sums, state):
        passes = [(x.squared_norm > 0) & (x.squared_norm.sum() > 100) for x in sums]
        silent = [x.squared_norm == 0 for x in sums]
        norms = [x.squared_norm for x in sums]
        return sn.Invariance.from_passing_units(self.views, passes, silent, norms, self.per), {}


def large(lr=0.1, per="tensor"):
    test = LargeOnTheWhole(views=("channel",), per=per)
    return sn.chain(test, r.RadialProjection(), r.StepSize(lr))


def a_test_of_a_users(per):
    def loop():
        weights = [nn.Parameter(torch.full((6, 4), x)) for x in (1.0, 10.0, 2.0, 3.0)]

        def run(optimizer):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()

        return sn.torch_optimizer(large)(weights, per=per), None, run

    return loop


def groups_of_the_audit():
    """Some weights have no view that is tested."""
    model, batch = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), 0

    def run(optimizer):
        model(batch).square().mean().backward()
        optimizer.step()

    batch = torch.randn(16, 4)
    return sn.optim.SGDP(sn.param_groups(model, batch, "sgdp", lr=0.01)), model, run


def odd_values():
    """Zero rows, no entries, a sparse gradient, and numbers whose squares are not finite."""
    zero, empty, large = (
        nn.Parameter(torch.tensor(x)) for x in ([[0.0, 0], [3, 4]], [[]], [[1.0, 2], [-2, 1]])
    )
    table = nn.Embedding(6, 3, sparse=True)

    def run(optimizer):
        for entry in (1.0, 1e30):
            optimizer.zero_grad()
            zero.grad, empty.grad = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(1, 0)
            large.grad = torch.tensor([[entry, 0.0], [0.0, -entry]])
            table(torch.tensor([1, 4])).square().sum().backward()
            optimizer.step()

    return torch.optim.SGD([zero, empty, large, table.weight], lr=1e-30), None, run


class WritesIntoGradients(torch.optim.Optimizer):
    """As older optimizers do: decay is added to the gradient itself, from some step on."""

    start, steps = 1, 0

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            closure()
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            if self.steps >= self.start:
                p.grad.add_(p)
            p.sub_(p.grad, alpha=0.1)


def gradients_that_are_written_into():
    weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))

    def closure():
        weight.grad = nearly_tangential(weight)

    def run(optimizer):
        for step in range(4):
            if step % 2:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()

    return WritesIntoGradients([weight], {}), None, run


def weights_that_come_later():
    model = Model()

    def run(optimizer):
        train(model, optimizer, 1)
        optimizer.optimizer.add_param_group({"params": [model.conv.weight]})
        train(model, optimizer, 1)

    return torch.optim.SGD(model.head.parameters(), lr=0.1), model, run


DTYPES = torch.float64, torch.float32, torch.bfloat16, torch.float16
LOOPS = {
    **{kind: trained(kind) for kind in OPTIMIZERS},
    **{str(dtype): jumps(dtype) for dtype in DTYPES},
    **{f"a test of a user's, per {per}": a_test_of_a_users(per) for per in ("tensor", "unit")},
    **{
        loop.__name__: loop
        for loop in (
            *(with_closures, groups_that_change, groups_of_the_audit, odd_values),
            *(gradients_that_are_written_into, weights_that_come_later),
        )
    },
}


VIEWS = ("channel", "dim=1", "layer", "groups=2", "dim=1,groups=3")
VIEWS_OF = {"groups": [{"conv.weight": "channel"}], **{str(dtype): VIEWS for dtype in DTYPES}}


def check_spectra(measurement, right):
    """A largest singular value comes from below, and of few rows or columns it is exact."""
    for prefix in ("", "update_"):
        got, value = (getattr(x, f"{prefix}spectral_norm") for x in (measurement, right))
        if math.isnan(got) or math.isnan(value):
            assert math.isnan(got) == math.isnan(value)
            continue
        share = 0.8 if math.prod(right.shape) > SMALL_MATRIX else 0.98
        if min(right.shape[0], math.prod(right.shape[1:])) <= 4:
            share = 1 - 1e-5
        assert share * value <= got <= value * (1 + 1e-5) + 1e-12, (prefix, measurement)
        ranks = (getattr(x, f"{prefix}stable_rank") for x in (measurement, right))
        if value:
            ratio = next(ranks) / next(ranks)
            assert ratio == pytest.approx((value / got) ** 2, rel=1e-4)


@pytest.mark.filterwarnings("ignore:.*units of another norm than 1")
@pytest.mark.parametrize(
    ("name", "views"), [(x, v) for x in LOOPS for v in VIEWS_OF.get(x, [None])]
)
def test_a_probe_measures_what_the_loop_by_hand_does(name, views):
    """Several probes do not disturb each other."""
    optimizer, model, run = LOOPS[name]()
    declared = views if isinstance(views, str) else None
    probes = [
        sn.probe(optimizer, every=every, model=model, views=declared, block=block, units=units)
        for every, block, units in ((1, 64, True), (2, 3, False))
    ]
    loop = ByHand(optimizer, model, views)
    run(loop)
    for probe, every in zip(probes, (1, 2), strict=True):
        probe.close()
        expected = {key: x for key, x in loop.expected.items() if key[0] % every == 0}
        assert {(m.step, m.weight) for m in probe.measurements} == expected.keys()
        for m in probe.measurements:
            right, numbers, flags = expected[m.step, m.weight]
            # (a turn in float64 from the sums has 1e-8 of the step)
            near = partial(pytest.approx, rel=1e-6, abs=1e-7, nan_ok=True)
            check_spectra(m, right)
            for field in (f.name for f in fields(m) if f.name not in ("units", *SPECTRA)):
                got, value = getattr(m, field), getattr(right, field)
                if field == "grad_norm" and not got and math.isnan(value):
                    continue  # a gradient of 0 or none
                assert got == (near(value) if isinstance(value, float) else value), (field, m)
            if m.units is not None:
                assert torch.equal(m.units.invariant, flags)
                for number, value in zip(NUMBERS, numbers, strict=True):
                    close = {"rtol": 1e-6, "atol": 0.0 if number.startswith("norm") else 1e-7}
                    got = getattr(m.units, number)
                    torch.testing.assert_close(got, value, equal_nan=True, **close)
