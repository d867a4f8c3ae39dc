"""`explain` names the path that each weight takes at the next step, and why."""

import copy
import re
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import BATCHED_DEVICES, RuleKey
from spherenorm.compile.code import annotated_source, kernel_source
from spherenorm.compile.trace import trace
from tests.harness import refuses
from tests.harness.recipes import EVERY_RECIPE, make_optimizer


class KeepsDirection(sn.Rule):
    def update(self, update, state):
        return update, state


class BranchesOnValues(sn.Rule):
    def update(self, update, state):
        factor = 2.0 if update.direction.sum() > 0 else 3.0
        return replace(update, direction=factor * update.direction), state


def optimizer_of(rule, weights, **options):
    return sn.torch_optimizer(lambda lr=0.1: sn.chain(rule, r.StepSize(lr)), "Custom")(
        weights, **options
    )


def weights():
    shapes = ((6, 5), (6, 5), (4, 3, 3, 3), (5,), ())
    transposed = torch.ones(5, 4).T
    return [w.requires_grad_() for w in (*map(torch.ones, shapes), transposed)]


def test_there_is_a_row_for_each_group_and_shape():
    params = weights()
    groups = [{"params": params[:5]}, {"params": params[5:], "backend": "rule"}]
    table = sn.explain(optim.AdamP(groups, lr=0.1))
    assert [(row.group, row.shape, row.path) for row in table] == [
        (0, (6, 5), "C++ kernel"),
        (0, (4, 3, 3, 3), "C++ kernel"),
        (0, (5,), "C++ kernel"),
        (0, (), "C++ kernel"),
        (1, (4, 5), "rule"),
    ]
    assert {(row.dtype, row.device) for row in table} == {("float32", "cpu")}
    assert [row.backend for row in table] == ["auto"] * 4 + ["rule"]
    assert [table.counts[row] for row in table] == [2, 1, 1, 1, 1]
    head, *printed_rows, records = str(table).splitlines()
    columns = ["group", "recipe", "backend", "weights", "names", "dtype", "device", "bytes/entry"]
    assert head.split() == [*columns, "path", "why"]
    for printed, row in zip(printed_rows, table, strict=True):
        cells = str(row.group), row.recipe, row.backend, row.dtype, row.path, row.reason
        assert all(cell in printed for cell in cells)
        assert f"{table.counts[row]} x {row.shape}" in printed
        assert ", ".join(table.names[row]) in printed
    assert records == "recorded steps: 4"


def test_weights_have_the_names_that_the_optimizer_was_given():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5)))
    named = sn.explain(optim.AdamP(model.named_parameters()))
    assert [*named.names.values()] == [
        tuple(f"{i}.weight" for i in range(5)),
        tuple(f"{i}.bias" for i in range(5)),
    ]
    assert "0.weight, 1.weight + 3 " in str(named)
    groups = sn.param_groups(model, torch.ones(8, 4), "muon+adamw")
    of_audit = sn.explain(groups.optimizer()).names.values()
    assert {name for names in of_audit for name in names} == dict(model.named_parameters()).keys()
    unnamed = sn.explain(optim.AdamP([{"params": [w]} for w in model.parameters()]))
    assert [*unnamed.names.values()] == [(str(i),) for i in range(10)]


@pytest.mark.parametrize("recipe", EVERY_RECIPE)
def test_a_rule_of_the_library_is_the_librarys_own(recipe):
    _, optimizer = make_optimizer(recipe)
    assert not any("not the library's own" in row.reason for row in sn.explain(optimizer))


def test_records_are_counted_and_a_schedule_makes_none():
    weight = torch.nn.Parameter(torch.ones(6, 5))
    optimizer = optim.AdamP([weight], lr=0.1, weight_decay=0.1)
    for step in range(4):
        weight.grad = torch.ones(6, 5)
        optimizer.param_groups[0].update(lr=0.1 * step, betas=(0.1 * step + 0.5, 0.9))
        optimizer.step()
        assert sn.explain(optimizer).n_records == 1
    optimizer.param_groups[0]["nesterov"] = True
    optimizer.step()
    assert sn.explain(optimizer).n_records == 2
    assert sn.explain(optim.AdamP([weight], backend="rule")).n_records == 0


@pytest.mark.parametrize("executor", ["kernel", "batched"])
def test_the_code_has_the_source_and_the_variables_of_the_rule(executor):
    weight = torch.nn.Parameter(torch.ones(6, 5))
    if executor == "batched":
        BATCHED_DEVICES.add("cpu")
    try:
        explanation = sn.explain(optim.AdamP([("conv", weight)]), code=True)
        (code,) = explanation.code
    finally:
        BATCHED_DEVICES.discard("cpu")
    assert code in str(explanation)
    assert "of conv" in code.splitlines()[0]
    (line,) = [line for line in code.splitlines() if "_squared_grad = " in line]
    assert line.endswith("invariance.py:200: squared_grad = grad * grad")
    assert sn.explain(optim.AdamP([weight])).code == ()
    on_rule = sn.explain(optim.AdamP([weight], backend="rule"), code=True)
    assert str(on_rule).endswith("none of these weights is on a path that has any (see why)")


def test_code_is_printed_when_an_executor_is_made(capfd, monkeypatch):
    monkeypatch.setenv("SPHERENORM_PRINT_CODE", "1")
    weight = torch.nn.Parameter(torch.ones(6, 5))
    for _ in range(2):
        sn.explain(optimizer_of(r.HeavyBall(0.9, buffer="of_this_test"), [weight]))
    printed = capfd.readouterr().err
    assert printed.count("C++ kernel of Chain") == 1
    assert "_of_this_test = load(" in printed


