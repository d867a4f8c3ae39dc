"""The metrics of a model on a split, over batches and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from spherenorm_experiments.core import Split, Statistic, Task, seed_everything, stream
from spherenorm_experiments.engine._loader import evaluation_batches
from spherenorm_experiments.engine._ranks import Ranks
from spherenorm_experiments.engine._run import Run


def evaluate(
    run: Run, task: Task, model: nn.Module, split: Split, ranks: Ranks, workers: int, device: str
) -> dict[str, float]:
    """The task's metrics on a split; equal for any number of ranks.

    The shares of all batches meet in the order of the data.

    Raises:
        ValueError: `evaluate` returns no metrics, or others for one batch than for another, or the
            split is empty.
    """
    shares: dict[str, Statistic] = {}
    states: dict[int, dict[str, object]] = {}
    batches = evaluation_batches(split, run, task, ranks, workers, device)
    for number, counts, batch in batches:
        seed_everything(stream(run.spec.seed, "evaluation", number), device)
        with torch.no_grad():
            before, shares = shares, dict(task.evaluate(model, batch))
        if before and list(before) != list(shares):  # the first is the score
            each = f"{list(before)} of one batch and {list(shares)} of another"
            raise ValueError(f"task {run.spec.task!r}: the metrics are {each}; give all of each")
        if counts:
            states[number] = {name: share.state for name, share in shares.items()}
    if not shares:
        raise ValueError(f"task {run.spec.task!r}: no metrics, or no items to evaluate")
    merged = {number: state for part in ranks.gather(states) for number, state in part.items()}
    ordered = [merged[number] for number in sorted(merged)]
    return {name: share.value([state[name] for state in ordered]) for name, share in shares.items()}


@contextmanager
def watched_outputs(model: nn.Module) -> Iterator[list[bool]]:
    """Note of each call of the model if all that it returns is finite.

    Minus infinity counts as finite, unless there is nothing else: a mask fills logits with it.
    """
    found: list[bool] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        tensors = [
            x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()
        ]
        found.append(all(_is_finite(x) for x in tensors))

    handle = model.register_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def _is_finite(x: Tensor) -> bool:
    finite = x.isfinite()
    return bool((finite | x.isneginf()).all()) and (not x.numel() or bool(finite.any()))
