"""A step that cannot be done is refused by name, and left undone.

A kernel that would give other numbers than the rule's own code is found before a weight moves.
"""

from __future__ import annotations

import functools
import math
import shutil
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import code
from tests.compile.twins import Twins, drawn, paths
from tests.compile.written import new_recipe, optimizer_of, rule
from tests.harness import refuses

BACKENDS = pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler")


def ones(*shape):
    weight = torch.ones(shape, requires_grad=True)
    weight.grad = torch.ones(shape)
    return weight


# A compiler whose functions are off.

WRONG = {
    "by a little": "#define sqrt(x) sqrt(x) * {little}",
    "by its sign": "#define sqrt(x) sqrt(x) * -1.0",
    "not finite": "#define sqrt(x) sqrt(x) / 0.0",
}


@pytest.fixture
def wrong_compiler(tmp_path, monkeypatch):
    """Put a compiler in place whose <cmath> has a macro."""

    def make(macro):
        (tmp_path / "wrong.h").write_text(f"#include <cmath>\n{macro}\n")
        script = tmp_path / "compiler"
        script.write_text(f'#!/bin/sh\nexec g++ -include {tmp_path}/wrong.h "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path / "kernels"))

    return make


@COMPILER
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, marks=pytest.mark.long), torch.float32, torch.bfloat16],
    ids=str,
)
@pytest.mark.parametrize("fault", WRONG)
def test_a_kernel_that_is_off_moves_no_weight(fault, dtype, wrong_compiler):
    """Even where a schedule begins at 0, which hides it."""
    wrong_compiler(WRONG[fault].format(little=1 + (1e-6 if dtype is torch.float64 else 0.02)))
    cls = sn.torch_optimizer(new_recipe(r.NormalizedUpdate("layer")), "Off")
    make = functools.partial(cls, lr=0.0)
    weights = [w.to(dtype) for w in drawn([(4, 3), (5,)])]
    twins = Twins(make, weights, "auto")
    twins.step()
    twins.agree()
    assert twins.paths == {"rule"}
    assert any("numbers" in line.reason for line in sn.explain(twins.fast_opt))
    other = Twins(make, weights, "compiled")
    before = [w.detach().clone() for w in other.fast]
    with refuses("NormalizedUpdate", (4, 3), "numbers", by=sn.BackendError):
        other.step()
    assert all(map(torch.equal, other.fast, before))


@COMPILER
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("at", "factor"), [("state", 1.1), ("weight", 2.0)])
def test_a_kernel_whose_weight_or_state_alone_is_off_moves_none(at, factor, dtype, wrong_compiler):
    wrong_compiler(f"#define exp(x) exp(x) * {factor}")
    both = {"state": ("torch.exp(-d.abs())", "d"), "weight": ("d", "torch.exp(-d.abs())")}[at]
    mine = rule({"m": both[0], f"m{factor}": "d"}, direction=both[1])
    weight = drawn([(4, 3)])[0].to(dtype).requires_grad_()
    weight.grad = torch.ones_like(weight)
    before = weight.detach().clone()
    with refuses("Mine", at, "numbers", by=sn.BackendError):
        optimizer_of(mine())([weight], backend="compiled").step()
    assert torch.equal(weight.detach(), before)


@COMPILER
def test_a_kernel_that_stores_bfloat16_by_truncation_moves_no_weight(tmp_path, monkeypatch):
    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path))
    right = code.read_header
    rounding = "(b + 0x7fff + ((b >> 16) & 1)) >> 16"
    assert rounding in right("numbers.hpp")
    monkeypatch.setattr(code, "read_header", lambda name: right(name).replace(rounding, "b >> 16"))
    twins = Twins(sn.torch_optimizer(new_recipe(), "Truncated"), [drawn([(4, 3)])[0].bfloat16()])
    weight = twins.fast[0]
    weight.grad, before = torch.ones_like(weight), weight.detach().clone()
    with refuses("float32 twin", by=sn.BackendError):
        twins.fast_opt.step()
    assert torch.equal(weight.detach(), before)


def test_a_branch_on_the_kind_of_a_number_is_noticed():
    """A record has a tensor where the rule has a number; a rule may tell them apart."""

    @dataclass(frozen=True)
    class Tells(sn.Rule):
        factor: float = sn.hyper("[0, inf)", 0.5)

        def update(self, update, state):
            scale = self.factor if isinstance(self.factor, float) else 2 * self.factor
            return update.replace(direction=scale * update.direction), {}

    weight = ones(4, 3)
    with refuses("Tells", "numbers", by=sn.BackendError):
        optimizer_of(Tells())([weight], backend="compiled").step()
    optimizer_of(Tells())([weight], backend="auto").step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 0.95))


