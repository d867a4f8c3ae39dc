"""Compiled steps against the rule's own code, for every row of the conformance table."""

import copy
import dataclasses
import itertools
import warnings

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import _inductor as inductor
from spherenorm.compile import _paths as paths
from spherenorm.compile.cpp import BuildError, compiler
from spherenorm.compile.cpp import _build as build
from spherenorm.compile.cpp import _kernel as printer
from tests.compile.twins import (
    MATRICES,
    SHAPES,
    TANGENTS,
    TYPED_ROWS,
    Twins,
    assert_close,
    random_weights,
)
from tests.harness.rows import ANY_WEIGHTS, ROWS, Row, parameters, set_gradients
from tests.harness.gradients import FAMILIES, gradient


def compilers():
    try:
        return compiler()
    except BuildError:
        return None


pytestmark = [ANY_WEIGHTS, pytest.mark.skipif(compilers() is None, reason="no C++ compiler")]


@pytest.fixture
def no_inductor(monkeypatch):
    """Fail instead of falling back."""

    def refuse(self, guard, reason, *_):
        raise AssertionError(f"fell back to Inductor: {reason}")

    monkeypatch.setattr(paths.Inductor, "__init__", refuse)


@pytest.mark.parametrize(("row", "dtype"), TYPED_ROWS)
def test_kernels_step_as_the_rule(row, dtype, no_inductor):
    for family in FAMILIES:
        twins = Twins(row, random_weights(SHAPES), dtype, backend="compiled")
        for step in range(3):
            twins.step(family, step)
        twins.agree()


@pytest.mark.parametrize("cls", TANGENTS)
def test_kernels_of_tangent_lengths_step_as_the_rule(cls, no_inductor):
    """Under gradients that have a tangent part."""
    twins = Twins(Row(cls), random_weights([(6, 5), (4, 3, 3, 3)]))
    for step in range(1, 4):  # the gradient of step 0 is of the weights' seed
        twins.step("random", step)
    twins.agree()


SLOW = (optim.AdamG, optim.SGDG, *MATRICES)
"""Inductor takes up to a minute for them."""


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, pytest.param(torch.float32, marks=pytest.mark.long)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize(
    "row",
    [
        *(
            pytest.param(row, marks=[pytest.mark.long] if row.cls in SLOW else [])
            for row in ROWS
            if row.cls in SLOW
        ),
        Row(optim.AdamP, {"views": ("dim=1",)}),
    ],
    ids=lambda row: row.id,
)
def test_what_the_generator_cannot_say_goes_to_inductor(row, dtype):
    torch._dynamo.reset()
    eager = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((6, 5), (4, 3))]
    fast = [w.detach().clone().requires_grad_() for w in eager]
    slow_opt = row.cls(eager, backend="rule", **row.settings)
    fast_opt = row.cls(fast, backend="compiled", **row.settings)
    pointers = [f.data_ptr() for f in fast]
    for step in range(4):
        for w, f in zip(eager, fast, strict=True):
            w.grad = f.grad = gradient(
                "alternating", w.detach(), torch.Generator().manual_seed(step), step
            )
        for opt in (slow_opt, fast_opt):
            opt.param_groups[0]["lr"] = 0.1 / (step + 1)
            opt.step()
    assert pointers == [f.data_ptr() for f in fast]
    assert {line.path for line in sn.explain(fast_opt)} == {"Inductor"}
    for w, f in zip(eager, fast, strict=True):
        assert_close(f, w)


@pytest.mark.long
def test_any_number_of_recipes_and_ranks_goes_to_inductor(monkeypatch):
    """Dynamo gives a code object up after eight compilations."""
    torch._dynamo.reset()
    # Inductor takes seconds for each.
    monkeypatch.setattr(inductor, "_inductor", lambda graph, inputs: graph)
    for decay, nesterov in itertools.product((0.0, 0.1), (False, True)):
        row = Row(
            optim.SGDP,
            {"views": ("dim=1",), "momentum": 0.9, "nesterov": nesterov, "weight_decay": decay},
        )
        twins = Twins(row, random_weights([(5, 4), (5, 1), (5, 4, 3)]), backend="compiled")
        for step in range(2):
            twins.step("random", step)
        twins.agree()


