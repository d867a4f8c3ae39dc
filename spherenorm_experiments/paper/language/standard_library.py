"""The source of some modules of Python's standard library, as text for a language model.

A token is a character, a line ends with `<eos>`. The text depends on the version of Python, and so
does the fingerprint of the data.
"""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from spherenorm_experiments.paper.language.wikitext import END, UNKNOWN, encode, vocabulary

__all__ = ["MODULES", "source_corpus"]

MODULES = {
    "train": ("argparse", "shutil", "threading"),
    "valid": ("tarfile",),
    "test": ("subprocess",),
}
"""Modules that are one file in every version of Python since 3.10."""


@functools.cache
def source_corpus(train: int, rest: int) -> tuple[int, Mapping[str, Tensor]]:
    """The size of the vocabulary, and the tokens of each part.

    Args:
        train: tokens of the training text, equally many of each module.
        rest: tokens of the validation and of the test text.

    Raises:
        ValueError: a module has fewer characters.
    """
    share = train // len(MODULES["train"])
    numbers = vocabulary(
        (line for module in MODULES["train"] for line in _lines(module)), (END, UNKNOWN)
    )

    def text(part: str, count: int) -> Tensor:
        tokens = [encode(_lines(module), numbers)[:count] for module in MODULES[part]]
        short = [m for m, x in zip(MODULES[part], tokens, strict=True) if len(x) < count]
        if short:
            raise ValueError(f"module {short[0]!r} has fewer than {count} characters")
        return torch.cat(tokens)

    counts = {"train": share, "valid": rest, "test": rest}
    return len(numbers), {part: text(part, count) for part, count in counts.items()}


def _lines(module: str) -> Iterator[str]:
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    yield from path.read_text(encoding="utf-8").splitlines()
