"""The source of Python's standard library as bytes, in files for training, validation and test."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spherenorm_experiments.task import Splits

VOCABULARY = 128
"""Bytes of ASCII; a larger byte counts as the last one, which no source has."""

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
"""Folders that are installed later, or that some distributions leave out."""

PARTS = ("train", "validation", "test")

IN_TURN = ("train",) * 8 + ("validation", "test")
"""The part of each file, in alphabetical order of their paths, over and over again."""


@functools.cache
def source_text(part: str) -> Tensor:
    """The files of a part, one behind the other: bytes below 128, of shape (count,).

    Args:
        part: one of `PARTS`.
    """
    found: list[Path] = []
    for folder, inner, names in os.walk(sysconfig.get_path("stdlib")):
        inner[:] = set(inner) - LEFT_OUT
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    own = [path for k, path in enumerate(sorted(found)) if IN_TURN[k % len(IN_TURN)] == part]
    joined = np.frombuffer(b"".join(path.read_bytes() for path in own), np.uint8)
    return torch.from_numpy(np.minimum(joined, VOCABULARY - 1))


@functools.lru_cache(maxsize=8)
def source_windows(train: int, scored: int, context: int) -> Splits:
    """Windows that are spread evenly over each part: what is read, and the byte after each.

    A window whose like is there already, in its part or in one before, begins a byte later, so that
    no line of a licence is in two of them.

    Args:
        train: windows to train on.
        scored: windows of validation, and of test.
        context: bytes of a window.

    Raises:
        ValueError: a part has fewer windows than are asked for.
    """
    seen: set[bytes] = set()
    return Splits(
        *(
            _windows(part, count, context, seen)
            for part, count in zip(PARTS, (train, scored, scored), strict=True)
        )
    )


def _windows(part: str, count: int, context: int, seen: set[bytes]) -> tuple[Tensor, Tensor]:
    text = source_text(part)
    available = (len(text) - 1) // context
    if count > available:
        lack = f"the standard library has {available} windows of {context} bytes for {part}"
        raise ValueError(f"{lack}, got {count}")
    found, last = [], len(text) - context - 1
    for place in range(count):
        start = place * available // count * context
        while (window := text[start : start + context].numpy().tobytes()) in seen and start < last:
            start += 1
        seen.add(window)
        found.append(text[start : start + context + 1])
    whole = torch.stack(found)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
