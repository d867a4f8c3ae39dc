"""The form of a scale-invariance test: sums over the units of each view, and a decision on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from spherenorm._rule import Rule, State
from spherenorm._update import Invariance, Per, Update
from spherenorm._views import View

__all__ = ["InvarianceTest", "UnitSums"]


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
    """

    if TYPE_CHECKING:  # fields of each subclass, in its own order

        @property
        def views(self) -> tuple[View, ...]: ...
        @property
        def per(self) -> Per: ...

    @property
    def state_names(self) -> tuple[str, ...]:
        return ()

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

    def init(self, weight: Tensor) -> State:
        for view in self.views if weight.ndim >= 2 else ():
            view.size(weight)  # which refuses a weight without such units
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        weight, grad = update.weight, update.grad
        if weight.ndim < 2:
            return update.changed(invariance=Invariance()), dict(state)
        squares, squared_grad, product = weight * weight, grad * grad, weight * grad
        sums = []
        for view in self.views:
            size = max(view.size(weight), 1)
            totals = (view.total(x) for x in (squares, squared_grad, product))
            sums.append(UnitSums(view, size, weight.numel() // size, *totals))
        found, new = self.decide(sums, state)
        return update.changed(invariance=found), new
