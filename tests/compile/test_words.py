"""The words of kernels: each operation equals torch's, also at the edges of its range.

One kernel has all words, each with a state of its own that keeps its result.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.operations import DERIVED, OPERATIONS
from spherenorm.record import record
from tests.compile.conftest import EACH_EXECUTOR, EXECUTORS
from tests.compile.twins import Twins, drawn
from tests.compile.written import optimizer_of, rule
from tests.harness import refuses

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler")
BY_EACH = pytest.mark.parametrize("executor", EACH_EXECUTOR)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def typed(*of_both, others=()):
    """Parameters in both types; of `others`, which are kept in double, float64 is a long check."""
    long = [pytest.mark.long]
    return [
        pytest.param(each, dtype, id=f"{each}-{dtype}", marks=long if brief else [])
        for each in (*of_both, *others)
        for dtype in (torch.float64, torch.float32)
        for brief in [each in others and dtype is torch.float64]
    ]


TRUTHS = {"logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not"}
ASKED = {  # arguments that have no default in aten, but a meaning
    "where.self": "x > y, x, y",
    "clamp.default": "x, -0.5, 0.7",
    "clamp.Tensor": "x, y, y + 1",
    "pow.Scalar": "2.0, x",
    "lerp.Scalar": "x, y, 0.3",
    "lerp.Tensor": "x, y, 1 / (1 + x * x)",
    "new_full.default": "x, x.shape, 0.5",
    "zeros.default": "x.shape, dtype=x.dtype, device=x.device",
    "ones.default": "x.shape, dtype=x.dtype, device=x.device",
}
NOT_ENTRYWISE = ("mean.dim", "mean.default", "linalg_vector_norm.default")


def called(overload: str) -> str:
    """A call of one of aten's overloads on x and y."""
    packet, kind = overload.split(".")
    schema = getattr(getattr(torch.ops.aten, packet), kind)._schema
    tensors = iter(("x > y", "y < 1") if packet in TRUTHS else ("x", "y", "x * 0.5"))
    needed = [a for a in schema.arguments if not (a.has_default_value() or a.kwarg_only)]
    given = ", ".join(next(tensors) if "Tensor" in str(a.type) else "0.7" for a in needed)
    return f"torch.ops.aten.{overload}({ASKED.get(overload, given)})"


OVERLOADS = [
    name
    for row in OPERATIONS.values()
    if isinstance(row.cpp, str) or row.cpp is DERIVED
    for name in row.overloads
]
"""Names of the overloads that act on entries and that a graph may contain."""
ENTRYWISE = {
    **{name.replace(".", "_"): called(name) for name in OVERLOADS if name not in NOT_ENTRYWISE},
    "add_alpha": "torch.add(x, y, alpha=2)",
    "sub_alpha": "torch.sub(x, y, alpha=3)",
    "addcmul_value": "torch.addcmul(x, y, x, value=0.5)",
    "addcdiv_value": "torch.addcdiv(x, y, x.abs() + 1, value=-0.5)",
    "lerp_far": "x.lerp(y, 0.9)",
    "softplus_scaled": "softplus(x, beta=2.0, threshold=0.5)",
    "softplus_steep": "softplus(x, beta=3.0, threshold=10.0)",
    "squared": "x ** 2",
    "root": "x ** 0.5",
    "itself": "(x ** 1) * y",
    "cubed": "x ** 3",
    "power_of_number": "2.0 ** x",
    "bound_each": "x.clamp(min=0.1) + y.clamp(max=0.3)",
    "truth_times": "(x > y) * x",
    "truth_as_number": "(x > 0).to(x.dtype) - (y > 0).to(x.dtype)",
    "minus_truth": "(1 - (x > y).to(x.dtype)) / (1 + (y > 0).to(x.dtype))",
    "truths_compared": "where((x > 0) == (y > 0), x, -y) + ((x > 0) < (y > 0)) * y",
    "truths_chosen": "where(x > 0, y > 0, x > 1) * x",
    "numbers_chosen": "where(x > y, 0.5, x) + where(x > 0, x, 0)",
    "nothing": "0 * x + y * 0.0",
    "one": "torch.ones_like(x)",
    "half": "torch.full_like(x, 0.5)",
}
ENTRYWISE = {
    name: f"({each}).to(w.dtype)" if OPERATIONS.get(name.split("_")[0]) else each
    for name, each in ENTRYWISE.items()
}
"""Truth values are kept as numbers."""
CONSTANT = ("zeros", "ones", "new_full", "half", "one")
ENTRYWISE = {
    name: f"where(x == x, {each}, {each})" if name.startswith(CONSTANT) else each
    for name, each in ENTRYWISE.items()
}
"""Constants, for which a state of many values has no word, are chosen."""
CANCELS = ("sinc_default",)
"""Of a product with pi, which torch rounds; so it is compared with the result's largest, 1."""

