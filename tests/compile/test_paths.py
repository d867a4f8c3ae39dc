"""Every path gives the numbers of the rule's own code, or says why it cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

import spherenorm as sn
from spherenorm import Rule, hyper, optim
from spherenorm import rules as r
from spherenorm.compile import _check as check
from spherenorm.compile import _dispatch as dispatch
from spherenorm.compile import _inductor as inductor
from spherenorm.compile import _paths as paths
from spherenorm.compile._guard import Guard
from spherenorm.compile.cpp import _kernel as printer

BACKENDS = ("auto", "rule", "compiled")


def optimizer_of(recipe, *weights, **options):
    return sn.torch_optimizer(recipe, "Own")(list(weights), **options)


def by_hand(rule, weight, grads):
    """A plain loop over the rule's own steps."""
    weight, state = weight.clone(), rule.init(weight)
    for grad in grads:
        weight, state = rule.step(weight, grad, state)
    return weight


def by_optimizer(optimizer, weight, grads):
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# A moment's decay of 0 forgets: large gradients first, tiny ones after.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("decay", [0.0, 1e-300, 1e-12, 1e-8, 1e-7])
@pytest.mark.parametrize(
    "make",
    [
        lambda x, d, **o: (optim.RMSprop([x], alpha=d, **o), torch.optim.RMSprop, {"alpha": d}),
        lambda x, d, **o: (
            optim.AdamW([x], betas=(0.9, d), **o),
            torch.optim.AdamW,
            {"betas": (0.9, d)},
        ),
        lambda x, d, **o: (optim.Adam([x], betas=(d, d), **o), torch.optim.Adam, {"betas": (d, d)}),
    ],
    ids=["RMSprop", "AdamW", "Adam"],
)
def test_a_decay_of_nothing_keeps_nothing(make, decay, dtype, backend):
    start = randn(4, 3, dtype=dtype)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    optimizer, cls, settings = make(ours, decay, backend=backend)
    lr = 0.01
    optimizer.param_groups[0]["lr"] = lr
    reference = cls(
        [theirs], lr=lr, weight_decay=optimizer.param_groups[0]["weight_decay"], **settings
    )
    for step, scale in enumerate((1e6, 1e-3, 1e6, 1e-6, 1e-9, 1.0)):
        ours.grad = scale * randn(4, 3, seed=step, dtype=dtype)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        reference.step()
    way = (theirs - start).abs().max()
    assert (ours - theirs).abs().max() <= way * (1e-12 if dtype is torch.float64 else 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_large_gradient_overflows_no_earlier_than_in_torch(backend):
    """torch multiplies by 1 - beta2 before it squares: 1e20 gives 1e37, which float32 holds."""
    for scale in (1e18, 1e20, 1e30):
        ours, theirs = (torch.ones(4, 3, requires_grad=True) for _ in range(2))
        optimizer, reference = (
            optim.Adam([ours], lr=0.1, backend=backend),
            torch.optim.Adam([theirs], lr=0.1),
        )
        for step in range(3):
            ours.grad = scale * randn(4, 3, seed=step).float()
            theirs.grad = ours.grad.clone()
            optimizer.step()
            reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0, equal_nan=True)
        assert scale > 1e20 or not ours.isnan().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_overflow_where_the_rules_own_sums_do(backend):
    """Squares of 1e19 are finite in float32, a sum of them is not; a back end sums in double."""
    start = randn(2, 4096).float()
    grads = [1e19 * randn(2, 4096, seed=step).float() for step in (1, 2, 3)]
    for cls, settings in ((optim.SGDP, {"momentum": 0.9}), (optim.SGDG, {"alpha": 0.0})):
        weight = start.clone().requires_grad_()
        result = by_optimizer(cls([weight], lr=0.1, backend=backend, **settings), weight, grads)
        expected = by_hand(cls.recipe(lr=0.1, **settings), start, grads)
        assert torch.equal(result.isfinite(), expected.isfinite())
        torch.testing.assert_close(
            result, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())
        )


