"""Any rule beside any other: states told apart, and what all weights and all rules share."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness.gradients import gradient
from tests.testing.users import Adafactor, GlobalClip, Lookahead, sam_sgd

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
"""Rules with a state; all claim the names that others claim."""


def weights(count=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(count)]


def grads(weight, steps):
    return [
        gradient("alternating", weight, torch.Generator().manual_seed(step), step)
        for step in range(steps)
    ]


def apart(rules, lr, weight, steps):
    """The rules of a chain by hand: each with a state of its own, and one counter."""
    states = [rule.init(weight) for rule in rules]
    for t, grad in enumerate(grads(weight, steps), 1):
        count = torch.tensor(float(t), dtype=torch.float64)
        update = sn.Update(weight, grad, grad, count=count)
        for i, rule in enumerate(rules):
            update, states[i] = rule.update(update, states[i])
        weight = weight - lr * update.direction
    return weight


@pytest.mark.parametrize("pair", list(itertools.product(STATEFUL, repeat=2)), ids="-".join)
def test_no_pair_of_rules_refuses_the_other(pair):
    """And neither reads the other's state: they step as they do with states in separate places."""
    first, second = (STATEFUL[name]() for name in pair)
    weight = weights(1)[0]
    rule = sn.chain(first, second, r.StepSize(0.01))
    state, moved = rule.init(weight), weight
    assert len(state) == len(set(rule.state_names))
    for grad in grads(weight, 4):
        moved, state = rule.step(moved, grad, state)
    expected = apart([first, second], 0.01, weight, 4)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-13)


def test_a_preconditioner_of_an_average_is_adam():
    """With a second moment that is noted before it: torch.optim.AdamW is the oracle."""
    ours, theirs = (torch.nn.Parameter(weights(1)[0]) for _ in range(2))
    oracle = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), eps=0.0, weight_decay=0.1)
    rule = sn.chain(
        SecondMoment(0.99),
        r.ExponentialAverage(0.9, bias_correction=True),
        DividedByItsRoot(),
        r.DecoupledDecay(0.1),
        r.StepSize(0.01),
    )
    state = rule.init(ours.detach())
    for grad in grads(ours.detach(), 6):
        moved, state = rule.step(ours.detach(), grad, state)
        ours = torch.nn.Parameter(moved)
        theirs.grad = grad
        oracle.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


class SecondMoment(sn.Rule):
    """Notes v / (1 - beta^t), v = beta v + (1 - beta) g^2, and leaves the direction alone."""

    beta: sn.Scalar = sn.hyper("[0, 1)")
    needs_step = True
    state_names = ("exp_avg_sq",)

    def update(self, update, state):
        square = self.beta * state["exp_avg_sq"] + (1 - self.beta) * update.grad**2
        corrected = square / (1 - self.beta**update.step)
        return update.noting(second=corrected), {"exp_avg_sq": square}


class DividedByItsRoot(sn.Rule):
    def update(self, update, state):
        direction = update.direction / update.notes["second"].sqrt()
        return replace(update, direction=direction), {}


# Names.


def test_a_rule_added_behind_changes_no_name():
    short = sn.chain(r.HeavyBall(0.9), r.HeavyBall(0.5))
    longer = sn.chain(r.HeavyBall(0.9), r.HeavyBall(0.5), r.AdaptiveMoments(0.9, 0.9))
    assert longer.state_names[: len(short.state_names) + 1] == ("step", *short.state_names)


def test_names_of_ones_own():
    rule = sn.chain(r.HeavyBall(0.9, name="slow"), r.HeavyBall(0.5), r.HeavyBall(0.5, name="slow"))
    assert rule.state_names == ("slow_momentum", "momentum", "slow_momentum_2")
    assert repr(rule).count("slow") == 2, "two rules of one class print apart"