EDGES = [0.0, 1e-40, 1e-20, 6e-8, 0.3, 0.7, 1.0, 1.5, 2.0, 3.33, 3.34, 19.9, 20.1, 88.0, 89.0]
EDGES += [103.0, 709.0, 710.0, 1e4, 1e20, 1e38, float("inf")]
FEW = [0.0, 1e-40, 0.7, -1.5, 20.1, -89.0, 1e20, -float("inf"), float("nan")]
"""Entries that round, pass a threshold, or leave the range of float32 or float64."""


def pairs_of(edges, dtype):
    """All pairs of edges, as the entries of a weight and of its gradient."""
    return torch.tensor([*itertools.product(edges, edges)], dtype=dtype).unsqueeze(2).unbind(1)


EXTENTS = {
    "entries": ("x, y = w, d", "{}", "torch.zeros_like(weight)"),
    "rows": ("x, y = per_row(w), per_row(d)", "{}", "weight.new_zeros(len(weight), 1)"),
    "numbers": (
        "x, y, ones = w.sum(), d.sum(), per_row(d) == per_row(d)",
        "where(ones, {0}, {0})",
        "weight.new_zeros(len(weight), 1)",
    ),
}


@BY_EACH
@pytest.mark.parametrize(("extent", "dtype"), typed("entries", others=("rows", "numbers")))
def test_every_operation_equals_torchs_at_every_pair_of_edges(extent, dtype, executor, choose):
    choose(executor)
    before, form, start = EXTENTS[extent]
    words = {name: form.format(each) for name, each in ENTRYWISE.items()}
    cls = optimizer_of(rule(words, before=before, start=start)())
    if extent == "numbers":  # a weight for each pair
        pairs = zip(*(x.split(1) for x in pairs_of(FEW, dtype)), strict=True)
    else:
        edges = [*EDGES, *(-x for x in EDGES), float("nan")]
        pairs = [[torch.cat([x, x[-1:].expand(-len(x) % 64, 1)]) for x in pairs_of(edges, dtype)]]
    starts, grads = zip(*pairs, strict=True)
    twins = Twins(cls, starts)
    for (own, fast), grad in zip(twins, grads, strict=True):
        own.grad, fast.grad = grad.clone(), grad.clone()
    twins.own_opt.step()
    twins.fast_opt.step()
    assert twins.paths == {EXECUTORS[executor]}
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    for (own, fast), grad in zip(twins, grads, strict=True):
        for name, wanted in twins.own_opt.state[own].items():
            found = twins.fast_opt.state[fast][name]
            least = torch.finfo(dtype).eps if name in CANCELS else torch.finfo(dtype).tiny
            off = ~torch.isclose(found, wanted, tolerance, least, equal_nan=True)
            if off.any():
                at = [x[off][0].item() for x in (own.detach(), grad, found, wanted)]
                raise AssertionError(f"{name} of x, y = {at[:2]} is {at[2]}, not {at[3]}")


