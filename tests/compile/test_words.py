"""A lowered step is right, or the lowering refuses it."""

from dataclasses import dataclass

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm._rule import scalar_state
from spherenorm.compile import _paths as paths
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._lower import lower
from tests.compile.twins import Twins, assert_close, random_weights
from tests.compile.words import (
    REFUSED,
    SATURATING,
    TRACED,
    TRACED_ROWS,
    Word,
    assert_agrees_at_extremes,
)
from tests.harness.rows import Row

ANY_SHAPE = ((6,), (), (1,), (0,))
ROWS = ((6, 6), (3, 4, 2), (1, 5), (5, 1), (1, 1), (0, 4), (4, 0))


def recipe_of(*steps):
    def words(lr=0.1):
        return sn.chain(Word(steps), r.StepSize(lr))

    return words


def agree(recipe, shapes, dtype=torch.float64, **options):
    twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights(shapes), dtype, **options)
    for step in range(3):
        twins.step("random", step)
    twins.agree()


def traced(recipe, shape, dtype=torch.float64):
    return lower(Guard.of(recipe(0.1)), shape, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("word", TRACED | TRACED_ROWS)
def test_what_is_taken(word, dtype):
    recipe = recipe_of((TRACED | TRACED_ROWS)[word])
    for shape in ROWS + (ANY_SHAPE if word in TRACED else ()):
        assert traced(recipe, shape, dtype).outputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("shapes", [ROWS, ANY_SHAPE], ids=["rows", "vectors"])
def test_kernels_take_the_same(shapes, dtype, monkeypatch):
    monkeypatch.delattr(paths.Inductor, "__init__")
    words = TRACED | (TRACED_ROWS if shapes is ROWS else {})
    agree(recipe_of(*words.values()), shapes, dtype)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("word", TRACED | TRACED_ROWS)
def test_what_is_not_finite_is_as_in_the_rules_own_code(word, number):
    """0 times it is nan, so that no product with 0 may be left out."""
    recipe = recipe_of((TRACED | TRACED_ROWS)[word])
    twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights([(4, 5)]))
    for step in range(2):
        twins.set_gradients("random", step)
        twins.own[0].grad[1, 2] = number
        twins.step_as_they_are()
    own, fast = twins.own[0], twins.fast[0]
    assert [line.path for line in sn.explain(twins.fast_opt)] == ["C++ kernel"]
    torch.testing.assert_close(fast, own, rtol=1e-12, atol=1e-12, equal_nan=True)
    states = twins.fast_opt.state[fast], twins.own_opt.state[own]
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("word", SATURATING)
def test_extreme_entries_are_as_in_torch(word, dtype, monkeypatch):
    monkeypatch.delattr(paths.Inductor, "__init__")
    assert_agrees_at_extremes(SATURATING[word], dtype)


BACKENDS = ["auto", "rule", "compiled"]
ALL = pytest.mark.parametrize("options", [{"backend": b} for b in BACKENDS], ids=BACKENDS)


def against_the_pure_rule(rule, options, shape=(3, 4), steps=4):
    """The optimizer against `rule.step` of fresh tensors."""

    def recipe(lr=0.5):
        return sn.chain(rule, r.StepSize(lr))

    weight = (
        torch.linspace(1, 2, torch.Size(shape).numel(), dtype=torch.float64)
        .view(shape)
        .requires_grad_()
    )
    optimizer = sn.torch_optimizer(recipe)([weight], **options)
    pure, state = (
        weight.detach().clone(),
        {name: value.clone() for name, value in recipe().init(weight.detach().clone()).items()},
    )
    for step in range(steps):
        weight.grad = torch.full_like(weight, (-1.0) ** step) - step * weight.detach()
        pure, state = recipe().step(pure, weight.grad.clone(), state)
        optimizer.step()
        weight.grad.zero_()  # as training loops do
        assert_close(weight.detach(), pure)
        for name, value in state.items():
            assert_close(optimizer.state[weight][name], value)


@dataclass(frozen=True)
class Counted(sn.Rule):
    """A direction and a state from (w, d, count, own state); the count is another state."""

    step_: object
    start: object = torch.zeros_like
    key: str = "own"

    @property
    def state_names(self):
        return ("n", self.key)

    def init(self, weight):
        return {"n": scalar_state(weight), self.key: self.start(weight)}

    def update(self, update, state):
        direction, own = self.step_(update.weight, update.direction, state["n"], state[self.key])
        return sn.Update(update.weight, update.grad, direction), {
            "n": state["n"] + 1,
            self.key: own,
        }


@ALL
@pytest.mark.parametrize(
    "rule",
    [
        Counted(lambda w, d, n, s: (d + 0.5 * s, w)),
        Counted(lambda w, d, n, s: (d + 0.5 * s, w + 0)),
        Counted(lambda w, d, n, s: (d + 0.5 * s, d)),
        Counted(lambda w, d, n, s: (d, torch.where(n >= 2, w, s))),
        Counted(lambda w, d, n, s: (d + 0.5 * (w - s), s), start=lambda w: w),
        Counted(lambda w, d, n, s: (d + 0.5 * s, 0.9 * s + d), key="grad"),
        Counted(lambda w, d, n, s: (d + 0.5 * s, 0.9 * s + d), key="weight"),
        Word((lambda w, d, m: (d - m, w), lambda w, d, m: (m, d), lambda w, d, m: (d, d))),
    ],
    ids=[
        "the weight",
        "plus 0",
        "the gradient",
        "chosen",
        "the start",
        "called grad",
        "called weight",
        "several",
    ],
)
def test_states_that_take_something_over(rule, options):
    against_the_pure_rule(rule, options)


