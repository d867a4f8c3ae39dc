"""`Uses`: what each parameter does in a forward pass, as roles with their reasons.

Every operation of the pass is watched below autograd. A tensor that parameters and constants make
(a transpose, a slice, a normalized weight) stands for these parameters; the operation in which it
meets the batch is their use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spherenorm.torch_internals import TorchDispatchMode, pytree

RoleName = Literal[
    "matrix",
    "head",
    "embedding",
    "tied",
    "vector",
    "convolution",
    "experts",
    "other",
    "unmeasured",
]
ROLES: tuple[RoleName, ...] = get_args(RoleName)
MATRICES: tuple[RoleName, ...] = ("matrix", "convolution", "experts")
"""The roles of what Muon and the recipes that hold a norm are made for."""

_PRODUCTS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "_grouped_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), (1, 2)),
}
"""The places of the factors of a product of matrices."""
_RECURRENT = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"}
_TABLES = {"embedding", "embedding_renorm_", "_embedding_bag", "_embedding_bag_forward_only"}
_INDEXING = {"index", "index_select", "gather"}
_JOINS = {"cat", "stack"}


@dataclass(frozen=True)
class _Origin:
    """The parameters and the data that a tensor is a function of.

    Attributes:
        weights: it is a function of these parameters and of constants.
        data: it depends on the batch, or on a row that was looked up.
        ends: if it depends on the batch, the matrices of whose products it is a function alone;
            None if no parameter has acted on it.
        acted: the uses, as roles with the reason, of weights that have acted on constants.
    """

    weights: frozenset[str] = frozenset()
    data: bool = False
    ends: frozenset[str] | None = None
    acted: Mapping[str, tuple[RoleName, str]] = field(default_factory=dict, compare=False)


_CONSTANT = _Origin()
_BATCH = _Origin(data=True)


class _Uncompiled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that does not import torch's compiler to stay out of compiled code, for 1.5 s."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Uses(_Uncompiled):  # type: ignore[no-untyped-call]
    """Follows parameters and batch through a forward pass.

    Args:
        parameters: by name.
        batch: the tensors that the model is given.

    Attributes:
        roles: of each parameter, by its uses, with the reason of each.
        inner: the matrices whose products another weight has taken, or a sum with other products.
        last: the others whose products are outputs.
    """

    def __init__(self, parameters: Mapping[str, Tensor], batch: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes = {name: tuple(weight.shape) for name, weight in parameters.items()}
        self.roles: dict[str, dict[RoleName, str]] = {name: {} for name in parameters}
        self.inner: set[str] = set()
        self.last = frozenset[str]()
        self._origins: Any = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[Any, _Origin]] = {}
        strided = (x for x in parameters.values() if x.layout is torch.strided)
        self._parameters = {x.untyped_storage()._cdata for x in strided}
        for x in batch:
            self._origins[x] = _BATCH
        for name, x in parameters.items():
            self._origins[x] = _Origin(frozenset((name,)))

    def finish(self, outputs: Iterable[Tensor]) -> None:
        """Take the outputs of the pass."""
        ends = (self.origin(x).ends or frozenset() for x in outputs)
        self.last = frozenset[str]().union(*ends) - self.inner

    def origin(self, x: Tensor) -> _Origin:
        """The origin of a tensor."""
        found: _Origin = self._origins.get(x, _CONSTANT)
        if self._written and not found.data and x.layout is torch.strided:
            _, written = self._written.get(x.untyped_storage()._cdata, (None, found))
            return written
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = _tensors((args, kwargs))
        operands = [(x, self.origin(x)) for x in given]
        result = func(*args, **kwargs)
        made = _tensors(result)
        picked = name in _INDEXING and bool(operands[0][1].weights)
        in_batch = any(origin.data for _, origin in operands)
        table = name in _TABLES or (picked and in_batch and operands[0][0].ndim == 2)
        if table or (in_batch and not picked):
            found = [self._met(name, args, operands, table)] * len(made)
        else:
            found = self._derived(name, args, operands, made)
        for x, origin in zip(made, found, strict=True):
            if not any(x is each for each in given) or x.layout is not torch.strided:
                self._origins[x] = origin
            elif (storage := x.untyped_storage())._cdata not in self._parameters:
                self._origins[x] = origin  # (a parameter stays one)
                if origin.data:  # the storage is kept, so that no other gets its address
                    self._written[storage._cdata] = storage, origin
        return result

    def _met(
        self,
        name: str,
        args: tuple[Any, ...],
        operands: Sequence[tuple[Tensor, _Origin]],
        table: bool,
    ) -> _Origin:
        """The origin of a result that depends on the batch; roles of weights are noted."""
        data = [origin for _, origin in operands if origin.data]
        weights = [(x, origin) for x, origin in operands if origin.weights and not origin.data]
        acts: set[str] = set()
        for x, origin in weights:
            for each in origin.weights:
                shape = self.shapes[each]
                role, reason = _use(name, args, x, shape, table)
                if len(shape) > 1 and role in (*MATRICES, "other") and name not in _RECURRENT:
                    acts.add(each)
                self._note(each, origin, role, reason)
        before = [origin.ends for origin in data if origin.ends is not None]
        if table:
            return replace(_BATCH, ends=frozenset())
        if acts:
            self.inner.update(*before)
            return replace(_BATCH, ends=frozenset(acts))
        together = frozenset[str]().union(*before)
        losses = all(x.ndim == 0 for x, origin in operands if origin.data)
        if len(set(before)) > 1 and name not in _JOINS and not losses:
            self.inner |= together
            together = frozenset()
        return replace(_BATCH, ends=together if before or weights else None)

    def _note(self, weight: str, origin: _Origin, role: RoleName, reason: str) -> None:
        """Note a use; one entry by entry may be of what the weight has made of constants."""
        if role == "vector":
            role, reason = origin.acted.get(weight, (role, reason))
        self.roles[weight].setdefault(role, reason)

    def _derived(
        self,
        name: str,
        args: tuple[Any, ...],
        operands: Sequence[tuple[Tensor, _Origin]],
        made: Sequence[Tensor],
    ) -> list[_Origin]:
        """The origin of each result of parameters and constants."""
        weights = [(x, origin) for x, origin in operands if origin.weights]
        acts: dict[str, tuple[RoleName, str]] = {}
        for x, origin in weights:
            for each in origin.weights:
                use = _use(name, args, x, self.shapes[each], table=False)
                if use[0] != "vector":
                    acts[each] = use
        whole = len(weights) == 1 or acts or name in _PRODUCTS or name in _JOINS
        found = []
        for output in made:
            alike = [each for each in weights if whole or each[0].shape == output.shape]
            kept = alike or weights
            acted = {each: use for _, origin in kept for each, use in origin.acted.items()}
            names = frozenset[str]().union(*(origin.weights for _, origin in kept))
            found.append(_Origin(names, acted=acts | acted))
        stay = frozenset[str]().union(*(origin.weights for origin in found[:1]))
        for _, origin in weights if found else ():
            for each in origin.weights - stay:  # as the lengths of weight normalization
                self._note(each, origin, "vector", f"acts on a weight ({name})")
        return found


def _use(
    name: str, args: tuple[Any, ...], x: Tensor, shape: tuple[int, ...], table: bool
) -> tuple[RoleName, str]:
    """The role of a weight of `shape`, of which `x` is made, in an operation with the batch."""
    if table:
        return "embedding", f"its rows are looked up ({name})"
    if "convolution" in name and len(args) > 1 and args[1] is x:
        if x.shape[1] == 1 and args[-1] > 1:
            return "vector", f"a filter for each channel by itself, no matrix ({name})"
        return "convolution", f"filters ({name})"
    if name in _RECURRENT:
        return "matrix", f"of a recurrent layer ({name})"
    if name == "_trilinear":
        return "other", f"a factor of a product of three ({name})"
    factors = [args[place] for place in _PRODUCTS.get(name.removesuffix("_"), ())]
    if x.ndim < 2 or not any(x is each for each in factors):
        return "vector", f"acts entry by entry ({name})"
    if len(shape) == 2:
        return "matrix", f"a factor of a product ({name})"
    long = [length for length in x.shape if length > 1]
    if sorted(long) == sorted((shape[0], math.prod(shape[1:]))):
        return "matrix", f"dimension 0 by all others ({name})"
    if len(shape) == 3 and sorted(long[-2:]) == sorted(shape[1:]):
        return "experts", f"a matrix for each index of dimension 0 ({name})"
    return "other", f"neither one matrix, dimension 0 by all others, nor a stack of them ({name})"


def _tensors(nested: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(nested) if isinstance(x, Tensor)]
