"""The form of a scale-invariance test: sums over the units of each view, and a decision on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from spherenorm.invariance import Invariance, Per
from spherenorm.rule import Rule, State, Update
from spherenorm.views import View, ViewLike

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
    totals = [[view.unit_sums(product) for view in views] for product in products]
    sums = []
    for view, *of_units in zip(views, *totals, strict=True):
        size = max(view.size(weight), 1)
        sums.append(UnitSums(view, size, weight.numel() // size, *of_units))
    return sums
