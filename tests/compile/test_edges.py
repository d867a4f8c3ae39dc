"""Edges at which a user's rule, weight or gradient once gave other numbers without a word."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm._rule import Rule
from spherenorm.compile._check import _apart

BACKENDS = ("auto", "rule", "compiled")


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def of(rule, name="Edge"):
    return sn.torch_optimizer(lambda lr=0.1: sn.chain(rule, r.StepSize(lr)), name)


@dataclass(frozen=True)
class Applies(Rule):
    """The direction by a function of it."""

    function: object

    def update(self, update, state):
        return replace(update, direction=self.function(update.direction)), state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (3,), (4, 3)])
def test_a_gradient_behind_a_negation(backend, shape):
    """Autograd gives one behind a conjugation: its memory holds the negative values."""
    weight = ones(*shape)
    weight.grad = torch._neg_view(torch.full(shape, -1.0))
    assert weight.grad.is_neg()
    optim.SGD([weight], lr=0.25, backend=backend).step()
    assert torch.equal(weight.detach(), torch.full(shape, 0.75))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_weight_with_a_view_of_groups(backend):
    empty, weight = ones(0, 3), ones(4, 3)
    optimizer = of(r.RadialProjection("groups=4"))([empty, weight], lr=0.5, backend=backend)
    empty.grad, weight.grad = torch.zeros(0, 3), torch.ones(4, 3)
    optimizer.step()
    assert torch.equal(weight, torch.ones(4, 3))  # the gradient is radial


def test_two_recipes_of_one_name_in_one_optimizer():
    def make(factor):
        def recipe(lr=0.1):
            return sn.chain(r.StepSize(factor * lr))

        return recipe

    one, two = make(1.0), make(10.0)
    cls = sn.torch_optimizer(one, "One")
    with pytest.raises(ValueError, match="another function than the optimizer's recipe of that"):
        cls([{"params": [ones(2)]}, {"params": [ones(2)], "recipe": two}])


class Shaken(Rule):
    state_names = ("noise",)

    def init(self, weight):
        return {"noise": torch.randn_like(weight)}

    def update(self, update, state):
        return replace(update, direction=update.direction + state["noise"]), state


@pytest.mark.parametrize("backend", BACKENDS)
def test_looking_draws_no_random_numbers(backend):
    """Nor does the comparison of a path with the rule's own code."""
    torch.manual_seed(0)
    expected = torch.randn(4, 3), torch.randn(1)
    torch.manual_seed(0)
    weight = ones(4, 3)
    optimizer = of(Shaken())([weight], backend=backend)
    optimizer.load_state_dict(optimizer.state_dict())
    sn.explain(optimizer)
    weight.grad = torch.zeros(4, 3)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), 1 - 0.1 * expected[0])
    assert torch.equal(torch.randn(1), expected[1])


@dataclass(frozen=True)
class Holds(Rule):
    inside: object

    def update(self, update, state):
        return update, state


@pytest.mark.parametrize("hold", [list, tuple, lambda x: dict(enumerate(x))])
def test_a_manifold_within_any_rule_is_not_lost(hold):
    inner = sn.chain(r.StepSize(0.1), manifold=sn.Sphere())
    with pytest.raises(ValueError, match="an inner chain has manifold=Sphere"):
        sn.chain(Holds(hold([inner])))
    with pytest.raises(ValueError, match="an inner chain has manifold=Sphere"):
        sn.torch_optimizer(lambda lr=0.1: r.FeedbackMomentum(inner, 0.9), "Lost")([ones(2, 2)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyword_defaults_and_globals_of_a_function_in_a_field(backend):
    factor = 2.0

    def make():
        def scaled(x, *, scale=factor):
            return x * scale

        return scaled

    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(Applies(make()), r.StepSize(lr)), "Made")
    weight = torch.zeros(4, 3, requires_grad=True)
    optimizer = cls([weight], backend=backend)
    for factor in (2.0, 3.0, 2.0):  # noqa: B007  (the recipe reads it)
        weight.grad = torch.ones(4, 3)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), -0.7))


@dataclass(frozen=True)
class Counts(Rule):
    number: float

    def update(self, update, state):
        return replace(update, direction=torch.as_tensor(self.number).long() * update.direction), {}


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_number_that_is_cut_to_an_integer(backend):
    number = 2.0
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(Counts(number), r.StepSize(lr)), "Counts")
    weight = torch.zeros(4, 3, requires_grad=True)
    optimizer = cls([weight], backend=backend)
    for number in (2.0, 2.7):  # noqa: B007  (the recipe reads it)
        weight.grad = torch.ones(4, 3)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), -0.4))


def test_the_comparison_sees_what_stands_beside_an_infinity():
    inf = float("inf")
    old = torch.zeros(3)
    right = torch.tensor([1.0, inf, 9.0])
    assert _apart(right.clone(), right, old, torch.float32, 0.0) is None
    for wrong in ([1.0, 2.0, 9.0], [1.0, -inf, 9.0], [1.0, inf, 3.0], [1.0, float("nan"), 9.0]):
        assert _apart(torch.tensor(wrong), right, old, torch.float32, 0.0) is not None


