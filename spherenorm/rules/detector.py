"""A scale-invariance test that remembers: evidence accumulates over steps instead of being thrown away after each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from spherenorm.rule import Rule, Scalar, State, hyper
from spherenorm.rules.projection import ScaleInvarianceTest
from spherenorm.update import Invariance, Update
from spherenorm.views import ViewLike, as_view

__all__ = ["AccumulatedInvarianceTest"]


@dataclass(frozen=True)
class AccumulatedInvarianceTest(Rule):
    r"""Annotate the update with the units u whose cosines with the gradient have been small for a while:

        E_t = memory E_{t-1} + (1 - memory) dim(w_u) cos^2(w_u, g_u),    c_t = memory c_{t-1} + (1 - memory),
        passes if E_t / c_t < delta^2.

    With memory = 0 this is `ScaleInvarianceTest` (paper, Eq. 12). A random gradient passes that one's layer view in
    2 Phi(delta) - 1 = 8 % of all steps at delta = 0.1, since sqrt(dim) cos is close to N(0, 1); the mean of n such squares
    is below delta^2 with probability about (e delta^2)^(n/2), which is nothing after a few steps. A scale-invariant weight
    has cos = 0 but for rounding and passes from the first step on. The price is two numbers per unit in the state.

    Views, `per`, and what a zero gradient or weight means are those of `ScaleInvarianceTest`: a unit without a direction
    to compare adds no evidence.

    Args:
        delta: the threshold.
        memory: how much of the evidence a step keeps; 0.9 looks back over about ten steps.
        views: which views to try, the first that passes wins.
        per: "tensor" or "unit".
    """

    delta: Scalar = hyper("(0, inf)", 0.1)
    memory: Scalar = hyper("[0, 1)", 0.9)
    views: tuple[ViewLike, ...] = ("channel", "layer")
    per: Literal["tensor", "unit"] = "tensor"

    def __post_init__(self) -> None:
        super().__post_init__()
        ScaleInvarianceTest(
            views=self.views, per=self.per
        )  # which refuses what is wrong with either
        # As names, which a compiler can read: they are part of the state's.
        object.__setattr__(self, "views", tuple(str(as_view(view)) for view in self.views))

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for view in self.views for name in _names(view))

    def init(self, weight: Tensor) -> State:
        zeros = super().init(weight)  # in the working precision
        return {
            name: torch.zeros_like(as_view(view).total(zeros[name]))
            for view in self.views
            for name in _names(view)
        }

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, grad = update.weight, update.grad
        if weight.ndim < 2:
            return replace(update, invariance=Invariance()), {
                name: state[name] for name in self.state_names
            }
        squared_weight, squared_grad, product = weight * weight, grad * grad, weight * grad
        views = tuple(as_view(view) for view in self.views)
        squared_norms = [view.total(squared_weight) for view in views]
        passes, no_evidence = [], []
        new: State = {}
        for name, view, squared_norm in zip(self.views, views, squared_norms, strict=True):
            of_evidence, of_count = _names(name)
            evidence, count = state[of_evidence], state[of_count]
            other = view.total(squared_grad)
            exists = (squared_norm > 0) & (other > 0)
            # Of the roots, not the squares: a product of squared norms would underflow much earlier.
            cosine = view.total(product) / torch.where(
                exists, squared_norm.sqrt() * other.sqrt(), 1
            )
            statistic = max(view.size(weight), 1) * cosine**2
            evidence = torch.where(
                exists, self.memory * evidence + (1 - self.memory) * statistic, evidence
            )
            count = torch.where(exists, self.memory * count + (1 - self.memory), count)
            new[of_evidence], new[of_count] = evidence, count
            passes.append(evidence < self.delta**2 * count)
            no_evidence.append(count == 0)
        return replace(
            update,
            invariance=Invariance.decided(views, passes, no_evidence, squared_norms, self.per),
        ), new


def _names(view: ViewLike) -> tuple[str, str]:
    return f"evidence_{view}", f"evidence_count_{view}"
