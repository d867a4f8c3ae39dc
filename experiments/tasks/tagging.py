"""Music tagging on synthetic clips, in place of MagnaTagATune with a Harmonic CNN.

A clip is a note of 0.25 s at 8 kHz: its pitch, timbre and envelope are the tags, its phase,
loudness and noise are not. The input of the network is that of the Harmonic CNN: the magnitudes at
the multiples 1 to 4 of each base frequency, as channels.

Source: M. Won et al., *Data-driven Harmonic Filters for Audio Representation Learning*, 2020.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.core import Batch, Budget, Collected, Splits, Statistic, Task

__all__ = ["Tagging"]

RATE, SAMPLES, FRAMES = 8000, 2048, 8
HARMONICS, BASES = 4, 32
TAGS = (
    *("low", "middle", "high", "bright", "hollow", "pure"),
    *("plucked", "swelling", "vibrato", "noisy"),
)


@dataclass(frozen=True)
class Tagging(Task):
    """Ten tags of a clip, any number of which hold; scored by ROC-AUC, the mean over tags."""

    width: int = 16

    name = "tagging"
    metric = "ROC-AUC (%)"
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 256),
        "small": Budget(10, 64),
        "full": Budget(100, 64),
    }

    def data(self) -> Splits:
        return _clips()

    def model(self) -> nn.Module:
        widths = (HARMONICS, self.width, 2 * self.width, 2 * self.width)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        head = nn.Linear(widths[-1], len(TAGS))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        spectra, tags = batch
        return binary_cross_entropy_with_logits(model(spectra), tags)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        spectra, tags = batch
        return {"ROC-AUC": Collected(_roc_auc, tags, model(spectra))}


def _roc_auc(tags: Tensor, scores: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    return 100 * float(roc_auc_score(tags.numpy(), scores.float().numpy(), average="macro"))


@functools.cache
def _clips() -> Splits:
    spectra, tags = _synthesize(1600, torch.Generator().manual_seed(20210503))
    train, validation = slice(0, 1024), slice(1024, 1312)
    spectra = (spectra - spectra[train].mean()) / spectra[train].std()
    return Splits(*((spectra[part], tags[part]) for part in (train, validation, slice(1312, 1600))))


@dataclass(frozen=True)
class _Draw:
    """Random columns of shape (count, 1)."""

    count: int
    random: torch.Generator

    def uniform(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, 1, generator=self.random)

    def flag(self, probability: float) -> Tensor:
        return (torch.rand(self.count, 1, generator=self.random) < probability).float()


def _synthesize(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw clips and their tags.

    Returns:
        Harmonic spectra of shape (count, harmonics, base frequencies, frames), and tags of shape
        (count, tags).
    """
    draw = _Draw(count, random)
    octave = draw.uniform(0, 3)
    bright, hollow, vibrato, noisy = (draw.flag(share) for share in (0.4, 0.4, 0.4, 0.3))
    pure = draw.flag(0.2) * (1 - bright) * (1 - hollow)
    envelope = torch.randint(3, (count, 1), generator=random)  # sustained, plucked, swelling
    wave = _note(draw, 110 * 2**octave, bright, hollow, pure, vibrato) * _shape(envelope)
    wave = wave * draw.uniform(0.3, 1.0)
    wave = wave + (0.05 + 0.3 * noisy) * torch.randn(count, SAMPLES, generator=random)
    thirds = [octave < 1, (octave >= 1) & (octave < 2), octave >= 2]
    flags = [*thirds, bright, hollow, pure, envelope == 1, envelope == 2, vibrato, noisy]
    return _harmonic_spectra(wave), torch.cat([flag.float() for flag in flags], dim=1)


def _note(
    draw: _Draw, pitch: Tensor, bright: Tensor, hollow: Tensor, pure: Tensor, vibrato: Tensor
) -> Tensor:
    """The harmonics 1 to 8 of a pitch in Hz, with random phases; shape (count, SAMPLES)."""
    time = torch.arange(SAMPLES) / RATE
    wobble = vibrato * 0.03 * torch.sin(2 * math.pi * 18 * time)
    phase = 2 * math.pi * pitch * torch.cumsum(1 + wobble, dim=1) / RATE
    wave = torch.zeros(draw.count, SAMPLES)
    for h in range(1, 9):
        falling = h ** -(2.0 - 1.2 * bright)
        present = (1 - pure if h > 1 else 1.0) * (1 - hollow if h % 2 == 0 else 1.0)
        audible = (h * pitch < RATE / 2).float()
        start = draw.uniform(0, 2 * math.pi)
        wave += falling * present * audible * torch.sin(h * phase + start)
    return wave


def _shape(envelope: Tensor) -> Tensor:
    """The loudness over time: constant (0), decaying (1) or rising (2)."""
    rise = torch.arange(SAMPLES) / RATE
    rise = rise / rise[-1]
    others = torch.where(envelope == 2, rise, torch.ones(()))
    return torch.where(envelope == 1, torch.exp(-8 * rise), others)


def _harmonic_spectra(wave: Tensor) -> Tensor:
    """log(1 + magnitude) at h f, h = 1 .. 4, for base frequencies f from 100 to 1000 Hz."""
    window = 512
    spectrum = torch.stft(
        wave, window, SAMPLES // FRAMES, window=torch.hann_window(window), return_complex=True
    ).abs()[..., :FRAMES]
    base = 100 * 10 ** (torch.arange(BASES) / (BASES - 1))
    frequencies = torch.arange(1, HARMONICS + 1)[:, None] * base
    bins = (frequencies * window / RATE).round().long().clamp(max=window // 2)
    return torch.log1p(spectrum[:, bins])
