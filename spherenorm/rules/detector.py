"""A scale-invariance test that remembers: evidence accumulates over steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import choice, hyper, views
from spherenorm.invariance import Invariance, Per, all_units, total_of_units
from spherenorm.numerics import Scalar, is_finite
from spherenorm.rule import State
from spherenorm.rules.invariance import InvarianceTest, UnitSums
from spherenorm.views import View, ViewLike

RATE = math.sqrt(6 / math.pi)
"""A unit of which sqrt(dim) cos is a standard normal, however its steps depend on one another,
passes with a threshold d in at most RATE d of them; see `AccumulatedInvarianceTest`."""


@dataclass(frozen=True)
class AccumulatedInvarianceTest(InvarianceTest):
    r"""Annotate the update with the units u whose cosines with the gradient have long been small:

        E_t = memory E_{t-1} + (1 - memory) min(s_t^2, 3 d^2),   s_t = sqrt(dim(w_u)) cos(w_u, g_u)
        c_t = memory c_{t-1} + (1 - memory)
        passes if E_t / c_t < d^2.

    A scale-invariant weight has s = 0 but for rounding and passes from the first step on. The rest
    is about a weight that is not, whose s_t is nearly a standard normal variable at each step.

    **Error law.** At each step, such a unit passes with probability at most

        sqrt(6 / pi) d,   *however the steps depend on one another*.

    (1 - s^2 / (3 d^2))_+ has a mean of at most sqrt(8 / (3 pi)) d, hence so has any weighted mean
    of it over steps, and a unit passes if that exceeds 2/3: Markov's inequality. A gradient that
    does not change at all (a full batch, a warmup from 0) comes near: it passes in
    2 Phi(d) - 1 = 0.80 d of all cases, forever. Of n independent steps the probability is below
    about (2.3 d)^(2 n / 3), which is nothing after a few. The law fails where s_t is not standard
    normal: in a unit of few entries, or where training has made w and g orthogonal without
    invariance (at the best norm of a weight).

    **Threshold.** `delta`, but so small that the decision on one view errs with probability `level`
    at most, and one on k views with k `level`. A view of n units, which pass or fail together, has

        d = min(delta, level^(1/n) sqrt(pi / 6)),

    if units are independent of each other: at the defaults 0.014 for n = 1, 0.1 from n = 3 on. The
    view passes only if enough units have evidence: (sqrt(6 / pi) d)^count <= level. Where each unit
    decides for itself (`per="unit"`), n = 1. Rounding of bfloat16 makes s up to about 0.03: with a
    level below 0.01 such a weight passes no more as a whole layer.

    **Robustness.** One bad step counts 3 d^2 at most, which ten steps of memory outweigh. A unit
    whose gradient or weight is 0, or whose <w, w> or <g, g> is not finite, has no direction to
    compare: its E and c fade by `memory`, and it has no verdict once c is below (1 - memory) / 2,
    half of one step. So an infinite gradient leaves the evidence alone, and the row of an embedding
    loses its verdict some steps after it was seen.

    The price is two numbers per unit in the state. With memory = 0 and level = 1 this is
    `ScaleInvarianceTest`.

    Args:
        delta: the greatest threshold d, in (0, inf).
        memory: the share of the evidence that a step keeps, in [0, 1); 0.9 looks back over about
            ten steps.
        views: the views to try, in order; the first that passes wins.
        per: "tensor" or "unit", as for `ScaleInvarianceTest`.
        level: the greatest probability of a wrong decision at one step, in (0, 1]; 1 leaves the
            threshold at `delta`.

    Example:
        >>> AccumulatedInvarianceTest(views=("channel",)).state_names
        ('evidence_channel', 'evidence_count_channel')
    """

    delta: Scalar = hyper("(0, inf)", 0.1)
    memory: Scalar = hyper("[0, 1)", 0.9)
    views: Sequence[ViewLike] = views("channel", "layer")
    per: Per = choice("tensor", "unit")
    level: Scalar = hyper("(0, 1]", 0.02)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for view in self.views for name in _names(view))

    def init(self, weight: Tensor) -> State:
        zeros = super().init(weight)  # in the working precision
        return {
            name: torch.zeros_like(view.unit_sums(zeros[name]))
            for view in self.views
            for name in _names(view)
        }

    def by_units(self, state: State) -> State:
        return {name: v.units(state[name]) for v in self.views for name in _names(v)}

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        passes, no_evidence = [], []
        new: State = {}
        for unit in sums:
            of_evidence, of_count = _names(unit.view)
            together = max(unit.units, 1) if self.per == "tensor" else 1
            squared_level = (self.level ** (1 / together) / RATE) ** 2
            evidence, count = self._remember(unit, squared_level, state)
            new[of_evidence], new[of_count] = evidence, count
            known = count > (1 - self.memory) / 2
            passing = (evidence < self.delta**2 * count) & (evidence < squared_level * count)
            passing = passing & known
            if together > 1:
                passing = passing & self._enough(known, unit.over)
            passes.append(passing)
            no_evidence.append(~known)
        norms = [unit.squared_norm for unit in sums]
        over = sums[0].over if sums else None
        found = Invariance.from_passing_units(
            self.views, passes, no_evidence, norms, self.per, over
        )
        return found, new

    def _remember(
        self, unit: UnitSums, squared_level: Scalar, state: State
    ) -> tuple[Tensor, Tensor]:
        """E_t and c_t of the units of a view."""
        squared_norm, squared_grad = unit.squared_norm, unit.squared_grad
        exists = (squared_norm > 0) & (squared_grad > 0)
        exists = exists & is_finite(squared_norm) & is_finite(squared_grad)
        # Each factor is replaced by itself, since a root has an infinite derivative at 0.
        squared_norm = torch.where(exists, squared_norm, 1)
        squared_grad = torch.where(exists, squared_grad, 1)
        # Of the roots: a product of squared norms would underflow much earlier.
        norms = squared_norm.sqrt() * squared_grad.sqrt()
        cosine = torch.where(exists, unit.product, 0) / norms
        statistic = unit.size * cosine**2
        statistic = statistic.clamp(max=3 * self.delta**2).clamp(max=3 * squared_level)
        evidence, count = (self.memory * state[name] for name in _names(unit.view))
        fresh = 1 - self.memory
        return evidence + fresh * statistic, torch.where(exists, count + fresh, count)

    def _enough(self, known: Tensor, over: int | None) -> Tensor:
        """True if so many units have evidence that they are not all wrong but by `level`."""
        count = total_of_units(torch.where(known, 1.0, 0.0), over)
        return ((RATE * self.delta) ** count <= self.level) | all_units(known, over)


def _names(view: View) -> tuple[str, str]:
    return f"evidence_{view.name}", f"evidence_count_{view.name}"
