"""The plan that a step leaves to the next one, and the changes that end it."""

import warnings
import weakref

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm.compile import _dispatch as dispatch
from spherenorm.compile.cpp import BuildError
from spherenorm.compile.cpp import _kernel as printer
from tests.compile.twins import assert_close

SHAPES = ((6, 5), (4, 3, 3, 3), (5,), (6, 5))


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights():
    return [randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(SHAPES)]


def gradient_in_place_of_itself(optimizer, params):
    """The same memory, read in another order."""
    params[3].grad.as_strided_((6, 5), (1, 6))


def gradient_in_a_state(optimizer, params):
    params[0].grad = next(x for x in optimizer.state[params[3]].values() if x.ndim)


def gradient_as_its_negative(optimizer, params):
    params[0].grad = torch._neg_view(params[0].grad)


def states_in_another_order(optimizer, params):
    state = optimizer.state[params[0]]
    items = list(state.items())[::-1]
    state.clear()
    state.update(items)


def another_backend(optimizer, params):
    optimizer.param_groups[0]["backend"] = "rule"


CHANGES = (
    gradient_in_place_of_itself,
    gradient_in_a_state,
    gradient_as_its_negative,
    states_in_another_order,
    another_backend,
)
"""Those that `test_changes` has not."""


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_nothing_stale(change):
    found = []
    for backend in ("auto", "rule"):
        params = weights()
        groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.05}]
        optimizer = optim.AdamP(groups, lr=0.1, weight_decay=0.1, backend=backend)
        for step in range(5):
            for place, weight in enumerate(params):
                weight.grad = randn(*weight.shape, seed=10 * step + place)
            if step == 3:
                change(optimizer, params)
            optimizer.step()
        found.append([weight.detach().clone() for weight in params])
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs)


def test_a_step_on_the_same_memory_establishes_nothing(monkeypatch):
    params = weights()
    optimizer = optim.AdamP(params, lr=0.1)
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    monkeypatch.setattr(dispatch, "settled", refuse)
    for step in range(3):
        for weight in params:
            weight.grad = torch.full_like(weight, step)  # in other memory
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
    params[0].data = params[0].data.clone()
    with pytest.raises(AssertionError, match="anew"):
        optimizer.step()


def refuse(*_):
    raise AssertionError("established anew")


def test_no_tensor_is_kept_alive():
    params = weights()
    optimizer = optim.AdamP(params, lr=0.1)
    for weight in params:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    states = optimizer.state[params[0]]
    refs = [weakref.ref(x) for x in (params[0].grad, states["exp_avg"])]
    params[0].grad = None
    states["exp_avg"] = torch.zeros_like(params[0])
    assert [ref() for ref in refs] == [None, None]


def test_a_failed_build_is_said_once_and_tried_once(monkeypatch):
    tried = []

    def fails(*_):
        tried.append(1)
        raise BuildError("no C++ compiler: set CXX, or install g++")

    monkeypatch.setattr(printer, "load_step", fails)
    monkeypatch.setattr(dispatch, "_warned", [])
    weight = randn(4, 3).requires_grad_()
    optimizer = optim.AdamP([weight], lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        optim.SGD([weight], lr=0.1, momentum=0.9).step()
    said = [str(each.message) for each in caught if "own code" in str(each.message)]
    assert len(said) == 1
    assert "install g++" in said[0]
    (line,) = sn.explain(optimizer)
    assert (line.path, line.reason) == ("rule", "no C++ compiler: set CXX, or install g++")
    assert len(tried) == 2  # once for each of the two rules


def test_an_expanded_weight_is_an_error_that_explain_tells():
    weight = torch.ones(1, 3).expand(4, 3).requires_grad_()
    for backend in ("auto", "compiled", "rule"):
        (line,) = sn.explain(optim.AdamP([torch.nn.Parameter(weight)], backend=backend))
        assert line.path == "error"
        assert "is expanded" in line.reason


def test_blocks_are_refused_by_what_to_use():
    with pytest.raises(ValueError, match='got \'blocks\'; use "auto", or "compiled" for rules of'):
        optim.AdamP([torch.ones(2)], backend="blocks")
