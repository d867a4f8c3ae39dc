"""The path "dtensor": sharded weights in two processes, which take all cases together."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.fuzz.cases import draw_case
from tests.fuzz.compare import Outcome, outcome, raised
from tests.fuzz.paths import by_optimizer
from tests.sharded import world


def sharded_outcome(seed: int, number: int) -> list[str]:
    """The kind and the detail of a case, which all processes take; the first one judges it."""

    def place(x: torch.Tensor, weight: Any) -> torch.Tensor:
        return world.placed(x.contiguous(), weight.shard)

    def run(*of: Any) -> Any:
        moments = by_optimizer(*of, "auto", place, world.whole)
        return moments if dist.get_rank() == 0 else [{} for _ in moments]

    found = outcome("dtensor", draw_case("dtensor", seed, number), run)
    return [found.kind, found.detail]


def cases(seed: int, numbers: Sequence[int]) -> dict[str, Callable[[], list[str]]]:
    return {str(number): functools.partial(sharded_outcome, seed, number) for number in numbers}


def outcomes(seed: int, numbers: Sequence[int]) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = world.run(functools.partial(cases, seed, numbers), Path(folder))
        except Exception as error:  # a process died, or waits in vain for the other
            yield Outcome("dtensor", numbers[0], "different", raised(error))
        else:
            for number in numbers:
                yield Outcome("dtensor", number, *found[str(number)])
