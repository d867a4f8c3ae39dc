"""A rule gets its part of the state, and its result is checked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm._rule import Rule, scalar_state


def stepped(rule, shape=(3, 2), dtype=torch.float64, steps=1):
    weight = torch.ones(shape, dtype=dtype)
    state = rule.init(weight)
    for _ in range(steps):
        weight, state = rule.step(weight, torch.ones(shape, dtype=dtype), state)
    return weight, state


class Returns(Rule):
    """A rule that returns what it is told to make of (update, state)."""

    state_names = ("m",)

    def __init__(self, make):
        object.__setattr__(self, "make", make)

    def update(self, update, state):
        return self.make(update, state)


def direction(make):
    return lambda u, s: (replace(u, direction=make(u)), s)


def state(make):
    return lambda u, s: (u, {"m": make(u)})


WRONG = {
    "a direction of the rows": (
        direction(lambda u: u.direction.sum(1, keepdim=True)),
        r"Returns.*: the direction must have shape \(3, 2\), got \(3, 1\)",
    ),
    "a direction of one row": (
        direction(lambda u: u.direction[0]),
        r"Returns.*: the direction must have shape \(3, 2\), got \(2,\)",
    ),
    "a direction that is a number": (
        direction(lambda u: 0.0),
        "Returns.*: the direction must be a tensor, got 0.0",
    ),
    "a complex direction": (
        direction(lambda u: u.direction * 1j),
        r"Returns.*: the direction must be torch.float64, got torch.complex128",
    ),
    "a state of the rows": (
        state(lambda u: u.direction.sum(1)),
        r"Returns.*: 'm' must have shape \(3, 2\), got \(3,\)",
    ),
    "a state that is a number": (state(lambda u: 1), "Returns.*: 'm' must be a tensor, got 1"),
    "no state": (lambda u, s: (u, {}), r"Returns.*: update returns the state \[\]"),
    "another's state": (lambda u, s: (u, {**s, "n": s["m"]}), r"state \['m', 'n'\], its states"),
    "the update alone": (lambda u, s: u, r"Returns.*: update must return .* returned Update$"),
    "a direction": (lambda u, s: (u.direction, s), r"must return .* returned \(Tensor, dict\)$"),
    "another weight": (
        lambda u, s: (replace(u, weight=2 * u.weight), s),
        "Returns.*: update returns another weight or gradient",
    ),
    "another gradient": (
        lambda u, s: (replace(u, grad=-u.grad), s),
        "Returns.*: update returns another weight or gradient",
    ),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a chain"])
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_by_name(case, alone):
    make, message = WRONG[case]
    rule = Returns(make) if alone else sn.chain(r.HeavyBall(0.9), Returns(make), r.StepSize(0.1))
    with pytest.raises((ValueError, TypeError), match=message):
        stepped(rule)


def test_a_weight_that_is_no_tensor_is_refused():
    weight, rule = torch.ones(3, 2), r.StepSize(0.1)
    with pytest.raises(TypeError, match="weight must be a tensor, got ndarray"):
        rule.step(weight.numpy(), weight, {})
    with pytest.raises(TypeError, match="grad must be a tensor, got NoneType"):
        rule.step(weight, None, {})


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_an_optimizer_moves_nothing_then(case, backend):
    """Nor do the weights before the one that does not fit: vectors, which this rule passes over."""
    make, message = WRONG[case]

    class OnMatrices(Returns):
        def update(self, update, state):
            return self.make(update, state) if update.weight.ndim == 2 else (update, state)

    OnMatrices.__name__ = "Returns"
    weights = [
        torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in ((4,), (3, 2))
    ]
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(OnMatrices(make), r.StepSize(lr)), "Wrong")
    optimizer = cls([{"params": weights[:1]}, {"params": weights[1:]}], backend=backend)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.step()
    assert all(torch.equal(weight, torch.ones_like(weight)) for weight in weights)


@pytest.mark.parametrize("what", ["direction", "grad", "weight", "m"])
@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_rule_that_writes_into_its_arguments_is_refused_and_undone(what, backend):
    def writes(update, state):
        (state["m"] if what == "m" else getattr(update, what)).mul_(3)
        return update, {"m": state["m"] + 1}

    weight = torch.full((3, 2), 2.0, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(Returns(writes), r.StepSize(lr)), "Writes")
    optimizer = cls([weight], backend=backend)
    with pytest.raises(ValueError, match=r"Returns.*: the rule writes into"):
        optimizer.step()
    assert torch.equal(weight, torch.full((3, 2), 2.0))
    assert torch.equal(weight.grad, torch.ones(3, 2))


PURE = {
    "step": lambda rule, grad: rule(0.1).step(torch.ones(3), grad, {"m": torch.zeros(3)}),
    "functional": lambda rule, grad: sn.functional.step(
        rule(0.1), {"w": torch.ones(3)}, {"w": grad}, {"w": {"m": torch.zeros(3)}}
    ),
    "vmap over rates": lambda rule, grad: torch.vmap(
        lambda lr: rule(lr).step(torch.ones(3), grad, {"m": torch.zeros(3)})
    )(torch.rand(4)),
    "vmap over gradients": lambda rule, grad: torch.vmap(
        lambda g: rule(0.1).step(torch.ones(()), g, {"m": torch.zeros(())})
    )(grad),
    "grad": lambda rule, grad: torch.func.grad(
        lambda lr: rule(lr).step(torch.ones(3), grad, {"m": torch.zeros(3)})[0].sum()
    )(torch.tensor(0.1)),
    "jvp": lambda rule, grad: torch.func.jvp(
        lambda g: rule(0.1).step(torch.ones(3), g, {"m": torch.zeros(3)})[0], (grad,), (grad,)
    ),
    "half precision": lambda rule, grad: rule(0.1).step(
        torch.ones(3).half(), grad.half(), {"m": torch.zeros(3)}
    ),
    "sweep": lambda rule, grad: sn.functional.sweep(
        rule, lambda p: (p["w"] ** 2).sum(), {"w": grad}, {"lr": [0.1, 0.2]}, steps=2
    ),
    "sweep of a linear loss": lambda rule, grad: sn.functional.sweep(
        rule, lambda p: p["w"].sum(), {"w": grad[None]}, {"lr": [0.1, 0.2]}, steps=10
    ),
}


@pytest.mark.parametrize("what", ["direction", "grad", "weight", "m"])
@pytest.mark.parametrize("pure", PURE)
def test_a_rule_that_writes_into_its_arguments_is_refused_in_the_pure_functions(what, pure):
    def writes(update, state):
        (state["m"] if what == "m" else getattr(update, what)).mul_(3)
        return update, {"m": state["m"] + 1}

    def rule(lr=0.1):
        return sn.chain(r.CoupledDecay(0.0), Returns(writes), r.StepSize(lr))

    with pytest.raises(ValueError, match=r"Returns.*: the rule writes in.*; return new tensors"):
        PURE[pure](rule, torch.ones(3))


def test_a_rule_may_write_into_what_it_made():
    def fresh(update, state):
        return replace(update, direction=update.direction.clone().mul_(3)), state

    weight = torch.zeros(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    sn.torch_optimizer(lambda lr=0.1: sn.chain(Returns(fresh), r.StepSize(lr)), "Fresh")(
        [weight]
    ).step()
    torch.testing.assert_close(weight.detach(), torch.full((3, 2), -0.3))


def test_each_rule_gets_its_own_part_of_the_state():
    seen = {}

    class Stateless(Rule):
        def update(self, update, state):
            seen["stateless"] = state
            return update, state

    class Two(Rule):
        state_names = ("a", "b")

        def update(self, update, state):
            seen["two"] = set(state)
            return update, state

        def transport(self, state, retraction):
            seen["moved"] = set(state)
            return {}

    rule = sn.chain(r.HeavyBall(0.9), Stateless(), sn.chain(Two(), Stateless()), r.StepSize(0.1))
    _, state = stepped(rule)
    assert seen == {"stateless": {}, "two": {"a", "b"}, "moved": {"a", "b"}}
    assert state.keys() == {"momentum", "a", "b"}


def test_a_state_without_an_entry_names_it():
    with pytest.raises(ValueError, match=r"HeavyBall: the state has no 'momentum', it has \['m'\]"):
        r.HeavyBall(0.9).step(torch.ones(2), torch.ones(2), {"m": torch.ones(2)})


@pytest.mark.parametrize("rule", [r.AdaptiveMoments(0.9, 0.99), r.ExponentialAverage(0.9, True)])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_direction_keeps_its_dtype(rule, shape):
    """A counter in float64 promotes a 0-dim float32 direction, which the next rule would get."""
    seen = []

    class Next(Rule):
        def update(self, update, state):
            seen.append(update.direction.dtype)
            return update, state

    weight, state = stepped(sn.chain(rule, Next()), shape, torch.float32, steps=2)
    assert seen == [torch.float32] * 2
    assert weight.dtype is torch.float32
    assert all(
        v.dtype is (torch.float64 if n == "step" else torch.float32) for n, v in state.items()
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_a_gradient_of_another_dtype_is_converted_before_the_first_rule(dtype):
    weight, grad = torch.randn(2, 4, 3, dtype=torch.float64)
    weight, grad = weight.float(), (9 * grad).to(dtype)
    rule = sn.recipes.adamp(weight_decay=0.1)
    found, expected = (rule.step(weight, x, rule.init(weight)) for x in (grad, grad.float()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_counter_in_integers_is_not_cut_off():
    class Halves(Rule):
        state_names = ("n",)

        def init(self, weight):
            return {"n": torch.zeros((), dtype=torch.int64)}

        def update(self, update, state):
            return update, {"n": state["n"] + 0.5}

    with pytest.raises(ValueError, match=r"Halves: 'n' must be torch.int64, got torch.float32"):
        stepped(Halves())


Truth = bool


@dataclass(frozen=True)
class Flagged(Rule):
    plain: bool = True
    named: Truth = True
    number: float = 1.0
    unknown: NeverDefined = 0  # noqa: F821


@dataclass(frozen=True)
class Resolvable(Rule):
    named: Truth = True
    number: float = 1.0


def test_truth_values_are_known_by_their_type():
    """Here annotations are strings; `Truth` is another name of bool."""
    with pytest.raises(TypeError, match="Flagged: plain must be True or False, got 1"):
        Flagged(plain=1)
    with pytest.raises(TypeError, match="Resolvable: named must be True or False, got 'no'"):
        Resolvable(named="no")
    namespace = {"sn": sn, "dataclass": dataclass}
    code = "@dataclass(frozen=True)\nclass Evaluated(sn.Rule):\n    flag: bool = True\n"
    exec(compile(code, "cell", "exec", dont_inherit=True), namespace)
    with pytest.raises(TypeError, match="Evaluated: flag must be True or False, got 0"):
        namespace["Evaluated"](flag=0)
    assert Resolvable(number=True).number is True


def test_an_init_may_read_the_weight():
    """On the real weight: at construction, its shape alone is checked."""

    class Scaled(Rule):
        state_names = ("scale",)

        def init(self, weight):
            return {"scale": scalar_state(weight) + float(weight.norm())}

        def update(self, update, state):
            return replace(update, direction=state["scale"] * update.direction), state

    for backend in ("auto", "rule"):
        weight = torch.full((2, 2), 2.0, requires_grad=True)
        weight.grad = torch.ones(2, 2)
        sn.torch_optimizer(lambda lr=0.1: sn.chain(Scaled(), r.StepSize(lr)), "Scaled")(
            [weight], backend=backend
        ).step()
        torch.testing.assert_close(weight.detach(), torch.full((2, 2), 1.6))
