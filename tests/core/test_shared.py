"""Sums over all weights, by name: taken once a step before the rules."""

from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness import refuses

SHAPES = ((4, 3), (5,), ())


class GlobalClip(sn.Rule):
    """As `torch.nn.utils.clip_grad_norm_`."""

    most: sn.Scalar = sn.hyper("(0, inf)")

    def global_sum_terms(self, update, state):
        return {"squared_norm": (update.direction**2).sum()}

    def update(self, update, state):
        norm = update.notes["squared_norm"].sqrt() + 1e-6
        share = (self.most / norm).clamp(max=1).to(update.direction.dtype)
        return replace(update, direction=share * update.direction), {}


def clipped(lr=0.1):
    """Behind a rule that doubles: what is measured is the gradient, before all rules."""
    inner = sn.chain(r.StepSize(2.0), sn.chain(GlobalClip(1.0)))
    return sn.chain(inner, r.HeavyBall(0.9), r.StepSize(lr))


def weights():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]


def by_optimizer(*parts):
    """A class of step: all weights in one param_group, or one in each."""

    def stepper(recipe, start):
        params = [torch.nn.Parameter(w) for w in start]
        groups = [{"params": [params[i] for i in part]} for part in parts]
        optimizer = sn.torch_optimizer(recipe)(groups)

        def step(grads):
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            optimizer.step()
            return [param.detach().clone() for param in params]

        return step

    return stepper


def by_function(recipe, start):
    rule, params = recipe(), {str(i): w for i, w in enumerate(start)}
    kept = [params, functional.init(rule, params)]

    def step(grads):
        kept[:] = functional.step(rule, kept[0], dict(zip(params, grads, strict=True)), kept[1])
        return list(kept[0].values())

    return step


WAYS = {
    "one group": by_optimizer((0, 1, 2)),
    "two groups": by_optimizer((0,), (1, 2)),
    "functional": by_function,
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def test_a_global_norm_is_torchs_clip(way):
    """With SGD as the oracle, at norms below and above the clip."""
    theirs = [torch.nn.Parameter(w) for w in weights()]
    oracle = torch.optim.SGD(theirs, lr=0.2, momentum=0.9)
    step = way(clipped, weights())
    for t in range(4):
        grads = [5.0 ** (t - 3) * torch.randn_like(w) for w in weights()]
        for weight, grad in zip(theirs, grads, strict=True):
            weight.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        oracle.step()
        expected = [weight.detach() for weight in theirs]
        torch.testing.assert_close(step(grads), expected, rtol=1e-12, atol=1e-13)


def test_two_rules_that_measure_under_one_name_are_refused():
    rule, weight = sn.chain(sn.chain(GlobalClip(1.0)), GlobalClip(2.0)), weights()[0]
    with refuses("GlobalClip", "squared_norm"):
        rule.step(weight, weight, {})


class Counted(sn.Rule):
    """d times the entries of all matrices, and of all weights: names that not all weights have."""

    def global_sum_terms(self, update, state):
        entries = torch.tensor(float(update.grad.numel()))
        return {"all": entries, **({"matrices": entries} if update.grad.ndim == 2 else {})}

    def update(self, update, state):
        shared = update.notes
        both = shared["all"] + 100 * shared.get("matrices", 0)
        return replace(update, direction=both.to(update.grad.dtype) * update.direction), {}


def test_names_that_some_weights_lack(way):
    """All weights read the sum, also a group none of whose weights have a part of it."""
    step = way(lambda lr=1.0: sn.chain(Counted(), r.StepSize(lr)), weights())
    moved = step([torch.ones_like(w) for w in weights()])
    expected = [w - (18 + 100 * 12) for w in weights()]
    torch.testing.assert_close(moved, expected, rtol=1e-14, atol=0)


def test_a_step_of_one_weight_measures_that_alone():
    weight, grad = weights()[0], 2 * torch.ones(4, 3, dtype=torch.float64)
    rule = clipped()
    moved, _ = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close(moved, weight - 0.2 * grad / (48**0.5 + 1e-6))


def test_sums_of_half_precision_are_wide():
    """8192 ones in float16 twice: their sum of squares, 16384, and its square do not overflow."""

    class Square(GlobalClip):
        def update(self, update, state):
            total = update.notes["squared_norm"]
            assert total.dtype is torch.float64
            return replace(update, direction=update.direction * (total**2 / 2**28).float()), {}

    params = {name: torch.zeros(8192, dtype=torch.float16) for name in "ab"}
    ones = {name: torch.ones_like(w) for name, w in params.items()}
    rule = sn.chain(Square(1.0))
    moved, _ = functional.step(rule, params, ones, functional.init(rule, params))
    assert all((w == -1).all() for w in moved.values())


def test_a_sweep_shares_within_each_point():
    def loss(params):
        return sum((w**2).sum() for w in params.values())

    start = {name: w[None] for name, w in zip("ab", weights()[:2], strict=True)}
    rates = [0.1, 0.2]
    found = functional.sweep(clipped, loss, start, {"lr": rates}, steps=9)
    for k, lr in enumerate(rates):
        params = dict(zip("ab", weights()[:2], strict=True))
        rule = clipped(lr)
        state = functional.init(rule, params)
        for _ in range(9):
            slopes = {name: 2 * w for name, w in params.items()}
            params, state = functional.step(rule, params, slopes, state)
        for name, w in params.items():
            torch.testing.assert_close(found.params[name][k, 0], w, rtol=1e-12, atol=1e-13)


def test_what_is_measured_is_not_compiled_and_explain_says_so():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.ones(3, 2)
    cls = sn.torch_optimizer(clipped)
    with pytest.raises(sn.BackendError) as caught:
        cls([weight], backend="compiled").step()
    assert "GlobalClip" in str(caught.value)
    (line,) = sn.explain(cls([weight]))
    assert line.path == "rule"
    assert "GlobalClip" in line.reason
