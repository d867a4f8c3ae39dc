"""A chain applies its rules in order, and keeps their states in one flat dict, none mixed up."""

import itertools
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import gradient, refuses

STATEFUL = {
    "HeavyBall": lambda: r.HeavyBall(0.5),
    "FeedbackMomentum": lambda: r.FeedbackMomentum(r.RadialProjection("channel"), 0.6),
    "ExponentialAverage": lambda: r.ExponentialAverage(0.7),
    "corrected": lambda: r.ExponentialAverage(0.7, bias_correction=True),
    "AdaptiveMoments": lambda: r.AdaptiveMoments(0.8, 0.9),
    "RootMeanSquare": lambda: r.RootMeanSquare(0.8, centered=True),
    "UnitMoments": lambda: r.UnitMoments(0.8, 0.9),
    "AccumulatedInvarianceTest": lambda: r.AccumulatedInvarianceTest(0.3),
}
"""Rules with a state; all claim names that others claim."""


def weight_of(shape=(4, 3), dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def gradients(weight, steps):
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        yield gradient("alternating", weight, generator, step).to(weight.dtype)


def trained(rule, weight, steps=3):
    """The weight and its state after some steps."""
    state = rule.init(weight)
    for grad in gradients(weight, steps):
        weight, state = rule.step(weight, grad, state)
    return weight, state


class Given(sn.Rule):
    """Replaces the direction."""

    direction: sn.Scalar

    def update(self, update, state):
        return replace(update, direction=self.direction), {}


class Sees(sn.Rule):
    """Keeps the direction for a test to look at."""

    seen: list

    def update(self, update, state):
        self.seen.append(update.direction)
        return update, {}


class Holds(sn.Rule):
    """A user's rule that holds rules, side by side: the difference of their directions."""

    left: sn.Rule
    right: sn.Rule

    def update(self, update, state):
        left, new = self.update_child(0, update, state)
        right, more = self.update_child(1, update, state)
        return update.replace(direction=left.direction - right.direction), new | more


# States.


@pytest.mark.parametrize("pair", list(itertools.product(STATEFUL, repeat=2)), ids="-".join)
def test_two_rules_step_as_each_does_in_a_chain_of_its_own(pair):
    one, two = (STATEFUL[name]() for name in pair)
    both = sn.chain(one, two, r.StepSize(0.01))
    weight, seen = weight_of(), []
    states = [sn.chain(one).init(weight), sn.chain(two).init(weight)]
    state = both.init(weight)
    for grad in gradients(weight, 4):
        _, states[0] = sn.chain(one, Sees(seen)).step(weight, grad, states[0])
        alone = sn.chain(Given(seen[-1]), two, r.StepSize(0.01))
        expected, states[1] = alone.step(weight, grad, states[1])
        weight, state = both.step(weight, grad, state)
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-13)
    assert list(state) == list(both.state_keys)
    own = [x for name, x in states[0].items() if name != "step"]
    own += [x for name, x in states[1].items() if name != "step"]
    assert len(own) + ("step" in state) == len(state)
    kept = [x for name, x in state.items() if name != "step"]
    torch.testing.assert_close(kept, own, rtol=1e-12, atol=1e-13)


