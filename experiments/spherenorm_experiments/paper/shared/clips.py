"""Synthetic clips of music with tags, in place of MagnaTagATune.

A clip is a note of 0.25 s at 8 kHz: its pitch, timbre and envelope are the tags, its phase,
loudness and noise are not.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.synthesis import RATE, Draw, divided, seconds
from spherenorm_experiments.task import Splits

COUNT, TRAIN, VALIDATION = 1600, 1024, 288
SAMPLES, FRAMES, WINDOW = 2048, 8, 512
HARMONICS, BASES = 4, 32
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
    """The same clips as fixed harmonic spectra of shape (clips, 4, 32, 8), standardized.

    They are log(1 + magnitude) at the multiples 1 to 4 of base frequencies from 100 to 1000 Hz.
    """
    waves, tags = _drawn()
    found = _harmonic_spectra(waves)
    mean, deviation = found[:TRAIN].mean(), found[:TRAIN].std()
    return divided((found - mean) / deviation, tags, TRAIN, VALIDATION)


@functools.cache
def _drawn() -> tuple[Tensor, Tensor]:
    return _synthesize(COUNT, torch.Generator().manual_seed(20210503))


def _synthesize(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw clips and their tags.

    Returns:
        Waves of shape (count, samples), and tags of shape (count, tags).
    """
    draw = Draw(count, random)
    octave = draw.uniform(0, 3)
    bright, hollow, vibrato, noisy = (draw.flag(share) for share in (0.4, 0.4, 0.4, 0.3))
    pure = draw.flag(0.2) * (1 - bright) * (1 - hollow)
    envelope = torch.randint(3, (count, 1), generator=random)  # sustained, plucked, swelling
    wave = _note(draw, 110 * 2**octave, bright, hollow, pure, vibrato) * _shape(envelope)
    wave = wave * draw.uniform(0.3, 1.0)
    wave = wave + (0.05 + 0.3 * noisy) * draw.noise(SAMPLES)
    thirds = [octave < 1, (octave >= 1) & (octave < 2), octave >= 2]
    flags = [*thirds, bright, hollow, pure, envelope == 1, envelope == 2, vibrato, noisy]
    return wave, torch.cat([flag.float() for flag in flags], dim=1)


def _note(
    draw: Draw, pitch: Tensor, bright: Tensor, hollow: Tensor, pure: Tensor, vibrato: Tensor
) -> Tensor:
    """The harmonics 1 to 8 of a pitch in Hz, with random phases; shape (count, SAMPLES)."""
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


def _shape(envelope: Tensor) -> Tensor:
    """The loudness over time: constant (0), decaying (1) or rising (2)."""
    rise = seconds(SAMPLES)
    rise = rise / rise[-1]
    others = torch.where(envelope == 2, rise, torch.ones(()))
    return torch.where(envelope == 1, torch.exp(-8 * rise), others)


def _harmonic_spectra(wave: Tensor) -> Tensor:
    """log(1 + magnitude) at h f, h = 1 .. 4, for base frequencies f from 100 to 1000 Hz."""
    hann = torch.hann_window(WINDOW)
    spectrum = torch.stft(wave, WINDOW, SAMPLES // FRAMES, window=hann, return_complex=True)
    base = 100 * 10 ** (torch.arange(BASES) / (BASES - 1))
    frequencies = torch.arange(1, HARMONICS + 1)[:, None] * base
    bins = (frequencies * WINDOW / RATE).round().long().clamp(max=WINDOW // 2)
    return torch.log1p(spectrum.abs()[..., :FRAMES][:, bins])