@ALL
def test_states_exchanged(options):
    class Exchange(sn.Rule):
        state_names = ("last", "before")

        def update(self, update, state):
            last, before = state["last"], state["before"]
            return sn.Update(update.weight, update.grad, update.direction + before), {
                "last": before + update.direction,
                "before": last,
            }

    against_the_pure_rule(Exchange(), options)


@ALL
def test_one_tensor_for_two_states(options):
    class Both(sn.Rule):
        state_names = ("a", "b")

        def init(self, weight):
            both = torch.zeros_like(weight)
            return {"a": both, "b": both}

        def update(self, update, state):
            return sn.Update(update.weight, update.grad, state["a"] - state["b"]), {
                "a": state["a"] + update.direction,
                "b": state["b"],
            }

    against_the_pure_rule(Both(), options)


def test_a_value_per_row():
    """Counted, set to a number, and summed where a decision leaves one of many values."""
    start = lambda w: w.new_ones(len(w), 1)  # noqa: E731
    for step in (
        lambda w, d, n, s: (d, torch.zeros_like(s) + n),
        lambda w, d, n, s: (d * s, s + 1),
        lambda w, d, n, s: (
            d * torch.where(d.sum() > 0, d, s + d.square().sum(1, keepdim=True)).sum(),
            s,
        ),
        lambda w, d, n, s: (d * torch.where(d.sum() > 0, d, s + 1).sum(1, keepdim=True), s),
        lambda w, d, n, s: (d * (torch.where(d.sum() > 0, d, 0) + s).sum(), s),
    ):
        against_the_pure_rule(Counted(step, start=start), {"backend": "compiled"})
    counted = Counted(lambda w, d, n, s: (d, s + 1), start=start)
    against_the_pure_rule(counted, {"backend": "compiled"}, shape=(3, 0))


@ALL
def test_states_have_memory_of_their_own(options):
    """A rule may return its arguments, and one tensor twice: each state keeps its own values."""

    def remember(lr=0.1):
        return sn.chain(
            Word((lambda w, d, m: (d, w), lambda w, d, m: (d, d), lambda w, d, m: (m, d))),
            r.StepSize(lr),
        )

    for shape in ((3, 2), (3,), ()):
        weight = torch.full(shape, 2.0, requires_grad=True)
        weight.grad = torch.ones(shape)
        optimizer = sn.torch_optimizer(remember)([weight], **options)
        optimizer.step()
        state = optimizer.state[weight]
        weight.grad.zero_()
        state["m1"].add_(1)
        assert [float(state[name].sum()) for name in ("m0", "m1", "m2")] == [
            value * weight.numel() for value in (2, 2, 1)
        ]


def test_a_state_set_to_a_number():
    assert traced(recipe_of(forget), (6, 6)).outputs
    agree(recipe_of(forget), [(6, 6), (6,)])


def forget(w, d, m):
    return d + m, torch.full_like(m, 0.5)


@pytest.mark.parametrize("word", REFUSED)
def test_what_is_refused(word):
    step, said = REFUSED[word]
    with pytest.raises(UnsupportedRuleError, match=f"^Word: .*{said}"):
        traced(recipe_of(step), (6, 6))


def test_a_result_of_another_shape_is_refused():
    said = r"Word.*: 'm0' must have shape \(6, 5\), got \(6, 1\)"
    with pytest.raises(UnsupportedRuleError, match=said):
        traced(recipe_of(lambda w, d, m: (d, d.sum(1, keepdim=True))), (6, 5))


def test_half_precision_within_a_step_is_refused():
    for rounded in (
        lambda w, d, m: ((3 * d).bfloat16().float(), m + d),
        lambda w, d, m: (d, m.bfloat16() + d),
    ):
        with pytest.raises(UnsupportedRuleError, match=r"torch\.bfloat16 within the step"):
            traced(recipe_of(rounded), (6, 6), torch.bfloat16)
    assert traced(
        recipe_of(lambda w, d, m: (d.bfloat16() + m, m + d)), (6, 6), torch.bfloat16
    ).outputs  # as it was


@pytest.mark.parametrize("dims", [(1,), (0, 1)], ids=["rows", "scalars"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_number_is_compared_in_the_type_of_the_rows(dims, dtype):
    """torch rounds 10.7 to float32, as it does in the bound; so a bounded number equals it."""

    @dataclass(frozen=True)
    class Bounded(sn.Rule):
        most: sn.Scalar = sn.hyper("(0, inf)", 10.7)

        def update(self, update, state):
            size = (update.direction**2).sum(dims, keepdim=True).sqrt().clamp(max=self.most)
            share = torch.where(size >= self.most, 0.5, torch.ones_like(size))
            share = torch.where(size < 1e-50, 2.0, share)
            return update.changed(direction=share * update.direction), {}

    for most in (0.1, 10.7, 0.3, 19.9, 3.3):
        for size in (0.0, 100.0):
            steps = []
            for backend in ("rule", "compiled"):
                w = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))
                w.grad = torch.full_like(w, size)
                optimizer = sn.torch_optimizer(lambda most=most: Bounded(most))
                optimizer([w], backend=backend).step()
                steps.append(w.detach())
            assert torch.equal(*steps)
