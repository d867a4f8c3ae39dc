"""Synthetic sounds of a street, several at once over noise, in place of DCASE 2017's task 4.

A clip is 0.5 s at 8 kHz. Each sound in it starts and ends at random, at a random loudness over
background noise of a random colour; which sounds are in it is all that is known (weak labels).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from spherenorm_experiments.paper.shared.synthesis import RATE, Draw, divided, seconds
from spherenorm_experiments.task import Splits

COUNT, TRAIN, VALIDATION = 1280, 768, 192
SAMPLES = 4096
OTHERS = 0.18
"""The probability of each sound beside the one that every clip has."""


@functools.cache
def street_sounds() -> Splits:
    """The splits, each of waves of shape (clips, 4096) and sounds, 0.0 or 1.0, as in `SOUNDS`."""
    random = torch.Generator().manual_seed(20171116)
    draw = Draw(COUNT, random)
    heard = torch.cat([draw.flag(OTHERS) for _ in SOUNDS], dim=1)
    heard[torch.arange(COUNT), torch.randint(len(SOUNDS), (COUNT,), generator=random)] = 1.0
    waves = _background(draw)
    for k, sound in enumerate(SOUNDS.values()):
        having = heard[:, k].nonzero()[:, 0]
        own = Draw(len(having), random)
        wave = _loud(sound(own))
        waves[having] += own.ratio(0.5, 2.0) * _window(own) * wave
    return divided(waves, heard, TRAIN, VALIDATION)


def _background(draw: Draw) -> Tensor:
    """Noise whose amplitude falls with frequency as f ** -c, c between 0 and 1."""
    spectrum = torch.fft.rfft(draw.noise(SAMPLES))
    falling = torch.arange(1, spectrum.shape[1] + 1) ** -draw.uniform(0, 1)
    return _loud(torch.fft.irfft(spectrum * falling, SAMPLES))


def _loud(wave: Tensor) -> Tensor:
    """The wave with a mean power of 1."""
    power: Tensor = wave.square().mean(dim=1, keepdim=True)
    return wave / power.sqrt()


def _window(draw: Draw) -> Tensor:
    """1 from a random place on, for 0.15 to 0.4 s, with soft ends."""
    length = draw.uniform(0.15, 0.4)
    start = draw.uniform(0, 1) * (SAMPLES / RATE - length)
    time = seconds(SAMPLES)
    return torch.sigmoid((time - start) / 0.005) * torch.sigmoid((start + length - time) / 0.005)


def _turned(hz: Tensor) -> Tensor:
    """The phase of a frequency that varies over samples."""
    return 2 * math.pi * torch.cumsum(hz.expand(len(hz), SAMPLES), dim=1) / RATE


def _siren(draw: Draw) -> Tensor:
    """A tone that glides up and down."""
    glide = torch.sin(2 * math.pi * draw.uniform(3, 6) * seconds(SAMPLES) + draw.uniform(0, 6.28))
    phase = _turned(draw.ratio(700, 1100) * 2 ** (0.4 * glide))
    return phase.sin() + 0.4 * (2 * phase).sin()


def _two_tone(draw: Draw) -> Tensor:
    """Two tones in turn, a fourth apart."""
    turn = torch.sin(2 * math.pi * draw.uniform(5, 9) * seconds(SAMPLES) + draw.uniform(0, 6.28))
    phase = _turned(draw.ratio(500, 800) * torch.where(turn > 0, 4 / 3, 1.0))
    return phase.sin() + 0.3 * (3 * phase).sin()


def _horn(draw: Draw) -> Tensor:
    """Two steady tones with harmonics, a third apart."""
    low = draw.ratio(300, 500)
    phases = _turned(low), _turned(1.26 * low)
    return sum(((h * p).sin() / h for p in phases for h in range(1, 6)), torch.zeros(()))


def _beeps(draw: Draw) -> Tensor:
    """A high tone, on and off."""
    on = torch.sin(2 * math.pi * draw.uniform(8, 14) * seconds(SAMPLES) + draw.uniform(0, 6.28))
    return _turned(draw.ratio(1000, 1600)).sin() * (on > 0)


def _engine(draw: Draw) -> Tensor:
    """Low harmonics that throb."""
    phase = _turned(draw.ratio(60, 120) * (1 + draw.uniform(-0.3, 0.3) * seconds(SAMPLES)))
    wave = sum(((h * phase).sin() / h**0.5 for h in range(1, 9)), torch.zeros(()))
    return wave * (1 + 0.6 * (phase / 4).sin())


def _scream(draw: Draw) -> Tensor:
    """A rising voice with vibrato."""
    time = seconds(SAMPLES)
    vibrato = 0.04 * torch.sin(2 * math.pi * draw.uniform(15, 25) * time)
    phase = _turned(draw.ratio(600, 1000) * (1 + draw.uniform(0.1, 0.5) * time + vibrato))
    return sum(((h * phase).sin() * h**-0.3 for h in range(1, 4)), torch.zeros(()))


def _skid(draw: Draw) -> Tensor:
    """Noise in a narrow band."""
    spectrum = torch.fft.rfft(draw.noise(SAMPLES))
    hz = torch.linspace(0, RATE / 2, spectrum.shape[1])
    band = torch.exp(-(((hz - draw.ratio(1500, 3000)) / 150) ** 2))
    wave: Tensor = torch.fft.irfft(spectrum * band, SAMPLES)
    return wave


def _rattle(draw: Draw) -> Tensor:
    """Clicks at random times, each of 3 ms."""
    clicks = (draw.noise(SAMPLES).abs() > 2.9).float() * draw.noise(SAMPLES)
    decay = torch.exp(-seconds(SAMPLES) / 0.003) * draw.noise(SAMPLES)
    wave: Tensor = torch.fft.irfft(torch.fft.rfft(clicks) * torch.fft.rfft(decay), SAMPLES)
    return wave


SOUNDS: dict[str, Callable[[Draw], Tensor]] = {
    "siren": _siren,
    "two-tone horn": _two_tone,
    "horn": _horn,
    "beeps": _beeps,
    "engine": _engine,
    "scream": _scream,
    "skid": _skid,
    "rattle": _rattle,
}
"""The sound of each name, drawn for any number of clips."""