@pytest.mark.parametrize(
    ("recipe", "bytes_per_entry"),
    [("sgdp", 4), ("adamp", 8), ("lion", 4), ("low_precision(adamw)", 4)],
)
def test_bytes_of_states(recipe, bytes_per_entry):
    params = [torch.ones(6, 5, requires_grad=True), torch.ones(7, requires_grad=True)]
    momentum = {"momentum": 0.9} if recipe == "sgdp" else {}
    optimizer = sn.torch_optimizer(recipe)(params, lr=0.1, **momentum)
    before = sn.explain(optimizer).state_bytes
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    n_bytes = sum(x.nbytes for state in optimizer.state.values() for x in state.values())
    assert sn.explain(optimizer).state_bytes == before == n_bytes
    counter_bytes = n_bytes - 37 * bytes_per_entry
    assert 0 <= counter_bytes <= 32


REASONS = {
    "a user's class": (lambda w: optimizer_of(KeepsDirection(), [w]), "rule", "KeepsDirection"),
    "orthogonality": (lambda w: optim.SGDG([w]), "rule", "OrthogonalityRegularization"),
    "another view": (lambda w: optim.AdamP([w], views=("dim=1",)), "rule", "ScaleInvarianceTest"),
    "half precision": (lambda w: optim.AdamP([w.detach().half()]), "rule", "float16"),
    "columns": (lambda w: optim.AdamP([w.detach().T]), "rule", "memory"),
    "columns summed": (
        lambda w: optim.AdamP([w], views=("dim=1",), backend="compiled"),
        "stack",
        "Scale",
    ),
    "no kernel": (
        lambda w: optimizer_of(BranchesOnValues(), [w], backend="compiled"),
        "error",
        "BranchesOnValues",
    ),
}


@pytest.mark.filterwarnings("ignore:.*Sphere")
@pytest.mark.filterwarnings("ignore:SGDG")
@pytest.mark.parametrize("case", REASONS)
def test_a_reason_names_the_rule_or_the_dtype(case):
    make, path, named_in_reason = REASONS[case]
    (row,) = sn.explain(make(torch.ones((4, 3), requires_grad=True)))
    assert row.path == path
    assert named_in_reason in row.reason


def test_the_memory_of_the_weight_decides_and_not_that_of_its_gradient():
    """A weight whose entries share memory has no kernel; its gradient would have one."""
    weight = torch.ones(1, 3).expand(4, 3)
    (row,) = sn.explain(optim.SGD([weight], lr=0.1, backend="compiled"))
    assert (row.path, row.shape) == ("error", (4, 3))


def test_explain_changes_nothing():
    params = weights()
    optimizer = optim.AdamP(params, lr=0.1)
    for weight in params[:3]:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    before = copy.deepcopy((optimizer.state_dict(), [w.detach() for w in params]))
    sn.explain(optimizer)
    assert str(optimizer.state_dict()) == str(before[0])
    assert all(torch.equal(w, old) for w, old in zip(params, before[1], strict=True))
    assert [w.grad is None for w in params] == [False, False, False, True, True, True]


@pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
@pytest.mark.parametrize("steps", [0, 1])
def test_the_step_takes_the_explained_path(backend, steps):
    """The rule's own code runs at the next step if and only if the path is "rule"."""
    direction_types = []

    class NotesItsRun(sn.Rule):
        def update(self, update, state):
            direction_types.append(type(update.direction))
            return replace(update, direction=update.direction * 2), state

    weight = torch.nn.Parameter(torch.ones(6, 5))
    optimizer = optimizer_of(NotesItsRun(), [weight], backend=backend)
    weight.grad = torch.ones(6, 5)
    for _ in range(steps):
        optimizer.step()
    (row,) = sn.explain(optimizer)
    direction_types.clear()
    optimizer.step()
    assert (row.path == "rule") == (direction_types == [torch.Tensor])


def test_a_state_that_begins_as_the_weight_takes_the_path_of_the_step():
    class Start(sn.Rule):
        state_names = ("start",)

        def init(self, weight):
            return {"start": weight}

        def update(self, update, state):
            return replace(update, direction=update.weight - state["start"]), state

    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = optimizer_of(Start(), [weight], backend="compiled")
    before = str(sn.explain(optimizer))
    weight.grad = torch.ones(2, 3)
    optimizer.step()
    assert str(sn.explain(optimizer)) == before


def test_a_wrapped_optimizer_is_explained_and_another_refused():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    optimizer = optim.AdamP(weights())
    assert str(sn.explain(Wrapper(optimizer))) == str(sn.explain(optimizer))
    with refuses("explain", "SGD", "optimizer", by=TypeError):
        sn.explain(torch.optim.SGD([torch.ones(2)], lr=0.1))


@pytest.mark.parametrize("recipe", ["adamp", "sgdp", "adamw", "hyperball(lion)"])
def test_annotated_code_is_the_code_that_runs(recipe):
    """But for comments, indents, names, and the parts that no recipe changes."""
    graph = trace(RuleKey.of(sn.find_recipe(recipe)()), (6, 5), torch.float32)
    annotated = re.sub(r"  // .*| /\*.*?\*/", "", annotated_source(graph))
    annotated = re.sub(r"\b([vtmk]\d+)_\w+", r"\1", annotated)
    source, _ = kernel_source(graph)
    assert "\n".join(line.strip() for line in annotated.splitlines()) in source
    assert len(annotated.splitlines()) > 50
