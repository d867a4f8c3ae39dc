"""The data of a task: tensors that fit in memory, or map-style data sets of items.

Tasks: what is trained. One file defines one: data, model, loss, budget.

There are two kinds. A `Task` trains a torch module on batches. A `PureTask` is a pure loss of a
few small tensors; many of its runs train as one vmap computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from spherenorm.functional import Sweep
from spherenorm_experiments.errors import written
from spherenorm_experiments.metrics import Statistic
from spherenorm_experiments.streams import preserved_randomness, seed_everything, stream


@runtime_checkable
class MapStyle(Protocol):
    """A map-style data set: any `torch.utils.data.Dataset` with a length, or a list.

    Python's, NumPy's and torch's global random states are seeded before each item, by (seed, epoch,
    index): random augmentation needs no generator of its own.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Split = tuple[Tensor, ...] | MapStyle
"""Tensors with one common leading length, inputs first, targets last; or a map-style data set."""

Batch = Any
"""The tensors of a split at some items; of a data set, its items as `Task.collate` joins them."""


class Splits(NamedTuple):
    """The data. Hyper-parameters are chosen on `validation`; `test` is only reported."""

    train: Split
    validation: Split
    test: Split


def are_tensors(split: Split) -> TypeGuard[tuple[Tensor, ...]]:
    """True if a split is a tuple of tensors."""
    return isinstance(split, tuple) and all(isinstance(x, Tensor) for x in split)


def length(split: Split) -> int:
    """The number of items."""
    return len(split[0]) if are_tensors(split) else len(split)


def require_splits(found: Any, source: str) -> Splits:
    """The splits, if they can be read in one way only.

    Args:
        source: the method that has made them, for the errors.

    Raises:
        ValueError: no `Splits`, a split that is neither a tuple of tensors of one length nor a
            map-style data set, or one without items.
    """
    if not isinstance(found, Splits):
        need = f"{source} must return Splits(train, validation, test)"
        raise ValueError(f"{need}, got a {type(found).__name__}")
    for name, split in found._asdict().items():
        sizes = {len(x) if x.ndim else 0 for x in split} if are_tensors(split) else {1}
        bare = isinstance(split, list) and all(isinstance(x, Tensor | np.ndarray) for x in split)
        odd = (isinstance(split, tuple) and not are_tensors(split)) or isinstance(split, Mapping)
        if bare or odd or len(sizes) > 1 or not isinstance(split, tuple | MapStyle):
            need = f"{source}: the {name} split must be a tuple of tensors of one length, such as"
            raise ValueError(
                f"{need} (x, y), or a map-style data set, got a {type(split).__name__}"
            )
        if not len(split) or not length(split):
            raise ValueError(f"{source}: the {name} split is empty")
    return found


AUDITED, FINGERPRINTED = 64, 16
"""Items of the audit's batch, and of a data set's fingerprint."""

FOLDER = "SPHERENORM_DATA"
"""The environment variable with the folder of all data sets. Processes that train inherit it."""


@dataclass(frozen=True)
class Budget:
    """The cost of one run of a tier: passes over the data (steps for a pure task), batch size."""

    epochs: int
    batch_size: int = 64


class _Named:
    """The base of all kinds: dataclass fields are a task's options."""

    name: ClassVar[str]
    tiers: ClassVar[Mapping[str, Budget]]
    """The budget of each tier: smoke (seconds; tests), small (the default), full (a GPU)."""


class Task(_Named):
    """A torch module trained on batches. Subclasses are frozen dataclasses.

    `data`, `model`, `loss` and `evaluate` are the task's own; the rest has defaults.
    """

    metric: ClassVar[str] = ""
    """The quantity of the score, the first number of `evaluate`, if its name there does not say it.

    Higher is better. With "%" in it differences are percentage points, and those below one point
    are equivalent.
    """

    evaluation_batch: ClassVar[int] = 512
    """Items of a batch of `evaluate`; it does not depend on the number of processes."""

    is_mean: ClassVar[bool] = True
    """True if the loss is a mean over items, so that those of a batch's parts add up to its own.

    False for a loss that compares items with each other, or divides by something other than their
    number. Micro-batches are refused for it; several processes take the mean of their own losses.
    """

    def data(self) -> Splits:
        """The splits, the same on every call; cache what is expensive."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """A new model, initialized from the global random states."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The scalar to descend on: a mean over the items of the batch (else see `is_mean`).

        It calls the model itself, `model(...)`, which several processes need to work together.
        Randomness (augmentation, dropout) comes from the global random states, which are seeded by
        (seed, step, micro-batch, rank).
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        """One batch's share of each metric, by name; the first is the score, and higher is better.

        The model is in eval mode and without gradients (an attack may `torch.enable_grad()`). The
        global random states are seeded by (seed, batch).
        """
        raise NotImplementedError

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        """Weights with hyper-parameters of their own; the others share the run's.

        A group has "params", and values of hyper-parameters; a recipe without one of these leaves
        it out. "lr_factor" multiplies the run's learning rate.
        """
        return ()

    def hidden(self, model: nn.Module) -> Sequence[str] | None:
        """The names of the weights that take the run's recipe where others have `Spec.rest`.

        None for those that are scale-invariant channel by channel.
        """
        return None

    def order(self, count: int, batch_size: int, random: torch.Generator) -> Tensor:
        """The `count` indices of one epoch; a batch is the next `batch_size` of them.

        A permutation, unless a task samples otherwise. `random` is seeded by (seed, epoch).
        """
        return torch.randperm(count, generator=random)

    def collate(self, items: list[Any]) -> Batch:
        """The batch of some items of a map-style data set."""
        from torch.utils.data import default_collate

        return default_collate(items)

    def shards(self, model: nn.Module) -> Sequence[nn.Module]:
        """The modules that fully sharded training shards one by one; the model is last."""
        found: list[nn.Module] = []
        for child in model.children():
            found += list(child) if isinstance(child, nn.ModuleList) else [child]
        return [module for module in found if any(True for _ in module.parameters())]

    def audit_inputs(self) -> tuple[Any, ...]:
        """A batch for the audit of which weights are scale-invariant.

        Empty if the model does not return one tensor; no weight then counts as scale-invariant.
        """
        return tuple(self.first_batch(self.data().train, AUDITED)[:-1])

    def first_batch(self, split: Split, count: int) -> Batch:
        """The batch of the first items; a copy, which a model may change in place."""
        count = min(count, length(split))
        if are_tensors(split):
            return tuple(x[:count].clone() for x in split)
        with preserved_randomness():
            seed_everything(stream(0, "first batch"))
            return self.collate([split[index] for index in range(count)])

    def fingerprint(self) -> str:
        """A hash of all data in memory; another data set's `fingerprint()`, else of samples."""
        return fingerprint_of(splits_of(self))


