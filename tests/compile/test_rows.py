"""Every row on every path equals its own code, under pairs of conditions."""

from __future__ import annotations

import copy
import shutil
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import optim
from spherenorm.compile.rule_key import RuleKey
from spherenorm.compile.schedule import schedule
from spherenorm.compile.trace import trace
from tests.compile.conftest import EACH_EXECUTOR, EXECUTORS
from tests.compile.twins import Twins, drawn, paths
from tests.compile.written import optimizer_of, rule
from tests.harness import ANY_WEIGHTS, FAMILIES, ROWS, ZOO, Row, pairs, set_gradients
from tests.harness.tables import mostly_long

pytestmark = [
    ANY_WEIGHTS,
    pytest.mark.filterwarnings("ignore:optimizers step by"),
    pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler"),
]

OWN_VIEWS = [
    Row("adamp", {"lr": 0.1, "views": ("groups=2", "layer")}),
    Row("sgdp", {"lr": 0.1, "momentum": 0.9, "views": ("dim=1",)}),
]
"""Views for which kernels have no word; a weight has groups, and so has what it is compared on."""
KERNELS = [
    *(row for row in ROWS if row.fewest < 2 and row.recipe not in ("sgdg", "adamg")),
    Row("sgdg", {"alpha": 0.0}),
    Row("adamg", {"alpha": 0.0, "nu": None}),
    Row("adamp", {"views": ("layer",)}),
    Row("sgdp", {"momentum": 0.5, "views": ("channel",), "dampening": 0.5}),
]
"""Those that are kernels; the others multiply matrices, or have views that are no rows."""
TABLE = [*KERNELS, *(row for row in ROWS if row not in KERNELS), *OWN_VIEWS]
TANGENTS = ("nora", "orthograd", "rotational_mine")
"""They give a length to what a projection leaves, which of a unit of one entry is rounding."""

SHAPES = {
    "usual": ((6, 5), (4, 3, 3, 3), (5,), ()),
    "edges": ((6, 1), (1, 6), (6, 6), (0, 4), (4, 0), (0,)),
    "long": ((70, 1001), (3, 70000), (5000,)),
}
LAYOUTS = (
    "plain",
    "transposed",
    "channels last",
    "one memory",
    "overlapping",
    "gradient transposed",
    "gradient expanded",
    "gradient behind a negation",
)
CONDITIONS = {
    "row": range(len(TABLE)),
    "family": FAMILIES,
    "layout": LAYOUTS,
    "shapes": tuple(SHAPES),
    "rate": ("number", "tensor", "float32 tensor", "scheduled"),
    "scale": (1e-6, 1.0, 1e6),
    "groups": (1, 2),
    "executor": ("kernel", "batched"),
    "backend": ("auto", "compiled"),
}


def allowed(case: dict[str, Any]) -> bool:
    row = TABLE[case["row"]] if "row" in case else None
    named = row.id.split("-")[0] if row else ""
    compiled, layout = case.get("backend") == "compiled", case.get("layout")
    refused = compiled and layout == "overlapping"
    # A step of a million weights: its radial part is rounding, of the size of the weight.
    far = case.get("scale") == 1e6 and case.get("family") == "layer_tangential"
    unknown = far and named == "radial_brake_mine"
    return not (refused or unknown or (named in TANGENTS and case.get("shapes") == "edges"))


def dtype_of(place: int, other: bool) -> torch.dtype:
    """One row in float64 and the next in float32; the long checks have them the other way."""
    return (torch.float64, torch.float32)[(place + other) % 2]


