"""Music tagging on synthetic clips: the stand-in for MagnaTagATune with a Harmonic CNN (Won et al. 2020).

A clip is a note of 0.25 s at 8 kHz: its pitch, timbre and envelope are the tags, its phase, loudness and noise are not.
The network sees what the Harmonic CNN sees: the magnitudes at the multiples 1 to 4 of each base frequency as channels.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.task import Budget, Split, Splits, Task

__all__ = ["Tagging"]

RATE, SAMPLES, FRAMES = 8000, 2048, 8
HARMONICS, BASES = 4, 32
TAGS = (
    "low",
    "middle",
    "high",
    "bright",
    "hollow",
    "pure",
    "plucked",
    "swelling",
    "vibrato",
    "noisy",
)


@dataclass(frozen=True)
class Tagging(Task):
    """Ten tags of a clip, any number of which hold; scored by ROC-AUC, the mean over tags."""

    width: int = 16

    name = "tagging"
    metric = "ROC-AUC (%)"
    tiers = {"smoke": Budget(1, 256), "small": Budget(10, 64), "full": Budget(100, 64)}  # noqa: RUF012

    def data(self) -> Splits:
        return _clips()

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in (
            (HARMONICS, self.width),
            (self.width, 2 * self.width),
            (2 * self.width, 2 * self.width),
        ):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * self.width, len(TAGS))
        )

    def loss(self, model: nn.Module, batch: Split) -> Tensor:
        spectra, tags = batch
        return binary_cross_entropy_with_logits(model(spectra), tags)

    def score(self, model: nn.Module, split: Split) -> float:
        from sklearn.metrics import roc_auc_score

        spectra, tags = split
        return 100 * float(
            roc_auc_score(tags.cpu().numpy(), model(spectra).cpu().numpy(), average="macro")
        )


@functools.cache
def _clips() -> Splits:
    spectra, tags = _synthesize(1600, torch.Generator().manual_seed(20210503))
    train, validation = slice(0, 1024), slice(1024, 1312)
    spectra = (spectra - spectra[train].mean()) / spectra[train].std()
    return Splits(*((spectra[part], tags[part]) for part in (train, validation, slice(1312, 1600))))


def _synthesize(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Harmonic spectra of shape (count, harmonics, base frequencies, frames), and tags of shape (count, tags)."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=random)

    def flag(probability: float) -> Tensor:
        return (torch.rand(count, 1, generator=random) < probability).float()

    time = torch.arange(SAMPLES) / RATE
    pitch = 110 * 2 ** uniform(0, 3)
    bright, hollow, vibrato, noisy = flag(0.4), flag(0.4), flag(0.4), flag(0.3)
    pure = flag(0.2) * (1 - bright) * (1 - hollow)
    envelope = torch.randint(3, (count, 1), generator=random)  # sustained, plucked, swelling
    wobble = vibrato * 0.03 * torch.sin(2 * math.pi * 18 * time)
    phase = 2 * math.pi * pitch * torch.cumsum(1 + wobble, dim=1) / RATE
    wave = torch.zeros(count, SAMPLES)
    for h in range(1, 9):
        falling = h ** -(2.0 - 1.2 * bright)
        present = (1 - pure if h > 1 else 1.0) * (1 - hollow if h % 2 == 0 else 1.0)
        audible = (h * pitch < RATE / 2).float()
        wave += falling * present * audible * torch.sin(h * phase + uniform(0, 2 * math.pi))
    rise = time / time[-1]
    shape = torch.where(
        envelope == 1, torch.exp(-8 * rise), torch.where(envelope == 2, rise, torch.ones(()))
    )
    wave = wave * shape * uniform(0.3, 1.0)
    wave = wave + (0.05 + 0.3 * noisy) * torch.randn(count, SAMPLES, generator=random)
    octave = torch.log2(pitch / 110)
    thirds = [(octave < 1).float(), ((octave >= 1) & (octave < 2)).float(), (octave >= 2).float()]
    tags = torch.cat(
        [
            *thirds,
            bright,
            hollow,
            pure,
            (envelope == 1).float(),
            (envelope == 2).float(),
            vibrato,
            noisy,
        ],
        dim=1,
    )
    return _harmonic_spectra(wave), tags


def _harmonic_spectra(wave: Tensor) -> Tensor:
    """log(1 + magnitude) at h f for the harmonics h = 1 .. 4 of base frequencies f from 100 to 1000 Hz."""
    window = 512
    spectrum = torch.stft(
        wave, window, SAMPLES // FRAMES, window=torch.hann_window(window), return_complex=True
    ).abs()[..., :FRAMES]
    base = 100 * 10 ** (torch.arange(BASES) / (BASES - 1))
    bins = (
        (torch.arange(1, HARMONICS + 1)[:, None] * base * window / RATE)
        .round()
        .long()
        .clamp(max=window // 2)
    )
    return torch.log1p(spectrum[:, bins])