def test_every_overload_of_the_table_is_tried():
    before = EXTENTS["entries"][0]
    mine = rule(ENTRYWISE, before=before)()
    weight = torch.ones(4, 3)
    written = record(lambda w: [*mine.step(w, w, mine.init(w))[1].values()], weight)
    seen = {call.name.removeprefix("aten.") for call in written.calls}
    assert {*OVERLOADS} - {*NOT_ENTRYWISE, "square.default"} <= seen  # torch makes it a power


REDUCED = {
    "sum": "d * d.square().sum()",
    "mean": "d - d.mean()",
    "mean_of_squares": "d / (1 + d.square().mean().sqrt())",
    "norm": "d / (1e-3 + d.norm()) + torch.linalg.vector_norm(d) * w",
    "count": "d * (d > 0).to(d.dtype).sum()",
    "any": "where((d > 1).any(), d, -d)",
    "all": "where((d > -9).all(), d + w, w)",
    "bounded_by_mean": "d.clamp(max=d.abs().mean())",
    "functions": "softplus(d.sum(), beta=0.5) * d + torch.sigmoid(w.sum()) + torch.log1p(w.norm())",
    "chosen_times_0": "where(d.sum() > 0, d, w) * 0 + 0.0 * d.sum()",
    "either_sum": "d * where(d.sum() > 0, d.square().sum(), w.abs().sum())",
    "gated": "where(d.sum() > 0, d / (1 + d.norm()), w / (1 + (w - d * d.norm()).norm()))",
    "old_read_behind": "0.5 * old['old_read_behind'] + d - w.abs() * (0.5 * w + d).square()",
    "exchanged": "old['sum'] + d",
    "several": "w * 0.3 + 0.4 * d + w * d - 0.6 * (d * w) - (w - w * d).tanh() * 0.7",
    "plus_0": "w + 0",
    "as_given": "d",
}
ROWS = {
    "row_norm": "d / (1 + d.norm(dim=axes(d), keepdim=True))",
    "row_mean": "d - d.mean(dim=axes(d), keepdim=True)",
    "row_of_chosen": "d + per_row(where((d * d).sum() > 0, 1.5 + 0 * d, d))",
    "row_functions": "d * softplus(per_row(d)) + torch.sigmoid(torch.log1p(per_row(d * d)))",
    "row_of_row": "d / (1 + per_row((d / (1 + per_row(d * d))).abs()))",
    "sum_of_rows": "d * per_row(d * w).abs().sum() + per_row(d * w).square().sum().sqrt()",
    "row_decided": "where(per_row(d) > 0, d, where((per_row(w) > 0).any(), w, -d))",
}
COMBINED = {  # norms of combinations, of which inner products tell most
    "sub": "w - s * d",
    "rsub": "torch.rsub(s * d, w)",
    "neg": "-(d * s) - w",
    "add": "3 * w + d * s",
    "div": "w / s - d",
    "addcmul": "torch.addcmul(w, s, d, value=-2)",
    "same_twice": "s * (w - s * d) + w / s",
    "square_of_product": "w * d - s * w",
    "known_before": "w - d",
    "three": "w - s * d + s * w * d",
    "alone": "s * d",
    "number": "w - s",
    "no_combination": "w - (s * d).abs()",
}
NORMS = {name: f"({each}) / ({each}).norm()" for name, each in COMBINED.items()}
SIZE = "s = 0.1 * w.norm() / d.norm()"
SHAPES = {
    "rows": ((6, 6), (3, 4, 2), (1, 5), (5, 1), (1, 1), (0, 4), (4, 0), (3, 70000)),
    "vectors": ((6,), (), (1,), (0,), (5000,)),
}


