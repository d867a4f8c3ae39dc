"""`Update`: the step of one weight tensor, which flows through a chain of rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from spherenorm._numerics import Scalar, cast_like, ratio, readable, spare
from spherenorm._views import View

Per = Literal["tensor", "unit"]
"""A scale-invariance test decides for a whole weight tensor, or for each unit by itself."""
OfTensor = Callable[[Tensor], Tensor]
Place = tuple[int, ...]
"""The place of the rule around a rule, and the rule's number among those in it."""


@dataclass(frozen=True)
class Invariance:
    """The entries of a weight that were found scale-invariant, view by view.

    Attributes:
        views: the views that were tested, in order of precedence.
        flags: for each view, a boolean tensor that broadcasts against the weight. At most one view
            claims an entry.
        squared_norms: for each view, <w, w> of its units; nan for one that had no turn.

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
    def decided(
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
        found = cls()
        for each in zip(views, passes, no_evidence, squared_norms, strict=True):
            found = found.decided_on(*each, per, over)
        return found

    def decided_on(
        self,
        view: View,
        passing: Tensor,
        silent: Tensor,
        squared_norm: Tensor,
        per: Per,
        over: int | None = None,
    ) -> Invariance:
        """This decision with that on the next view; see `decided`, of which it is one step."""
        flag = passing
        if per == "tensor":
            flag = all_units(passing | silent, over) & any_unit(passing, over)
        for earlier in self.flags:
            flag = flag & ~any_unit(earlier, over)
        norms = (*self.squared_norms, squared_norm)
        return Invariance((*self.views, view), (*self.flags, flag), norms)

    @property
    def is_final(self) -> bool:
        """True if the last view claims the whole weight, as far as that can be read."""
        flag = self.flags[-1]
        return not flag.ndim and readable(flag) and bool(flag)

    def without_a_turn(self, views: Sequence[View]) -> Invariance:
        """This decision, which is final, with views that are left: they claim nothing."""
        if not views:
            return self
        nothing, unknown = ~self.flags[-1], self.squared_norms[-1].new_tensor(math.nan)
        flags = self.flags + (nothing,) * len(views)
        norms = self.squared_norms + (unknown,) * len(views)
        return Invariance((*self.views, *views), flags, norms)

    def without_radial_part(self, weight: Tensor, x: Tensor, removed: OfTensor) -> Tensor:
        """x - removed(<w, x> / <w, w>) w in each unit that was found invariant, x elsewhere."""
        claims = _claims(self)
        if not claims:
            return x
        along = weight * x
        coefficient: Scalar = 0.0
        for view, flag, squared_norm in claims:
            share = ratio(view.total(along), squared_norm)
            coefficient = share if flag is None else torch.where(flag, share, coefficient)
        assert isinstance(coefficient, Tensor)
        projected = torch.addcmul(x, -removed(coefficient), weight, out=spare(along))
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
        if flag.ndim or not readable(flag):
            claims.append((view, flag, norm))
        elif flag:
            return [(view, None, norm)]
    return claims


def all_units(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for all units of a weight; see `Invariance.decided` for `over`."""
    return x.all() if over is None else x.all(over, keepdim=True)


def any_unit(x: Tensor, over: int | None) -> Tensor:
    """True where `x` is for a unit of a weight; see `Invariance.decided` for `over`."""
    return x.any() if over is None else x.any(over, keepdim=True)


def total_of_units(x: Tensor, over: int | None) -> Tensor:
    """The sum of `x` over the units of a weight; see `Invariance.decided` for `over`."""
    return x.sum() if over is None else x.sum(over, keepdim=True)


@dataclass(frozen=True)
class Update:
    """One step of one weight tensor, under construction. All tensors have the weight's shape.

    Attributes:
        weight: the weight before the step.
        grad: the raw gradient; no rule changes it.
        direction: the step so far; in flat space the weight moves by minus this.
        invariance: set by a scale-invariance test, read by projection and decay; None before any
            test.
        notes: what else rules tell the rules behind them, by name; see `noting`. `AdaptiveMoments`
            and its kin note their "second_moment".
        shared: what the rule's `measure` returned, summed over all weights of the step.
        count, measured, place: of the chain, which gives them to rules as `step` and `shared`.

    Example:
        >>> weight, grad = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25])
        >>> update, _ = sn.rules.StepSize(0.1).update(Update(weight, grad, grad), {})
        >>> update.direction
        tensor([0.0500, 0.0250])
    """

    weight: Tensor
    grad: Tensor
    direction: Tensor
    invariance: Invariance | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    count: Tensor | None = None
    measured: Mapping[Place, Mapping[str, Tensor]] = field(default_factory=dict)
    place: Place = ()

    @property
    def step(self) -> Tensor:
        """t, the number of this step, from 1: 0-dim, in float64 (where the device has it).

        Raises:
            ValueError: the chain does not count, as no rule needs it.
        """
        if self.count is None:
            need = "a rule that reads it says needs_step = True, and stands in a chain"
            raise ValueError(f"update.step: the steps are not counted; {need}")
        return self.count

    def noting(self, **notes: Any) -> Update:
        """This update with further notes.

        Example:
            >>> zero = torch.zeros(2)
            >>> Update(zero, zero, zero).noting(second_moment=zero).notes
            {'second_moment': tensor([0., 0.])}
        """
        return self.changed(notes={**self.notes, **notes})

    def changed(self, **values: Any) -> Update:
        """This update with other values of some attributes, as `dataclasses.replace` makes it.

        Args:
            **values: by the names of attributes.

        Raises:
            TypeError: an update has no attribute of that name.

        Example:
            >>> zero = torch.zeros(2)
            >>> Update(zero, zero, zero).changed(direction=zero + 1).direction
            tensor([1., 1.])
        """
        # `replace` sets each attribute of a frozen class on its own, which takes as long as an
        # operation on a small weight.
        if is_compiling():
            return replace(self, **values)
        changed = object.__new__(type(self))
        attributes = changed.__dict__
        attributes |= self.__dict__
        attributes |= values
        known = len(attributes) == len(self.__dict__)
        return changed if known else replace(self, **values)


EMPTY = Update(torch.empty(0), torch.empty(0), torch.empty(0))
"""The update that all others are changed from."""
