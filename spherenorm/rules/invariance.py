"""Scale-invariance tests: find the units of a weight whose norm does not change the loss.

At a scale-invariant unit the gradient is orthogonal to the weight, so each test looks at the cosine
of the two. `ScaleInvarianceTest` looks at the gradient of this step, `AccumulatedInvarianceTest` at
the gradients of many steps. A test puts an `Invariance` into the update, which projections and
weight decay read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

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
"""A scale-invariance test decides for a whole weight tensor, or for each of its units."""

ERROR_RATE_PER_DELTA = math.sqrt(6 / math.pi)
"""Error law of `AccumulatedInvarianceTest`: a unit that is not scale-invariant passes a threshold d
in at most ERROR_RATE_PER_DELTA d of all steps."""


@dataclass(frozen=True)
class Invariance:
    """The units of a weight that a test found scale-invariant, for each view.

    Attributes:
        views: the views of the test, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight: True for
            invariant units. At most one view flags an entry.
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
        unit_dim: int | None = None,
    ) -> Invariance:
        """Return the invariant units, from those that pass.

        A view counts only where no earlier view has flags.

        Args:
            views: the views of the test, in order of precedence.
            passes: for each view, the units that pass; broadcasts against the weight.
            no_evidence: for each view, the units that are no evidence either way.
            squared_norms: for each view, <w, w> of its units.
            per: "tensor" requires that all units of a view with evidence pass, and that at least
                one does; "unit" decides for each unit.
            unit_dim: the dimension along which the units of one weight lie, if the tensors hold
                several weights; None if they hold one weight.
        """
        flags: list[Tensor] = []
        for view_passes, view_no_evidence in zip(passes, no_evidence, strict=True):
            flag = view_passes
            if per == "tensor":
                flag = _all_units(view_passes | view_no_evidence, unit_dim)
                flag = flag & _any_unit(view_passes, unit_dim)
            for earlier_flag in flags:
                flag = flag & ~_any_unit(earlier_flag, unit_dim)
            flags.append(flag)
        return cls(tuple(views), tuple(flags), tuple(squared_norms))

    def remove_radial_part(
        self, weight: Tensor, x: Tensor, part_to_remove: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return x - part_to_remove(<w, x> / <w, w>) w in each invariant unit, and x elsewhere."""
        views = self._active_views()
        if not views:
            return x
        product = weight * x
        coefficient: Scalar = 0.0
        for active in views:
            radial = safe_divide(active.view.unit_sums(product), active.squared_norm)
            if active.flag is None:
                coefficient = radial
            else:
                coefficient = torch.where(active.flag, radial, coefficient)
        assert isinstance(coefficient, Tensor)
        projected = torch.addcmul(x, -part_to_remove(coefficient), weight)
        flags = [active.flag for active in views if active.flag is not None]
        if not flags:
            return projected
        invariant = flags[0]
        for flag in flags[1:]:
            invariant = torch.logical_or(invariant, flag)
        # `where` instead of a product with 0, so that an infinite weight does not change x.
        return torch.where(invariant, projected, x)

    def select(self, if_invariant: Scalar, otherwise: Scalar, weight: Tensor) -> Scalar:
        """Return `if_invariant` for the entries of invariant units, and `otherwise` for the rest.

        The result broadcasts against the weight.
        """
        result = otherwise
        for active in self._active_views():
            if active.flag is None:
                return if_invariant
            # torch.where makes a float32 of two Python numbers; the ones have the weight's dtype.
            ones = torch.ones_like(active.flag, dtype=weight.dtype)
            result = torch.where(
                active.flag, cast_like(if_invariant, ones) * ones, cast_like(result, ones) * ones
            )
        return result

    def _active_views(self) -> list[_ActiveView]:
        """Return the views that may flag entries.

        A decision about a whole weight is read where reading needs no synchronization. Then a view
        without flags is left out, and a view that flags the whole weight has the flag None.
        """
        active: list[_ActiveView] = []
        for view, flag, norm in zip(self.views, self.flags, self.squared_norms, strict=True):
            if flag.ndim or not readable_without_sync(flag):
                active.append(_ActiveView(view, flag, norm))
            elif flag:
                return [_ActiveView(view, None, norm)]
        return active


class _ActiveView(NamedTuple):
    """A view that may flag units; a flag of None means that all of them are invariant."""

    view: View
    flag: Tensor | None
    squared_norm: Tensor


NOT_TESTED = Invariance()
"""The result of a test on a bias or a gain: no views, hence no invariant units."""


@dataclass(frozen=True)
class UnitSums:
    """The sums that a test reads, for the units of one view; each broadcasts against the weight.

    Attributes:
        view: splits the weight into units.
        size: dim(w_u), the number of entries of a unit, at least 1.
        n_units: the number of units.
        squared_norm: <w, w>.
        squared_grad: <g, g>.
        product: <w, g>.
        unit_dim: the dimension along which the units of one weight lie, if the tensors hold several
            weights with equally many units; None if they hold one weight.

    Example:
        >>> class PrintingTest(sn.rules.ScaleInvarianceTest):
        ...     def decide(self, sums, state):
        ...         for x in sums:
        ...             print(x.view, x.size, x.n_units, x.squared_norm.flatten())
        ...         return super().decide(sums, state)
        >>> _ = PrintingTest().step(torch.ones(2, 3), torch.ones(2, 3), {})
        channel 3 2 tensor([3., 3.])
        layer 6 1 tensor([6.])
    """

    view: View
    size: int
    n_units: int
    squared_norm: Tensor
    squared_grad: Tensor
    product: Tensor
    unit_dim: int | None = field(default=None, kw_only=True)


def unit_sums(views: Sequence[View], weight: Tensor, grad: Tensor) -> list[UnitSums]:
    """Return the sums of a weight and its gradient, for each view."""
    squared_weight = weight * weight
    squared_grad = grad * grad
    product = weight * grad
    weight_sums = [view.unit_sums(squared_weight) for view in views]
    grad_sums = [view.unit_sums(squared_grad) for view in views]
    product_sums = [view.unit_sums(product) for view in views]
    result: list[UnitSums] = []
    for index, view in enumerate(views):
        size = max(view.size(weight), 1)
        sums = UnitSums(
            view,
            size=size,
            n_units=weight.numel() // size,
            squared_norm=weight_sums[index],
            squared_grad=grad_sums[index],
            product=product_sums[index],
        )
        result.append(sums)
    return result


@dataclass(frozen=True)
class InvarianceTest(Rule):
    """A base of scale-invariance tests, which put the invariant units into the update.

    A test looks at the gradient and not at the direction, so it does not see what earlier rules
    add, such as the radial part of `CoupledDecay`. It never flags weights of fewer than two
    dimensions (biases, gains).

    A subclass has the fields `views`, in order of precedence, and `per`, and implements `decide`.

    Example:
        >>> class Always(InvarianceTest):
        ...     views: Sequence[ViewLike] = sn.views("layer")
        ...     per: str = "tensor"
        ...     def decide(self, sums, state):
        ...         passes = [view_sums.squared_norm > 0 for view_sums in sums]
        ...         no_evidence = [view_sums.squared_norm == 0 for view_sums in sums]
        ...         return self.invariance_of(sums, passes, no_evidence), state
        >>> rule = sn.chain(Always(), sn.rules.RadialProjection())
        >>> rule.step(torch.eye(2), 3 * torch.eye(2), {})[0]  # a radial gradient
        tensor([[1., 0.],
                [0., 1.]])
    """

    vector_policy = "skip"

    if TYPE_CHECKING:  # Each subclass declares these fields, in an order of its own.

        @property
        def views(self) -> Sequence[ViewLike]: ...
        @property
        def per(self) -> Per: ...

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        """Decide which units are invariant; return them, and the new state.

        Args:
            sums: the sums of the weight and its gradient, one `UnitSums` for each of `views`.
            state: the result of `init`, or of `decide` in the last step.
        """
        raise TypeError(f"{type(self).__name__} does not define decide(sums, state)")

    def invariance_of(
        self, sums: Sequence[UnitSums], passes: Sequence[Tensor], no_evidence: Sequence[Tensor]
    ) -> Invariance:
        """Return the invariant units, from those that pass; see `Invariance.from_passing_units`."""
        squared_norms = [view_sums.squared_norm for view_sums in sums]
        unit_dim = sums[0].unit_dim if sums else None
        return Invariance.from_passing_units(
            self.views, passes, no_evidence, squared_norms, self.per, unit_dim
        )

    def flatten_state_per_unit(self, state: State) -> State:
        """Return the tensors of a state in shape (n_units,), for sums of that shape."""
        return dict(state)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, grad = update.weight, update.grad
        if weight.ndim < 2:
            return update.replace(invariance=NOT_TESTED), dict(state)
        invariance, new_state = self.decide(unit_sums(self.views, weight, grad), state)
        return update.replace(invariance=invariance), new_state


@dataclass(frozen=True)
class ScaleInvarianceTest(InvarianceTest):
    """Find the units whose gradient in this step is nearly orthogonal to the weight:

        |<w_u, g_u>| / (|w_u| |g_u|) < delta / sqrt(dim(w_u)).

    Views are tried in order and the first that passes wins: a weight of which every channel passes
    is channel-wise invariant (BatchNorm), else one that passes as a whole is layer-wise invariant
    (LayerNorm). Weights of fewer than two dimensions (biases, gains) are never flagged.

    A unit whose gradient or weight is 0 has no direction to compare and is no evidence either way;
    a weight without any evidence is not flagged. (The release takes its cosine as 0, hence as
    invariant.) A unit whose <g, g> or <w, w> overflows does not pass. (In the release a radial
    gradient of 1e19 does.)

    L2 regularization in the loss adds a radial part to g and hides invariance; `CoupledDecay` does
    not, since it adds to the direction.

    Args:
        delta: the threshold, in (0, inf); the paper suggests 0.1.
        views: the views to try, in order.
        per: "tensor", as in the release, requires that all units of a view pass. "unit", as in the
            equation, decides for each channel, and tries the next view only where no unit passes.

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
        passes: list[Tensor] = []
        no_evidence: list[Tensor] = []
        for view_sums in sums:
            norms = view_sums.squared_norm.sqrt() * view_sums.squared_grad.sqrt()
            bound = self.delta / math.sqrt(view_sums.size) * norms
            # A sum that has overflowed tells nothing about the cosine.
            passes.append((view_sums.product.abs() < bound) & is_finite(bound))
            no_evidence.append(bound == 0)
        return self.invariance_of(sums, passes, no_evidence), {}


@dataclass(frozen=True)
class AccumulatedInvarianceTest(InvarianceTest):
    r"""Find the units u whose cosines with the gradient have been small for many steps:

        s_t = sqrt(dim(w_u)) cos(w_u, g_u)
        E_t = memory E_{t-1} + (1 - memory) min(s_t^2, 3 d^2)
        c_t = memory c_{t-1} + (1 - memory)
        passes if E_t / c_t < d^2.

    A scale-invariant weight has s = 0 up to rounding and passes from the first step on. For any
    other weight, s_t is nearly a standard normal variable at each step; what follows is about it.

    **Error law.** However the steps depend on one another, such a unit passes at each of them with
    probability at most

        sqrt(6 / pi) d.

    (1 - s^2 / (3 d^2))_+ has a mean of at most sqrt(8 / (3 pi)) d, hence so has any weighted mean
    of it over steps, and a unit passes if that exceeds 2/3: Markov's inequality. A gradient that
    does not change at all (a full batch, a warmup from 0) comes near: it passes in
    2 Phi(d) - 1 = 0.80 d of all cases, forever. Of n independent steps the probability is below
    about (2.3 d)^(2 n / 3), which is nothing after a few. The law fails where s_t is not standard
    normal: in a unit of few entries, or where training has made w and g orthogonal without
    invariance (at the best norm of a weight).

    **Threshold.** d is at most `delta`, and so small that the decision on one view errs with
    probability at most `level`, and a decision on k views with k `level`. For a view of n units,
    which pass or fail together,

        d = min(delta, level^(1/n) sqrt(pi / 6)),

    if units are independent of each other: at the defaults 0.014 for n = 1, 0.1 from n = 3 on. The
    view passes only if enough units have evidence: (sqrt(6 / pi) d)^count <= level. Where each unit
    decides for itself (`per="unit"`), n = 1. Rounding to bfloat16 makes s up to about 0.03: with a
    level below 0.01 such a weight no longer passes as a whole layer.

    **Robustness.** One bad step counts 3 d^2 at most, which ten steps of memory outweigh. A unit
    whose gradient or weight is 0, or whose <w, w> or <g, g> is not finite, has no direction to
    compare: its E and c fade by `memory`, and it has no verdict once c is below (1 - memory) / 2,
    half of one step. So an infinite gradient leaves the evidence alone, and the row of an embedding
    loses its verdict some steps after it was seen.

    The price is two numbers per unit in the state. With memory = 0 and level = 1 this is
    `ScaleInvarianceTest`.

    Args:
        delta: the greatest threshold d, in (0, inf).
        memory: the share of the evidence that remains after a step, in [0, 1); 0.9 looks back over
            about ten steps.
        views: the views to try, in order; the first that passes wins.
        per: "tensor" requires that all units of a view pass; "unit" decides for each unit.
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
        return tuple(name for view in self.views for name in _evidence_names(view))

    def init(self, weight: Tensor) -> State:
        zeros = super().init(weight)
        state: State = {}
        for view in self.views:
            for name in _evidence_names(view):
                state[name] = torch.zeros_like(view.unit_sums(zeros[name]))
        return state

    def flatten_state_per_unit(self, state: State) -> State:
        result: State = {}
        for view in self.views:
            for name in _evidence_names(view):
                result[name] = view.units(state[name])
        return result

    def decide(self, sums: Sequence[UnitSums], state: State) -> tuple[Invariance, State]:
        passes: list[Tensor] = []
        no_evidence: list[Tensor] = []
        new_state: State = {}
        for view_sums in sums:
            # Units that pass or fail together share the probability of an error.
            joint_units = max(view_sums.n_units, 1) if self.per == "tensor" else 1
            squared_threshold = (self.level ** (1 / joint_units) / ERROR_RATE_PER_DELTA) ** 2
            evidence, count = self._add_evidence(view_sums, squared_threshold, state)
            evidence_name, count_name = _evidence_names(view_sums.view)
            new_state[evidence_name] = evidence
            new_state[count_name] = count
            has_evidence = count > (1 - self.memory) / 2
            unit_passes = evidence < self.delta**2 * count
            unit_passes = unit_passes & (evidence < squared_threshold * count) & has_evidence
            if joint_units > 1:
                unit_passes = unit_passes & self._enough_evidence(has_evidence, view_sums.unit_dim)
            passes.append(unit_passes)
            no_evidence.append(~has_evidence)
        return self.invariance_of(sums, passes, no_evidence), new_state

    def _add_evidence(
        self, view_sums: UnitSums, squared_threshold: Scalar, state: State
    ) -> tuple[Tensor, Tensor]:
        """Return E_t and c_t of the units of a view."""
        squared_norm, squared_grad = view_sums.squared_norm, view_sums.squared_grad
        has_direction = (squared_norm > 0) & (squared_grad > 0)
        has_direction = has_direction & is_finite(squared_norm) & is_finite(squared_grad)
        # Without a direction, 1 takes the place of each factor: a root has an infinite derivative
        # at 0.
        squared_norm = torch.where(has_direction, squared_norm, 1)
        squared_grad = torch.where(has_direction, squared_grad, 1)
        # Roots are multiplied, since a product of squared norms would underflow much earlier.
        norms = squared_norm.sqrt() * squared_grad.sqrt()
        cosine = torch.where(has_direction, view_sums.product, 0) / norms
        statistic = view_sums.size * cosine**2
        statistic = statistic.clamp(max=3 * self.delta**2).clamp(max=3 * squared_threshold)
        evidence, count = (self.memory * state[name] for name in _evidence_names(view_sums.view))
        new_share = 1 - self.memory
        new_evidence = evidence + new_share * statistic
        return new_evidence, torch.where(has_direction, count + new_share, count)

    def _enough_evidence(self, has_evidence: Tensor, unit_dim: int | None) -> Tensor:
        """Return True if all units with evidence err together with probability `level` at most."""
        count = _sum_units(torch.where(has_evidence, 1.0, 0.0), unit_dim)
        error_bound = (ERROR_RATE_PER_DELTA * self.delta) ** count
        return (error_bound <= self.level) | _all_units(has_evidence, unit_dim)


def _evidence_names(view: View) -> tuple[str, str]:
    return f"evidence_{view.name}", f"evidence_count_{view.name}"


# Reductions over the units of one weight; `UnitSums` explains `unit_dim`.


def _all_units(x: Tensor, unit_dim: int | None) -> Tensor:
    return x.all() if unit_dim is None else x.all(unit_dim, keepdim=True)


def _any_unit(x: Tensor, unit_dim: int | None) -> Tensor:
    return x.any() if unit_dim is None else x.any(unit_dim, keepdim=True)


def _sum_units(x: Tensor, unit_dim: int | None) -> Tensor:
    return x.sum() if unit_dim is None else x.sum(unit_dim, keepdim=True)