@BY_EACH
@pytest.mark.parametrize(("kind", "dtype"), typed("rows", others=("vectors",)))
def test_sums_and_decisions_equal_the_rules_own(kind, dtype, executor, choose):
    """Also of a weight or a gradient that is not finite, of which each word tells elsewhere."""
    choose(executor)
    words = REDUCED | (ROWS if kind == "rows" else {})
    cls = optimizer_of(rule(words, direction="old['exchanged'] + d")())
    shape = (4, 5) if kind == "rows" else (9,)
    bad = [float("nan"), float("inf"), -float("inf")]
    start = drawn([*SHAPES[kind], *[shape] * 6])
    for weight, number in zip(start[-3:], bad, strict=True):
        weight.view(-1)[2] = number

    def spoilt(grad, place):
        number = dict(zip(range(len(start) - 6, len(start) - 3), bad, strict=True)).get(place)
        if number is not None:
            grad.view(-1)[3] = number
        return grad.clone()

    twins = Twins(cls, [w.to(dtype) for w in start])
    for step in range(3):
        twins.step("random", step, given=spoilt)
    twins.agree(equal_nan=True)
    assert twins.paths == {EXECUTORS[executor]}


@BY_EACH
@DTYPES
def test_norms_of_combinations_equal_the_rules_own(dtype, executor, choose):
    choose(executor)
    cls = optimizer_of(rule(NORMS, before=SIZE)())
    shapes = (6, 5), (3, 70000), (2, 2), (0, 4)
    twins = Twins(cls, [w.to(dtype) for w in drawn(shapes)])
    for step in range(3):
        twins.step("random", step)
    twins.agree(equal_nan=True)
    assert twins.paths == {EXECUTORS[executor]}


@pytest.mark.parametrize("lr", [0.0, 0.02, 0.9, 1 - 1e-6, 1.0, 1 + 1e-6, 3.0])
def test_a_pinned_norm_has_its_digits_where_the_step_undoes_the_weight(lr):
    """At lr = 1 a step along the weight leaves nothing but the tilt, and rounding."""
    rules = r.NormalizedUpdate("layer", "weight"), r.StepSize(lr), r.FixedNorm("layer", 2.0)
    cls = sn.torch_optimizer(lambda: sn.chain(*rules), "Pinned")
    for tilt in (0.0, 1e-5, 1e-3, 1.0):
        weight, grad = (x.float() for x in drawn([(40, 50)] * 2))
        grad = weight + tilt * grad.flip(0)
        before = weight.clone()
        weight.requires_grad_()
        weight.grad = grad
        cls([weight], backend="compiled").step()
        norm = weight.detach().double().norm().item()
        if lr == 0:  # a step size of 0 moves nothing, not even to the pinned norm
            assert torch.equal(weight.detach(), before)
        else:
            assert norm == pytest.approx(2.0, rel=1e-6) or (norm == 0 and lr == 1 and not tilt)


def test_squares_that_underflow_are_summed_as_they_stand():
    """Means, unlike norms, are exact at any size, and so are the factors that they give."""
    before = "c = w / w.abs().mean() - d / d.abs().mean()"
    cls = optimizer_of(rule({}, direction="c / c.norm()", before=before)())
    for size, small in itertools.product((1e-3, 1e-14, 1e-16, 1e-20, 1e-23, 1e-30), (0, 1)):
        both = [x.float() for x in drawn([(6, 5), (6, 5)], seed=3)]
        both[small] *= size
        both[1] = both[1].flip(0)
        weight = both[0].clone().requires_grad_()
        weight.grad = both[1]
        cls([weight], lr=1.0, backend="compiled").step()
        assert (weight.detach() - both[0]).norm().item() == pytest.approx(1.0, rel=1e-5)


@BY_EACH
@DTYPES
@pytest.mark.parametrize("dims", ["axes(d)", "(0, 1)"], ids=["rows", "numbers"])
def test_a_number_is_compared_in_the_type_of_what_it_is_compared_with(
    dims, dtype, executor, choose
):
    """torch rounds 10.7 to float32, as it does in the bound; so a bounded number equals it."""
    choose(executor)
    states = {}
    for k, most in enumerate((0.1, 10.7, 0.3, 19.9, 3.3, 1e-50)):
        size = f"(d**2).sum({dims}, keepdim=True).sqrt().clamp(max={most})"
        states[f"m{k}"] = f"d * where({size} >= {most}, 0.5, torch.ones_like({size}))"
    twins = Twins(optimizer_of(rule(states)()), [torch.zeros(2, 3, dtype=dtype)] * 3)
    for place, (own, fast) in enumerate(twins):
        own.grad = fast.grad = torch.full_like(own, (0.0, 2.0, 100.0)[place])
    twins.own_opt.step()
    twins.fast_opt.step()
    assert twins.paths == {EXECUTORS[executor]}
    for own, fast in twins:
        states = twins.own_opt.state[own], twins.fast_opt.state[fast]
        torch.testing.assert_close(*states, rtol=0, atol=0)