def splits_of(task: Task) -> Splits:
    """The data of a task.

    Raises:
        ValueError: `data` returns what is no `Splits`, or what can be read in two ways.
    """
    return require_splits(task.data(), written(type(task), "data"))


def fingerprint_of(splits: Splits) -> str:
    """The fingerprint of a task that has none of its own; see `Task.fingerprint`.

    Tensors, lists, and torch's `TensorDataset`, `Subset` and `ConcatDataset` of such count whole.

    Raises:
        ValueError: items with a generator of their own.
    """
    digest = hashlib.sha256()
    for split in splits:
        if are_tensors(split):
            for tensor in split:
                _hash(digest, tensor)
            continue
        _require_keyed(split)
        digest.update(f"{len(split)} items\n".encode())  # where a split ends counts, too
        _hash_set(digest, split)
    return digest.hexdigest()


def _hash_set(digest: Any, data: Any) -> None:
    """Hash a data set: whole, if it is of a kind that holds its items in memory."""
    kind = type(data)
    if hasattr(data, "fingerprint"):
        digest.update(str(data.fingerprint()).encode())
    elif kind in (TensorDataset, list):
        for leaf in tree_flatten(data.tensors if kind is TensorDataset else data)[0]:
            _hash(digest, leaf)
    elif kind is Subset:
        digest.update(str([int(index) for index in data.indices]).encode())
        _hash_set(digest, data.dataset)
    elif kind is ConcatDataset:
        for part in data.datasets:
            _hash_set(digest, part)
    else:
        _hash_samples(digest, data)


def _hash(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(str((value.dtype, tuple(value.shape))).encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    elif hasattr(value, "tobytes"):  # an array, a picture
        form = [getattr(value, name, None) for name in ("dtype", "mode", "size", "shape")]
        digest.update(str(form).encode())
        digest.update(value.tobytes())
    else:
        digest.update(f"{value!r}\n".encode())  # else 1, 23 would be 12, 3


def _hash_samples(digest: Any, split: Any) -> None:
    """Hash the length and a few items, spread evenly: to read all of them may take hours."""
    count = len(split)
    digest.update(str(count).encode())
    with preserved_randomness():
        for index in sorted({k * (count - 1) // (FINGERPRINTED - 1) for k in range(FINGERPRINTED)}):
            seed_everything(stream(0, "fingerprint", index))
            for leaf in tree_flatten(split[index])[0]:
                _hash(digest, leaf)


def _require_keyed(split: Any) -> None:
    """Refuse items with a generator of their own, whose state no worker and no checkpoint shares.

    Raises:
        ValueError: an item is another one when it is read again.
    """
    found = []
    with preserved_randomness():
        for _ in range(2 if len(split) else 0):
            seed_everything(stream(0, "fingerprint", 0))
            digest = hashlib.sha256()
            for leaf in tree_flatten(split[0])[0]:
                if isinstance(leaf, int | float) or hasattr(leaf, "tobytes") or _is_dense(leaf):
                    _hash(digest, leaf)
            found.append(digest.digest())
    if len(set(found)) > 1:
        wrong = f"item 0 of {type(split).__name__} is another one when it is read again"
        raise ValueError(f"{wrong}; draw from the global random states, which each item seeds")


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided


class PureTask(_Named):
    """A pure loss of a dict of small tensors."""

    def start(self, seed: int) -> dict[str, Tensor]:
        """The initial parameters of a run."""
        raise NotImplementedError

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        """The scalar to descend on, without side effects."""
        raise NotImplementedError

    def batches(self, seed: int) -> Callable[[int], Any] | None:
        """`batches(seed)(t)` is the batch of step t, alike for all t; None without data."""
        return None

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        """Numbers to keep of each step of one run; see `spherenorm.functional.sweep`."""
        return dict(after)

    def summarize(
        self, seeds: Sequence[int], start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The results of all points and seeds of a computation.

        Args:
            seeds: S of them.
            start: the initial parameters, each with a leading dimension of seeds.
            swept: the result of `spherenorm.functional.sweep` for K points and S seeds.

        Returns:
            Numbers of shape (K, S), nan where a run has none, and arrays to keep, whose leading
            dimensions are (K, S).
        """
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "none"


AnyTask = Task | PureTask