# An error of one weight leaves all undone.


class Branching(sn.Rule):
    """A Python branch on a value, which nothing can record."""

    def update(self, update, state):
        if float(update.direction.sum()) > 0:
            return update, {}
        return replace(update, direction=-update.direction), {}


class Fails(sn.Rule):
    def update(self, update, state):
        raise RuntimeError("boom")


class FailsWhenLarge(sn.Rule):
    def update(self, update, state):
        if update.direction.shape[0] > 100:
            raise RuntimeError("boom")
        return update, {}


class Writes(sn.Rule):
    def update(self, update, state):
        update.direction.mul_(0.5)
        return update, {}


def branching(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), Branching(), r.StepSize(lr))


def failing(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), Fails(), r.StepSize(lr))


def large(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), FailsWhenLarge(), r.StepSize(lr))


def writing(lr=0.1, momentum=0.9):
    return sn.chain(Writes(), r.HeavyBall(momentum), r.StepSize(lr))


ERRORS = {
    "branching": ("compiled", sn.BackendError, ("Branching", (200, 3), "value")),
    "failing": ("auto", RuntimeError, ("boom",)),
    "large": ("auto", RuntimeError, ("boom",)),
    "writing": ("auto", ValueError, ("writes",)),
}


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@BACKENDS
@pytest.mark.parametrize("error", ERRORS)
def test_no_weight_steps_unless_all_can(error, backend, first):
    """A group before or after the failing one has not moved, nor has its state or gradient."""
    asked, kind, named = ERRORS[error]
    weights = [ones(4, 3), ones(5), ones(200, 3), ones(4, 3)]
    other = {"recipe": f"{__name__}:{error}", "lr": 0.1, "backend": asked}
    groups = [{"params": weights[:2], "backend": backend}, {"params": weights[2:], **other}]
    optimizer = optim.SGD(groups if first else groups[::-1], lr=0.1, momentum=0.9)
    for _ in range(2):
        with refuses(*named, by=kind):
            optimizer.step()
        for weight in weights[:2] if error == "writing" else weights:  # which is not undone
            assert torch.equal(weight.detach(), torch.ones_like(weight))
            assert torch.equal(weight.grad, torch.ones_like(weight))
            assert not any(value.any() for value in optimizer.state[weight].values())


def test_a_state_is_kept_if_the_step_fails():
    """A schedule has switched momentum off in one group; the other group's rule fails."""
    a, b = ones(4, 3), ones(4, 3)
    b.grad = None
    other = {"params": [b], "recipe": f"{__name__}:failing"}
    optimizer = optim.SGD([{"params": [a]}, other], lr=0.1, momentum=0.5)
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.0
    b.grad = torch.ones(4, 3)
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.step()
    assert torch.equal(optimizer.state[a]["momentum_buffer"], torch.ones(4, 3))
    torch.testing.assert_close(a.detach(), torch.full((4, 3), 0.9))


def expanded():
    return torch.nn.Parameter(torch.ones(1, 3).expand(4, 3))


def frozen():
    with torch.inference_mode():
        return torch.ones(4, 3)


@BACKENDS
@pytest.mark.parametrize(
    ("make", "named"),
    [(expanded, "expanded"), (frozen, "inference")],
)
def test_a_weight_that_no_path_can_step_is_refused_first(make, named, backend):
    first, weight = ones(4, 3), make()
    optimizer = optim.SGD([first, weight], lr=0.1, backend=backend)
    weight.grad = torch.ones(4, 3)
    lines = [line for line in sn.explain(optimizer) if line.path == "error"]
    assert len(lines) == 1
    assert named in lines[0].reason
    with refuses(1, (4, 3), named):
        optimizer.step()
    assert torch.equal(first.detach(), torch.ones(4, 3))


@BACKENDS
def test_a_state_of_another_shape_is_refused(backend):
    weight = ones(4, 6)
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9, backend=backend)
    optimizer.step()
    before = weight.detach().clone()
    weight.data = weight.data.view(6, 4)
    weight.grad = torch.ones(6, 4)
    with refuses("momentum_buffer"):
        optimizer.step()
    assert torch.equal(weight.detach().view(4, 6), before)