def test_the_names_of_todays_recipes():
    names = {
        each: sn.bind(each, **{"momentum": 0.9} if each[:3] in ("sgd", "rms") else {})
        for each in sn.recipe_names()
        if ":" not in each
    }
    moments = ("step", "exp_avg", "exp_avg_sq")
    expected = {
        "sgd": ("momentum_buffer",),
        "sgdw": ("momentum_buffer",),
        "sgdp": ("momentum",),
        "adam": moments,
        "adamw": moments,
        "adamp": moments,
        "adamg": moments,
        "rmsprop": ("step", "square_avg", "momentum_buffer"),
        "sgdg": ("momentum",),
    }
    for name, keys in expected.items():
        assert names[name].rule.state_names == keys


def test_momentum_within_feedback_is_told_apart():
    """It was one buffer for both: -0.776 for -0.453 after three steps."""
    rule = r.FeedbackMomentum(sn.chain(r.HeavyBall(0.5), r.StepSize(0.1)), 0.9)
    assert rule.state_names == ("momentum", "momentum_2")
    weight = torch.zeros(1, dtype=torch.float64)
    state, p, q, w = rule.init(weight), 0.0, 0.0, 0.0
    for _ in range(3):
        weight, state = rule.step(weight, torch.ones(1, dtype=torch.float64), state)
        q = 0.5 * q + (0.9 * p + 1)
        p = 0.1 * q
        w -= p
    torch.testing.assert_close(weight.item(), w, rtol=1e-14, atol=0)


def test_a_field_called_name_is_refused():
    with pytest.raises(TypeError, match="Mine: every rule has a field `name`"):

        class Mine(sn.Rule):
            name: str = "mine"


def test_renamed_momenta_are_transported():
    """Each on its own, by the same retraction, as if it were alone in the chain."""
    weight = sn.Sphere("channel").normalize(weights(1)[0])
    both = sn.chain(
        r.RadialProjection("channel"),
        r.HeavyBall(0.9),
        r.HeavyBall(0.5),
        r.StepSize(0.1),
        manifold=sn.Sphere("channel"),
    )
    assert both.tangent_names == ("momentum", "momentum_2")
    state, moved = both.init(weight), weight
    for grad in grads(weight, 3):
        moved, state = both.step(moved, grad, state)
        for name in both.tangent_names:
            along = (moved * state[name]).sum(1).abs().max()
            assert along <= 1e-14, f"{name} is not tangent at the new weight"
    assert sn.sphere_of(both).view.name == "channel"


def test_checkpoints_hold_both(tmp_path):
    cls = sn.torch_optimizer(
        lambda lr=0.1: sn.chain(r.HeavyBall(0.9), r.HeavyBall(0.5), r.StepSize(lr))
    )
    whole, broken = (torch.nn.Parameter(weights(1)[0]) for _ in range(2))
    first, second = cls([whole]), cls([broken])
    for step, grad in enumerate(grads(weights(1)[0], 6)):
        if step == 3:
            torch.save(second.state_dict(), tmp_path / "state.pt")
            second = cls([broken])
            second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        whole.grad, broken.grad = grad, grad.clone()
        first.step()
        second.step()
    assert torch.equal(whole, broken)


# The counter.


def test_one_counter_serves_all():
    rule = sn.chain(
        r.ExponentialAverage(0.9, bias_correction=True),
        r.AdaptiveMoments(0.9, 0.9),
        r.StepSize(1.0),
    )
    weight = weights(1)[0]
    state = rule.init(weight)
    for t in range(1, 4):
        weight, state = rule.step(weight, torch.ones_like(weight), state)
        assert state["step"] == t
    assert [key for key in state if "step" in key] == ["step"]


def test_a_rule_that_counts_by_itself_keeps_its_name_apart():
    class Counts(sn.Rule):
        def init(self, weight):
            return {"step": torch.full((), 10.0, dtype=torch.float64)}

        def update(self, update, state):
            return update, {"step": state["step"] + 1}

    alone = sn.chain(Counts(), r.StepSize(0.1))
    beside = sn.chain(r.AdaptiveMoments(0.9, 0.9), Counts(), r.StepSize(0.1))
    for rule, own in ((alone, "step"), (beside, "step_2")):
        weight = torch.ones(2, 2)
        state = rule.init(weight)
        weight, state = rule.step(weight, weight, state)
        assert state[own] == 11
    assert state["step"] == 1