class Writes(Rule):
    def update(self, update, state):
        update.direction.mul_(0.5)
        return replace(
            update, direction=(update.direction @ update.direction.T) @ update.direction
        ), {}


def test_a_compiled_rule_may_not_write_into_its_arguments_either():
    torch._dynamo.reset()
    weight = ones(4, 3)
    weight.grad = torch.ones(4, 3)
    with pytest.raises(sn.BackendError, match="the rule writes into the gradient"):
        of(Writes())([weight], backend="compiled").step()
    assert torch.equal(weight.grad, torch.ones(4, 3))
    assert torch.equal(weight.detach(), torch.ones(4, 3))


class FailsWhenLarge(Rule):
    def update(self, update, state):
        d = update.direction
        if d.shape[0] > 100:
            raise ValueError("too large")
        return replace(update, direction=d @ (d.T @ d)), {}


@pytest.mark.parametrize("backend", ["auto", "compiled"])
def test_a_failure_at_a_large_shape_moves_no_small_one(backend):
    torch._dynamo.reset()
    weights = [ones(4, 3), ones(200, 3)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with pytest.raises((sn.BackendError, ValueError), match=r"compiled|too large"):
        of(FailsWhenLarge())(weights, backend=backend).step()
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in weights)


@dataclass(frozen=True)
class WritesIf(Rule):
    flag: bool

    def update(self, update, state):
        if self.flag:
            update.weight.mul_(0.5)
        return update, {}


class WritesAndFails(Rule):
    def update(self, update, state):
        update.direction.mul_(0.5)
        raise RuntimeError("boom")


def test_what_a_rule_has_written_is_undone():
    """Of another setting of a class that behaved, and where the rule then fails."""
    a, b = ones(4, 3), ones(4, 3)
    cls = sn.torch_optimizer(
        lambda lr=0.1, flag=False: sn.chain(WritesIf(flag), r.StepSize(lr)), "WritesIf"
    )
    optimizer = cls([{"params": [a]}, {"params": [b], "flag": True}])
    for weight in (a, b):
        weight.grad = torch.ones(4, 3)
    with pytest.raises(ValueError, match=r"WritesIf.*: the rule writes into the weight"):
        optimizer.step()
    assert torch.equal(a, torch.ones(4, 3))
    assert torch.equal(b, torch.ones(4, 3))
    with pytest.raises(RuntimeError, match="boom"):
        of(WritesAndFails())([a]).step()
    assert torch.equal(a.grad, torch.ones(4, 3))


class Fails(Rule):
    def update(self, update, state):
        raise RuntimeError("boom")


def failing(lr=0.1):
    return sn.chain(Fails(), r.StepSize(lr))


def test_a_state_is_kept_if_the_step_fails():
    """A schedule has switched momentum off in one group; the other group's rule fails."""
    a, b = ones(4, 3), ones(4, 3)
    other = {"params": [b], "recipe": "tests.compile.test_edges:failing"}
    optimizer = optim.SGD([{"params": [a]}, other], lr=0.1, momentum=0.5)
    a.grad = torch.ones(4, 3)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    b.grad = torch.ones(4, 3)
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.step()
    assert torch.equal(optimizer.state[a]["momentum_buffer"], torch.ones(4, 3))
    torch.testing.assert_close(a.detach(), torch.full((4, 3), 0.9))


def test_a_weight_that_cannot_be_written_to_is_refused_first():
    a = ones(4, 3)
    expanded = torch.ones(1, 3).expand(4, 3).detach().requires_grad_()
    with torch.inference_mode():
        frozen = torch.ones(4, 3)
    for weight, message in ((expanded, "is expanded"), (frozen, "is an inference tensor")):
        optimizer = optim.SGD([a, weight], lr=0.1, backend="rule")
        for each in (a, weight):
            each.grad = torch.ones(4, 3)
        with pytest.raises(ValueError, match=f"parameter 1 of shape .* {message}"):
            optimizer.step()
        assert torch.equal(a, torch.ones(4, 3))


def test_a_groups_backend_is_set_by_update_too():
    optimizer = optim.SGD([ones(2)])
    optimizer.param_groups[0].update(backend="rule")
    assert optimizer.param_groups[0]["backend"] == "rule"
    optimizer.param_groups[0]["backend"] = "auto"
    assert optimizer.param_groups[0]["backend"] == "auto"
    optimizer.param_groups[0]["backend"] = "fast"
    with pytest.raises(ValueError, match=r"backend must be one of .* got 'fast'"):
        optimizer.step()


def squared(direction):
    return torch.ops.spherenorm_edges.square(direction)


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_an_operation_of_another_library_is_not_atens_of_that_name(backend):
    """They agree where paths are compared with the rule's own code, and differ elsewhere."""
    with torch.library._scoped_library("spherenorm_edges", "FRAGMENT") as library:
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", lambda x: x.square().clamp(max=100), "CompositeExplicitAutograd")
        library.impl("square", torch.empty_like, "Meta")
        weight = ones(4, 3)
        weight.grad = torch.full((4, 3), 20.0)
        of(Applies(squared))([weight], backend=backend).step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 1 - 0.1 * 100))
