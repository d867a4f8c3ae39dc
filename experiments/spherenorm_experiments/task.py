"""Tasks: what is trained. One file defines one: data, model, loss, budget.

There are two kinds. A `Task` trains a torch module on batches. A `PureTask` is a pure loss of a
few small tensors; many of its runs train as one vmap computation.

Each use of chance in a run has a key, and a seed of its own (`stream`). The order of the data has
the key (seed, epoch), the augmentation of an item (seed, epoch, index), the noise in the model
(seed, step, micro-batch, rank). A resumed run only has to know its step.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeGuard, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from spherenorm.functional import Sweep
from spherenorm_experiments.lookup import describe_source

Better = Literal["higher", "lower"]
"""The direction in which a metric improves."""

FALLING = re.compile(
    r"loss|error|perplexity|entropy|deviance|distance|regret|mse\b"
    r"|\b(?:bits per|bpb|bpc|cer|cost|err|fid|kl|mad|mae|mape|nll|ppl|ter|wer)\b"
)
"""Words of metrics that fall as a model improves."""

NEGATED = re.compile(r"\b(?:minus|neg|negated|negative)\b")


def falls(name: str) -> bool:
    """Return True if a metric is lower for a better model, as far as its name says.

    >>> [falls(name) for name in ("loss", "val_rmse", "CrossEntropy", "perplexity")]
    [True, True, True, True]
    >>> [falls(name) for name in ("accuracy (%)", "R2", "minus loss", "-mse")]
    [False, False, False, False]
    >>> [falls(name) for name in ("log-likelihood", "negative log-likelihood")]
    [False, True]
    """
    words = re.sub(r"[\W_]+", " ", name.lower())
    negated = name.lstrip().startswith(("-", "−")) or NEGATED.search(words) is not None
    if "likelihood" in words:
        return negated
    return FALLING.search(words) is not None and not negated


def stream(seed: int, name: str, *key: int) -> int:
    """The seed of one use of a run's stream ("init", "data", "augmentation", "noise", ...)."""
    text = "/".join(map(str, (seed, name, *(key or (0,)))))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)


def generator(seed: int, name: str, *key: int) -> torch.Generator:
    """Return a CPU generator seeded by `stream`."""
    return torch.Generator().manual_seed(stream(seed, name, *key))


def seed_everything(seed: int, device: str = "cpu") -> None:
    """Seed the global random states of torch, NumPy and Python."""
    # Not torch.manual_seed: without a GPU it formats a stack trace, a tenth of a small step.
    torch.default_generator.manual_seed(seed)
    if device != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class Statistic(ABC):
    """One batch's share of a metric.

    Attributes:
        state: what is sent to the other processes: tensors on the CPU, numbers.
    """

    state: tuple[Any, ...]

    @abstractmethod
    def value(self, states: Sequence[Any]) -> float:
        """Return the metric of the batches with these states, in the order of the data."""


class Mean(Statistic):
    """then(sum of the values / their number), in float64.

    Args:
        values: a number for each item, of any shape.
        then: applied to the mean, such as `math.exp` for a perplexity.

    Example:
        >>> Mean(torch.tensor([1.0, 3.0])).value([(4.0, 2.0), (5.0, 1.0)])
        3.0
    """

    def __init__(self, values: Tensor, then: Callable[[float], float] = float) -> None:
        self.then = then
        self.state = float(values.detach().double().sum()), float(values.numel())

    def value(self, states: Sequence[tuple[float, float]]) -> float:
        total, count = (sum(column) for column in zip(*states, strict=True))
        try:
            return float(self.then(total / count if count else math.nan))
        except OverflowError:  # math.exp raises it where torch.exp is infinite
            return math.inf


