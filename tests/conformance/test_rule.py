"""Every recipe is a pure function."""

import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import Unsupported
from torch.fx.experimental.proxy_tensor import make_fx

from spherenorm import Rule, ViewField, bind, chain, functional, hyper, view
from spherenorm._numerics import Scalar
from spherenorm.rules import StepSize
from tests.harness.rows import ANY_WEIGHTS, ROWS, parameters
from tests.harness.rows import SHAPES as TABLE_SHAPES
from tests.harness.gradients import FAMILIES, gradient

pytestmark = ANY_WEIGHTS

COMPILED = ("NorMuon-lr=0.01", "RotationalMine")
"""Of the recipes of norm control, those which together have all of their rules."""


@pytest.fixture(params=ROWS, ids=lambda row: row.id)
def row(request):
    return request.param


def matrices():
    """A matrix and a convolution."""
    weights = [w.detach() for w in parameters()]
    return [w for w in weights if w.ndim > 1]


def warm(rule, weight):
    state = rule.init(weight)
    for step in range(3):
        weight, state = rule.step(
            weight,
            gradient("alternating", weight, torch.Generator().manual_seed(step), step),
            state,
        )
    return weight, gradient("row_tangential", weight, torch.Generator().manual_seed(9), 0), state


def equal(a, b):
    return (
        torch.equal(a[0], b[0])
        and a[1].keys() == b[1].keys()
        and all(torch.equal(a[1][k], b[1][k]) for k in a[1])
    )


def close(a, b, tolerance=1e-13):
    torch.testing.assert_close(a[0], b[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a[1], b[1], rtol=tolerance, atol=tolerance)


HYPER_PARAMETERS = {
    "lr": st.floats(0, 1),
    "momentum": st.floats(0, 0.99),
    "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    "weight_decay": st.sampled_from([0.0, 0.1]),
    "delta": st.floats(0.01, 1),
    "wd_ratio": st.floats(0, 1),
    "per": st.sampled_from(["tensor", "unit"]),
    "nu": st.sampled_from([None, 0.1, 10.0]),
    "alpha": st.floats(0.5, 0.99),
    "eps": st.sampled_from([1e-8, 1e-3]),
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
@settings(max_examples=20)
@given(
    data=st.data(),
    shape=st.sampled_from([*TABLE_SHAPES, (0, 3), (1, 1), (2, 5)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 2**31),
)
def test_pure(row, data, shape, dtype, family, seed):
    """The arguments stay; the results are new, finite, of the same types, and the same again."""
    assume(len(shape) >= row.fewest)
    taken = bind(row.cls.recipe).defaults.keys()
    rule = row.rule(
        **data.draw(
            st.fixed_dictionaries(
                {}, optional={k: v for k, v in HYPER_PARAMETERS.items() if k in taken}
            )
        )
    )
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    state = rule.init(weight)
    for step in range(3):
        grad = gradient(family, weight, generator, step) if weight.numel() else weight.clone()
        copies = weight.clone(), grad.clone(), {k: v.clone() for k, v in state.items()}
        first, second = rule.step(weight, grad, state), rule.step(weight, grad, state)
        assert equal(first, second)
        assert equal(
            (weight, {**state, "grad": grad}), (copies[0], {**copies[2], "grad": copies[1]})
        )
        assert first[1].keys() == rule.init(weight).keys() == set(rule.state_names)
        held = {
            x.untyped_storage().data_ptr() for x in (weight, grad, *state.values()) if x.numel()
        }
        for new, old in ((first[0], weight), *((first[1][k], state[k]) for k in state)):
            assert (new.shape, new.dtype) == (old.shape, old.dtype)
            assert new.isfinite().all()
            assert not new.numel() or new.untyped_storage().data_ptr() not in held
        weight, state = first


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[] if i < 14 or row.id in COMPILED else pytest.mark.long, id=row.id)
        for i, row in enumerate(ROWS)
    ],
)
def test_compiles_to_one_graph(row):
    """As Dynamo sees it; `test_traces_without_values` has the graph of ATen's operations."""
    rule = row.rule()
    torch._dynamo.reset()
    compiled = torch.compile(rule.step, fullgraph=True, backend="eager")
    for weight in matrices():
        arguments = warm(rule, weight)
        close(compiled(*arguments), rule.step(*arguments))


IN_THE_SUITE = ((ROWS[4], torch.tensor), (ROWS[8], float))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        pytest.param(
            row,
            kind,
            id=f"{row.id}-{kind.__name__}",
            marks=() if (row, kind) in IN_THE_SUITE else pytest.mark.long,
        )
        for row in ROWS
        for kind in (float, torch.tensor)
    ],
)
def test_a_function_that_builds_its_recipe_compiles_to_one_graph(row, kind):
    def step(weight, grad, state, lr):
        return bind(row.cls.recipe, **{**row.settings, "lr": lr}).rule.step(weight, grad, state)

    arguments = warm(row.rule(), matrices()[0])
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for lr in (0.02, 0.03):
        close(compiled(*arguments, kind(lr)), step(*arguments, kind(lr)))