def test_a_backend_that_is_none_is_refused():
    optimizer = optim.SGD([ones(2)])
    for name in ("blocks", "fast"):
        optimizer.param_groups[0]["backend"] = name
        with refuses("backend", name, "auto", "rule", "compiled"):
            optimizer.step()
        with refuses("backend", name, "auto", "rule", "compiled"):
            optim.SGD([ones(2)], backend=name)


class Draws(sn.Rule):
    def update(self, update, state):
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(update.direction.shape, generator=generator)
        return replace(update, direction=update.direction + noise), {}


@pytest.mark.parametrize(
    ("mine", "reason"),
    [(Draws(), "randn"), (Branching(), "value")],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_be_compiled_steps_by_own_code(mine, reason):
    twins = Twins(optimizer_of(r.HeavyBall(0.5), mine), [torch.ones(4, 3)], "auto")
    for step in range(2):
        twins.step(step=step)
    twins.agree()
    assert paths(twins.fast_opt) == {"rule"}
    assert type(mine).__name__ in next(iter(sn.explain(twins.fast_opt))).reason
    optimizer = optimizer_of(r.HeavyBall(0.5), mine)([ones(4, 3)], backend="compiled")
    with refuses(type(mine).__name__, reason, (4, 3), "auto", by=sn.BackendError):
        optimizer.step()


def test_explain_takes_no_other_optimizer():
    with refuses("SGD", by=TypeError):
        sn.explain(torch.optim.SGD([ones(2)]))


@dataclass(frozen=True)
class Holds(sn.Rule):
    thing: object

    def update(self, update, state):
        return update.replace(direction=self.factor() * update.direction), {}

    def factor(self):
        return 0.5


def recursive(n):
    return 0.5 * recursive(n - 1) if n else 1.0


def halves(by):
    return lambda n: by * n


THINGS = {
    "a namespace": SimpleNamespace(lr=0.1),
    "a method of a dict": {"lr": 0.1}.get,
    "a set": {1, 2},
    "an array": np.ones(3),
    "a module": math,
}


@pytest.mark.parametrize("thing", THINGS)
def test_a_field_that_may_change_inside_is_not_recorded(thing):
    mine = Holds(THINGS[thing])
    weight = ones(4, 3)
    with refuses("Holds", "thing", by=sn.BackendError):
        optimizer_of(mine)([weight], backend="compiled").step()
    assert torch.equal(weight.detach(), torch.ones(4, 3))
    optimizer_of(mine)([weight], backend="auto").step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 0.95))


@pytest.mark.parametrize("thing", [recursive, halves(0.5)], ids=["recursive", "a closure"])
def test_functions_in_fields_step_by_own_code(thing):
    weight = ones(4, 3)
    optimizer_of(Holds(thing))([weight]).step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 0.95))


class Derives(sn.Rule):
    """An attribute beside its fields, which a record of numbers would not follow."""

    k: float = 2.0
    scale = 1.0

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "scale", 3 * self.k)

    def update(self, update, state):
        return update.replace(direction=self.scale * update.direction), {}


def test_an_attribute_beside_the_fields_is_refused():
    weight = ones(4, 3)
    with refuses("Derives", "scale", by=sn.BackendError):
        optimizer_of(Derives())([weight], backend="compiled").step()
    optimizer_of(Derives())([weight]).step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 0.4))


class Stops(sn.Rule):
    def update(self, update, state):
        raise KeyboardInterrupt


def stopping(lr=0.1):
    return sn.chain(r.HeavyBall(0.9), Stops(), r.StepSize(lr))


def test_an_interrupt_leaves_weights_and_states_as_they_were():
    weights = ones(4, 3), ones(4, 3)
    other = {"params": [weights[1]], "recipe": f"{__name__}:stopping"}
    optimizer = optim.SGD([{"params": [weights[0]]}, other], lr=0.1, momentum=0.9)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert not optimizer.state
    assert all(torch.equal(w.detach(), torch.ones(4, 3)) for w in weights)


def test_a_state_is_there_when_a_weight_moves(monkeypatch):
    """An interrupt behind the last weight, say, leaves no weight that has moved without a state."""
    weight = ones(4, 3)
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
    step = torch.autograd.graph.increment_version

    def interrupted(tensors):
        step(tensors)
        if any(tensor is weight for tensor in tensors):  # a kernel's check writes to copies
            raise KeyboardInterrupt

    monkeypatch.setattr(torch.autograd.graph, "increment_version", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 3), 0.9))
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.ones(4, 3))
