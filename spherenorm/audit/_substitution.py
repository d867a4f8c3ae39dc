"""The caller's own tensors, which a loss or a function that a model keeps may still reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn


class TensorSubstitution:
    """Puts copies in place of the caller's tensors, so that these stay as they are.

    `def loss(out): return ... + decay * norm(model)` names a global model, and `copy.deepcopy`
    returns a function in a list as it is. Both then compute with the caller's weights: what is
    audited would not depend on the copies, and the caller's gradients would grow.

    Args:
        copies: of the caller's parameters and buffers, by the `id` of these.
        known: the `id` of each parameter under audit.
    """

    def __init__(self, copies: Mapping[int, Tensor], known: Collection[int]) -> None:
        self._copies, self._known = copies, known
        self._strangers: dict[int, tuple[Tensor, Tensor | None]] = {}

    def replaced(self, arg: Any) -> Any:
        """An argument of a function, with copies for the caller's tensors in it.

        Any other tensor that takes a gradient, such as a weight of a loss, gives its own away until
        `give_back`.
        """
        if isinstance(arg, Tensor):
            arg = self._copies.get(id(arg), arg)
            seen = id(arg) in self._known or id(arg) in self._strangers
            if arg.requires_grad and arg.is_leaf and not seen:
                self._strangers[id(arg)] = arg, arg.grad
                arg.grad = None
            return arg
        if type(arg) in (list, tuple):
            return type(arg)(self.replaced(each) for each in arg)
        return arg

    @property
    def foreign(self) -> list[nn.Parameter]:
        """The parameters of others that functions have taken so far."""
        return [x for x, _ in self._strangers.values() if isinstance(x, nn.Parameter)]

    def give_back(self) -> None:
        """Give each tensor that is no parameter of the model its gradient again."""
        for tensor, grad in self._strangers.values():
            tensor.grad = grad
