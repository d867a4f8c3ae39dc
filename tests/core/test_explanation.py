"""`explain`: the path of each weight, and why; what it says is what the step then does."""

import copy
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.harness import refuses


class Plain(sn.Rule):
    def update(self, update, state):
        return update, state


class Branches(sn.Rule):
    def update(self, update, state):
        factor = 2.0 if update.direction.sum() > 0 else 3.0
        return replace(update, direction=factor * update.direction), state


def optimizer_of(rule, weights, **options):
    return sn.torch_optimizer(lambda lr=0.1: sn.chain(rule, r.StepSize(lr)), "Own")(
        weights, **options
    )


def weights():
    shapes = ((6, 5), (6, 5), (4, 3, 3, 3), (5,), ())
    transposed = torch.ones(5, 4).T
    return [w.requires_grad_() for w in (*map(torch.ones, shapes), transposed)]


def test_each_group_shape_and_reason():
    params = weights()
    groups = [{"params": params[:5]}, {"params": params[5:], "backend": "rule"}]
    lines = sn.explain(optim.AdamP(groups, lr=0.1))
    assert [(line.group, line.shape, line.path) for line in lines] == [
        (0, (6, 5), "C++ kernel"),
        (0, (4, 3, 3, 3), "C++ kernel"),
        (0, (5,), "C++ kernel"),
        (0, (), "C++ kernel"),
        (1, (4, 5), "rule"),
    ]
    assert {(line.dtype, line.device) for line in lines} == {("float32", "cpu")}
    assert [line.backend for line in lines] == ["auto"] * 4 + ["rule"]
    assert [lines.counts[line] for line in lines] == [2, 1, 1, 1, 1]
    head, *rows = str(lines).splitlines()
    columns = ["group", "recipe", "backend", "weights", "dtype", "device", "bytes/entry"]
    assert head.split() == [*columns, "path", "why"]
    for row, line in zip(rows, lines, strict=True):
        cells = str(line.group), line.recipe, line.backend, line.dtype, line.path, line.reason
        assert all(cell in row for cell in cells)
        assert f"{lines.counts[line]} x {line.shape}" in row


@pytest.mark.parametrize(
    ("recipe", "entry"), [("sgdp", 4), ("adamp", 8), ("lion", 4), ("low_precision(adamw)", 4)]
)
def test_the_bytes_of_states(recipe, entry):
    params = [torch.ones(6, 5, requires_grad=True), torch.ones(7, requires_grad=True)]
    more = {"momentum": 0.9} if recipe == "sgdp" else {}
    optimizer = sn.torch_optimizer(recipe)(params, lr=0.1, **more)
    before = sn.explain(optimizer).state_bytes
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    held = sum(x.nbytes for state in optimizer.state.values() for x in state.values())
    assert sn.explain(optimizer).state_bytes == before == held
    assert 0 <= held - 37 * entry <= 32  # counters


REASONS = {
    "a user's class": (lambda w: optimizer_of(Plain(), [w]), "rule", "Plain"),
    "orthogonality": (lambda w: optim.SGDG([w]), "rule", "OrthogonalityRegularization"),
    "another view": (lambda w: optim.AdamP([w], views=("dim=1",)), "rule", "ScaleInvarianceTest"),
    "half precision": (lambda w: optim.AdamP([w.detach().half()]), "rule", "float16"),
    "columns": (lambda w: optim.AdamP([w.detach().T]), "rule", "memory"),
    "columns summed": (
        lambda w: optim.AdamP([w], views=("dim=1",), backend="compiled"),
        "stack",
        "Scale",
    ),
    "no kernel": (lambda w: optimizer_of(Branches(), [w], backend="compiled"), "error", "Branches"),
}


@pytest.mark.filterwarnings("ignore:.*Sphere")
@pytest.mark.filterwarnings("ignore:SGDG")
@pytest.mark.parametrize("case", REASONS)
def test_a_reason_names_the_rule_or_the_dtype(case):
    make, path, named = REASONS[case]
    (line,) = sn.explain(make(torch.ones((4, 3), requires_grad=True)))
    assert line.path == path
    assert named in line.reason


def test_it_looks_at_the_weight_and_not_at_its_gradient():
    """A weight whose entries share memory has no kernel; its gradient would have one."""
    weight = torch.ones(1, 3).expand(4, 3)
    (line,) = sn.explain(optim.SGD([weight], lr=0.1, backend="compiled"))
    assert (line.path, line.shape) == ("error", (4, 3))


def test_nothing_changes():
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
def test_the_step_takes_the_path_that_is_said(backend, steps):
    """A rule's own code runs at the step after it, or does not."""
    ran = []

    class Ran(sn.Rule):
        def update(self, update, state):
            ran.append(type(update.direction))
            return replace(update, direction=update.direction * 2), state

    weight = torch.nn.Parameter(torch.ones(6, 5))
    optimizer = optimizer_of(Ran(), [weight], backend=backend)
    weight.grad = torch.ones(6, 5)
    for _ in range(steps):
        optimizer.step()
    (line,) = sn.explain(optimizer)
    ran.clear()
    optimizer.step()
    assert (line.path == "rule") == (ran == [torch.Tensor])


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
    class Wraps:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    optimizer = optim.AdamP(weights())
    assert str(sn.explain(Wraps(optimizer))) == str(sn.explain(optimizer))
    with refuses("explain", "SGD", "optimizer", by=TypeError):
        sn.explain(torch.optim.SGD([torch.ones(2)], lr=0.1))