def test_bfloat16_is_computed_with_in_float32_and_rounded_once(no_inductor):
    eager = [w for w in parameters(torch.bfloat16) if w.ndim]
    fast = [w.detach().clone().requires_grad_() for w in eager]
    slow_opt = optim.AdamP(eager, lr=0.1, backend="rule")
    fast_opt = optim.AdamP(fast, lr=0.1, backend="compiled")
    for _ in range(5):
        for w, f in zip(eager, fast, strict=True):
            f.data.copy_(w)
            w.grad = f.grad = torch.randn_like(w)
        slow_opt.step()
        fast_opt.step()
        for w, f in zip(eager, fast, strict=True):
            # A float32 sum in another order may fall on the other side of a rounding boundary.
            torch.testing.assert_close(f, w, rtol=2**-7, atol=1e-5)
            assert (f == w).float().mean() > 0.9
            assert fast_opt.state[f]["exp_avg"].dtype is torch.float32


def test_channels_last_and_mixed_layouts(no_inductor):
    plain = torch.randn(8, 3, 4, 4, dtype=torch.float64)
    fast = plain.to(memory_format=torch.channels_last).requires_grad_()
    eager = plain.clone().requires_grad_()
    slow_opt = optim.AdamP([eager], lr=0.1, backend="rule")
    fast_opt = optim.AdamP([fast], lr=0.1, backend="compiled")
    for step in range(3):
        eager.grad = gradient(
            "row_tangential", eager.detach(), torch.Generator().manual_seed(step), step
        )
        fast.grad = eager.grad.to(memory_format=torch.channels_last) if step else eager.grad.clone()
        slow_opt.step()
        fast_opt.step()
    assert fast.is_contiguous(memory_format=torch.channels_last)
    assert_close(fast, eager)


def test_a_transposed_weight_still_steps():
    plain = torch.randn(5, 4, dtype=torch.float64)
    fast, eager = plain.T.requires_grad_(), plain.T.contiguous().requires_grad_()
    for w in (fast, eager):
        w.grad = torch.ones_like(w) + w.detach()
    optim.AdamP([fast], lr=0.1, backend="compiled").step()
    optim.AdamP([eager], lr=0.1, backend="rule").step()
    assert_close(fast, eager)


def test_neither_values_nor_shapes_compile_again(no_inductor, monkeypatch):
    made = []
    original = build.subprocess.run
    monkeypatch.setattr(
        build.subprocess, "run", lambda *a, **k: made.append(a) or original(*a, **k)
    )
    build.load_step.cache_clear()
    weights = [torch.randn(shape).requires_grad_() for shape in ((7, 5), (11, 3, 2, 2), (4,))]
    optimizer = optim.AdamP(weights, lr=0.1, weight_decay=0.01, backend="compiled")
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    for step in range(6):
        set_gradients(weights, step)
        optimizer.step()
        scheduler.step()
        if step == 0:
            first = len(made)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.add_param_group(
        {"params": [torch.randn(9, 8, requires_grad=True)], "weight_decay": 0.02}
    )
    set_gradients(weights, 9)
    optimizer.param_groups[1]["params"][0].grad = torch.ones(9, 8)
    optimizer.step()
    assert (
        first <= 2
    )  # one for weights of rows, one for vectors; fewer where another test has made them
    assert len(made) == first


def test_weights_and_state_are_changed_in_place(no_inductor):
    weights = parameters()
    optimizer = optim.AdamP(weights, backend="compiled")
    set_gradients(weights, 0)
    optimizer.step()
    pointers = [w.data_ptr() for w in weights] + [
        v.data_ptr() for w in weights for v in optimizer.state[w].values()
    ]
    set_gradients(weights, 1)
    optimizer.step()
    assert pointers == [w.data_ptr() for w in weights] + [
        v.data_ptr() for w in weights for v in optimizer.state[w].values()
    ]