LONG_CONDITIONS = {**CONDITIONS, "executor": tuple(EXECUTORS)}
CASES = [
    pytest.param(
        case,
        dtype,
        id="-".join([TABLE[case["row"]].id, *map(str, [*case.values()][1:]), str(dtype)[6:]]),
        marks=[pytest.mark.long] * other,
    )
    for other in (False, True)
    for case in pairs(LONG_CONDITIONS if other else CONDITIONS, allowed, seed=other)
    for dtype in [dtype_of(case["row"], other)]
]
N_QUICK = sum(not case.marks for case in CASES)
CASES = [*mostly_long(CASES[:N_QUICK], kept=N_QUICK // 4), *CASES[N_QUICK:]]


def laid_out(layout: str, weights: list[Tensor]) -> list[Tensor]:
    if layout == "transposed":
        return [w.t().contiguous().t() if w.ndim == 2 else w for w in weights]
    if layout == "channels last":
        last = torch.channels_last
        return [w.contiguous(memory_format=last) if w.ndim == 4 else w for w in weights]
    if layout in ("one memory", "overlapping"):
        memory = torch.cat([w.flatten() for w in weights])
        overlap = int(layout == "overlapping")
        starts = [0]
        for w in weights:
            starts.append(starts[-1] + max(w.numel() - overlap, 0))
        both = zip(weights, starts, strict=False)
        return [memory[start : start + w.numel()].view(w.shape) for w, start in both]
    return weights


def gradient_in(layout: str, grad: Tensor) -> Tensor:
    if layout == "gradient transposed" and grad.ndim > 1:
        return grad.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "gradient expanded" and grad.ndim > 1 and grad.numel():
        return grad[:1].expand(grad.shape)
    return torch._neg_view(-grad) if layout == "gradient behind a negation" else grad.clone()


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_a_row_on_a_path_equals_its_own_code(case, dtype, choose):
    row, layout = TABLE[case["row"]], case["layout"]
    choose(case["executor"])
    fewest = 1 if row.id.split("-")[0] in TANGENTS else 0
    shapes = [s for s in SHAPES[case["shapes"]] if len(s) >= max(row.fewest, fewest)]
    if "groups=2" in row.id:
        shapes = [s for s in shapes if s and s[0] % 2 == 0]

    def make(weights: list[Tensor], **options: Any) -> torch.optim.Optimizer:
        cut = -(-len(weights) // case["groups"])
        groups = [{"params": part} for part in (weights[:cut], weights[cut:]) if part]
        optimizer = row.optimizer(groups, **options)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = rate_of(case["rate"], group["lr"] / (1 + number))
        return optimizer

    start = [w.to(dtype) for w in drawn(shapes)]
    twins = Twins(make, start, case["backend"], lambda ws: laid_out(layout, ws))
    for step in range(3):
        for group in (*twins.own_opt.param_groups, *twins.fast_opt.param_groups):
            if case["rate"] == "scheduled":
                group["lr"] *= (1.0, 0.3, 0.0)[step]
            elif case["rate"] != "number":
                group["lr"].mul_(0.9)
        twins.step(case["family"], step, case["scale"], lambda g, _: gradient_in(layout, g))
    twins.agree()
    if layout in ("overlapping", "gradient behind a negation"):
        own = {"rule"} if case["backend"] == "auto" or layout == "overlapping" else {"stack"}
        assert twins.paths == own
    elif row in KERNELS:
        # No kernel walks over columns.
        beside = {"rule", "stack"} if layout == "transposed" else set()
        assert twins.paths - beside <= {EXECUTORS[case["executor"]]}
    elif case["backend"] == "compiled":
        assert twins.paths <= {"stack", *EXECUTORS.values()}


RECORDED_ZOO = {
    *("aggmo", "ademamix", "grokfast", "amsgrad", "adabelief", "laprop", "adopt", "adan"),
    *("mars_adamw", "grams", "stable_adamw", "adam_mini", "mars_lion", "emanesterov_adamw"),
    *("schedulefree_sgd", "schedulefree_adamw", "schedulefree_adamc"),
}
"""Recipes of the zoo with rules of its own that have kernels; `explain` has the others' reasons."""


@pytest.mark.parametrize("executor", EACH_EXECUTOR)
@pytest.mark.parametrize("row", [row for row in ZOO if row.recipe in RECORDED_ZOO], ids=str)
def test_a_row_of_the_zoo_steps_recorded_as_by_its_own_code(row, executor, choose):
    choose(executor)
    shapes = [shape for shape in SHAPES["usual"] if len(shape) >= row.fewest]
    twins = Twins(row.optimizer, drawn(shapes), "auto")
    for step in range(4):
        twins.step(step=step)
    twins.agree()
    assert twins.paths == {EXECUTORS[executor]}


@pytest.mark.parametrize("row", ZOO, ids=str)
def test_explain_calls_no_rule_of_the_zoo_foreign(row):
    optimizer = row.optimizer(row.parameters())
    assert not [line.reason for line in sn.explain(optimizer) if "library's own" in line.reason]


def rate_of(kind: str, lr: float) -> float | Tensor:
    dtype = torch.float32 if kind == "float32 tensor" else torch.float64
    return torch.tensor(lr, dtype=dtype) if "tensor" in kind else lr


FORGETTING = (1e6, 1e-3, 1e6, 1e-6, 1e-9, 1.0)
"""Scales of gradients: a moment's decay of nothing keeps nothing of a large one."""
EXTREMES = {
    "decay 0": (Row("adamw", {"betas": (0.9, 0.0)}), FORGETTING, 1.0),
    "decays of almost 0": (Row("adam", {"betas": (1e-8, 1e-12)}), FORGETTING, 1.0),
    "rmsprop forgets": (Row("rmsprop", {"alpha": 0.0}), FORGETTING, 1.0),
    "squares that overflow": (Row("adam"), (1e18, 1e20, 1e30), 1.0),
    "sums that overflow": (Row("sgdp", {"momentum": 0.9}), (1e19,) * 3, 1.0),
    "sums that a sphere divides by": (Row("sgdg", {"alpha": 0.0}), (1e19,) * 3, 1.0),
    "a threshold that underflows": (Row("sgdp", {"delta": 1e-300}), (1e20,), 1.0),
    "a unit's threshold": (Row("sgdp", {"delta": 1e-300, "per": "unit"}), (1e20,), 1.0),
    "a coefficient beyond float32": (Row("nora"), (1e30,), 1e-20),
    "nothing at all": (Row("adamp"), (0.0, 1.0), 1.0),
    "nan": (Row("adamp"), (1.0, float("nan"), 1.0), 1.0),
    "an infinity": (Row("sgdw", {"momentum": 0.9}), (1.0, -float("inf"), 1.0), 1.0),
    "an infinite weight": (Row("rmsprop"), (1.0, 1.0), float("inf")),
}


@pytest.mark.parametrize("executor", EACH_EXECUTOR)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_end_where_those_of_own_code_do(name, dtype, executor, choose):
    row, scales, size = EXTREMES[name]
    choose(executor)
    shapes = (4, 8), (2, 4096), (4, 3, 2, 2)
    twins = Twins(row.optimizer, [w.to(dtype) * size for w in drawn(shapes)], "auto")
    for step, scale in enumerate(scales):
        for (own, fast), grad in zip(twins, drawn(shapes, seed=step + 1), strict=True):
            own.grad, fast.grad = ((scale * grad).to(dtype) for _ in range(2))
        twins.own_opt.step()
        twins.fast_opt.step()
        twins.largest = max(twins.largest, min(scale, 1.0))
        for own, fast in twins:
            assert torch.equal(fast.isfinite(), own.isfinite())
        twins.agree(equal_nan=True)
    assert twins.paths == {EXECUTORS[executor]}


ADAMP = Row("adamp", {"lr": 0.1, "weight_decay": 0.01})


def test_bfloat16_is_computed_with_in_float32_and_rounded_once():
    """float32 sums in another order may fall on the other side of a rounding boundary."""
    start = [w.bfloat16() for w in drawn([(4, 3), (3, 2, 2, 2), (5,)])]
    twins = Twins(ADAMP.optimizer, start)
    equal = []
    for step in range(4):
        for own, fast in twins:
            fast.data.copy_(own)
        twins.step(step=step)
        for own, fast in twins:
            torch.testing.assert_close(fast, own, rtol=2**-7, atol=1e-5)
            equal.append((fast == own).float().mean())
            assert twins.fast_opt.state[fast]["exp_avg"].dtype is torch.float32
    assert twins.paths == {"C++ kernel"}
    assert sum(equal) / len(equal) > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_steps_as_by_own_code(dtype, choose):
    choose("batched")
    twins = Twins(ADAMP.optimizer, [w.to(dtype) for w in drawn([(4, 3), (5,)])], "auto")
    twins.step()
    for own, fast in twins:
        torch.testing.assert_close(own, fast, rtol=torch.finfo(dtype).eps, atol=0)
    assert twins.paths == {"batched"}


def test_the_passes_of_a_step_are_those_of_the_step_without_watches():
    """What nobody reads comes after them, since a loop's sums may depend on what else it has."""
    rules = sn.recipes.adamp().rules
    watches = sn.rules.Watch("norm"), sn.rules.Watch("turn")
    alone, watched = (
        schedule(trace(RuleKey.of(rule), (4, 3), torch.float32)).passes
        for rule in (sn.chain(*rules), sn.chain(*rules, *watches))
    )
    n_reductions = [[len(pass_.reductions) for pass_ in passes] for passes in (alone, watched)]
    assert n_reductions[0] == [5, 1, 0]
    assert n_reductions[1][:2] == [5, 1]
    assert n_reductions[1][-1] == 0 < min(n_reductions[1][2:-1])


def test_a_long_row_is_summed_in_blocks(choose):
    """Sum 2^17 equal numbers: added one by one in float32, they would be off by 1e-3."""
    choose("batched")
    rows = torch.zeros(2, 2**17, requires_grad=True)
    rows.grad = torch.full_like(rows, 0.1)
    total = rule({}, direction="0 * d + per_row(d)")
    optimizer = optimizer_of(total())([rows], lr=1.0, backend="compiled")
    optimizer.step()
    assert paths(optimizer) == {"batched"}
    sums = rows.grad.double().sum(1, True).float().expand_as(rows)
    torch.testing.assert_close(-rows.detach(), sums, rtol=2e-4, atol=0)


def test_the_result_does_not_depend_on_the_number_of_threads():
    """Of tensors that threads share, and of many small ones."""
    start = drawn([(300, 1000), *[(7, 9)] * 20, (200_000,)])
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            twins = Twins(ADAMP.optimizer, start, lay_out=list)
            for step in range(2):
                twins.step(step=step)
        finally:
            torch.set_num_threads(before)
        twins.agree()
        results.append(twins.fast)
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


def test_weights_and_states_stay_in_their_memory_and_autograd_sees_the_step():
    weights = drawn([(4, 3), (5,)])
    optimizer = ADAMP.optimizer([w.requires_grad_() for w in weights])
    places = []
    for step in range(3):
        set_gradients(weights, step)
        loss = (weights[0] ** 2).sum()
        optimizer.step()
        held = [*weights, *(v for w in weights for v in optimizer.state[w].values())]
        places.append([x.data_ptr() for x in held])
        with pytest.raises(RuntimeError, match="inplace"):
            loss.backward()
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize("backend", ["auto", "compiled"])
def test_copied_saved_and_threaded_trainings_are_bit_equal(backend):
    def train(optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
        weights = optimizer.param_groups[0]["params"]
        for step in steps:
            set_gradients(weights, step)
            optimizer.step()
        return weights

    def fresh() -> torch.optim.Optimizer:
        row = Row("sgdp", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
        return row.optimizer(row.parameters(), backend=backend)

    first = fresh()
    train(first, range(3))
    twin, resumed = copy.deepcopy(first), fresh()
    for old, new in zip(*(o.param_groups[0]["params"] for o in (first, resumed)), strict=True):
        new.data.copy_(old)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    ends = [train(optimizer, range(3, 6)) for optimizer in (first, twin, resumed)]
    threads = [threading.Thread(target=lambda: ends.append(train(fresh(), range(6)))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 5
    for others in ends[1:]:
        assert all(map(torch.equal, ends[0], others))


def test_a_nan_stays_in_its_tensor():
    weights = [torch.ones(3, 4, requires_grad=True) for _ in range(2)]
    weights[0].grad, weights[1].grad = torch.full((3, 4), float("nan")), torch.ones(3, 4)
    optim.AdamP(weights, backend="compiled").step()
    assert weights[0].isnan().all()
    assert weights[1].isfinite().all()


@pytest.mark.parametrize("device", [None, "meta"])
def test_explain_and_a_default_device_change_nothing(device):
    """Nor are random numbers drawn."""
    twins = Twins(ADAMP.optimizer, drawn([(4, 3), (5,)]), "auto")
    torch.manual_seed(0)
    with torch.device(device or "cpu"):
        sn.explain(twins.fast_opt)
    assert not twins.fast_opt.state
    twins.step(on=torch.device(device or "cpu"))
    assert torch.equal(torch.randn(3), torch.randn(3, generator=torch.manual_seed(0)))
    twins.agree()
    assert paths(twins.fast_opt) == {"C++ kernel"}