REFUSED = {
    "a dimension is lost": ("d * d.square().sum(1)", "sum"),
    "columns": ("d * d.sum(0)", "sum"),
    "decisions along a dimension": ("where((d > 0).any(1, keepdim=True), d, w)", "dimension"),
    "integers of a number": ("d.new_full((), d.numel() / 3).to(torch.int64) * d", "torch.int64"),
    "integers": ("d.to(torch.int64).to(d.dtype)", "torch.int64"),
    "float32": ("d.float().to(d.dtype)", "torch.float32"),
    "half": ("d.bfloat16().to(d.dtype)", "torch.bfloat16"),
    "a sum in float32": ("d * d.sum(dtype=torch.float32)", "torch.float32"),
    "a float32 constant": ("d * torch.where(d.sum() > 0, 0.1, 1.0)", "torch.float32"),
    "bits": ("(torch.full((), 6) & torch.full((), 3)) * d", "and"),
    "truths added": ("d * ((d > 0) + (w > 0))", "torch.bool"),
    "not of numbers": ("torch.logical_not(d) * d", "not"),
    "any of numbers": ("where(d.any(), d, w)", "any"),
    "another norm": ("d / d.norm(p=1)", "1"),
    "a value read": ("d * d.sum().item()", "value"),
    "a branch": ("d if d.sum() > 0 else -d", "value"),
    "a transpose": ("d.T.contiguous()", "permute"),
    "random numbers": ("torch.rand_like(d)", "rand_like"),
    "a tensor of its own": ("torch.tensor(2.0, dtype=d.dtype) * d", "tensor"),
    "in place": ("d.clone().mul_(2)", "mul_"),
    "another function": ("torch.nn.functional.gelu(d)", "gelu"),
    "an option": ("torch.rsub(d, w, alpha=3)", "rsub"),
}


NOWHERE = ("a value read", "a branch", "random numbers", "an option")
"""Words that vmap cannot take, or torch itself; the others step as a stack."""


@pytest.mark.parametrize("word", REFUSED)
def test_what_no_graph_has_a_word_for_steps_as_a_stack_or_is_refused(word):
    direction, reason = REFUSED[word]
    cls = optimizer_of(rule({"m": "d"}, direction)())
    twins = Twins(cls, drawn([(6, 6), (6, 6), (4, 4)]))
    before = [w.detach().clone() for w in twins.fast]
    if word in NOWHERE[:3]:
        for w in twins.fast:
            w.grad = torch.ones_like(w)
        with refuses("Mine", (6, 6), reason, by=sn.BackendError):
            twins.fast_opt.step()
        assert all(map(torch.equal, before, twins.fast))
        return
    for step in range(2):
        twins.step("random", step)
    twins.agree()
    assert twins.paths == {"stack"}
    assert all(reason in line.reason for line in sn.explain(twins.fast_opt))


HALVES = ["(3 * d).bfloat16() * 1.0", "d + old['m'].bfloat16()"]
STATES = [
    ("torch.zeros_like(weight)", "d.sum(1, keepdim=True).expand(d.shape)"),
    ("weight.new_zeros(weight.shape[1])", "old['m']"),
    ("torch.zeros_like(weight).float()", "old['m'] + d.float()"),
    ("torch.zeros((), dtype=torch.float32)", "old['m'] + 1"),
]


