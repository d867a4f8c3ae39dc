"""Texts for a language model: WikiText-103 by words, and source code by characters.

The tokens of a line are followed by `<eos>`. The vocabulary is that of the training text, from the
most frequent token to the rarest, after `<eos>`: as in the released code of Transformer-XL.

Source: S. Merity et al., *Pointer Sentinel Mixture Models*, 2016.
"""

from __future__ import annotations

import functools
import sysconfig
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.shared.layout import Layout

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"

LAYOUT = Layout(
    name="wikitext-103",
    title="WikiText-103",
    tree="""
wikitext-103/
  wiki.train.tokens
  wiki.valid.tokens
  wiki.test.tokens
""",
    paths=tuple(f"wiki.{part}.tokens" for part in PARTS),
    statistics={
        "vocabulary": (267_735, lambda folder: len(_vocabulary(_lines(folder, "train"), END))),
        "train tokens": (103_227_021, lambda folder: _length(folder, "train")),
        "valid tokens": (217_646, lambda folder: _length(folder, "valid")),
        "test tokens": (245_569, lambda folder: _length(folder, "test")),
    },
    source="Merity et al. 2016: wikitext-103-v1.zip, the version with words as tokens",
)

MODULES = {
    "train": ("argparse", "shutil", "threading"),
    "valid": ("tarfile",),
    "test": ("subprocess",),
}
"""Modules of Python's standard library that are one file in every version since 3.10."""

LENGTHS = {"train": 20_000, "valid": 8_000, "test": 8_000}
"""Tokens of each module that are read."""


def windows(tokens: Tensor, memory: int, length: int, *, complete: bool) -> Tensor:
    """The segments of a text, each after the tokens that precede it; shape (segments, size).

    A window is `memory` tokens, the `length` that are scored from them on, and one more, the target
    of the last. What precedes the text is filled with its end-of-line token. It is a view: a token
    is in memory once.

    Args:
        tokens: of the text, shape (count,).
        complete: leave out a last segment that is shorter; else it ends with -1.

    Raises:
        ValueError: the text is too short for one segment.
    """
    targets = len(tokens) - 1  # nothing predicts the first token
    count = targets // length if complete else -(-targets // length)
    if count < 1:
        raise ValueError(f"segments of {length} need a longer text, got {len(tokens)} tokens")
    padded = F.pad(F.pad(tokens, (memory, 0)), (0, max(0, count * length - targets)), value=-1)
    return padded.unfold(0, memory + length + 1, length)[:count]


def _vocabulary(lines: Iterable[Sequence[str]], *special: str) -> dict[str, int]:
    """The number of each word: first the special ones, then from the most frequent to the rarest.

    Words that are equally frequent keep the order in which they first appear.
    """
    counts = Counter(chain.from_iterable(lines))
    words = [*special, *(word for word, _ in counts.most_common() if word not in special)]
    return {word: number for number, word in enumerate(words)}


def _encoded(lines: Iterable[Sequence[str]], numbers: Mapping[str, int]) -> Tensor:
    """The tokens of the lines, each followed by `<eos>`; int32."""
    tokens, unknown = array("i"), numbers.get(UNKNOWN)
    for line in lines:
        for word in (*line, END):
            number = numbers.get(word, unknown)
            if number is None:
                raise ValueError(f"the word {word!r} is not in the vocabulary, nor is {UNKNOWN}")
            tokens.append(number)
    return torch.frombuffer(tokens, dtype=torch.int32).clone()


@LAYOUT.reader
def corpus(folder: Path) -> tuple[int, Mapping[str, Tensor]]:
    """The size of the vocabulary of WikiText-103, and the tokens of each part.

    Raises:
        ValueError: no folder was given, it has another layout, or a word of validation or test is
            not in the training text, which has no `<unk>`.
    """
    numbers = _vocabulary(_lines(folder, "train"), END)
    return len(numbers), {part: _encoded(_lines(folder, part), numbers) for part in PARTS}


@functools.cache
def source_corpus() -> tuple[int, Mapping[str, Tensor]]:
    """The same of Python's standard library, where a token is a character.

    The text depends on the version of Python, and so does the fingerprint of the data.
    """
    numbers = _vocabulary(chain.from_iterable(map(_source, MODULES["train"])), END, UNKNOWN)
    return len(numbers), {
        part: torch.cat([_encoded(_source(each), numbers)[: LENGTHS[part]] for each in own]).long()
        for part, own in MODULES.items()
    }


def _source(module: str) -> list[str]:
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    return path.read_text(encoding="utf-8").splitlines()


def _lines(folder: Path, part: str) -> Iterator[list[str]]:
    with (folder / f"wiki.{part}.tokens").open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.split()


def _length(folder: Path, part: str) -> int:
    """The tokens of a part, with the ends of its lines."""
    return sum(len(line) + 1 for line in _lines(folder, part))
