"""Batches as functions of keys: which items, at which step, for which process.

Nothing of a loader is ever saved. Its state would be a place in an order, and the order is a
function of (seed, epoch): to resume is to start at a step, at the same cost for any step. An item
of a map-style data set has the key (epoch, index), and its random numbers are seeded by (seed,
epoch, index), so that neither workers nor ranks nor speed decide them.

Source of the plan: `torch.utils.data` with a batch sampler that yields keys.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from spherenorm_experiments.run import Ranks, Run, die_with_parent
from spherenorm_experiments.task import (
    Batch,
    Split,
    Task,
    are_tensors,
    generator,
    length,
    seed_everything,
    stream,
)

Key = tuple[int, int]


@dataclass(frozen=True)
class Share:
    """The part of a micro-batch that one rank computes.

    Attributes:
        epoch: the pass over the data.
        indices: the items; one, of weight 0, for a rank that would have none.
        weight: the items' share of the whole batch. A loss is a mean over its items, so losses and
            gradients add up by these weights to those of the whole batch, however it is divided.
    """

    epoch: int
    indices: Tensor
    weight: float


class Shares:
    """The parts of each step's batch that one rank computes."""

    def __init__(self, run: Run, task: Task, ranks: Ranks) -> None:
        self.run, self.task, self.ranks = run, task, ranks
        self.of_step = functools.lru_cache(maxsize=2)(self._shares_of_step)
        self._order = functools.lru_cache(maxsize=2)(self._new_order)

    def _shares_of_step(self, step: int) -> list[Share]:
        """Return this rank's shares of a step, one for each micro-batch that has items."""
        epoch, number = divmod(step, self.run.steps_per_epoch)
        size, parts = self.run.spec.batch_size, self.run.spec.regime.micro_batches
        batch, world = self._order(epoch)[number * size : (number + 1) * size], self.ranks.world
        if parts == world == 1:
            return [Share(epoch, batch, 1.0)]
        shares = []
        for part in (part for part in batch.tensor_split(parts) if len(part)):
            items = part[self.ranks.rank :: world]
            shares.append(Share(epoch, items if len(items) else part[:1], len(items) / len(batch)))
        return shares

    def _new_order(self, epoch: int) -> Tensor:
        count, spec = length(self.run.splits.train), self.run.spec
        order = self.task.order(count, spec.batch_size, generator(spec.seed, "data", epoch))
        if len(order) != count:
            raise ValueError(f"order must have {count} indices, got {len(order)}")
        return order

    def keys(self, start: int) -> Iterator[list[Key]]:
        """Yield the keys of each micro-batch, from a step on: a batch sampler."""
        for step in range(start, self.run.steps):
            for share in self.of_step(step):
                yield [(share.epoch, index) for index in share.indices.tolist()]


class TrainingBatches:
    """The batches of each step, from tensors or from a map-style data set.

    Nothing that the loader holds refers to this object. Else the loader would be deleted by the
    garbage collector, when its workers no longer hear that they are to end, and torch waits five
    seconds for each.

    Args:
        workers: processes that load a data set's items.
        device: of the batches.
    """

    def __init__(self, run: Run, task: Task, ranks: Ranks, workers: int, device: str) -> None:
        self.run, self.task, self.workers, self.device = run, task, workers, device
        self.shares = Shares(run, task, ranks)
        split = run.splits.train
        self._tensors = _to_device(split, device) if are_tensors(split) else None
        self._loaded: Iterator[Batch] = iter(())
        self._next_step = -1

    def at(self, step: int) -> Iterator[tuple[Batch, float]]:
        """Yield the micro-batches of a step with their weights."""
        shares = self.shares.of_step(step)
        if self._tensors is not None:
            for share in shares:
                yield tuple(x[share.indices] for x in self._tensors), share.weight
            return
        if step != self._next_step:
            items = _Keyed(self.run.splits.train, self.run.spec.seed, "augmentation")
            make_keys = functools.partial(self.shares.keys, step)
            self._loaded = _load(items, make_keys, self.task, self.workers, self.device)
        self._next_step = step + 1
        for share in shares:
            yield _to_device(next(self._loaded), self.device), share.weight


