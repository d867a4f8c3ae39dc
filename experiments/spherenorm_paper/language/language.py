"""Language modelling: Transformer-XL on WikiText-103, or a small one on the library's source.

Tokens are words, or characters of source code; those of a line are followed by `<eos>`. The
vocabulary is that of the training text, from the most frequent token to the rarest, after `<eos>`:
as in the released code of Transformer-XL.

Source: S. Merity et al., *Pointer Sentinel Mixture Models*, 2016.
"""

from __future__ import annotations

import functools
import math
import sysconfig
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_paper.language.transformer_xl import TransformerXL
from spherenorm_paper.shared.facts import layout

PARTS = ("train", "valid", "test")
END, UNKNOWN = "<eos>", "<unk>"

Corpus = tuple[int, Mapping[str, Tensor]]
"""The size of the vocabulary, and the tokens of each part."""


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
    words = dict.fromkeys([*special, *(word for word, _ in counts.most_common())])
    return {word: number for number, word in enumerate(words)}


def _encoded(lines: Iterable[Sequence[str]], number: Callable[[str], int]) -> Tensor:
    """The tokens of the lines, each followed by `<eos>`; int32."""
    tokens = array("i", (number(word) for line in lines for word in (*line, END)))
    return torch.frombuffer(tokens, dtype=torch.int32).clone()


def _lines(folder: Path, part: str) -> Iterator[list[str]]:
    with (folder / f"wiki.{part}.tokens").open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.split()


LAYOUT = layout("wikitext-103")


@LAYOUT.reader
def corpus(folder: Path) -> Corpus:
    """WikiText-103.

    Raises:
        ValueError: no folder was given, or it has another layout.
        KeyError: a word of validation or test is not in the training text.
    """
    numbers = _vocabulary(_lines(folder, "train"), END)
    parts = {part: _encoded(_lines(folder, part), numbers.__getitem__) for part in PARTS}
    return len(numbers), parts


LIBRARY = {
    "train": (("argparse", "shutil", "threading"), 20_000),
    "valid": (("tarfile",), 8_000),
    "test": (("subprocess",), 8_000),
}
"""Modules of Python's standard library that are one file in every version since 3.11, and how many
tokens of each are read."""


@functools.cache
def source_corpus() -> Corpus:
    """The source of Python's standard library, where a token is a character.

    The text depends on the version of Python, and so does the fingerprint of the data.
    """
    numbers = _vocabulary(chain.from_iterable(map(_source, LIBRARY["train"][0])), END, UNKNOWN)

    def number(character: str) -> int:
        return numbers.get(character, numbers[UNKNOWN])

    return len(numbers), {
        part: torch.cat([_encoded(_source(module), number)[:length] for module in modules]).long()
        for part, (modules, length) in LIBRARY.items()
    }


def _source(module: str) -> list[str]:
    path = Path(sysconfig.get_path("stdlib")) / f"{module}.py"
    return path.read_text(encoding="utf-8").splitlines()


CUTOFFS = {"wikitext-103": (20_000, 40_000, 200_000), "library": (16, 40)}
"""The first token of each cluster of the adaptive softmax; those within the vocabulary hold."""


@dataclass(frozen=True)
class Language(Task):
    """The next token of a text; scored by minus the perplexity.

    An item is a segment of text with the tokens before it, which are its context. Segments come in
    random order, or with `recurrent` as in the original: each row of a batch goes on where it was
    in the batch before, with the hidden states of that step as its memory. (In one process, of one
    micro-batch; several read the context anew.) Every token of the validation and the test text but
    the first is scored once, after `memory` tokens of context.

    Attributes:
        data_set: the standard library's source, by characters, or WikiText-103, by words.
        layers, width, heads, inner, dropout, weight_norm: of the network.
        segment: tokens that are predicted at once.
        memory: tokens before them.
        recurrent: train on the text in its order, with hidden states from step to step.
    """

    data_set: Literal["library", "wikitext-103"] = "library"
    layers: int = 2
    width: int = 64
    heads: int = 4
    inner: int = 128
    dropout: float = 0.0
    weight_norm: bool = False
    segment: int = 48
    memory: int = 32
    recurrent: bool = False

    name = "language"
    metric = "minus perplexity"
    better = "higher"
    evaluation_batch = 64
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 512),
        "small": Budget(2, 16),
        "full": Budget(17, 60),
    }

    def data(self) -> Splits:
        texts = self._corpus[1]
        return Splits(*(
            (windows(texts[part], self.memory, self.segment, complete=part == "train"),)
            for part in PARTS
        ))  # fmt: skip

    def model(self) -> nn.Module:
        count, _ = self._corpus
        # A checkpoint would not hold the memories of several processes.
        is_single_process = not (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        )
        return TransformerXL(
            count,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            cutoffs=[cutoff for cutoff in CUTOFFS[self.data_set] if cutoff < count],
            memory=self.memory,
            recurrent=self.recurrent and is_single_process,
            dropout=self.dropout,
            weight_norm=self.weight_norm,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch[0]).mean()  # type: ignore[no-any-return]

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        losses = model(batch[0])[batch[0][:, self.memory + 1 :] >= 0]
        return {
            "minus perplexity": Mean(losses, then=lambda mean: -_perplexity(mean)),
            "perplexity": Mean(losses, then=_perplexity),
            "bits per token": Mean(losses / math.log(2)),
        }

    def order(self, count: int, batch_size: int, random: torch.Generator) -> Tensor:
        if not self.recurrent:
            return super().order(count, batch_size, random)
        steps = count // batch_size  # what is left is one smaller batch
        rows = torch.arange(batch_size * steps).view(batch_size, steps)
        return torch.cat([rows.T.flatten(), torch.arange(batch_size * steps, count)])

    def audit_inputs(self) -> tuple[Any, ...]:
        return tuple(self.first_batch(self.data().train, 4))

    @property
    def _corpus(self) -> Corpus:
        return corpus() if self.data_set == "wikitext-103" else source_corpus()


def _perplexity(mean: float) -> float:
    return math.exp(min(mean, 700.0))  # float64 ends at exp(709)
