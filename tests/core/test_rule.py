"""A rule is a value, its step a pure function; half precision, work at some steps, derivatives."""

import copy
import gc
import pickle
import weakref
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness import ROWS, gradient, refuses

NAMES = {**vars(sn), **vars(r), "inf": float("inf")}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_rule_is_a_value(row):
    """Equal to the same one made anew, by its repr, as a copy and as a pickle; frozen."""
    rule = row.rule()
    same = [row.rule(), eval(repr(rule), NAMES), copy.deepcopy(rule), replace(rule)]
    for each in (*same, pickle.loads(pickle.dumps(rule))):
        assert each == rule
        assert hash(each) == hash(rule)
        assert repr(each) == repr(rule)
    weight = torch.ones(4, 3, dtype=torch.float64)
    for used in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        expected = rule.step(weight, weight, rule.init(weight))  # what is derived does not travel
        torch.testing.assert_close(used(rule).step(weight, weight, rule.init(weight)), expected)
    others = [each.rule() for each in ROWS if str(each) != str(row)]
    assert all(each != rule for each in others) or rule in others
    with pytest.raises(FrozenInstanceError):
        rule.rules = ()
    with pytest.raises(FrozenInstanceError):
        rule.rules[-1].lr = 0.1


def test_a_rule_that_is_gone_leaves_nothing_behind():
    number, weight = torch.tensor(0.9), torch.ones(2)
    rule = sn.chain(r.HeavyBall(number), r.StepSize(0.1))
    rule.step(weight, weight, rule.init(weight))
    kept = [weakref.ref(each) for each in (number, rule)]
    del number, rule
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_a_rule_prints_its_fields_and_its_name():
    rule = sn.chain(r.HeavyBall(0.9, name="slow"), r.HeavyBall(0.5), r.HeavyBall(0.5, name="slow"))
    assert repr(rule).count("name='slow'") == 2
    assert repr(rule).count("beta=0.5") == 2

    class Own(sn.Rule):
        share: sn.Scalar = sn.hyper("[0, 1)", 0.25)

        def update(self, update, state):
            return update, {}

    assert repr(Own(0.5)).endswith("Own(share=0.5)")
    assert Own() == Own(0.25) != Own(0.5)


@pytest.mark.parametrize("decorated", [False, True], ids=["bare", "decorated"])
def test_a_subclass_is_a_frozen_dataclass(decorated):
    """Also of a rule of one's own, with fields of its own."""
    mark = dataclass(frozen=True) if decorated else lambda cls: cls

    @mark
    class Base(sn.Rule):
        one: sn.Scalar = sn.hyper("[0, 1]")

        def update(self, update, state):
            return replace(update, direction=self.one * update.direction), {}

    @mark
    class Derived(Base):
        two: sn.Scalar = sn.hyper("[0, 1]", 1.0)

    weight = torch.ones(3)
    assert Derived(0.5) == Derived(one=0.5, two=1.0)
    assert sn.chain(Derived(0.25)).step(weight, weight, {})[0].tolist() == [0.75] * 3
    with pytest.raises(FrozenInstanceError):
        Derived(0.5).one = 1
    with refuses("Derived", "two", 2, "[0, 1]"):
        Derived(0.5, 2)


# The step.


@pytest.mark.parametrize("size", [12, 2**16], ids=["small", "large"])
@pytest.mark.parametrize("name", ["adamp", "adamw", "rmsprop", "sgdp"])
def test_a_step_leaves_its_arguments_alone_with_and_without_derivatives(name, size):
    """The same bits; a large weight may reuse memory, but only its own."""
    rule = sn.bind(name, weight_decay=0.1).rule
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(2, 4, size // 4, generator=generator)
    state = rule.init(weight)
    for _ in range(2):
        given = {"weight": weight, "grad": grad, **state}
        before = {key: x.clone() for key, x in given.items()}
        expected = rule.step(weight, grad, state)
        with torch.no_grad():
            moved, new = rule.step(weight, grad, state)
        assert all(torch.equal(x, before[key]) for key, x in given.items())
        assert torch.equal(moved, expected[0])
        assert all(torch.equal(x, expected[1][key]) for key, x in new.items())
        weight, state = moved, new


class Keeps(sn.Rule):
    """Keeps the weight and the gradient themselves."""

    state_names = ("start", "last")

    def init(self, weight):
        return {"start": weight.detach(), "last": weight.view(-1)}

    def update(self, update, state):
        return update, {"start": state["start"], "last": update.grad.detach().view(-1)}


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_states_do_not_change_when_the_loop_writes_into_weights_and_gradients(backend):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = sn.torch_optimizer(lambda lr=0.5: sn.chain(Keeps(), r.StepSize(lr)), "Keeping")(
        [weight], backend=backend
    )
    weight.grad = torch.full((3,), 2.0)
    optimizer.step()
    weight.data.fill_(9.0)
    weight.grad.zero_()
    state = optimizer.state[weight]
    assert (state["start"].tolist(), state["last"].tolist()) == ([1.0] * 3, [2.0] * 3)


def test_a_state_that_begins_as_half_precision_is_float32():
    class Start(sn.Rule):
        state_names = ("start",)

        def init(self, weight):
            return {"start": weight}

        def update(self, update, state):
            return update, state

    for dtype in (torch.float16, torch.bfloat16):
        state = sn.chain(sn.chain(Start())).init(torch.ones(3, dtype=dtype))
        assert state["start"].dtype is torch.float32
    weight = torch.ones(3)
    state = functional.init(Start(), {"": weight})[""]
    weight.zero_()  # which the state does not follow
    assert state["start"].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rules_see_half_precision_as_float32_and_it_is_rounded_once(dtype):
    seen = []

    class Third(sn.Rule):
        def update(self, update, state):
            seen.extend((update.weight, update.grad, update.direction))
            return replace(update, direction=update.direction / 3), {}

    weight, grad = torch.linspace(1, 2, 7).to(dtype), torch.linspace(3, 5, 7).to(dtype)
    moved, _ = sn.chain(Third(), r.StepSize(0.1)).step(weight, grad, {})
    assert {x.dtype for x in seen} == {torch.float32}
    assert torch.equal(moved, (weight.float() - 0.1 * (grad.float() / 3)).to(dtype))


def test_an_init_may_read_the_weight():
    class Scaled(sn.Rule):
        state_names = ("scale",)

        def init(self, weight):
            return {"scale": torch.zeros(()) + float(weight.norm())}

        def update(self, update, state):
            return replace(update, direction=state["scale"] * update.direction), state

    for backend in ("auto", "rule"):
        weight = torch.nn.Parameter(torch.full((2, 2), 2.0))
        weight.grad = torch.ones(2, 2)
        cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(Scaled(), r.StepSize(lr)), "Scaled")
        cls([weight], backend=backend).step()
        torch.testing.assert_close(weight.detach(), torch.full((2, 2), 1.6))


