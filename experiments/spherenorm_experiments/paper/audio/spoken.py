"""Synthetic keywords by many speakers, in place of Speech Commands.

A word is a sequence of four phonemes. A vowel or nasal is a tone of the speaker's pitch whose
harmonics are as loud as its three formants make them, a fricative is noise. Words are the same
phonemes in different orders; speakers differ in pitch, length of the vocal tract, pace, hoarseness.

Source of the formants: G. Peterson and H. Barney, *Control Methods Used in a Study of the Vowels*,
1952 (means of men).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.synthesis import RATE, Draw, divided
from spherenorm_experiments.task import Splits

WORDS = (
    *("sami", "masi", "misa", "sima", "samu", "musa"),
    *("noli", "nilo", "loni", "lino", "nolu", "luno"),
)
SPEAKERS = (50, 15, 25)
"""Of the training, validation and test set; nobody is in two of them."""

SAMPLES, FRAME = 4096, 64
HARMONICS = 24

FORMANTS = {
    "i": (270.0, 2290.0, 3010.0),
    "a": (730.0, 1090.0, 2440.0),
    "o": (570.0, 840.0, 2410.0),
    "u": (300.0, 870.0, 2240.0),
    "m": (250.0, 1100.0, 2300.0),
    "n": (250.0, 1600.0, 2600.0),
    "l": (360.0, 1300.0, 2700.0),
    "s": (270.0, 1800.0, 2600.0),
}
"""In Hz, of each phoneme."""
VOICE = {"m": 0.35, "n": 0.35, "l": 0.5, "s": 0.0}
"""The loudness of what is not a vowel; the fricative is noise instead."""
WIDTHS = (90.0, 120.0, 180.0)
"""Half widths of the formants, in Hz."""


@functools.cache
def spoken_words() -> Splits:
    """The splits, each of waves of shape (clips, 4096), 0.5 s at 8 kHz, and places in `WORDS`."""
    random = torch.Generator().manual_seed(20180409)
    people = sum(SPEAKERS)
    draw = Draw(people, random)
    tract = draw.ratio(0.85, 1.2)  # longer ones have lower formants, and lower voices
    pitch = 150 * draw.ratio(0.75, 1.33) / tract**2
    manner = torch.cat([pitch, tract, draw.ratio(0.8, 1.3), draw.uniform(0.0, 0.15)], dim=1)
    each = len(WORDS)
    said = torch.arange(each)
    # One speaker at a time, so that the waves stay in cache.
    waves = torch.cat([_spoken(said, own.expand(each, -1), random) for own in manner])
    return divided(waves, said.repeat(people), SPEAKERS[0] * each, SPEAKERS[1] * each)


def _spoken(words: Tensor, manner: Tensor, random: torch.Generator) -> Tensor:
    """Each word by a speaker of this pitch, tract, pace and hoarseness."""
    pitch, tract, pace, hoarse = manner.T[..., None]
    draw = Draw(len(words), random)
    shares = _shares(draw, pace)
    spelled = [[FORMANTS[phoneme] for phoneme in word] for word in WORDS]
    formants = torch.einsum("npt,npf->nft", shares, torch.tensor(spelled)[words]) / tract[..., None]
    voices = torch.tensor([[VOICE.get(phoneme, 1.0) for phoneme in word] for word in WORDS])
    voice = torch.einsum("npt,np->nt", shares, voices[words])
    hisses = torch.tensor([[float(phoneme == "s") for phoneme in word] for word in WORDS])
    hiss = torch.einsum("npt,np->nt", shares, hisses[words])
    tone = _tone(draw, pitch, formants, voice)
    noise = draw.noise(SAMPLES)
    sharp = noise - noise.roll(1, dims=1)  # rises with frequency
    wave = tone + hoarse * _at_samples(voice) * noise + 0.4 * _at_samples(hiss) * sharp
    noisy: Tensor = draw.ratio(0.3, 1.0) * wave + draw.ratio(0.1, 0.6) * draw.noise(SAMPLES)
    return noisy


def _shares(draw: Draw, pace: Tensor) -> Tensor:
    """The share of each phoneme in each frame, of shape (clips, phonemes, frames).

    Phonemes of about 0.1 s follow each other from a random start, with soft borders.
    """
    length = 0.1 * torch.cat([draw.ratio(0.8, 1.25) for _ in WORDS[0]], dim=1) / pace
    whole = length.sum(dim=1, keepdim=True)
    start = (SAMPLES / RATE - whole).clamp(min=0) * draw.uniform(0, 1)
    ends = start + length.cumsum(dim=1)
    borders = torch.cat([start, ends], dim=1)[..., None]
    time = torch.arange(SAMPLES // FRAME + 1) * FRAME / RATE
    begun = torch.sigmoid((time - borders) / 0.008)
    return begun[:, :-1] - begun[:, 1:]


def _tone(draw: Draw, pitch: Tensor, formants: Tensor, voice: Tensor) -> Tensor:
    """The harmonics of a falling pitch, as loud as the formants make them."""
    frames = torch.linspace(0, 1, formants.shape[-1])
    contour = pitch * (1 + draw.uniform(-0.05, 0.3) * (0.5 - frames))
    phase = 2 * math.pi * torch.cumsum(_at_samples(contour), dim=1) / RATE
    before, now, turn = torch.zeros_like(phase), phase.sin(), 2 * phase.cos()
    wave = torch.zeros_like(phase)
    for h in range(1, HARMONICS + 1):
        hz = h * contour
        peaks = (1 / (1 + ((hz - formants[:, k]) / WIDTHS[k]) ** 2) for k in range(3))
        loudness = sum(peaks, 0.02 * torch.ones_like(hz)) * voice * (hz < RATE / 2) / h**0.5
        wave += _at_samples(loudness) * now
        before, now = (
            now,
            turn * now - before,
        )  # sin((h + 1) x) = 2 cos(x) sin(h x) - sin((h - 1) x)
    return wave


def _at_samples(frames: Tensor) -> Tensor:
    """Linear interpolation from frames to samples."""
    between = torch.nn.functional.interpolate(
        frames[:, None], SAMPLES + 1, mode="linear", align_corners=True
    )
    return between[:, 0, :SAMPLES]
