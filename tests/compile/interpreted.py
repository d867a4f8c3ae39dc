"""Triton kernels against the eager rule, under Triton's interpreter and on a CPU.

Whether Triton interprets is settled when it is first imported, so these tests have a process of
their own, which `test_triton.py` starts: TRITON_INTERPRET=1 python -m pytest
tests/compile/interpreted.py
"""

import contextlib
import itertools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import _paths as paths
from spherenorm.compile.gpu import _launch as launch
from spherenorm.compile.gpu._prelude import power, total_any, total_sum
from tests.compile.test_compiled import (  # noqa: F401  (tests of these kernels, too)
    test_a_compiled_optimizer_copies_saves_and_resumes,
    test_a_nan_stays_in_its_tensor,
    test_autograd_notices_the_step,
    test_channels_last_and_mixed_layouts,
)
from tests.compile.test_parts import PART_ROWS, parts_agree
from tests.compile.twins import TYPED_ROWS, Twins, random_weights
from tests.compile.words import (
    SATURATING,
    TRACED,
    TRACED_ROWS,
    Word,
    assert_agrees_at_extremes,
)
from tests.harness.rows import Row, set_gradients
from tests.harness.gradients import FAMILIES, gradient

launch.DEVICES.add("cpu")
# Each tile of `gpu.TILES`, one with several programs; the walk along long rows; runs of entries;
# nothing at all.
SHAPES = ((70, 3, 3), (18, 20), (2, 300), (2, 1500), (5,), (1500,), (), (6, 1), (0, 4), (4, 0))


@pytest.fixture(autouse=True)
def _kernels_and_nothing_else(monkeypatch, tmp_path_factory):
    """Kernels of this run alone, no Inductor, and memory that shows values never written."""

    def refuse(self, guard, reason, *_):
        raise AssertionError(f"fell back to Inductor: {reason}")

    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))
    monkeypatch.setattr(paths.Inductor, "__init__", refuse)
    monkeypatch.setattr(
        launch,
        "_workspace",
        lambda size, device: torch.full((size,), float("nan"), dtype=torch.float64),
    )


@pytest.fixture
def no_inductor(_kernels_and_nothing_else):
    """As all tests here have it."""


def compiled(row, shapes, dtype=torch.float64):
    return Twins(row, random_weights(shapes), dtype, backend="compiled")


@pytest.mark.parametrize(("row", "dtype"), TYPED_ROWS)
def test_kernels_step_as_the_rule(row, dtype):
    twins = compiled(row, SHAPES, dtype)
    for step in range(2):
        twins.step(step=step)
    twins.agree()


@pytest.mark.parametrize("row", PART_ROWS, ids=lambda row: row.id)
def test_parts_of_weights_step_as_whole_ones(row):
    parts_agree(row, SHAPES)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_weights_on_one_side_of_every_decision(family):
    twins = compiled(
        Row(optim.AdamP, {"lr": 0.1, "weight_decay": 0.1}), ((3, 4), (2, 30), (7, 3, 3))
    )
    for step in range(2):
        twins.step(family, step)
    twins.agree()


def test_each_weight_is_judged_by_the_threshold_of_its_own_size():
    """A cosine of 0.2 lies below delta / sqrt(4) and above delta / sqrt(400), for delta 1."""
    twins = compiled(
        Row(optim.SGDP, {"lr": 0.1, "delta": 1.0}), ((3, 400), (3, 4), (5, 400), (2, 4))
    )
    for step in range(2):
        for w, f in twins:
            unit = w.detach() / w.detach().norm(dim=1, keepdim=True)
            tangent = gradient(
                "row_tangential", w.detach(), torch.Generator().manual_seed(step), step
            )
            tangent = tangent / tangent.norm(dim=1, keepdim=True)
            w.grad = f.grad = 0.2 * unit + (1 - 0.2**2) ** 0.5 * tangent
        twins.step_as_they_are()
    twins.agree()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_is_computed_with_in_float32_and_rounded_once(dtype):
    twins = compiled(Row(optim.AdamP, {"lr": 0.1}), ((4, 3), (3, 2, 2, 2), (5,)), dtype)
    for _ in range(3):
        for w, f in twins:
            f.data.copy_(w)
            w.grad = f.grad = torch.randn_like(w)
        twins.step_as_they_are()
        for w, f in twins:
            # A float32 sum in another order may fall on the other side of a rounding boundary. The
            # interpreter, which cuts bfloat16 off where a GPU rounds, cannot show more;
            # `test_triton.py` looks for the instruction.
            torch.testing.assert_close(f, w, rtol=2**-7, atol=1e-5)
            assert dtype is torch.bfloat16 or (f == w).float().mean() > 0.9
            assert twins.fast_opt.state[f]["exp_avg"].dtype is torch.float32