class Collected(Statistic):
    """A function of the columns of the whole split: function(column, ...).

    Args:
        function: of as many columns as are given.
        columns: for each a tensor with one row per item, or a list with one entry per item. Tensors
            arrive on the CPU and joined along their first dimension, those of half precision in
            float32; lists arrive joined.

    Example:
        >>> share = Collected(lambda x: x.max(), torch.tensor([1.0, 5.0]))
        >>> share.value([share.state, (torch.tensor([7.0]),)])
        7.0
    """

    def __init__(self, function: Callable[..., Any], *columns: Tensor | list[Any]) -> None:
        self.function = function
        self.state = tuple(
            _whole_precision(x) if isinstance(x, Tensor) else list(x) for x in columns
        )

    def value(self, states: Sequence[tuple[Any, ...]]) -> float:
        return float(self.function(*(_joined(parts) for parts in zip(*states, strict=True))))


def _whole_precision(x: Tensor) -> Tensor:
    """On the CPU, and float32 for a half precision: NumPy has no bfloat16."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    return (x.float() if half else x).detach().cpu()


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return [entry for part in parts for entry in part]


Split = tuple[Tensor, ...] | Any
"""Tensors with one common leading length, inputs first, targets last; or a map-style data set.

Such a data set has `__len__` and `__getitem__`, as any of torch's, or a list. Python's, NumPy's and
torch's global random states are seeded before each item, by (seed, epoch, index): random
augmentation needs no generator of its own.
"""

Batch = Any
"""The tensors of a split at some items; of a data set, its items as `Task.collate` joins them."""


class Splits(NamedTuple):
    """The data. Hyper-parameters are chosen on `validation`; `test` is only reported."""

    train: Split
    validation: Split
    test: Split


def are_tensors(split: Split) -> TypeGuard[tuple[Tensor, ...]]:
    """Return True if a split is a tuple of tensors."""
    return isinstance(split, tuple) and all(isinstance(x, Tensor) for x in split)


def length(split: Split) -> int:
    """Return the number of items."""
    return len(split[0]) if are_tensors(split) else len(split)


def splits_of(task: Task) -> Splits:
    """Return the data of a task, if they can be read in one way only.

    Raises:
        ValueError: `data` returns no `Splits`, a split that is neither a tuple of tensors of one
            length nor a map-style data set, or one without items.
    """
    splits, source = task.data(), describe_source(type(task), "data")
    if not isinstance(splits, Splits):
        requirement = f"{source} must return Splits(train, validation, test)"
        raise ValueError(f"{requirement}, got a {type(splits).__name__}")
    for name, split in splits._asdict().items():
        if are_tensors(split):
            is_valid = len({len(x) if x.ndim else 0 for x in split}) <= 1
        elif isinstance(split, list):  # of items, not of columns
            is_valid = not all(isinstance(x, Tensor | np.ndarray) for x in split)
        else:
            is_valid = hasattr(split, "__getitem__") and not isinstance(
                split, tuple | Mapping | str
            )
        if not is_valid:
            requirement = (
                f"{source}: the {name} split must be a tuple of tensors of one length, such as"
            )
            raise ValueError(
                f"{requirement} (x, y), or a map-style data set, got a {type(split).__name__}"
            )
        if not len(split) or not length(split):
            raise ValueError(f"{source}: the {name} split is empty")
    return splits


AUDITED, FINGERPRINTED = 64, 16
"""Items of the audit's batch, and of a data set's fingerprint."""


@dataclass(frozen=True)
class Budget:
    """The cost of one run of a tier: passes over the data (steps for a pure task), batch size."""

    epochs: int
    batch_size: int = 64


class _TaskBase:
    """The base of all kinds: dataclass fields are a task's options."""

    name: ClassVar[str]
    tiers: ClassVar[Mapping[str, Budget]]
    """The budget of each tier: smoke (seconds; tests), small (the default), full (a GPU)."""
    better: ClassVar[Better | None] = None
    """"higher" or "lower": the direction in which the score is better.

    None stands for "higher". A task whose score has the name of a loss or an error must say it.
    """


