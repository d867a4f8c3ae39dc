"""Scale-invariance tests: find the units of a weight whose norm does not change the loss.

At a scale-invariant unit the gradient is orthogonal to the weight, so each test looks at the cosine
of the two. `ScaleInvarianceTest` looks at the gradient of this step, `AccumulatedInvarianceTest` at
the gradients of many steps. A test puts an `Invariance` into the update, which projections and
weight decay read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from spherenorm.fields import choice, hyper, views
from spherenorm.numerics import (
    Scalar,
    cast_like,
    is_finite,
    readable_without_sync,
    safe_divide,
)
from spherenorm.rule import Rule, State, Update
from spherenorm.views import View, ViewLike

Per = Literal["tensor", "unit"]
"""A scale-invariance test decides for a whole weight tensor, or for each unit by itself."""
TensorFn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Invariance:
    """The entries of a weight that were found scale-invariant, view by view.

    Attributes:
        views: the views that were tested, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight. At most one view
            claims an entry.
        squared_norms: for each view, <w, w> of its units.

    Example:
        >>> weight, grad = torch.eye(2), torch.eye(2).flip(0)
        >>> update, _ = sn.rules.ScaleInvarianceTest().update(Update(weight, grad, grad), {})
        >>> [bool(flag) for flag in update.invariance.flags]
        [True, False]
    """

    views: tuple[View, ...] = ()
    flags: tuple[Tensor, ...] = ()
    squared_norms: tuple[Tensor, ...] = ()

    @classmethod
    def from_passing_units(
        cls,
        views: Sequence[View],
        passes: Sequence[Tensor],
        no_evidence: Sequence[Tensor],
        squared_norms: Sequence[Tensor],
        per: Per,
        over: int | None = None,
    ) -> Invariance:
        """The decision of a test. A view gets its turn only where no unit passed an earlier one.

        Args:
            views: the views that were tested, in order of precedence.
            passes: for each view, the units that pass; it broadcasts against the weight.
            no_evidence: for each view, the units that are no evidence either way.
            squared_norms: for each view, <w, w> of its units.
            per: "tensor" asks that all units of a view pass, those without evidence aside, and
                one at least; "unit" lets each unit decide for itself.
            over: the dimension along which the units of one weight lie, where the tensors hold
                those of several weights; None: all dimensions.
        """
        flags: list[Tensor] = []
        for passing, silent in zip(passes, no_evidence, strict=True):
            flag = passing
            if per == "tensor":
                flag = all_units(passing | silent, over) & any_unit(passing, over)
            for earlier in flags:
                flag = flag & ~any_unit(earlier, over)
            flags.append(flag)
        return cls(tuple(views), tuple(flags), tuple(squared_norms))

    def remove_radial_part(self, weight: Tensor, x: Tensor, removed: TensorFn) -> Tensor:
        """x - removed(<w, x> / <w, w>) w in each unit that was found invariant, x elsewhere."""
        claims = _claims(self)
        if not claims:
            return x
        along = weight * x
        coefficient: Scalar = 0.0
        for view, flag, squared_norm in claims:
            share = safe_divide(view.total(along), squared_norm)
            coefficient = share if flag is None else torch.where(flag, share, coefficient)
        assert isinstance(coefficient, Tensor)
        projected = torch.addcmul(x, -removed(coefficient), weight)
        flags = [flag for _, flag, _ in claims if flag is not None]
        # Chosen, not multiplied by 0: what is not invariant is left alone, whatever the weight.
        found = functools.reduce(torch.logical_or, flags) if flags else None
        return projected if found is None else torch.where(found, projected, x)

    def select(self, invariant: Scalar, other: Scalar, weight: Tensor) -> Scalar:
        """`invariant` where some view claims the entries of `weight`, `other` elsewhere.

        The result broadcasts against the weight.
        """
        chosen = other
        for _, flag, _ in _claims(self):
            if flag is None:
                return invariant
            # Of two Python numbers `where` would make a float32.
            one = torch.ones_like(flag, dtype=weight.dtype)
            chosen = torch.where(
                flag, cast_like(invariant, one) * one, cast_like(chosen, one) * one
            )
        return chosen


def _claims(found: Invariance) -> list[tuple[View, Tensor | None, Tensor]]:
    """View, flag and squared norms of each view that may claim entries.

    A decision on a whole weight is read where it can be, so that nothing is computed in vain: a
    flag of None claims the weight.
    """
    claims: list[tuple[View, Tensor | None, Tensor]] = []
    for view, flag, norm in zip(found.views, found.flags, found.squared_norms, strict=True):
        if flag.ndim or not readable_without_sync(flag):
            claims.append((view, flag, norm))
        elif flag:
            return [(view, None, norm)]
    return claims


def all_units(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for all units of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.all() if over is None else x.all(over, keepdim=True)


def any_unit(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for a unit of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.any() if over is None else x.any(over, keepdim=True)


def total_of_units(x: Tensor, over: int | None) -> Tensor:
    """The sum of `x` over the units of a weight; see `Invariance.from_passing_units` for `over`."""
    return x.sum() if over is None else x.sum(over, keepdim=True)


_OF_NO_UNITS = Invariance()


@dataclass(frozen=True)
class UnitSums:
    """All that a test reads of the units of one view; each tensor broadcasts against the weight.

    Attributes:
        view: splits the weight into units.
        size: dim(w_u), the entries of a unit; 1 if it has none.
        units: how many there are.
        squared_norm: <w, w>.
        squared_grad: <g, g>.
        product: <w, g>.
        over: the dimension along which the units of one weight lie, where the tensors hold those of
            several weights of as many units; None: all are of one weight.

    Example:
        >>> class Shown(sn.rules.ScaleInvarianceTest):
        ...     def decide(self, sums, state):
        ...         for each in sums:
        ...             print(each.view, each.size, each.units, each.squared_norm.flatten())
        ...         return super().decide(sums, state)
        >>> _ = Shown().step(torch.ones(2, 3), torch.ones(2, 3), {})
        channel 3 2 tensor([3., 3.])
        layer 6 1 tensor([6.])
    """

    view: View
    size: int
    units: int
    squared_norm: Tensor
    squared_grad: Tensor
    product: Tensor
    over: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class InvarianceTest(Rule):
    """A rule that annotates the update with the units that it finds scale-invariant.

    The raw gradient g is tested, not the direction: what rules before it add, such as the radial
    part of `CoupledDecay`, is not in it. Weights of fewer than two dimensions (biases, gains) are
    never flagged.

    A subclass has the fields `views`, to be tried in order, and `per`, and implements `decide`.

    Example:
        >>> class Always(InvarianceTest):
        ...     views: Sequence[ViewLike] = sn.views("layer")
        ...     per: str = "tensor"
        ...     def decide(self, sums, state):
        ...         passes = [each.squared_norm > 0 for each in sums]
        ...         silent = [each.squared_norm == 0 for each in sums]
        ...         norms = [each.squared_norm for each in sums]
        ...         return Invariance.from_passing_units(self.views, passes, silent, norms, self.per), state
        >>> rule = sn.chain(Always(), sn.rules.RadialProjection())
        >>> rule.step(torch.eye(2), 3 * torch.eye(2), {})[0]  # a radial gradient
        tensor([[1., 0.],
                [0., 1.]])
    """

    vectors = "skip"

    if TYPE_CHECKING:  # fields of each subclass, in its own order

        @property
        def views(self) -> Sequence[ViewLike]: ...
        @property
        def per(self) -> Per: ...

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        """The decision of one step, and the new state.

        Args:
            sums: of the weight and its gradient, for each of `views`.
            state: as `init` or the last decision returned it.
        """
        raise TypeError(f"{type(self).__name__} does not define decide(sums, state)")

    def by_units(self, state: State) -> State:
        """A state for `decide` on sums of shape (units,), of a state that `init` has made."""
        return dict(state)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, grad = update.weight, update.grad
        if weight.ndim < 2:
            return update.replace(invariance=_OF_NO_UNITS), dict(state)
        found, new = self.decide(sums_of(self.views, weight, grad), state)
        return update.replace(invariance=found), new


def sums_of(views: Sequence[View], weight: Tensor, grad: Tensor) -> list[UnitSums]:
    """The sums of a weight and its gradient, for each view."""
    products = weight * weight, grad * grad, weight * grad
    totals = [[view.total(product) for view in views] for product in products]
    sums = []
    for view, *of_units in zip(views, *totals, strict=True):
        size = max(view.size(weight), 1)
        sums.append(UnitSums(view, size, weight.numel() // size, *of_units))
    return sums


@dataclass(frozen=True)
class ScaleInvarianceTest(InvarianceTest):
    """Annotate the update with the units of the weight that its gradient shows to be invariant:

        |<w_u, g_u>| / (|w_u| |g_u|) < delta / sqrt(dim(w_u)).

    The raw gradient g is tested, not the direction. Views are tried in order and the first that
    passes wins: a weight of which every channel passes is channel-wise invariant (BatchNorm), else
    one that passes as a whole is layer-wise invariant (LayerNorm). Weights of fewer than two
    dimensions (biases, gains) are never flagged.

    A unit whose gradient or weight is 0 has no direction to compare and is no evidence either way;
    a weight with no evidence at all is not flagged. (The release takes its cosine as 0, hence as
    invariant.) A unit whose <g, g> or <w, w> overflows does not pass. (In the release a radial
    gradient of 1e19 does.)

    L2 regularization in the loss adds a radial part to g and hides invariance; `CoupledDecay` does
    not, since it adds to the direction.

    Args:
        delta: the threshold, in (0, inf); the paper suggests 0.1.
        views: the views to try, in order.
        per: "tensor", as released, asks that all units of a view pass. "unit", as the equation
            reads, lets each channel decide for itself and tries the next view only where no unit
            passed.

    Example:
        >>> update = Update(torch.eye(2), torch.eye(2).flip(0), torch.zeros(2, 2))
        >>> ScaleInvarianceTest().update(update, {})[0].invariance.flags
        (tensor(True), tensor(False))

    Source: Heo et al. 2021 (AdamP), Eq. 12.
    """

    delta: Scalar = hyper("(0, inf)", 0.1)
    views: Sequence[ViewLike] = views("channel", "layer")
    per: Per = choice("tensor", "unit")

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        passes, silent = [], []
        for unit in sums:
            both = unit.squared_norm.sqrt() * unit.squared_grad.sqrt()
            bound = self.delta / math.sqrt(unit.size) * both
            # (a sum that has overflowed says nothing of the cosine)
            passes.append((unit.product.abs() < bound) & is_finite(bound))
            silent.append(bound == 0)
        norms = [unit.squared_norm for unit in sums]
        over = sums[0].over if sums else None
        return Invariance.from_passing_units(self.views, passes, silent, norms, self.per, over), {}


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
            name: torch.zeros_like(view.total(zeros[name]))
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
