"""Streams of random numbers: each use of chance in a run has a key, and a seed of its own.

The order of the data has the key (seed, epoch), the augmentation of an item (seed, epoch, index),
the noise in the model (seed, step, micro-batch, rank). A resumed run only has to know its step.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