class ReadsNothing(TorchDispatchMode):
    """Fails where the host asks for a value: on a GPU it would have to wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.item.default,
            torch.ops.aten.nonzero.default,
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "cls", [optim.AdamP, optim.SGDP, optim.AdamW], ids=["AdamP", "SGDP", "AdamW"]
)
def test_the_host_reads_no_value(cls):
    """Not even of hyper-parameters that are tensors; changing them in place takes effect.

    The first step compares its kernels with the rule's own code, and reads how far they are apart.
    """
    twins = compiled(Row(cls, {"weight_decay": 0.1}), ((4, 3), (5,)))
    rate = torch.tensor(0.1, dtype=torch.float64)
    twins.fast_opt.param_groups[0]["lr"] = rate
    for step in range(3):
        twins.set_gradients(step=step)
        twins.own_opt.param_groups[0]["lr"] = 0.1 / (step + 1)
        rate.fill_(0.1 / (step + 1))
        twins.own_opt.step()
        with ReadsNothing() if step else contextlib.nullcontext():
            twins.fast_opt.step()
    twins.agree()


def test_a_captured_upload_holds_every_bit():
    """It goes by arguments of launches, which float64 in between would round."""
    pointers = np.array([[2**53 + 1, 2**62 + 3], [0, -1]])
    assert torch.equal(
        launch._launched(pointers, torch.device("cpu")), torch.from_numpy(pointers).flatten()
    )
    numbers = np.array([0.1, 1e-300, -3.0])
    assert torch.equal(launch._launched(numbers, torch.device("cpu")), torch.from_numpy(numbers))


def launches(monkeypatch):
    made = []
    original = launch.Launcher._launch
    monkeypatch.setattr(
        launch.Launcher,
        "_launch",
        lambda self, name, *a: made.append(name) or original(self, name, *a),
    )
    return made


@pytest.mark.parametrize(
    ("cls", "of_matrices"),
    [(optim.AdamP, 6), (optim.SGDP, 6), (optim.AdamW, 2), (optim.SGD, 2)],
    ids=["AdamP", "SGDP", "AdamW", "SGD"],
)
def test_the_number_of_launches_does_not_depend_on_the_number_of_weights(
    cls, of_matrices, monkeypatch
):
    counts = []
    for copies in (1, 4):
        weights = [torch.randn(shape).requires_grad_() for shape in ((3, 4), (2, 20)) * copies]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        momentum = {"momentum": 0.9} if cls in (optim.SGDP, optim.SGD) else {}
        optimizer = cls(weights, backend="compiled", **momentum)
        optimizer.step()  # which compares, too
        with monkeypatch.context() as patch:
            made = launches(patch)
            optimizer.step()
        counts.append(len(made))
    assert counts == [of_matrices, of_matrices]


def test_the_same_bits_every_time():
    results = []
    for _ in range(2):
        twins = compiled(Row(optim.AdamP), ((70, 30), (2, 1500), (9,)), torch.float32)
        for step in range(2):
            twins.step(step=step)
        results.append([w.detach() for w in twins.fast])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_neither_values_nor_shapes_make_new_kernels():
    weights = [torch.randn(shape).requires_grad_() for shape in ((7, 5), (11, 3, 2, 2), (4,))]
    optimizer = optim.AdamP(weights, lr=0.1, weight_decay=0.013, backend="compiled")
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4)
    for step in range(4):
        set_gradients(weights, step)
        optimizer.step()
        scheduler.step()
        if step == 0:
            kernels = launch._load.cache_info().currsize
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.add_param_group(
        {"params": [torch.ones(9, 8, requires_grad=True)], "weight_decay": 0.02}
    )
    set_gradients(weights, 9)
    optimizer.param_groups[1]["params"][0].grad = torch.ones(9, 8)
    optimizer.step()
    assert launch._load.cache_info().currsize == kernels


class LaterStep(sn.Rule):
    """A state takes over another's old value."""

    state_names = ("last", "before")

    def update(self, update, state):
        return sn.Update(update.weight, update.grad, state["before"]), {
            "last": update.direction,
            "before": state["last"],
        }