@pytest.mark.parametrize("per", ["tensor", "unit"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_underflows_where_the_rules_own_does(backend, per):
    """To a float32 norm delta = 1e-300 is 0; 0 times an infinite norm is nan: no unit passes."""
    start, grads = randn(4, 8).float(), [1e20 * randn(4, 8, seed=1).float()]
    settings = {"delta": 1e-300, "per": per}
    weight = start.clone().requires_grad_()
    optimizer = optim.SGDP([weight], lr=0.1, backend=backend, **settings)
    result = by_optimizer(optimizer, weight, grads)
    expected = by_hand(optim.SGDP.recipe(lr=0.1, **settings), start, grads)
    torch.testing.assert_close(result, expected)


@dataclass(frozen=True)
class Vanishing(Rule):
    """A direction times 0, which leaves a nan or an infinity its mark."""

    def update(self, update, state):
        d, w = update.direction, update.weight
        return replace(update, direction=d + 0 * w + (0.0 * d).sum() * w), {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_spreads_alike(backend, bad):
    def vanishing(lr=0.1):
        return sn.chain(Vanishing(), r.StepSize(lr))

    recipes = [
        vanishing,
        optim.AdamP.recipe,
        optim.SGDP.recipe,
        optim.SGDW.recipe,
        optim.RMSprop.recipe,
    ]
    for recipe in recipes:
        for place in ("weight", "grad"):
            start, grads = randn(4, 3), [randn(4, 3, seed=step) for step in range(4)]
            (start if place == "weight" else grads[1])[1, 2] = bad
            weight = start.clone().requires_grad_()
            result = by_optimizer(optimizer_of(recipe, weight, backend=backend), weight, grads)
            expected = by_hand(recipe(), start, grads)
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


# A product of matrices before a momentum (the pattern of Muon).


class Products(Rule):
    """(d d^T) d: what Inductor fuses with a sum that follows."""

    def update(self, update, state):
        d = update.direction
        return replace(update, direction=0.1 * (d @ d.T) @ d), {}


class FixedMomentum(Rule):
    """Momentum of a number that is no field: the form whose factor Inductor drops."""

    state_names = ("m",)

    def update(self, update, state):
        momentum = torch.add(update.direction, state["m"], alpha=0.9)
        return replace(update, direction=torch.sub(momentum, update.weight, alpha=0.3)), {
            "m": momentum
        }


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, pytest.param(torch.float32, marks=pytest.mark.long)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize(
    "rules",
    [
        (FixedMomentum(),),
        pytest.param((r.HeavyBall(0.9),), marks=pytest.mark.long),
        (r.HeavyBall(0.9, nesterov=True), r.DecoupledDecay(0.1)),
        (r.ExponentialAverage(0.9, bias_correction=True), r.DecoupledDecay(0.1)),
        (r.CoupledDecay(0.1), r.AdaptiveMoments(0.9, 0.99)),
    ],
    ids=lambda rules: "-".join(type(rule).__name__ for rule in rules),
)
def test_products_of_matrices_compile_to_the_same_numbers(rules, dtype):
    torch._dynamo.reset()

    def products(lr=0.1):
        return sn.chain(Products(), *rules, r.StepSize(lr))

    start, grads = (
        randn(6, 4, dtype=dtype),
        [randn(6, 4, seed=step, dtype=dtype) for step in range(5)],
    )
    weight = start.clone().requires_grad_()
    optimizer = optimizer_of(products, weight, backend="compiled")
    result = by_optimizer(optimizer, weight, grads)
    assert [line.path for line in sn.explain(optimizer)] == ["Inductor"]
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(
        result, by_hand(products(), start, grads), rtol=tolerance, atol=tolerance
    )


def test_a_compiler_that_drops_a_factor_is_noticed(monkeypatch):
    """Inductor as it is: torch.add(a @ b, c, alpha=k) loses k."""
    torch._dynamo.reset()
    if torch.__version__.startswith("2.13"):
        monkeypatch.setattr(inductor, "_inductor", "inductor")
    else:
        monkeypatch.setattr(check, "_apart", lambda *_: "1.0, on a way of 2.0")

    def products(lr=0.1):
        return sn.chain(Products(), FixedMomentum(), r.StepSize(lr))

    weight = randn(6, 4).requires_grad_()
    weight.grad = randn(6, 4, seed=1)
    before = weight.detach().clone()
    optimizer = optimizer_of(products, weight, backend="compiled")
    with pytest.raises(
        sn.BackendError, match=r"Products, .*Inductor would give other numbers than"
    ):
        optimizer.step()
    assert torch.equal(weight, before)


@pytest.mark.parametrize("backend", ["auto", "compiled"])
@pytest.mark.parametrize("fault", ["weight", "state"])
def test_a_wrong_path_is_not_taken(backend, fault, monkeypatch):
    """A back end that is wrong is noticed: here one that adds a little to what it steps."""

    def spoil(original):
        def call(self, weight, grad, state, numbers):
            original(self, weight, grad, state, numbers)
            (weight if fault == "weight" else state["exp_avg"]).mul_(1.0001)

        return call

    cls = paths.Specialization
    monkeypatch.setattr(cls, "__call__", spoil(cls.__call__))
    monkeypatch.setattr(paths.Inductor, "__init__", _refuse)
    start, grads = randn(4, 3), [randn(4, 3, seed=1)]
    weight = start.clone().requires_grad_()
    optimizer = optim.AdamW([weight], lr=0.1, backend=backend)
    if backend == "compiled":
        with pytest.raises(
            (sn.BackendError, AssertionError), match=r"no way out|other numbers than"
        ):
            by_optimizer(optimizer, weight, grads)
        assert torch.equal(weight.detach(), start)
        return
    assert torch.equal(
        by_optimizer(optimizer, weight, grads), by_hand(optim.AdamW.recipe(lr=0.1), start, grads)
    )
    (line,) = sn.explain(optimizer)
    assert line.path == "rule"
    assert "C++ kernel would give other numbers than the rule's own code: the" in line.reason


def _refuse(*_):
    raise AssertionError("no way out")


def test_a_branch_on_the_kind_of_a_number_is_noticed():
    """A record has a tensor where the rule has a number; a rule may tell them apart."""

    @dataclass(frozen=True)
    class Tells(Rule):
        factor: float = hyper("[0, inf)", 0.5)

        def update(self, update, state):
            scale = self.factor if isinstance(self.factor, float) else 2 * self.factor
            return replace(update, direction=scale * update.direction), {}

    def tells(lr=0.1):
        return sn.chain(Tells(), r.StepSize(lr))

    start, grads = randn(4, 3), [randn(4, 3, seed=step) for step in range(3)]
    weight = start.clone().requires_grad_()
    assert torch.equal(
        by_optimizer(optimizer_of(tells, weight), weight, grads), by_hand(tells(), start, grads)
    )
    weight = start.clone().requires_grad_()
    with pytest.raises(sn.BackendError, match=r"Tells .*would give other numbers"):
        by_optimizer(optimizer_of(tells, weight, backend="compiled"), weight, grads)


def test_an_error_of_the_library_itself_is_not_hidden(monkeypatch):
    def broken(*_):
        raise KeyError("a fault of the planner")

    monkeypatch.setattr(printer, "schedule", broken)
    weight = randn(4, 3).requires_grad_()
    weight.grad = randn(4, 3, seed=1)
    with pytest.raises(KeyError, match="a fault of the planner"):
        optim.SGD([weight], lr=0.1, momentum=0.9).step()


# What a compiled step cannot do.


@dataclass(frozen=True)
class Branches(Rule):
    p: float = hyper("[0, inf)", 0.3)

    def update(self, update, state):
        direction = update.direction if self.p > 0.5 else 2 * update.direction
        return replace(update, direction=direction), {}


class Draws(Rule):
    def update(self, update, state):
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(
            update.direction.shape, generator=generator, dtype=update.direction.dtype
        )
        return replace(update, direction=update.direction + noise), {}


class Inherits(Rule):
    @property
    def state_names(self):
        return (*super().state_names, "b")

    def update(self, update, state):
        return replace(update, direction=update.direction + state["b"]), {"b": update.direction}


CANNOT = {
    "a branch on a number": (Branches(), False, "Branches for .*Branches: its code reads a value"),
    "a generator": (Draws(), False, "Draws for .*Draws: aten.randn.generator in the step"),
    "super() on a transposed weight": (Inherits(), True, "Inherits for .*do not lie one after"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_compiled_is_named_and_steps_otherwise(case):
    torch._dynamo.reset()
    rule, transposed, message = CANNOT[case]

    def recipe(lr=0.1):
        return sn.chain(r.HeavyBall(0.5), rule, r.StepSize(lr))

    start, grads = randn(4, 3), [randn(4, 3, seed=step) for step in range(3)]
    if transposed:
        start = start.T.contiguous().T
    for backend in ("auto", "compiled"):
        other = randn(5).requires_grad_()
        weight = start.clone(memory_format=torch.preserve_format).requires_grad_()
        optimizer = optimizer_of(recipe, other, weight, backend=backend)
        other.grad = torch.zeros(5, dtype=torch.float64)
        if backend == "compiled":
            with pytest.raises(
                sn.BackendError, match=f'backend="compiled" cannot take the step of {message}'
            ):
                by_optimizer(optimizer, weight, grads)
            assert torch.equal(weight.detach(), start)
            continue
        result = by_optimizer(optimizer, weight, grads)
        torch.testing.assert_close(result, by_hand(recipe(), start, grads), rtol=1e-12, atol=1e-12)
        assert {line.path for line in sn.explain(optimizer)} <= {"rule", "C++ kernel"}


def test_a_rule_that_changes_at_every_step_is_not_recorded_at_every_step(traced):
    count = 0

    def counting(lr=0.1):
        return sn.chain(*(r.StepSize(0.999) for _ in range(count)), r.StepSize(lr))

    start, grads = randn(4, 3), [randn(4, 3, seed=step) for step in range(80)]
    weight, expected = start.clone().requires_grad_(), start.clone()
    optimizer = optimizer_of(counting, weight)
    for count, grad in enumerate(grads):  # noqa: B007  (the recipe reads it)
        by_optimizer(optimizer, weight, [grad])
        expected, _ = counting().step(expected, grad, {})
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
    assert len(traced) <= 2 * dispatch.MOST_RULES
    (line,) = sn.explain(optimizer)
    assert (line.path, line.reason) == (
        "rule",
        "32 other rules were recorded; a field keeps changing",
    )


def test_half_of_a_step_is_held_back_only_as_far_as_memory_allows(monkeypatch):
    """Results of rules' own code wait for each other, up to a bound."""
    monkeypatch.setattr(dispatch, "HELD", 100)
    start = [randn(4, 3, seed=i) for i in range(5)]
    weights = [w.clone().requires_grad_() for w in start]
    optimizer = optim.AdamW(weights, lr=0.1, backend="rule")
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for weight, old in zip(weights, start, strict=True):
        torch.testing.assert_close(
            weight.detach(), by_hand(optim.AdamW.recipe(lr=0.1), old, [torch.ones_like(old)])
        )


# The comparison that every recorded or compiled step passes once.


@pytest.mark.parametrize(
    "shape", [(512, 2048), (2048, 512), (7, 7), (64, 3, 3, 3), (1, 9), (0, 4), (9,), ()]
)
def test_a_small_shape_is_of_the_same_kind(shape):
    small = check.small_shape(shape)
    assert len(small) == len(shape)
    assert math.prod(small) <= 5**4
    for a, b in ((i, j) for i in range(len(shape)) for j in range(len(shape))):
        assert (shape[a] < shape[b], shape[a] == shape[b]) == (
            small[a] < small[b],
            small[a] == small[b],
        )
    assert [n for n in shape if n < 2] == [n for n in small if n < 2]


def test_a_guard_divides_a_rule_into_numbers_and_the_rest():
    rule = optim.AdamP.recipe(lr=0.3, betas=(0.8, 0.95))
    guard, other = Guard.of(rule), Guard.of(optim.AdamP.recipe(lr=0.0, betas=(0.7, 0.9)))
    assert guard.numbers == (0.8, 0.95, 1e-8, 0.1, 0.1, 0.3)
    assert guard.key == other.key
    assert guard.with_numbers(other.numbers) == optim.AdamP.recipe(lr=0.0, betas=(0.7, 0.9))
    assert guard.foreign == ()
    for changed in (
        {"weight_decay": 0.1},
        {"nesterov": True},
        {"per": "unit"},
        {"views": ("layer",)},
        {"betas": (0.0, 0.9)},
    ):
        assert Guard.of(optim.AdamP.recipe(**changed)).key != guard.key


@pytest.mark.parametrize("lr", [0.0, 1e-12])
@pytest.mark.parametrize("number", [float, torch.tensor], ids=["number", "tensor"])
def test_a_step_size_of_nothing_hides_no_fault(lr, number, monkeypatch):
    """A schedule may begin at 0: the comparison takes visible steps."""
    original = paths.Specialization.__call__

    def spoilt(self, weight, grad, state, numbers):
        before = weight.detach().clone()
        original(self, weight, grad, state, numbers)
        weight.add_(weight - before, alpha=0.01)

    monkeypatch.setattr(paths.Specialization, "__call__", spoilt)
    for dtype in (torch.float64, torch.float32):
        weight = randn(4, 3, dtype=dtype).requires_grad_()
        (line,) = sn.explain(optim.AdamW([weight], lr=number(lr)))
        assert "C++ kernel would give other numbers than the rule's own code" in line.reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_coefficient_that_float32_does_not_hold_is_infinite(backend):
    """A back end keeps it in double, and torch refuses to convert such a number."""

    def projected(lr=0.1):
        return sn.chain(r.RadialProjection("layer"), r.StepSize(lr))

    weights = [torch.ones(2, 2, requires_grad=True), torch.full((4, 3), 1e-20, requires_grad=True)]
    optimizer = optimizer_of(projected, *weights, backend=backend)
    weights[0].grad, weights[1].grad = torch.zeros(2, 2), torch.full((4, 3), 1e30)
    optimizer.step()
    assert torch.equal(weights[1].detach(), torch.full((4, 3), math.inf))
    assert torch.equal(weights[0].detach(), torch.ones(2, 2))


class DoublesLarge(Rule):
    """Products that double the gradient in place, of matrices larger than those of a comparison."""

    def update(self, update, state):
        d = update.direction
        if d.shape[0] > 20:
            update.grad.mul_(2)
        return replace(update, direction=d @ d.T @ d), {}


def test_what_inductor_has_written_into_a_gradient_is_undone():
    torch._dynamo.reset()
    weight, grad = randn(24, 5), randn(24, 5, seed=1)
    before = weight.clone(), grad.clone()
    optimizer = optimizer_of(
        lambda lr=0.1: DoublesLarge(), weight.requires_grad_(), backend="compiled"
    )
    weight.grad = grad
    for _ in range(2):
        with pytest.raises(ValueError, match="DoublesLarge: the rule writes into what it is"):
            optimizer.step()
        torch.testing.assert_close((weight.detach(), grad), before, rtol=0, atol=0)
    assert [line.path for line in sn.explain(optimizer)] == ["Inductor"]