class Task(_TaskBase):
    """A torch module trained on batches. Subclasses are frozen dataclasses.

    `data`, `model`, `loss` and `evaluate` are the task's own; the rest has defaults.
    """

    metric: ClassVar[str] = ""
    """The quantity of the score, the first number of `evaluate`, if its name there does not say it.

    `better` says in which direction it improves. With "%" in it differences are percentage points,
    and those below one point are equivalent.
    """

    evaluation_batch: ClassVar[int] = 512
    """Items of a batch of `evaluate`; it does not depend on the number of processes."""

    is_mean: ClassVar[bool] = True
    """True if the loss is a mean over items, so that those of a batch's parts add up to its own.

    False for a loss that compares items with each other, or divides by something other than their
    number. Micro-batches are refused for it; several processes take the mean of their own losses.
    """

    def data(self) -> Splits:
        """Return the splits, the same on every call; cache what is expensive."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """Return a new model, initialized from the global random states."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar to descend on: a mean over the items of the batch (else see `is_mean`).

        It calls the model itself, `model(...)`, which several processes need to work together.
        Randomness (augmentation, dropout) comes from the global random states, which are seeded by
        (seed, step, micro-batch, rank).
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        """One batch's share of each metric, by name; the first is the score (see `better`).

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

    def hidden_weight_names(self, model: nn.Module) -> Sequence[str] | None:
        """Return the names of the weights that take the run's recipe where others have `Spec.rest`.

        None for those that are scale-invariant channel by channel.
        """
        return None

    def order(self, count: int, batch_size: int, random: torch.Generator) -> Tensor:
        """Return the `count` indices of one epoch; a batch is the next `batch_size` of them.

        A permutation, unless a task samples otherwise. `random` is seeded by (seed, epoch).
        """
        return torch.randperm(count, generator=random)

    def collate(self, items: list[Any]) -> Batch:
        """Return the batch of some items of a map-style data set."""
        from torch.utils.data import default_collate

        return default_collate(items)

    def around_step(self, training: Any, step: int) -> AbstractContextManager[Any]:
        """Return a block around the optimizer's step, for what few tasks do there.

        Before the step it finds the gradients of the whole batch, after it the new weights. What
        it keeps from step to step has to be a buffer or a part of the model: these alone are in a
        checkpoint.

        Args:
            training: the `spherenorm_experiments.train.Training` that steps.
            step: the number of the step, from 0.
        """
        return nullcontext()

    def audit_inputs(self) -> tuple[Any, ...]:
        """Return a batch for the audit of which weights are scale-invariant.

        Empty if the model does not return one tensor; no weight then counts as scale-invariant.
        """
        return tuple(self.first_batch(self.data().train, AUDITED)[:-1])

    def first_batch(self, split: Split, count: int) -> Batch:
        """Return the batch of the first items; a copy, which a model may change in place."""
        count = min(count, length(split))
        if are_tensors(split):
            return tuple(x[:count].clone() for x in split)
        with preserved_randomness():
            seed_everything(stream(0, "first batch"))
            return self.collate([split[index] for index in range(count)])

    def fingerprint(self) -> str:
        """A hash of all data in memory; another data set's `fingerprint()`, else of samples."""
        return fingerprint_of(splits_of(self))


def better_of(task: Task | type[Task], score: str | None) -> Better:
    """Return the direction in which a task's score is better.

    Args:
        score: the name of the first metric of `evaluate`; None if it is not known.

    Raises:
        ValueError: `better` is another word, or is missing where the score's name is a loss's.
    """
    cls = task if isinstance(task, type) else type(task)
    if task.better is not None:
        if task.better not in get_args(Better):
            raise ValueError(
                f"{describe_source(cls)}: better must be 'higher' or 'lower', got {task.better!r}"
            )
        return task.better
    for name in filter(None, (task.metric, score)):
        if falls(name):
            raise ValueError(
                f"{describe_source(cls)}: its score {name!r} seems to fall as a model improves; "
                'say better = "lower" in the class, or better = "higher" if it rises'
            )
    return "higher"


