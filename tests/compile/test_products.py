"""Norms of combinations: found by inner products, and by a pass of their own where these cancel."""

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.compile import _paths as paths
from spherenorm.compile._guard import Guard
from spherenorm.compile._lower import lower
from spherenorm.compile._schedule import schedule
from tests.compile.twins import Twins, random_weights
from tests.compile.words import Word
from tests.harness.rows import Row

COMBINED = {
    "sub": lambda w, d, s: w - s * d,
    "rsub": lambda w, d, s: torch.rsub(s * d, w),
    "neg": lambda w, d, s: -(d * s) - w,
    "add": lambda w, d, s: 3 * w + d * s,
    "div": lambda w, d, s: w / s - d,
    "addcmul": lambda w, d, s: torch.addcmul(w, s, d, value=-2),
    "the same twice": lambda w, d, s: s * (w - s * d) + w / s,
    "the square of a product": lambda w, d, s: w * d - s * w,
}
OTHERS = {
    "known before": lambda w, d, s: w - d,
    "three": lambda w, d, s: w - s * d + s * w * d,
    "one": lambda w, d, s: s * d,
    "a number per entry": lambda w, d, s: w - s,
    "no combination": lambda w, d, s: w - (s * d).abs(),
}


@pytest.fixture(autouse=True)
def kernels_alone(monkeypatch):
    """A kernel that is off is an error, where Inductor would take its place."""
    monkeypatch.delattr(paths.Inductor, "__init__")


def normalized(combined):
    """Steps along c / |c|, where the length of the direction becomes known after a pass."""

    def direction(w, d, m):
        c = combined(w, d, 0.1 * w.norm() / d.norm())
        return c / c.norm(), m

    return lambda lr=0.1: sn.chain(Word((direction,)), r.StepSize(lr))


def gates(recipe):
    """Of each pass but the last: whether a decision may leave it out."""
    graph = lower(Guard.of(recipe()), (6, 5), torch.float32)
    return [each.gate is not None for each in schedule(graph).passes[:-1]]


@pytest.mark.parametrize("name", COMBINED)
def test_a_norm_of_two_takes_no_pass_of_its_own(name):
    assert gates(normalized(COMBINED[name])) == [False, True]


@pytest.mark.parametrize("name", OTHERS)
def test_other_norms_are_taken_as_they_stand(name):
    known = name == "known before"
    assert gates(normalized(OTHERS[name])) == ([False] if known else [False, False])


@pytest.mark.parametrize("recipe", [sn.recipes.adamh, sn.recipes.orthograd])
def test_recipes_that_gain(recipe):
    assert True in gates(recipe)


@pytest.mark.parametrize("name", COMBINED | OTHERS)
def test_the_norm_is_that_of_the_rules_own_code(name):
    recipe = normalized((COMBINED | OTHERS)[name])
    shapes = (6, 5), (5000,), (3, 70000), (1, 1), (1,), (0, 4)
    twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights(shapes), torch.float64)
    for step in range(3):
        twins.step("random", step)
    twins.agree()


@pytest.mark.parametrize("lr", [0.0, 0.02, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0, 1 + 1e-6, 1.1, 3.0])
@pytest.mark.parametrize("tilt", [0.0, 1e-5, 1e-3, 1.0])
def test_a_pinned_norm_has_its_digits_where_the_step_undoes_the_weight(lr, tilt):
    """At lr = 1 a step along the weight leaves nothing but the tilt, and rounding."""

    def pinned(lr=0.1):
        rules = r.NormalizedUpdate("layer", "weight"), r.StepSize(lr), r.RadiusPin("layer", 2.0)
        return sn.chain(*rules)

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 50, generator=generator)
    grad = weight + tilt * torch.randn(40, 50, generator=generator)
    weight.requires_grad_()
    weight.grad = grad
    sn.torch_optimizer(pinned)([weight], lr=lr, backend="compiled").step()
    norm = weight.detach().double().norm().item()
    assert norm == pytest.approx(2.0, rel=1e-6) or (norm == 0 and lr == 1 and not tilt)


@pytest.mark.parametrize("small", ["weight", "gradient"])
@pytest.mark.parametrize("size", [1e-3, 1e-14, 1e-16, 1e-20, 1e-22, 1e-23, 1e-25, 1e-30])
def test_squares_that_underflow_take_the_pass(size, small):
    """Means, unlike norms, are exact at any size, and so are the factors that they give."""

    def direction(w, d, m):
        c = w / w.abs().mean() - d / d.abs().mean()
        return c / c.norm(), m

    generator = torch.Generator().manual_seed(0)
    start, grad = torch.randn(2, 6, 5, generator=generator)
    if small == "weight":
        start = start * size
    weight = start.clone().requires_grad_()
    weight.grad = grad * size if small == "gradient" else grad
    recipe = sn.torch_optimizer(lambda lr=0.1: sn.chain(Word((direction,)), r.StepSize(lr)))
    recipe([weight], lr=1.0, backend="compiled").step()
    assert (weight.detach() - start).norm().item() == pytest.approx(1.0, rel=1e-5)