def evaluation_batches(
    split: Split, run: Run, task: Task, ranks: Ranks, workers: int, device: str
) -> Iterator[tuple[int, bool, Batch]]:
    """This rank's batches of a split: (number, counts, batch).

    Each rank has as many as the others, since sharded models run in step: one that has none left
    repeats the last batch, which then does not count.
    """
    count, size = length(split), task.evaluation_batch
    spans = [range(start, min(start + size, count)) for start in range(0, count, size)]
    numbers = range(ranks.rank, -(-len(spans) // ranks.world) * ranks.world, ranks.world)
    indices = [min(number, len(spans) - 1) for number in numbers]
    if are_tensors(split):
        # A copy: the split stays as it is where a model changes its inputs in place.
        batches: Iterator[Batch] = (
            tuple(x[spans[k].start : spans[k].stop].to(device, copy=True) for x in split)
            for k in indices
        )
    else:
        keys = [[(0, index) for index in spans[k]] for k in indices]
        items = _Keyed(split, run.spec.seed, "evaluation item")
        loaded = _load(items, lambda: keys, task, workers, device)
        batches = (_to_device(batch, device) for batch in loaded)
    for number, place, batch in zip(numbers, indices, batches, strict=True):
        yield place, number == place, batch


class _Keyed:
    """The items of a data set by key, each with random states of its own."""

    def __init__(self, items: Any, seed: int, name: str) -> None:
        self.items, self.seed, self.name = items, seed, name

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: Key) -> Any:
        seed_everything(stream(self.seed, self.name, *key))
        return self.items[key[1]]


START_TIMEOUT_S = 30.0
"""Time after which a worker that has not begun is given up."""
MAX_STARTS = 4


def _load(
    items: _Keyed,
    make_keys: Callable[[], Iterable[list[Key]]],
    task: Task,
    workers: int,
    device: str,
) -> Iterator[Batch]:
    """Return an iterator over the batches of a data set, whose workers have begun.

    A worker is forked from a process with threads, such as those of gloo. Rarely it inherits a lock
    that one of them held, and waits for it for ever, so one that does not begin is forked anew.

    Raises:
        RuntimeError: no attempt has started all workers.
    """
    from torch.utils.data import DataLoader

    # Fork, where there is one: a process that was spawned would spawn its workers, too. Those
    # import torch anew at each evaluation: a run of 1.8 s took 31 s.
    has_fork = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if has_fork else None)
    for _ in range(MAX_STARTS):
        begun = context.Semaphore(0)
        earlier_children = set(multiprocessing.active_children())
        loader: DataLoader[Any] = DataLoader(
            items,  # type: ignore[arg-type]
            batch_sampler=make_keys(),
            num_workers=workers,
            multiprocessing_context=context if workers else None,
            collate_fn=task.collate,
            pin_memory=device.startswith("cuda"),
            worker_init_fn=functools.partial(_begin_worker, begun),
            generator=torch.Generator(),  # else the loader draws from the global random state
        )
        batches = iter(loader)
        if all(begun.acquire(timeout=START_TIMEOUT_S) for _ in range(workers)):
            return batches
        del batches, loader  # which no longer watches the workers then
        for worker in set(multiprocessing.active_children()) - earlier_children:
            worker.kill()
            worker.join()
    raise RuntimeError(
        f"a worker of the data loader did not begin within {START_TIMEOUT_S:g} s, in {MAX_STARTS} "
        "attempts; load the data without workers: --workers 0"
    )


def _begin_worker(begun: Any, _: int) -> None:
    die_with_parent()
    begun.release()


def _to_device(batch: Batch, device: str) -> Batch:
    def to(x: Any) -> Any:
        return x.to(device, non_blocking=True) if isinstance(x, Tensor) else x

    return tree_map(to, batch)