def test_a_batch_of_weights_steps_as_each_does():
    """Under vmap, of a chain with notes, states of two kinds, and a test."""
    rule = sn.chain(
        r.ScaleInvarianceTest(), r.AdaptiveMoments(0.9, 0.99), r.RadialProjection(), r.StepSize(0.1)
    )
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    kinds = ("random", "row_tangential", "layer_tangential")
    both = zip(kinds, weights, strict=True)
    grads = torch.stack([gradient(kind, w, generator, 0) for kind, w in both])
    batched = torch.vmap(rule.step)(weights, grads, torch.vmap(rule.init)(weights))
    for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
        one = batched[0][i], {name: x[i] for name, x in batched[1].items()}
        torch.testing.assert_close(one, rule.step(w, g, rule.init(w)), rtol=1e-13, atol=1e-14)


# Work at some steps.


class Fourth(sn.Rule):
    """Multiplies by a number that is worked out at every fourth step only."""

    calls: list

    state_names = ("step", "kept")

    def init(self, weight):
        return super().init(weight) | {"kept": torch.zeros((), dtype=torch.float64)}

    def update(self, update, state):
        t = state["step"]

        def work():
            self.calls.append(1)
            return t.clone()

        kept = sn.when(t % 4 == 1, work, state["kept"])
        direction = kept.to(update.direction.dtype) * update.direction
        return replace(update, direction=direction), {"kept": kept}


def test_work_is_done_at_its_steps_only_and_where_values_are_batched_at_all():
    calls = []

    def fourth(lr=0.01):
        return sn.chain(Fourth(calls), r.StepSize(lr))

    rule, one = fourth(), torch.ones(2, dtype=torch.float64)
    state, moved = rule.init(0 * one), 0 * one
    for _ in range(6):
        moved, state = rule.step(moved, one, state)
    assert len(calls) == 2
    torch.testing.assert_close(moved, -0.01 * (4 * 1 + 2 * 5) * one)
    rates, start = {"lr": [0.01, 0.02]}, {"w": 0 * one[None]}
    found = functional.sweep(fourth, lambda p: p["w"].sum(), start, rates, steps=6)
    torch.testing.assert_close(found.params["w"][1, 0], -0.02 * 14 * one)


@pytest.mark.parametrize("derivative", [torch.func.grad, torch.func.jacfwd, torch.func.jacrev])
def test_work_that_is_not_done_has_no_derivative(derivative):
    """sqrt has none at 0: computed and not chosen, it would make nan of the derivative 2."""

    def chosen(x):
        return sn.when(x.sum() > 5, lambda: x.sqrt().sum(), 2 * x.sum())

    zero = torch.zeros(3, dtype=torch.float64)
    assert derivative(chosen)(zero).tolist() == [2.0] * 3
    assert derivative(chosen)(zero + 4).tolist() == [0.25] * 3
    batch = torch.tensor([[0.0, 0.0, 0.0], [4.0, 9.0, 16.0]], dtype=torch.float64)
    assert torch.vmap(chosen)(batch).tolist() == [0.0, 9.0]


class Reads(sn.Rule):
    what: str = "state"
    state_names = ("m",)

    def update(self, update, state):
        if self.what == "attribute":
            return update.replace(dirction=update.direction), state
        return update.replace(direction=(state if self.what == "state" else update.notes)["n"]), {}


@pytest.mark.parametrize(
    ("what", "error", "named"),
    [
        ("state", KeyError, ["Reads", "n", "m"]),
        ("note", KeyError, ["Reads", "n", "notes"]),
        ("attribute", TypeError, ["dirction", "direction"]),
    ],
)
def test_an_error_in_a_rule_names_the_rule_and_what_there_is(what, error, named):
    rule, weight = sn.chain(r.HeavyBall(0.9), sn.chain(Reads(what))), torch.ones(2)
    with refuses(*named, by=error):
        rule.step(weight, weight, rule.init(weight))


def test_a_class_in_the_place_of_a_rule_is_refused():
    with refuses("Reads()", by=TypeError):
        sn.chain(Reads, r.StepSize(0.1))


@pytest.mark.parametrize(
    "name",
    ["name", "vector_policy", "needs_whole_weight", "uses_endpoint", "needs_flat_space"],
)
def test_a_field_with_the_name_of_a_flag_is_refused(name):
    """Without the error the field would decide who steps a sharded weight, say."""
    with pytest.raises(TypeError, match=f"Mine: rename the field `{name}`"):
        type("Mine", (sn.Rule,), {"__module__": __name__, "__annotations__": {name: bool}})