def test_the_step_is_refused_where_nobody_counts():
    class Reads(sn.Rule):
        def update(self, update, state):
            return replace(update, direction=update.direction / update.step), {}

    weight = torch.ones(2)
    with pytest.raises(ValueError, match=r"the steps are not counted.*needs_step = True"):
        sn.chain(Reads()).step(weight, weight, {})
    rule = r.AdaptiveMoments(0.9, 0.9)
    state = rule.init(weight)
    with pytest.raises(ValueError, match="AdaptiveMoments: a chain counts the steps that it needs"):
        rule.step(weight, weight, state)


# States of any shape.


def factored(lr=0.01):
    parts = (Adafactor(0.8, 1.0, 1e-30) for _ in range(2))
    return sn.chain(next(parts), r.HeavyBall(0.9), next(parts), r.StepSize(lr))


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_states_by_shape(backend):
    params = [weights(1)[0].requires_grad_(), torch.ones(5, dtype=torch.float64).requires_grad_()]
    optimizer = sn.torch_optimizer(factored)(params, backend=backend)
    for step in range(3):
        for each in params:
            each.grad = torch.randn(
                each.shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
        optimizer.step()
    matrix, vector = (optimizer.state[each] for each in params)
    assert list(matrix) == [
        "step",
        *("square_row", "square_col", "momentum", "square_row_2", "square_col_2"),
    ]
    assert list(vector) == ["step", "square", "momentum", "square_2"]
    assert factored().keys(params[1]) == ("step", "square", "momentum", "square_2")
    with pytest.raises(ValueError, match="Adafactor: its states depend on the weight"):
        factored().state_names  # noqa: B018
    copy = sn.torch_optimizer(factored)(params)
    copy.load_state_dict(optimizer.state_dict())
    for each in params:
        for name, value in optimizer.state[each].items():
            assert torch.equal(copy.state[each][name], value)


# What all weights share.


def clipped(lr=0.1):
    return sn.chain(GlobalClip(1.0), r.HeavyBall(0.9), r.StepSize(lr))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_global_norm_is_torchs_clip(groups):
    """With SGD as the oracle, whatever the groups."""
    ours = [w.requires_grad_() for w in [*weights(3), torch.ones(2, dtype=torch.float64)]]
    theirs = [w.detach().clone().requires_grad_() for w in ours]
    split = [ours] if groups == 1 else [ours[:1], ours[1:]]
    optimizer = sn.torch_optimizer(clipped)([{"params": each} for each in split])
    oracle = torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    for step in range(4):
        for x, y in zip(ours, theirs, strict=True):
            x.grad = 3 ** (step - 2) * torch.randn(
                x.shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64
            )
            y.grad = x.grad.clone()
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        optimizer.step()
        oracle.step()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


def test_the_pure_forms_share_too():
    rule, params = clipped(), dict(enumerate(weights(3)))
    params = {str(name): w for name, w in params.items()}
    slopes = {name: 2.0 * torch.ones_like(w) for name, w in params.items()}
    moved, _ = functional.step(rule, params, slopes, functional.init(rule, params))
    norm = (4.0 * 36) ** 0.5 + 1e-6
    for name, w in params.items():
        torch.testing.assert_close(moved[name], w - 0.1 * slopes[name] / norm)
    alone, _ = rule.step(params["0"], slopes["0"], rule.init(params["0"]))
    torch.testing.assert_close(alone, params["0"] - 0.1 * slopes["0"] / (48**0.5 + 1e-6))


def test_a_sweep_shares_within_each_point():
    def loss(params):
        return sum((w**2).sum() for w in params.values())

    start = {
        "a": torch.ones(2, 3, dtype=torch.float64),
        "b": torch.full((2, 2), 2.0, dtype=torch.float64),
    }
    rates = [0.1, 0.2]
    found = functional.sweep(clipped, loss, start, {"lr": rates}, steps=9)
    for k, lr in enumerate(rates):
        rule = clipped(lr)
        params = {name: w[0] for name, w in start.items()}
        state = functional.init(rule, params)
        for _ in range(9):
            slopes = {name: 2 * w for name, w in params.items()}
            params, state = functional.step(rule, params, slopes, state)
        for name, w in params.items():
            torch.testing.assert_close(found.params[name][k, 0], w, rtol=1e-12, atol=1e-13)


def test_compiled_refuses_what_is_measured():
    weight = torch.ones(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    cls = sn.torch_optimizer(clipped)
    with pytest.raises(sn.BackendError, match="GlobalClip measures all weights together"):
        cls([weight], backend="compiled").step()
    optimizer = cls([weight])
    assert "measures all weights together" in str(sn.explain(optimizer))
    optimizer.step()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda u: 1.0, r"GlobalClip: measure\(\)\['squared_norm'\] must be a tensor, got 1.0"),
        (lambda u: u.grad, r"must be 0-dim, got shape \(3, 2\)"),
    ],
)
def test_what_is_no_number_is_refused(value, message):
    class Wrong(GlobalClip):
        def measure(self, update, state):
            return {"squared_norm": value(update)}

    Wrong.__name__ = "GlobalClip"
    weight = torch.ones(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    optimizer = sn.torch_optimizer(lambda lr=0.1: sn.chain(Wrong(1.0), r.StepSize(lr)), "Clips")(
        [weight]
    )
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.step()
    assert torch.equal(weight, torch.ones(3, 2))


# After the move.


def looking(lr=0.1):
    return sn.chain(r.HeavyBall(0.9), r.StepSize(lr), Lookahead(0.5, 3))


@pytest.mark.parametrize("backend", ["rule", "auto", "compiled"])
def test_lookahead_is_its_loop(backend):
    start = weights(1)[0]
    weight = start.clone().requires_grad_()
    optimizer = sn.torch_optimizer(looking)([weight], backend=backend)
    fast, slow, momentum = start, start, 0.0
    for t, grad in enumerate(grads(start, 7), 1):
        weight.grad = grad
        optimizer.step()
        momentum = 0.9 * momentum + grad
        fast = fast - 0.1 * momentum
        if t % 3 == 0:
            fast = slow = slow + 0.5 * (fast - slow)
        torch.testing.assert_close(weight.detach(), fast, rtol=1e-12, atol=1e-13)


def test_hooks_behind_the_move_come_in_the_order_of_the_rules():
    class Adds(sn.Rule):
        amount: float = 1.0

        def update(self, update, state):
            return update, {}

        def after(self, before, weight, state):
            return self.amount * (weight + self.amount), {}

    weight = torch.zeros(2)
    rule = sn.chain(r.StepSize(0.0), Adds(2.0), Adds(3.0))
    assert torch.equal(rule.step(weight, weight, {})[0], torch.full((2,), 21.0))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (lambda w, s: (w.sum(), s), r"the weight of after must have shape \(2,\), got \(\)"),
        (lambda w, s: (w, {}), r"after returns the state \[\], its states are \['m'\]"),
        (lambda w, s: (w, {"m": 1.0}), "'m' must be a tensor, got 1.0"),
    ],
)
def test_what_after_returns_is_checked(after, message):
    class Wrong(sn.Rule):
        state_names = ("m",)

        def update(self, update, state):
            return update, state

        def after(self, before, weight, state):
            return after(weight, state)

    weight = torch.zeros(2)
    rule = sn.chain(r.StepSize(0.0), Wrong())
    with pytest.raises((TypeError, ValueError), match=rf"Wrong \(rule 2 of the chain\): {message}"):
        rule.step(weight, weight, rule.init(weight))