def test_the_result_does_not_depend_on_the_number_of_threads(no_inductor):
    start, grad = torch.randn(300, 1000), torch.randn(300, 1000)
    results = []
    for threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            w = start.clone().requires_grad_()
            w.grad = grad.clone()
            optimizer = optim.AdamP([w], lr=0.1, backend="compiled")
            optimizer.step()
            optimizer.step()
        finally:
            torch.set_num_threads(before)
        results.append(w.detach())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_compiled_optimizer_copies_saves_and_resumes(no_inductor):
    weights = parameters()
    optimizer = optim.SGDP(weights, lr=0.05, momentum=0.9, backend="compiled")
    for step in range(3):
        set_gradients(weights, step)
        optimizer.step()
    twin = copy.deepcopy(optimizer)
    others = twin.param_groups[0]["params"]
    fresh = [w.detach().clone().requires_grad_() for w in weights]
    resumed = optim.SGDP(fresh, lr=0.05, backend="compiled")
    resumed.load_state_dict(optimizer.state_dict())
    for each, params in ((optimizer, weights), (twin, others), (resumed, fresh)):
        for step in range(3, 6):
            set_gradients(params, step)
            each.step()
    for a, b, c in zip(weights, others, fresh, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_gains_that_stay_positive_are_kernels(no_inductor):
    """Each row has a gain, which is a softplus, beside a direction of its own."""

    def gained(lr=0.1):
        direction = sn.chain(r.NormalizedUpdate("channel"), r.StepSize(lr), r.RadiusPin("channel"))
        gain = sn.chain(r.HeavyBall(0.9, buffer="velocity"), r.StepSize(lr))
        return sn.chain(r.Gain(direction, gain, start="one"))

    twins = Twins(Row(sn.torch_optimizer(gained)), random_weights([(6, 5), (4, 3, 3, 3)]))
    for step in range(4):
        twins.step("random", step)
    twins.agree()


def test_without_a_compiler_the_reason_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler: set CXX, or install g\\+\\+"):
        compiler()


def test_without_a_compiler_compiled_is_refused_and_the_others_step(no_inductor, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(printer, "load_step", refuse_to_build)
        weights = parameters()
        before = [w.detach().clone() for w in weights]
        optimizer = optim.AdamP(weights, lr=0.1, backend="compiled")
        set_gradients(weights, 0)
        said = r'backend="compiled" cannot .*: no C\+\+ compiler: set CXX'
        with pytest.raises(sn.BackendError, match=said):
            optimizer.step()
        assert all(map(torch.equal, weights, before))
        assert {line.path for line in sn.explain(optimizer)} == {"error"}
        twins = Twins(Row(optim.AdamP, {"lr": 0.1}), random_weights([(4, 3), (5,)]), backend="auto")
        for step in range(3):
            twins.step(step=step)
        twins.agree()
        assert {line.path for line in sn.explain(twins.fast_opt)} == {"rule"}
    optimizer.step()  # there is one now
    assert not any(map(torch.equal, weights, before))


def refuse_to_build(*_):
    raise BuildError("no C++ compiler: set CXX, or install g++")


def test_autograd_notices_the_step(no_inductor):
    w = torch.ones(2, 3, requires_grad=True)
    loss = (w**2).sum()
    w.grad = torch.ones(2, 3)
    optim.SGD([w], lr=0.1, backend="compiled").step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_nan_stays_in_its_tensor(no_inductor):
    weights = [torch.ones(3, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)]
    weights[0].grad, weights[1].grad = torch.full((3, 4), float("nan")), torch.ones(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.AdamP(weights, backend="compiled").step()
    assert weights[0].isnan().all()
    assert weights[1].isfinite().all()


@dataclasses.dataclass(frozen=True)
class Branching(sn.Rule):
    """A Python branch on a value, which nothing can record."""

    def update(self, update, state):
        if float(update.direction.sum()) > 0:
            return update, {}
        return dataclasses.replace(update, direction=-update.direction), {}


def branching(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), Branching(), r.StepSize(lr))


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("backend", ["rule", "auto", "compiled"])
def test_no_group_steps_unless_all_can(backend, first):
    """A group before or after the failing one has not moved, nor has its state."""
    torch._dynamo.reset()
    weights = [torch.ones(shape, requires_grad=True) for shape in ((4, 3), (5,), (4, 3))]
    other = {"recipe": f"{__name__}:branching", "lr": 0.1, "backend": "compiled"}
    groups = [{"params": weights[:2], "backend": backend}, {"params": weights[2:], **other}]
    optimizer = optim.SGD(groups if first else groups[::-1], lr=0.1, momentum=0.9)
    for w in weights:
        w.grad = torch.ones_like(w)
    with pytest.raises(sn.BackendError, match="Branching"):
        optimizer.step()
    for w in weights:
        assert torch.equal(w.detach(), torch.ones_like(w))
        assert not any(value.any() for value in optimizer.state[w].values())


@pytest.mark.parametrize(
    "row",
    [
        Row(optim.AdamP, {"lr": 0.1, "views": ("groups=2", "layer")}),
        Row(optim.SGDP, {"lr": 0.1, "momentum": 0.9, "views": ("dim=1,groups=3",)}),
        pytest.param(Row(optim.SGDG, {"lr": 0.1, "view": "groups=2"}), marks=pytest.mark.long),
        pytest.param(Row(optim.AdamG, {"lr": 0.1, "view": "groups=4"}), marks=pytest.mark.long),
    ],
    ids=lambda row: row.id,
)
def test_views_of_groups(row):
    """A small weight on which the step is compared has the groups of the weight."""
    torch._dynamo.reset()
    twins = Twins(row, random_weights([(8, 6)]), backend="compiled")
    for step in range(3):
        twins.step("random" if row.cls in (optim.SGDG, optim.AdamG) else None, step)
    twins.agree()
    assert {line.path for line in sn.explain(twins.fast_opt)} == {"Inductor"}
