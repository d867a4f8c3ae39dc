"""Types that the stages share, the errors that leave this room, and its one cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from spherenorm.numerics import Scalar
from spherenorm.record import Unsupported
from spherenorm.rule import Rule, State

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

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
    if backend in BACKENDS:
        return backend
    remedy = '; use "auto", or "compiled" for rules of your own' if backend == "blocks" else ""
    raise ValueError(
        f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}{remedy}"
    )


class WeightStep(NamedTuple):
    """A weight to step, with its gradient and state: all of it, or the shard of this process.

    Attributes:
        weight, grad: tensors of one shape.
        state: tensors by name; a step writes into them or replaces them.
        sharded: for a shard, the DTensors that it is a part of; else None.
        process_group: the processes that hold the other rows; None if there are none.
        rows_are_whole: for a shard, whether it is whole rows, with the states that belong to them.
    """

    weight: Tensor
    grad: Tensor
    state: State
    sharded: WeightStep | None = None
    process_group: Any = None
    rows_are_whole: bool = True

    @property
    def unsharded_weight(self) -> Tensor:
        """The weight in its full shape, which is the same in all processes."""
        return self.weight if self.sharded is None else self.sharded.weight

    def tensors(self) -> list[Tensor]:
        """List the weight, the gradient and the states."""
        return [self.weight, self.grad, *self.state.values()]


@dataclass(frozen=True, eq=False)
class GroupStep:
    """The weights of one param_group that have gradients, and the rule that steps them.

    Attributes:
        rule: with the hyper-parameters of this step.
        backend: one of `BACKENDS`.
        weights: to step.
        global_sums: sums over all weights of the optimizer, for rules that ask for them.
    """

    rule: Rule
    backend: str
    weights: Sequence[WeightStep]
    global_sums: Mapping[str, Tensor] | None = None


class Batch(Protocol):
    """Weights that one executor steps together."""

    def run(self, weights: Sequence[WeightStep], scalars: Sequence[Scalar]) -> None:
        """Step the weights in place, with the rule's hyper-parameters as they are now."""


class Executor(Protocol):
    """The compiled step of weights of one shape and dtype. It holds no tensors of a weight.

    Attributes:
        name: as `explain` shows it.
        literals: numbers of the graph that may differ from shape to shape.
        max_batch_entries: entries of weights that one batch may have; None for any number.
        reuses_batches: a batch holds no tensors, and steps other weights of the same shapes, too.
        batch_key: the same for executors whose weights can step in one batch.
        program: the same for executors that compute the same, perhaps in another dtype.
        code: the generated code, each line with the rule's source.
    """

    @property
    def name(self) -> str:
        """See the attributes of the class."""

    @property
    def literals(self) -> Array:
        """See the attributes of the class."""

    @property
    def max_batch_entries(self) -> int | None:
        """See the attributes of the class."""

    @property
    def reuses_batches(self) -> bool:
        """See the attributes of the class."""

    @property
    def batch_key(self) -> Hashable:
        """See the attributes of the class."""

    @property
    def program(self) -> Hashable:
        """See the attributes of the class."""

    @property
    def code(self) -> str:
        """See the attributes of the class."""

    def bind(self, weights: Sequence[WeightStep], executors: Sequence[Executor]) -> Batch:
        """Make a batch; each weight has an executor of one `batch_key`."""


@dataclass(frozen=True, eq=False)
class Path:
    """The way in which a weight steps.

    Attributes:
        name: "rule" (the rule's own code), "stack" (its own code under vmap), "C++ kernel",
            "CUDA kernel", "batched", "owner" (one process steps the whole of a sharded weight by
            the rule's own code), or "error" if the next step raises `BackendError`.
        reason: why this path, in words; for "error" the message.
        executor: steps the weight; None on the paths that run the rule's own code.
        takes_shard: own code steps the shard of this process, not the DTensor.
    """

    name: str
    reason: str
    executor: Executor | None = None
    takes_shard: bool = False


MAX_CACHED_KINDS = 2**13
"""Entries of the cache; one more empties it. A rule of ever new structure would grow it forever."""
_CACHE: dict[Hashable, Any] = {}
"""Graphs, kernels, executors and results of verifications by what they were made from."""


def cached(key: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` returned for this key, or raise the `Unsupported` that it raised.

    Args:
        key: begins with the kind of the result, such as "graph".
        make: is called once for each key.
    """
    if key not in _CACHE:
        if len(_CACHE) >= MAX_CACHED_KINDS:
            _CACHE.clear()
        try:
            _CACHE[key] = make()
        except Unsupported as error:
            # Without its traceback, whose frames hold tensors.
            _CACHE[key] = type(error)(str(error))
    result = _CACHE[key]
    if isinstance(result, Unsupported):
        raise type(result)(str(result))
    return result  # type: ignore[no-any-return]


def count_cached(kind: str) -> int:
    """Count the results of a kind; refusals do not count."""
    return sum(
        key[0] == kind and not isinstance(value, Unsupported)
        for key, value in _CACHE.items()
        if isinstance(key, tuple)
    )