def test_a_function_that_builds_a_users_recipe_compiles_to_one_graph():
    @dataclass(frozen=True)
    class Weighted(Rule):
        share: Scalar = hyper("(0, 1]", 0.5)
        count: bool = True
        view: ViewField = view("channel")
        state_names = ("count",)

        def update(self, update, state):
            norm = self.view.norm(update.direction)
            direction = self.share * update.direction / (1 + norm)
            return replace(update, direction=direction), {"count": state["count"] + self.count}

    def weighted(lr=0.1, share=0.3):
        return chain(Weighted(share), StepSize(lr))

    def step(weight, lr):
        rule = bind(weighted, lr=lr, share=0.2).rule
        return rule.step(weight, 2 * weight, rule.init(weight))

    weight = matrices()[0]
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        compiled = torch.compile(step, fullgraph=True, backend="eager")
        close(compiled(weight, 0.3), step(weight, 0.3))
    with pytest.raises(Unsupported):  # outside its interval, there too
        compiled(weight, -0.3)


def test_traces_without_values(row):
    """make_fx on fake tensors: any branch on a tensor's value would raise."""
    rule = row.rule()
    for weight in matrices():
        arguments = warm(rule, weight)

        def step(weight, grad, state):  # make_fx miscounts the arguments of a bound method
            return rule.step(weight, grad, state)

        traced = make_fx(step, tracing_mode="fake")(*arguments)
        close(traced(*arguments), rule.step(*arguments))


def test_vmap_over_the_learning_rate_equals_a_loop(row):
    lrs = torch.tensor([1e-3, 0.01, 0.1], dtype=torch.float64)
    for weight in matrices():
        arguments = warm(row.rule(), weight)
        batched = torch.vmap(lambda lr, a=arguments: row.rule(lr=lr).step(*a))(lrs)
        for i, lr in enumerate(lrs.tolist()):
            close(
                (batched[0][i], {k: v[i] for k, v in batched[1].items()}),
                row.rule(lr=lr).step(*arguments),
            )


def test_vmap_over_weights_equals_a_loop(row):
    rule = row.rule()
    weights = torch.stack([torch.randn(4, 3, dtype=torch.float64) for _ in range(3)])
    grads = torch.stack(
        [
            gradient(f, w, torch.Generator().manual_seed(0), 0)
            for f, w in zip(("random", "row_tangential", "layer_tangential"), weights, strict=True)
        ]
    )
    states = torch.vmap(rule.init)(weights)
    batched = torch.vmap(rule.step)(weights, grads, states)
    for i in range(3):
        close(
            (batched[0][i], {k: v[i] for k, v in batched[1].items()}),
            rule.step(weights[i], grads[i], rule.init(weights[i])),
        )


@pytest.mark.parametrize("silent", ["nothing", "column", "row", "all"])
def test_the_derivative_through_steps_with_respect_to_the_learning_rate(row, silent):
    """Backward and forward, also where entries or units have no gradient: a step of 0, not nan."""

    def final(lr, weight):
        rule = row.rule(lr=lr)
        state = rule.init(weight)
        for step in range(3):
            grad = (
                gradient("row_tangential", start, torch.Generator().manual_seed(step), 0)
                + 0.1 * weight**2
            )
            grad = torch.where(mask, 0, grad)
            weight, state = rule.step(weight, grad, state)
        return (weight**3).sum()

    lr, h = torch.tensor(0.02, dtype=torch.float64), 1e-6
    start = matrices()[0]
    mask = torch.zeros_like(start, dtype=torch.bool)
    mask[{"nothing": (slice(0),), "column": (slice(None), 1), "row": (1,), "all": ()}[silent]] = (
        True
    )
    derivative = torch.func.grad(final)(lr, start)
    _, forward = torch.func.jvp(lambda lr: final(lr, start), (lr,), (torch.ones_like(lr),))
    difference = (final(lr + h, start) - final(lr - h, start)) / (2 * h)
    torch.testing.assert_close(derivative, difference, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(forward, derivative, rtol=1e-10, atol=1e-12)


def test_functional_steps_are_the_optimizers(row):
    weights = row.parameters()
    params = {str(i): w.detach().clone() for i, w in enumerate(weights)}
    optimizer, rule = row.cls(weights, backend="rule", **row.settings), row.rule()
    state = functional.init(rule, params)
    for step in range(3):
        grads = {}
        for i, weight in enumerate(weights):
            grads[str(i)] = weight.grad = gradient(
                "alternating", weight.detach(), torch.Generator().manual_seed(step), step
            )
        optimizer.step()
        params, state = functional.step(rule, params, grads, state)
    for i, weight in enumerate(weights):
        assert torch.equal(weight, params[str(i)])


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (1, 1), (3, 1)])
def test_odd_shapes(row, shape):
    rule = row.rule()
    weight = torch.ones(shape)
    if weight.ndim < row.fewest:
        with pytest.raises(ValueError, match=r"needs a (matrix|weight with .*), got shape \(0,\)"):
            rule.init(weight)
        return
    moved, state = rule.step(weight, torch.ones(shape), rule.init(weight))
    assert moved.shape == weight.shape
    assert moved.isfinite().all()
    assert state.keys() == rule.init(weight).keys()
