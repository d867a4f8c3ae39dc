"""The data of the small network, divided anew by each seed, and CutMix."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import Splits, Task, generator
from spherenorm_experiments.paper.shared.clips import spectra
from spherenorm_experiments.paper.shared.digits import Digits

__all__ = ["TRAIN", "VALIDATION", "cutmix", "pool_of", "source_of", "split_of"]

TRAIN, VALIDATION = 1024, 256


class _Spectra(Task):
    """The clips of music as fixed harmonic spectra."""

    def data(self) -> Splits:
        return spectra()


def source_of(data: str) -> Task:
    """The task whose data these are."""
    return Digits() if data == "digits" else _Spectra()


@functools.lru_cache(maxsize=64)
def split_of(data: str, seed: int) -> tuple[Tensor, ...]:
    """Inputs and targets of training, validation and test set, from a stream of the seed's own."""
    inputs, targets = pool_of(data)
    order = torch.randperm(len(inputs), generator=generator(seed, "split"))
    parts = torch.split(order, [TRAIN, VALIDATION, len(order) - TRAIN - VALIDATION])
    return tuple(tensor[part] for part in parts for tensor in (inputs, targets))


@functools.cache
def pool_of(data: str) -> tuple[Tensor, Tensor]:
    """All inputs, flat, and targets; spectra as their means over time."""
    splits = source_of(data).data()
    x, y = (torch.cat([part[i] for part in splits]) for i in (0, 1))
    if data == "digits":
        return x.flatten(1).double(), F.one_hot(y, 10).double()
    return x.mean(dim=-1).flatten(1).double(), y.double()


def cutmix(x: Tensor, y: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Paste one rectangle, the same for the whole batch (Yun et al. 2019)."""
    partner = torch.randperm(len(x), generator=random)
    half = int(4 * torch.rand((), generator=random).item() ** 0.5)
    row, column = (int(v) for v in torch.randint(8, (2,), generator=random))
    images, mask = x.reshape(-1, 8, 8).clone(), torch.zeros(8, 8, dtype=torch.bool)
    mask[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = True
    images[:, mask] = x.reshape(-1, 8, 8)[partner][:, mask]
    share = mask.double().mean()
    return images.flatten(1), (1 - share) * y + share * y[partner]
