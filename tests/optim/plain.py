"""The oracle of the optimizer classes: a torch optimizer that calls the rule's pure step."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import Recipe, optim
from tests.harness import refuses

Weights = list[Tensor]


class Plain(torch.optim.Optimizer):
    """Steps each weight that has a gradient by the pure step of its recipe's rule.

    Args:
        recipe: of all groups that name no other one under "recipe".
        params: weights or groups. A group of another recipe has all of its hyper-parameters.
        **given: hyper-parameters, and `maximize`.
    """

    def __init__(self, recipe: Recipe | str, params: Any, **given: Any) -> None:
        defaults = {**sn.bind(recipe).defaults, "recipe": recipe, "maximize": False}
        super().__init__(params, {**defaults, **given})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            known = sn.bind(group["recipe"]).defaults
            bound = sn.bind(group["recipe"], **{name: group[name] for name in known})
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                rule = bound.rule
                if self.state[weight].keys() - {
                    *rule.state_keys
                }:  # a momentum that is 0 for a while
                    rule = bound.replace(momentum=torch.zeros((), dtype=torch.float64)).rule
                fresh = rule.init(weight.detach())
                state = {name: self.state[weight].get(name, x) for name, x in fresh.items()}
                grad = -weight.grad if group["maximize"] else weight.grad
                moved, self.state[weight] = rule.step(weight.detach(), grad, state)
                weight.copy_(moved)


def weights_of(optimizer: torch.optim.Optimizer) -> Weights:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def class_of(recipe: Recipe | str) -> type[optim.RecipeOptimizer]:
    """The class of `spherenorm.optim` of a recipe, which pickles by its name."""
    found = sn.find_recipe(recipe)
    classes = (getattr(optim, name) for name in optim.__all__)
    return next(cls for cls in classes if getattr(cls, "recipe", None) is found)


def assert_same(ours: torch.optim.Optimizer, other: torch.optim.Optimizer, **within: float) -> None:
    """The weights and the states are the same: bit for bit, or within a tolerance."""
    within = within or {"rtol": 0, "atol": 0}
    for weight, twin in zip(weights_of(ours), weights_of(other), strict=True):
        torch.testing.assert_close(weight, twin, **within)
        assert ours.state.get(weight, {}).keys() == other.state.get(twin, {}).keys()
        for name, value in ours.state.get(weight, {}).items():
            torch.testing.assert_close(value, other.state[twin][name], **within)
            assert not value.requires_grad


def saved(x: Any) -> Any:
    """`x` through a file that holds nothing but tensors and plain values."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def through(by: str, optimizer: Any, scheduler: Any, make: Any) -> tuple[Any, Any]:
    """A copy of an optimizer and its scheduler.

    Args:
        by: "file", "state_dict", "deepcopy" or "pickle".
        optimizer, scheduler: to be copied; the latter may be None.
        make: makes a new optimizer and scheduler of weights, as a program does that resumes.
    """
    if by == "deepcopy":
        return copy.deepcopy((optimizer, scheduler))
    if by == "pickle":
        return pickle.loads(pickle.dumps((optimizer, scheduler)))
    weights = [weight.detach().clone().requires_grad_() for weight in weights_of(optimizer)]
    twin, schedule = make(weights)
    checkpoint = optimizer.state_dict()
    twin.load_state_dict(saved(checkpoint) if by == "file" else checkpoint)
    if scheduler is not None:
        schedule.load_state_dict(copy.deepcopy(scheduler.state_dict()))
    return twin, schedule


@contextmanager
def refuses_and_changes_nothing(
    optimizer: torch.optim.Optimizer, *named: object, by: type[Exception] = ValueError
) -> Iterator[None]:
    """`refuses`, and weights, states and param_groups are as before."""

    def everything() -> Any:
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        weights = [weight.detach() for weight in weights_of(optimizer)]
        return weights, [dict(optimizer.state.get(w, {})) for w in weights_of(optimizer)], groups

    before = copy.deepcopy(everything())
    with refuses(*named, by=by):
        yield
    after = everything()
    assert str(after[2]) == str(before[2])
    torch.testing.assert_close(after[:2], before[:2], rtol=0, atol=0)