# Work at some steps, and a second gradient.


class Fourth(sn.Rule):
    """Multiplies by a number that is worked out at every fourth step only."""

    needs_step = True
    calls = 0

    def init(self, weight):
        return {"kept": torch.zeros((), dtype=torch.float64)}

    def update(self, update, state):
        def work():
            type(self).calls += 1
            return update.step.clone()

        kept = sn.when(update.step % 4 == 1, work, state["kept"])
        return replace(update, direction=kept.to(update.direction.dtype) * update.direction), {
            "kept": kept
        }


def fourth(lr=0.01):
    return sn.chain(Fourth(), r.StepSize(lr))


def test_work_is_done_at_its_steps_only_and_where_values_are_batched_at_all():
    weight = torch.zeros(2, dtype=torch.float64)
    one = torch.ones_like(weight)
    rule = fourth()
    state, moved, Fourth.calls = rule.init(weight), weight, 0
    for _ in range(6):
        moved, state = rule.step(moved, one, state)
    assert Fourth.calls == 2
    torch.testing.assert_close(moved, -0.01 * (4 * 1 + 2 * 5) * one)
    found = functional.sweep(
        fourth,
        lambda p: p["w"].sum(),
        {"w": torch.zeros(1, 2, dtype=torch.float64)},
        {"lr": [0.01, 0.02]},
        steps=6,
    )
    torch.testing.assert_close(found.params["w"][1, 0], -0.02 * 14 * one)