@pytest.mark.parametrize("word", HALVES)
def test_a_rounding_to_half_within_a_step_is_no_graph(word):
    cls = optimizer_of(rule({"m": "old['m'] + d"}, word)())
    twins = Twins(cls, [w.bfloat16() for w in drawn([(6, 6)] * 2)])
    twins.step("random")
    twins.agree()
    assert twins.paths == {"stack"}


@pytest.mark.parametrize(("start", "new"), STATES)
def test_states_that_no_graph_keeps_step_as_a_stack(start, new):
    twins = Twins(optimizer_of(rule({"m": new}, start=start)()), drawn([(6, 5)] * 2))
    for step in range(2):
        twins.step("random", step)
    twins.agree()
    assert twins.paths == {"stack"}


TAKEN_OVER = {
    "the weight": {"m": "w"},
    "the gradient": {"m": "d"},
    "chosen": {"m": "where(old['m'].sum() > 2, w, old['m'] + 1)"},
    "called grad": {"grad": "0.9 * old['grad'] + d"},
    "called weight": {"weight": "0.9 * old['weight'] + d"},
    "exchanged": {"a": "old['b'] + d", "b": "old['a']"},
    "three alike": {"a": "d", "b": "d", "c": "w"},
    "a number": {"m": "torch.full_like(old['m'], 0.5)"},
}
PATHS = [("rule", "kernel"), *(("compiled", executor) for executor in EXECUTORS)]


@pytest.mark.parametrize(("backend", "executor"), PATHS)
@pytest.mark.parametrize("states", TAKEN_OVER)
def test_states_that_take_something_over_have_memory_of_their_own(
    states, backend, executor, choose
):
    """The gradient is zeroed behind each step, as training loops do."""
    choose(executor)
    name = next(iter(TAKEN_OVER[states]))
    mine = rule(TAKEN_OVER[states], direction=f"d + 0.5 * old[{name!r}]")()
    (start,) = drawn([(3, 4)])
    weight = start.clone().requires_grad_()
    optimizer = optimizer_of(mine)([weight], backend=backend)
    pure = sn.chain(mine, r.StepSize(0.1))
    moved, state = start, pure.init(start)
    for step in range(4):
        grad = (-1.0) ** step - step * moved
        weight.grad = grad.clone()
        moved, state = pure.step(moved, grad, state)
        optimizer.step()
        weight.grad.zero_()
        torch.testing.assert_close(weight.detach(), moved, rtol=1e-12, atol=1e-12)
        for key, value in state.items():
            torch.testing.assert_close(optimizer.state[weight][key], value, rtol=1e-12, atol=1e-12)
    held = [weight, weight.grad, *optimizer.state[weight].values()]
    assert len({x.data_ptr() for x in held}) == len(held)


class Switches(sn.Rule):
    """A decision of a number between branches of fewer values and of more."""

    state_names = ("step", "c")
    k: float = sn.hyper("(0, inf)", 2.0)

    def init(self, weight):
        return {**super().init(weight), "c": torch.zeros_like(weight) + 0.1}

    def update(self, update, state):
        d, large = update.direction, torch.as_tensor(self.k) > 1
        counted = torch.where(large, state["step"].to(d.dtype), d.abs())
        half = torch.where(large, 0.5, d)
        kept = torch.where(large, 0.1, state["c"] + d)
        return update.replace(direction=d * counted.sum() + (half * half).sum() * d), {"c": kept}


@BY_EACH
@pytest.mark.parametrize("shapes", [((5,), (7,)), ((5, 4), (7, 3))], ids=str)
def test_a_number_decides_between_few_values_and_many(shapes, executor, choose):
    choose(executor)
    twins = Twins(
        sn.torch_optimizer(lambda k=0.5, lr=0.01: sn.chain(Switches(k), r.StepSize(lr))),
        drawn(shapes),
    )
    for step, k in enumerate((0.5, 2.0, 0.5, 3.0)):
        for group in (*twins.own_opt.param_groups, *twins.fast_opt.param_groups):
            group["k"] = k
        twins.step("random", step)
        twins.agree()
        assert twins.paths == {EXECUTORS[executor]}
