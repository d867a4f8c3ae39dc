"""A byte-level language model of two layers on the source of Python's standard library."""

from __future__ import annotations

import functools
import math
import os
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task

VOCABULARY = 128
"""Bytes of ASCII; a larger byte counts as the last one, which no source has."""

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
"""Folders that are installed later, or that some distributions leave out."""

PARTS = ("train", "validation", "test")

IN_TURN = ("train",) * 8 + ("validation", "test")
"""The part of each file, in alphabetical order of their paths, over and over again."""

SCORED = 192
"""Windows of validation, and of test."""

LAYERS, CONTEXT = 2, 64
"""Blocks of the network, and bytes that it reads."""

HEAD = 16
"""Entries of a head: wider networks have more heads."""

AUDITED = 4
"""Windows of the audit's batch."""


@functools.cache
def source_text(part: str) -> Tensor:
    """The files of a part, one behind the other: bytes below 128, of shape (count,).

    Args:
        part: one of `PARTS`.
    """
    paths: list[Path] = []
    for folder, inner, names in os.walk(sysconfig.get_path("stdlib")):
        inner[:] = set(inner) - LEFT_OUT
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    part_paths = [path for k, path in enumerate(sorted(paths)) if IN_TURN[k % len(IN_TURN)] == part]
    joined = np.frombuffer(b"".join(path.read_bytes() for path in part_paths), np.uint8)
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
    used_windows, parts = set[bytes](), list[tuple[Tensor, Tensor]]()
    for part, count in zip(PARTS, (train, scored, scored), strict=True):
        text, windows = source_text(part), list[Tensor]()
        available, last = (len(text) - 1) // context, len(text) - context - 1
        if count > available:
            lack = f"the standard library has {available} windows of {context} bytes for {part}"
            raise ValueError(f"{lack}, got {count}")
        for place in range(count):
            start = place * available // count * context
            while (
                window := text[start : start + context].numpy().tobytes()
            ) in used_windows and start < last:
                start += 1
            used_windows.add(window)
            windows.append(text[start : start + context + 1])
        stacked = torch.stack(windows)
        parts.append((stacked[:, :-1].contiguous(), stacked[:, 1:].contiguous()))
    return Splits(*parts)


@dataclass(frozen=True)
class ByteModel(Task):
    """The next byte of Python source, by a transformer with normalized queries and keys.

    Each training window is read once. The matrices of the blocks are the hidden weights; those of
    embedding, places and head are the rest.

    Attributes:
        width: of the residual stream, a multiple of 16: heads have 16 entries each.
        windows: training windows, of 64 bytes each.
        uniform_loss: of a uniform model in nats per byte, as every model is before its first step.
    """

    width: int = 32
    windows: int = 3200

    name = "bytes"
    metric = "minus loss (nats)"
    better = "higher"
    uniform_loss = math.log(VOCABULARY)
    evaluation_batch = 64
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 8),
        "small": Budget(1, 8),
        "full": Budget(1, 32),
    }

    def data(self) -> Splits:
        return source_windows(self.windows, SCORED, CONTEXT)

    def model(self) -> nn.Module:
        return ByteTransformer(self.width)

    def hidden_weight_names(self, model: nn.Module) -> Sequence[str]:
        return [name for name, _ in model.named_parameters() if name.startswith("blocks.")]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.long().flatten())

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        inputs, targets = batch
        losses = F.cross_entropy(model(inputs).mT, targets.long(), reduction="none")
        return {"minus loss": Mean(-losses), "bits per byte": Mean(losses / math.log(2))}

    def audit_inputs(self) -> tuple[Any, ...]:
        return tuple(self.first_batch(self.data().train, AUDITED)[:1])


class ByteTransformer(nn.Module):
    """Pre-norm blocks without biases or gains; the head starts at 0, as a uniform model.

    It has 24 width² + 320 width parameters.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next bytes, shape (windows, context, 128).

        Args:
            tokens: bytes, shape (windows, context).
        """
        x = self.bytes(tokens.long()) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(_normalized(x))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """x + attention(x / rms(x)), then the same with a layer of squared ReLUs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (_matrix(width, width) for _ in range(3))
        self.attended = _matrix(width, width, LAYERS)
        self.inner = _matrix(width, 4 * width)
        self.outer = _matrix(4 * width, width, LAYERS)

    def forward(self, x: Tensor) -> Tensor:
        y = _normalized(x)
        query, key, value = (
            project(y).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        heads = F.scaled_dot_product_attention(
            _normalized(query), _normalized(key), value, is_causal=True
        )
        x = x + self.attended(heads.transpose(1, 2).flatten(2))
        return x + self.outer(self.inner(_normalized(x)).relu().square())  # type: ignore[no-any-return]


def _matrix(inputs: int, outputs: int, layers: int | None = None) -> nn.Linear:
    """A matrix with entries of standard deviation 1 / sqrt(inputs).

    Args:
        layers: of a matrix that writes to the residual stream: divides by sqrt(2 layers), too.
    """
    matrix = nn.Linear(inputs, outputs, bias=False)
    deviation = 1 / math.sqrt(inputs * (1 if layers is None else 2 * layers))
    nn.init.normal_(matrix.weight, std=deviation)
    return matrix


def _normalized(x: Tensor) -> Tensor:
    """x / rms(x) along the last dimension."""
    return F.rms_norm(x, x.shape[-1:])