MOMENTS = ("exp_avg", "exp_avg_sq")
NAMES = {
    "none": ([r.StepSize(0.1)], ()),
    "one": ([r.HeavyBall(0.9), r.StepSize(0.1)], ("momentum",)),
    "two of one name": ([r.HeavyBall(0.9), r.HeavyBall(0.5)], ("momentum", "momentum_2")),
    "one more, and the count first": (
        [r.HeavyBall(0.9), r.HeavyBall(0.5), r.AdaptiveMoments(0.9, 0.9)],
        ("step", "momentum", "momentum_2", *MOMENTS),
    ),
    "all of a rule's get the number": (
        [r.ExponentialAverage(0.9), r.AdaptiveMoments(0.9, 0.9)],
        ("step", "exp_avg", "exp_avg_2", "exp_avg_sq_2"),
    ),
    "its own name": (
        [r.HeavyBall(0.9, name="slow"), r.HeavyBall(0.5), r.HeavyBall(0.5, name="slow")],
        ("slow_momentum", "momentum", "slow_momentum_2"),
    ),
    "its own buffer": (
        [r.HeavyBall(0.9, buffer="velocity"), r.HeavyBall(0.5)],
        ("velocity", "momentum"),
    ),
    "chains of chains": (
        [sn.chain(r.HeavyBall(0.9), sn.chain(r.HeavyBall(0.8))), r.HeavyBall(0.5)],
        ("momentum", "momentum_2", "momentum_3"),
    ),
    "one count for all": (
        [sn.chain(r.AdaptiveMoments(0.9, 0.9)), r.AdaptiveMoments(0.8, 0.8)],
        ("step", *MOMENTS, "exp_avg_2", "exp_avg_sq_2"),
    ),
    "within a rule": (
        [r.FeedbackMomentum(sn.chain(r.HeavyBall(0.5), r.StepSize(0.1)), 0.9), r.HeavyBall(0.1)],
        ("momentum", "momentum_2", "momentum_3"),
    ),
    "within a rule, counted": (
        [r.GainAndDirection(r.HeavyBall(0.5), r.AdaptiveMoments(0.9, 0.9)), r.HeavyBall(0.1)],
        ("step", "gain", "momentum", *MOMENTS, "momentum_2"),
    ),
    "within a user's rule": (
        [Holds(r.HeavyBall(0.5), r.HeavyBall(0.25)), r.HeavyBall(0.0)],
        ("momentum", "momentum_2", "momentum_3"),
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_of_states(case):
    """Known when the chain is made, and as `init` and each step return them."""
    rules, names = NAMES[case]
    rule, weight = sn.chain(*rules), weight_of()
    assert sorted(rule.state_keys) == sorted(names)
    assert set(rule.init(weight)) == set(names)
    assert set(trained(rule, weight)[1]) == set(names)


def test_the_count_is_one_and_goes_on():
    rule = sn.chain(
        sn.chain(r.ExponentialAverage(0.9, bias_correction=True)),
        r.AdaptiveMoments(0.9, 0.9),
        r.StepSize(0.1),
    )
    weight = weight_of()
    state = rule.init(weight)
    assert state["step"] == 0
    for t, grad in enumerate(gradients(weight, 3), 1):
        weight, state = rule.step(weight, grad, state)
        assert state["step"] == t
    assert sum("step" in key for key in state) == 1


class MadeAnew(sn.Rule):
    """Returns an Update of its own."""

    def update(self, update, state):
        return sn.Update(update.weight, update.grad, 2 * update.direction), {}


def test_the_count_goes_on_behind_a_rule_that_makes_an_update_anew():
    average = r.ExponentialAverage(0.9, bias_correction=True)
    moved, _ = trained(sn.chain(MadeAnew(), average, r.StepSize(0.1)), weight_of())
    expected, _ = trained(sn.chain(average, r.StepSize(0.2)), weight_of())
    torch.testing.assert_close(moved, expected, rtol=1e-13, atol=1e-14)


class Total(sn.Rule):
    """The sum of the gradients by rows and columns, how often, and where the weight began."""

    first: sn.Scalar = 0.0

    state_names = ("rows", "times", "start")

    def init(self, weight):
        own = weight.new_zeros(weight.shape[:1]), torch.zeros((), dtype=torch.float64) + self.first
        return dict(zip(("rows", "times", "start"), (*own, weight.clone()), strict=True))

    def update(self, update, state):
        rows = state["rows"] + update.grad.sum(tuple(range(1, update.grad.ndim)))
        return update, {"rows": rows, "times": state["times"] + 1, "start": state["start"]}


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_states_have_any_shape_and_their_own_dtype(backend):
    """Two of one rule, each with its part, in the pure form and in an optimizer."""

    def recipe(lr=0.0):
        return sn.chain(Total(), r.HeavyBall(0.9), Total(10.0), r.StepSize(lr))

    weight = weight_of((4, 3, 2))
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = sn.torch_optimizer(recipe)([parameter], backend=backend)
    grads = list(gradients(weight, 3))
    for grad in grads:
        parameter.grad = grad
        optimizer.step()
    for state in (trained(recipe(), weight)[1], optimizer.state[parameter]):
        assert list(state) == [
            *("rows", "times", "start", "momentum"),
            *("rows_2", "times_2", "start_2"),
        ]
        for number, first in (("", 0.0), ("_2", 10.0)):
            torch.testing.assert_close(state[f"rows{number}"], sum(grads).sum((1, 2)))
            assert state[f"times{number}"] == first + 3
            assert torch.equal(state[f"start{number}"], weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2)], ids=str)
