"""Synthetic sounds: random draws, time and splits, and clips in place of MagnaTagATune.

A clip is a note of 0.25 s at 8 kHz: its pitch, timbre and envelope are the tags, its phase,
loudness and noise are not.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm_experiments.task import Splits

RATE = 8000
"""Samples a second, of all synthetic sounds."""


@dataclass(frozen=True)
class Draw:
    """Random columns of shape (count, 1)."""

    count: int
    random: torch.Generator

    def uniform(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, 1, generator=self.random)

    def ratio(self, low: float, high: float) -> Tensor:
        """The logarithm is uniform."""
        return low * (high / low) ** self.uniform(0, 1)

    def flag(self, probability: float) -> Tensor:
        return (torch.rand(self.count, 1, generator=self.random) < probability).float()

    def noise(self, samples: int) -> Tensor:
        return torch.randn(self.count, samples, generator=self.random)


def seconds(samples: int) -> Tensor:
    """The time of each sample."""
    return torch.arange(samples) / RATE


def divided(inputs: Tensor, targets: Tensor, train: int, validation: int) -> Splits:
    """The first `train` items, the next `validation` ones, and the rest for the test."""
    sizes = [train, validation, len(inputs) - train - validation]
    parts = zip(torch.split(inputs, sizes), torch.split(targets, sizes), strict=True)
    return Splits(*parts)


COUNT, TRAIN, VALIDATION = 1600, 1024, 288
SAMPLES, WINDOW, FRAMES = 2048, 512, 8
TAGS = (
    *("low", "middle", "high", "bright", "hollow", "pure"),
    *("plucked", "swelling", "vibrato", "noisy"),
)


@functools.cache
def clips() -> Splits:
    """The splits, each of waves of shape (clips, 2048) and tags, 0.0 or 1.0."""
    return divided(*_drawn(), TRAIN, VALIDATION)


@functools.cache
def spectra() -> Splits:
    """Return the clips as fixed harmonic spectra of shape (clips, 4, 32, 8), standardized.

    They are log(1 + magnitude) at the multiples 1 to 4 of base frequencies from 100 to 1000 Hz.
    """
    waves, tags = _drawn()
    hann = torch.hann_window(WINDOW)
    spectrum = torch.stft(waves, WINDOW, SAMPLES // FRAMES, window=hann, return_complex=True)
    hz = torch.arange(1, 5)[:, None] * (100 * 10 ** (torch.arange(32) / 31))
    bins = (hz * WINDOW / RATE).round().long().clamp(max=WINDOW // 2)
    logarithms = torch.log1p(spectrum.abs()[..., :FRAMES][:, bins])
    mean, deviation = logarithms[:TRAIN].mean(), logarithms[:TRAIN].std()
    return divided((logarithms - mean) / deviation, tags, TRAIN, VALIDATION)


@functools.cache
def _drawn() -> tuple[Tensor, Tensor]:
    """Waves of shape (count, samples), and tags of shape (count, tags)."""
    random = torch.Generator().manual_seed(20210503)
    draw = Draw(COUNT, random)
    octave = draw.uniform(0, 3)
    bright, hollow, vibrato, noisy = (draw.flag(share) for share in (0.4, 0.4, 0.4, 0.3))
    pure = draw.flag(0.2) * (1 - bright) * (1 - hollow)
    envelope = torch.randint(3, (COUNT, 1), generator=random)  # sustained, plucked, swelling
    rise = seconds(SAMPLES) / seconds(SAMPLES)[-1]
    loudness = torch.where(envelope == 2, rise, torch.ones(()))
    loudness = torch.where(envelope == 1, torch.exp(-8 * rise), loudness)
    wave = _note(draw, 110 * 2**octave, bright, hollow, pure, vibrato) * loudness
    wave = wave * draw.uniform(0.3, 1.0)
    wave = wave + (0.05 + 0.3 * noisy) * draw.noise(SAMPLES)
    thirds = [octave < 1, (octave >= 1) & (octave < 2), octave >= 2]
    flags = [*thirds, bright, hollow, pure, envelope == 1, envelope == 2, vibrato, noisy]
    return wave, torch.cat([flag.float() for flag in flags], dim=1)


def _note(
    draw: Draw, pitch: Tensor, bright: Tensor, hollow: Tensor, pure: Tensor, vibrato: Tensor
) -> Tensor:
    """The harmonics 1 to 8 of a pitch in Hz, with random phases."""
    wobble = vibrato * 0.03 * torch.sin(2 * math.pi * 18 * seconds(SAMPLES))
    phase = 2 * math.pi * pitch * torch.cumsum(1 + wobble, dim=1) / RATE
    wave = torch.zeros(draw.count, SAMPLES)
    for h in range(1, 9):
        falling = h ** -(2.0 - 1.2 * bright)
        present = (1 - pure if h > 1 else 1.0) * (1 - hollow if h % 2 == 0 else 1.0)
        audible = (h * pitch < RATE / 2).float()
        start = draw.uniform(0, 2 * math.pi)
        wave += falling * present * audible * torch.sin(h * phase + start)
    return wave