def test_a_second_gradient_needs_a_closure_and_puts_weights_back():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = sn.torch_optimizer(sam_sgd)([weight])
    with pytest.raises(ValueError, match=r"another point than the weight; call step\(closure\)"):
        optimizer.step()
    calls = []

    def breaks():
        calls.append(weight.detach().clone())
        if len(calls) == 2:
            raise RuntimeError("no loss today")
        return 0.0

    with pytest.raises(RuntimeError, match="no loss today"):
        optimizer.step(breaks)
    assert torch.equal(weight, torch.ones(2))
    assert not torch.equal(calls[1], calls[0])


# The order of the rules.


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([r.RadialProjection()], r"RadialProjection\(\) needs a ScaleInvarianceTest before it"),
        ([r.DecoupledDecay(0.1, invariant_ratio=0.1)], r"DecoupledDecay\(invariant_ratio=...\)"),
        ([r.FeedbackMomentum(r.RadialProjection(), 0.9)], r"RadialProjection\(\) needs"),
        ([r.RadialProjection(), r.ScaleInvarianceTest()], r"RadialProjection\(\) needs"),
    ],
)
def test_a_missing_test_is_refused_when_an_optimizer_is_made(rules, message):
    """A chain may be a part of another, which has the test; so it is not refused by itself."""
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(*rules, r.StepSize(lr)), "Untested")
    weight = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        cls([weight])
    whole = sn.chain(r.ScaleInvarianceTest(), sn.chain(*rules), r.StepSize(0.1))
    sn.torch_optimizer(lambda lr=0.1: whole, "Tested")([weight])


class Decides(sn.Rule):
    def update(self, update, state):
        return replace(update, invariance=sn.Invariance()), {}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([r.HeavyBall(0.9)], "no StepSize, so weights move by the whole direction"),
        ([r.StepSize(0.1), r.DecoupledDecay(0.1)], "DecoupledDecay comes behind StepSize"),
        ([r.DecoupledDecay(0.1), r.StepSize(0.1)], None),
        ([r.StepSize(2.0), r.DecoupledDecay(0.1), r.StepSize(0.1)], None),
        ([r.StepSize(0.1), r.DecoupledDecay(0.0)], None),
        ([Decides(), r.RadialProjection()], None),
    ],
)
def test_an_odd_order_is_said_when_an_optimizer_is_made(rules, message, recwarn):
    sn.torch_optimizer(lambda lr=0.1: sn.chain(*rules), "Odd")([torch.ones(3, 2)])
    said = [str(each.message) for each in recwarn]
    assert bool(said) == (message is not None), said
    assert message is None or message in said[0]