def test_a_weight_and_its_states_keep_their_dtypes(shape, dtype):
    """States of half precision are float32; a count in float64 promotes no 0-dim float32."""
    rule = sn.chain(r.ExponentialAverage(0.9, True), r.AdaptiveMoments(0.9, 0.99), Total())
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    weight, state = (
        trained(rule, weight_of(shape, dtype))
        if shape
        else trained(sn.chain(*rule.rules[:2]), weight_of(shape, dtype))
    )
    assert weight.dtype is dtype
    expected = {n: torch.float64 if n in ("step", "times") else wide for n in state}
    assert {n: x.dtype for n, x in state.items()} == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64], ids=str)
def test_a_gradient_of_another_dtype_is_converted_before_the_first_rule(dtype):
    weight = weight_of(dtype=torch.float32)
    grad = (9 * weight_of((3, 4))).T.to(dtype)
    rule = sn.bind("adamp", weight_decay=0.1).rule
    found, expected = (rule.step(weight, x, rule.init(weight)) for x in (grad, grad.float()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_tensor_among_the_fields_may_enter_the_state():
    weight = weight_of()

    def times(first):
        rule = sn.chain(Total(first))
        return rule.step(weight, weight, rule.init(weight))[1]["times"]

    batch = torch.tensor([0.25, 0.5], dtype=torch.float64)
    assert torch.equal(torch.vmap(times)(batch), batch + 1)


def test_each_rule_gets_its_own_part_of_the_state_under_its_own_names():
    seen = []

    class Named(sn.Rule):
        state_names = ("a", "b")

        def update(self, update, state):
            seen.append(sorted(state))
            return update, state

    class Stateless(sn.Rule):
        def update(self, update, state):
            seen.append(sorted(state))
            return update, {}

    trained(sn.chain(Named(), Stateless(), sn.chain(Named(name="mine")), Named()), weight_of(), 1)
    assert seen == [["a", "b"], [], ["a", "b"], ["a", "b"]]


# Order.


def nestings(rules):
    """All ways to split a sequence of rules into chains of chains, up to two deep."""
    yield tuple(rules)
    for start, end in itertools.combinations(range(len(rules) + 1), 2):
        yield (*rules[:start], sn.chain(*rules[start:end]), *rules[end:])
    yield (sn.chain(sn.chain(rules[0]), *rules[1:2]), sn.chain(*rules[2:]))


def test_chains_nest():
    rules = [r.HeavyBall(0.9), r.AdaptiveMoments(0.9, 0.9), r.DecoupledDecay(0.1), r.StepSize(0.1)]
    weight, state = trained(sn.chain(*rules), weight_of())
    for nested in nestings(rules):
        moved, inner = trained(sn.chain(*nested), weight_of())
        assert torch.equal(moved, weight)
        assert list(inner) == list(state)
        assert all(torch.equal(inner[name], x) for name, x in state.items())


def test_rules_come_in_order_from_the_gradient_to_the_weight():
    weight, grad = torch.full((3,), 2.0), torch.full((3,), 3.0)

    class Adds(sn.Rule):
        def update(self, update, state):
            assert torch.equal(update.weight, weight)
            assert torch.equal(update.grad, grad)
            return replace(update, direction=update.direction + 1), {}

    for rules, direction in (
        ([], 3.0),
        ([Adds()], 4.0),
        ([Adds(), r.StepSize(2.0)], 8.0),
        ([r.StepSize(2.0), Adds()], 7.0),
        ([r.StepSize(2.0), sn.chain(Adds(), Adds()), r.StepSize(0.5)], 4.0),
    ):
        moved, state = sn.chain(*rules).step(weight, grad, {})
        assert torch.equal(moved, weight - direction)
        assert state == {}


def test_momentum_within_feedback_is_its_recursion():
    """q = 0.5 q + (0.9 p + g), p = 0.1 q: with one buffer for both it is another number."""
    rule = r.FeedbackMomentum(sn.chain(r.HeavyBall(0.5), r.StepSize(0.1)), 0.9)
    weight = torch.zeros(1, dtype=torch.float64)
    state, p, q, w = rule.init(weight), 0.0, 0.0, 0.0
    for _ in range(3):
        weight, state = rule.step(weight, torch.ones_like(weight), state)
        q = 0.5 * q + (0.9 * p + 1)
        p = 0.1 * q
        w -= p
    torch.testing.assert_close(weight.item(), w, rtol=1e-14, atol=0)


def test_rules_side_by_side_take_the_same_update():
    rule = sn.chain(Holds(r.HeavyBall(0.5), r.HeavyBall(0.25)), r.HeavyBall(0.5))
    weight = torch.zeros(2, dtype=torch.float64)
    state, left, right, last, w = rule.init(weight), 0.0, 0.0, 0.0, 0.0
    for grad in (1.0, -2.0, 0.5):
        weight, state = rule.step(weight, torch.full_like(weight, grad), state)
        left, right = 0.5 * left + grad, 0.25 * right + grad
        last = 0.5 * last + (left - right)
        w -= last
        expected = {"momentum": left, "momentum_2": right, "momentum_3": last}
        assert {name: x[0].item() for name, x in state.items()} == pytest.approx(
            expected, rel=1e-14
        )
    torch.testing.assert_close(weight, torch.full_like(weight, w), rtol=1e-14, atol=0)


# Refusals.


def test_what_is_no_chain_is_refused():
    with refuses("chain", 0.1, by=TypeError):
        sn.chain(r.HeavyBall(0.9), 0.1)
    with refuses("manifold", "sphere", "Sphere", by=TypeError):
        sn.chain(r.HeavyBall(0.9), manifold="sphere")
    with refuses("Mine", "name", by=TypeError):
        type("Mine", (sn.Rule,), {"__annotations__": {"name": str}, "name": "mine"})


def test_states_that_do_not_fit_are_refused_by_name():
    class Undeclared(sn.Rule):
        state_names = ("other",)

        def init(self, weight):
            return {"memory": torch.zeros_like(weight)}

    with refuses("Undeclared", "memory", "other", by=TypeError):
        sn.chain(Undeclared()).init(weight_of())
    with refuses("Chain", "momentum", "m"):
        sn.chain(r.HeavyBall(0.9)).step(weight_of(), weight_of(), {"m": weight_of()})

    class Idle(sn.Rule):
        pass

    with refuses("Idle", "update", by=TypeError):
        sn.chain(Idle()).step(weight_of(), weight_of(), {})


WEIGHT = torch.ones(3, 2)
NO_WEIGHTS = {
    "an array": ((WEIGHT.numpy(), WEIGHT), TypeError, ("weight", "ndarray")),
    "an integer weight": ((WEIGHT.int(), WEIGHT), TypeError, ("weight", "int32")),
    "a complex weight": ((WEIGHT * 1j, WEIGHT), TypeError, ("weight", "complex64")),
    "no gradient": ((WEIGHT, None), TypeError, ("grad", "NoneType")),
    "a complex gradient": ((WEIGHT, WEIGHT * 1j), TypeError, ("grad", "complex64")),
    "a gradient of another shape": ((WEIGHT, WEIGHT.T), ValueError, ("grad", (3, 2), (2, 3))),
    "a broadcast gradient": ((WEIGHT, WEIGHT[:1]), ValueError, ("grad", (3, 2), (1, 2))),
}


@pytest.mark.parametrize("case", NO_WEIGHTS)
def test_what_cannot_be_stepped_is_refused(case):
    given, error, named = NO_WEIGHTS[case]
    with refuses(*named, by=error):
        sn.chain(r.StepSize(0.1)).step(*given, {})
