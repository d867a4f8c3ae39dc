"""`explain`: the path of each weight, and why; what it says is what the step then does."""

import copy
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile.cpp import CppKernel


class Plain(sn.Rule):
    def update(self, update, state):
        return update, state


def of_a_user(lr=0.1):
    return sn.chain(Plain(), r.StepSize(lr))


def weights():
    shapes = ((6, 5), (6, 5), (4, 3, 3, 3), (5,), ())
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
    transposed = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).T
    return [w.requires_grad_() for w in (*start, transposed)]


def test_each_group_shape_and_reason():
    params = weights()
    optimizer = optim.AdamP(
        [{"params": params[:5]}, {"params": params[5:], "backend": "rule"}], lr=0.1
    )
    lines = sn.explain(optimizer)
    assert [(line.group, line.shape, line.path) for line in lines] == [
        (0, (6, 5), "C++ kernel"),
        (0, (4, 3, 3, 3), "C++ kernel"),
        (0, (5,), "C++ kernel"),
        (0, (), "C++ kernel"),
        (1, (4, 5), "rule"),
    ]
    assert [lines.counts[line] for line in lines] == [2, 1, 1, 1, 1]
    text = str(lines).splitlines()
    assert text[0].split() == [
        "group",
        "recipe",
        "backend",
        "weights",
        "dtype",
        "device",
        "path",
        "why",
    ]
    assert "2 x (6, 5)" in text[1]
    assert 'backend="rule"' in text[5]


REASONS = {
    "a user's class": (
        lambda w: sn.torch_optimizer(of_a_user, "Own")([w]),
        (4, 3),
        "Plain is not the library's own",
    ),
    "orthogonality": (lambda w: optim.SGDG([w]), (4, 3), "OrthogonalityRegularization: aten."),
    "another view": (
        lambda w: optim.AdamP([w], views=("dim=1",)),
        (4, 3),
        "ScaleInvarianceTest: a sum over dimensions",
    ),
    "half precision": (
        lambda w: optim.AdamP([w.detach().half()]),
        (4, 3),
        "C++ kernels take no torch.float16",
    ),
}


@pytest.mark.filterwarnings("ignore:.*Sphere")
@pytest.mark.filterwarnings("ignore:SGDG")
@pytest.mark.parametrize("case", REASONS)
def test_reasons_for_the_rules_own_code(case):
    make, shape, reason = REASONS[case]
    (line,) = sn.explain(make(torch.ones(shape, requires_grad=True)))
    assert line.path == "rule"
    assert reason in line.reason


def test_what_cannot_be_compiled_is_a_line_and_no_error():
    class Branches(sn.Rule):
        def update(self, update, state):
            factor = 2.0 if update.direction.sum() > 0 else 3.0
            return replace(update, direction=factor * update.direction), state

    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(Branches(), r.StepSize(lr)), "Branching")
    (line,) = sn.explain(cls([torch.ones(4, 3)], backend="compiled"))
    assert line.path == "error"
    assert "Branches" in line.reason


def test_nothing_changes(monkeypatch):
    params = weights()
    optimizer = optim.AdamP(params, lr=0.1)
    for weight in params[:3]:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()), [w.detach().clone() for w in params]
    sn.explain(optimizer)
    assert str(optimizer.state_dict()) == str(before[0])
    assert all(torch.equal(w, old) for w, old in zip(params, before[1], strict=True))
    assert [w.grad is None for w in params] == [False, False, False, True, True, True]


@pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
def test_the_step_does_what_it_says(backend, monkeypatch):
    params = weights()[:4]
    optimizer = optim.AdamP(params, lr=0.1, backend=backend)
    said = {line.path for line in sn.explain(optimizer)}
    taken = set()

    def noted(cls, name):
        original = cls.__call__
        monkeypatch.setattr(cls, "__call__", lambda *args: taken.add(name) or original(*args))

    noted(CppKernel, "C++ kernel")
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert (taken or {"rule"}) == said


def test_another_optimizer_is_refused():
    with pytest.raises(TypeError, match="explain takes an optimizer of spherenorm, got SGD"):
        sn.explain(torch.optim.SGD([torch.ones(2)], lr=0.1))


def test_a_state_that_begins_as_the_weight_takes_the_path_of_the_step():
    class Start(sn.Rule):
        def init(self, weight):
            return {"start": weight}

        def update(self, update, state):
            return replace(update, direction=update.weight - state["start"]), state

    weight = torch.ones(2, 3)
    optimizer = sn.torch_optimizer(lambda lr=0.1: sn.chain(Start(), r.StepSize(lr)), "Starting")(
        [weight]
    )
    optimizer.param_groups[0]["backend"] = "compiled"
    before = str(sn.explain(optimizer))
    assert "shares its memory" not in before
    weight.grad = torch.ones(2, 3)
    optimizer.step()
    assert str(sn.explain(optimizer)) == before
