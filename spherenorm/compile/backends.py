"""The back ends that an optimizer can ask for, and the work that it hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from spherenorm.rule import Rule, State

BACKENDS = ("auto", "rule", "compiled")
"""The values of `backend=`; `spherenorm.compile` explains them."""


class BackendError(RuntimeError):
    """`backend="compiled"` cannot step a weight as its rule does; the message says why.

    Example:
        >>> class Ours(sn.Rule):
        ...     def update(self, update, state):
        ...         return update.replace(direction=update.grad * len(update.grad.tolist())), {}
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = sn.torch_optimizer(lambda lr=0.1: Ours())([weight], backend="compiled")
        >>> weight.grad = torch.ones(2)
        >>> try:
        ...     optimizer.step()
        ... except BackendError as error:
        ...     print(str(error).partition(":")[0])
        backend="compiled" cannot take the step of Ours for a weight of shape (2,), ... on cpu
    """


def require_backend(backend: str) -> str:
    """Return `backend` if it names one.

    Raises:
        ValueError: there is no back end of that name.
    """
    if backend not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        gone = '; use "auto", or "compiled" for rules of your own' if backend == "blocks" else ""
        raise ValueError(f"backend must be one of {known}, got {backend!r}{gone}")
    return backend


class Work(NamedTuple):
    """One weight to step, with its gradient and state, or the part of it that this process holds.

    Attributes:
        whole: of a part, the sharded weight, gradient and state; None: this is no part.
        processes: the group of processes that hold the other rows; None: there are none.
    """

    weight: Tensor
    grad: Tensor
    state: State
    whole: Work | None = None
    processes: Any = None


@dataclass(frozen=True, eq=False)
class Group:
    """The weights of a param_group, and the rule that steps them.

    Attributes:
        sums: over all weights, of what rules measure; None: no rule measures.
    """

    rule: Rule
    backend: str
    works: Sequence[Work]
    sums: Mapping[str, Tensor] | None = None