class Sign(sn.Rule):
    def update(self, update, state):
        return sn.Update(update.weight, update.grad, torch.sign(update.direction)), {}


class Normalized(sn.Rule):
    """Sums over rows and over all of what is not 0 where there are no entries."""

    def update(self, update, state):
        size = torch.exp(update.direction)
        rows = size.sum(dim=tuple(range(1, size.ndim)), keepdim=True) if size.ndim > 1 else size
        whole = size.sum(dim=tuple(range(size.ndim)), keepdim=True)
        return sn.Update(update.weight, update.grad, size / rows + size / whole), {}


@pytest.mark.parametrize(
    "ours", [LaterStep(), Sign(), Normalized()], ids=["states that swap", "sign", "sums"]
)
def test_a_users_rule_compiles(ours):
    def mine(lr=0.1):
        return sn.chain(ours, r.RadialProjection("channel"), r.StepSize(lr))

    twins = compiled(Row(sn.torch_optimizer(mine)), ((4, 5), (2, 2000), (6,)))
    for step in range(4):
        twins.step(step=step)
    twins.agree()


@pytest.mark.parametrize(
    "shapes", [((6, 6), (3, 4, 2), (5, 1)), ((6,), ())], ids=["rows", "vectors"]
)
def test_what_users_write(shapes):
    words = {**TRACED, **(TRACED_ROWS if len(shapes[0]) > 1 else {})}

    def several(lr=0.1):
        return sn.chain(Word(tuple(words.values())), r.StepSize(lr))

    twins = compiled(Row(sn.torch_optimizer(several)), shapes)
    for step in range(3):
        twins.step("random", step)
    twins.agree()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("word", SATURATING)
def test_extreme_entries_are_as_in_torch(word, dtype):
    assert_agrees_at_extremes(SATURATING[word], dtype)


@triton.jit
def powers(x, y, result, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(result + at, power(tl.load(x + at), tl.load(y + at)))


def test_power():
    decays = itertools.product((0.5, 0.9, 0.99, 0.999, 0.9999), (1.0, 2.0, 3.0, 10.0, 1e3, 1e4))
    corners = [(0.0, 0.0), (0.0, 3.0), (-2.0, 3.0), (-2.0, 2.0), (-2.0, 0.5), (2.5, -1.5)]
    corners += [(0.0, -1.0), (1.0, 1e300), (-1.0, 0.0)]
    cases = torch.tensor([*decays, *corners], dtype=torch.float64)
    cases = torch.cat([cases, torch.ones(64 - len(cases), 2, dtype=torch.float64)])
    result = torch.empty(64, dtype=torch.float64)
    powers[(1,)](cases[:, 0].contiguous(), cases[:, 1].contiguous(), result, COUNT=64)
    torch.testing.assert_close(
        result, cases[:, 0] ** cases[:, 1], rtol=1e-13, atol=1e-300, equal_nan=True
    )


@triton.jit
def totals(slots, count, result):
    tl.store(result + 0, total_sum(slots, count, 2))
    tl.store(result + 1, total_any(slots + 1, count, 2).to(tl.float64))


@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
@pytest.mark.parametrize("place", [None, 0, -1])
def test_totals_take_every_slot(count, place):
    truths = torch.zeros(count + 1, dtype=torch.float64)
    if place is not None:
        truths[:count][place : place + 1 or None] = 1
    slots = torch.stack([torch.arange(count + 1.0, dtype=torch.float64), truths], dim=1)
    for turned in (slots, torch.stack([slots[:, 0], 1 - truths], dim=1)):
        result = torch.empty(2, dtype=torch.float64)
        totals[(1,)](turned.contiguous(), count, result)
        sums, flags = turned[:count, 0].sum().item(), turned[:count, 1].bool()
        assert result.tolist() == [sums, float(flags.any())]