def require_better(task: Task) -> None:
    """Refuse a task that would be tuned in the wrong direction, before anything runs.

    A task that does not say its direction is asked for its score's name, see `metric_names`. Where
    this raises, a run will, too, with a better message.

    Raises:
        ValueError: see `better_of`.
    """
    better_of(task, next(iter(metric_names(task)), None) if task.better is None else None)


def metric_names(task: Task) -> tuple[str, ...]:
    """Return the names of a task's metrics; none where the task raises.

    Only `evaluate` knows them, so that two items are evaluated by a new model.
    """
    with suppress(Exception), preserved_randomness(), torch.no_grad():
        seed_everything(stream(0, "score's name"))
        model, batch = task.model().eval(), task.first_batch(task.data().validation, 2)
        return tuple(task.evaluate(model, batch))
    return ()


def fingerprint_of(splits: Splits) -> str:
    """Return the fingerprint of a task that has none of its own; see `Task.fingerprint`.

    Tensors, lists, and torch's `TensorDataset`, `Subset` and `ConcatDataset` of such count whole.

    Raises:
        ValueError: items with a generator of their own.
    """
    digest = hashlib.sha256()
    for split in splits:
        if not are_tensors(split):
            digest.update(f"{len(split)} items\n".encode())  # where a split ends counts, too
        with preserved_randomness():
            if not are_tensors(split) and len(split) and _first_item(split) != _first_item(split):
                wrong = f"item 0 of {type(split).__name__} is another one when it is read again"
                raise ValueError(f"{wrong}; draw from the global random states, which items seed")
            _hash_set(digest, split)
    return digest.hexdigest()


def _first_item(data: Any) -> str:
    """A hash of the numbers of item 0: no process shares the state of a generator of its own."""
    digest = hashlib.sha256()
    for leaf in _leaves(data, 0):
        if isinstance(leaf, Tensor | int | float) or hasattr(leaf, "tobytes"):
            _hash(digest, leaf)
    return digest.hexdigest()


def _hash_set(digest: Any, data: Any) -> None:
    """Hash a data set: whole, if it is of a kind that holds its items in memory."""
    kind = type(data)
    if hasattr(data, "fingerprint"):
        digest.update(str(data.fingerprint()).encode())
    elif kind in (tuple, list, TensorDataset):
        for leaf in tree_leaves(data.tensors if kind is TensorDataset else data):
            _hash(digest, leaf)
    elif kind is Subset:
        digest.update(str([int(index) for index in data.indices]).encode())
        _hash_set(digest, data.dataset)
    elif kind is ConcatDataset:
        for part in data.datasets:
            _hash_set(digest, part)
    else:  # only a few items, spread evenly: to read all of them may take hours
        digest.update(str(len(data)).encode())
        spread = {k * (len(data) - 1) // (FINGERPRINTED - 1) for k in range(FINGERPRINTED)}
        for index in sorted(spread) if len(data) else ():
            for leaf in _leaves(data, index):
                _hash(digest, leaf)


def _leaves(data: Any, index: int) -> list[Any]:
    seed_everything(stream(0, "fingerprint", index))
    return tree_leaves(data[index])


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


def data_fingerprint(task: AnyTask) -> str:
    """Return the fingerprint of the task's data, taken twice.

    Raises:
        ValueError: the data are drawn anew on each call.
    """
    fingerprints = set()
    for seed in (0, 1):
        with preserved_randomness():
            seed_everything(stream(seed, "fingerprint"))
            fingerprints.add(str(task.fingerprint()))
    if len(fingerprints) > 1:  # a run would not train on what its name says
        kind = type(task).__name__
        problem = f"data() of {kind} is drawn anew on each call, or its items have no stable repr"
        raise ValueError(f"{problem}; give it a seed, or its data set a `fingerprint()`")
    return fingerprints.pop()


class PureTask(_TaskBase):
    """A pure loss of a dict of small tensors."""

    def start(self, seed: int) -> dict[str, Tensor]:
        """Return the initial parameters of a run."""
        raise NotImplementedError

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        """Return the scalar to descend on, without side effects."""
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
        """Return the results of all points and seeds of a computation.

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
