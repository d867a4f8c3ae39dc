"""Synthetic sounds in place of Speech Commands and of DCASE 2017's task 4; 0.5 s at 8 kHz.

A word is four phonemes. A vowel or nasal is a tone of the speaker's pitch, whose harmonics are as
loud as its three formants make them; a fricative is noise. Words are the same phonemes in other
orders; speakers differ in pitch, length of the vocal tract, pace and hoarseness.

A clip of a street has several sounds over noise of a random colour. Each starts and ends at random;
which sounds are in it is all that is known (weak labels).

Source of the formants: G. Peterson and H. Barney, *Control Methods Used in a Study of the Vowels*,
1952 (means of men).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.task import Splits
from spherenorm_paper.shared.clips import RATE, Draw, divided, seconds

SAMPLES, FRAME, HARMONICS = 4096, 64, 24
TIME, HZ = seconds(SAMPLES), torch.linspace(0, RATE / 2, SAMPLES // 2 + 1)
"""Times of the samples, and frequencies of the entries of a spectrum."""

WORDS = (
    *("sami", "masi", "misa", "sima", "samu", "musa"),
    *("noli", "nilo", "loni", "lino", "nolu", "luno"),
)
SPEAKERS = (50, 15, 25)
"""Speakers of the training, validation and test set; nobody is in two of them."""

PHONEMES = {
    "i": (270.0, 2290.0, 3010.0, 1.0, 0.0),
    "a": (730.0, 1090.0, 2440.0, 1.0, 0.0),
    "o": (570.0, 840.0, 2410.0, 1.0, 0.0),
    "u": (300.0, 870.0, 2240.0, 1.0, 0.0),
    "m": (250.0, 1100.0, 2300.0, 0.35, 0.0),
    "n": (250.0, 1600.0, 2600.0, 0.35, 0.0),
    "l": (360.0, 1300.0, 2700.0, 0.5, 0.0),
    "s": (270.0, 1800.0, 2600.0, 0.0, 1.0),
}
"""Three formants in Hz, and the loudness of the voice and of the noise."""
WIDTHS = (90.0, 120.0, 180.0)
"""Half widths of the formants, in Hz."""

COUNT, TRAIN, VALIDATION = 1280, 768, 192
OTHER_SOUND_SHARE = 0.18
"""The probability of each sound of the street beside the one that every clip has."""


@functools.cache
def spoken_words() -> Splits:
    """The splits, each of waves of shape (clips, 4096) and places in `WORDS`."""
    random = torch.Generator().manual_seed(20180409)
    people, per_speaker = sum(SPEAKERS), len(WORDS)
    draw = Draw(people, random)
    tract = draw.ratio(0.85, 1.2)  # longer ones have lower formants, and lower voices
    pitch = 150 * draw.ratio(0.75, 1.33) / tract**2
    manner = torch.cat([pitch, tract, draw.ratio(0.8, 1.3), draw.uniform(0.0, 0.15)], dim=1)
    # One speaker at a time, so that the waves stay in cache.
    waves = torch.cat([_spoken(Draw(per_speaker, random), *voice) for voice in manner])
    words = torch.arange(per_speaker).repeat(people)
    return divided(waves, words, SPEAKERS[0] * per_speaker, SPEAKERS[1] * per_speaker)


def _spoken(draw: Draw, pitch: Tensor, tract: Tensor, pace: Tensor, hoarse: Tensor) -> Tensor:
    """All words by a speaker; phonemes of about 0.1 s follow each other, with soft borders."""
    length = 0.1 * torch.cat([draw.ratio(0.8, 1.25) for _ in WORDS[0]], dim=1) / pace
    duration = length.sum(dim=1, keepdim=True)
    start = (SAMPLES / RATE - duration).clamp(min=0) * draw.uniform(0, 1)
    borders = torch.cat([start, start + length.cumsum(dim=1)], dim=1)[..., None]
    time = torch.arange(SAMPLES // FRAME + 1) * FRAME / RATE
    onset = torch.sigmoid((time - borders) / 0.008)
    shares = onset[:, :-1] - onset[:, 1:]  # of each phoneme in each frame
    spelled = torch.tensor([[PHONEMES[phoneme] for phoneme in word] for word in WORDS])
    formants = torch.einsum("npt,npf->nft", shares, spelled[..., :3].contiguous()) / tract
    voice, hiss = (torch.einsum("npt,np->nt", shares, spelled[..., k]) for k in (3, 4))
    tone = _tone(draw, pitch, formants, voice)
    noise = draw.noise(SAMPLES)
    sharp = noise - noise.roll(1, dims=1)  # rises with frequency
    wave = tone + hoarse * _at_samples(voice) * noise + 0.4 * _at_samples(hiss) * sharp
    return draw.ratio(0.3, 1.0) * wave + draw.ratio(0.1, 0.6) * draw.noise(SAMPLES)


def _tone(draw: Draw, pitch: Tensor, formants: Tensor, voice: Tensor) -> Tensor:
    """The harmonics of a falling pitch, as loud as the formants make them."""
    frames = torch.linspace(0, 1, voice.shape[-1])
    contour = pitch * (1 + draw.uniform(-0.05, 0.3) * (0.5 - frames))
    phase = _phase(_at_samples(contour))
    before, now, turn = torch.zeros_like(phase), phase.sin(), 2 * phase.cos()
    wave = torch.zeros_like(phase)
    for h in range(1, HARMONICS + 1):
        hz = h * contour
        peaks = (1 / (1 + ((hz - formants[:, k]) / WIDTHS[k]) ** 2) for k in range(3))
        loudness = sum(peaks, 0.02 * torch.ones_like(hz)) * voice * (hz < RATE / 2) / h**0.5
        wave += _at_samples(loudness) * now
        before, now = now, turn * now - before  # sin((h + 1) x) = 2 cos x sin(h x) - sin((h - 1) x)
    return wave


def _at_samples(frames: Tensor) -> Tensor:
    """Linear interpolation from frames to samples."""
    options = {"size": SAMPLES + 1, "mode": "linear", "align_corners": True}
    return F.interpolate(frames[:, None], **options)[:, 0, :SAMPLES]  # type: ignore[arg-type]


def _phase(hz: Tensor) -> Tensor:
    """Return the sine of a frequency that varies over samples."""
    return 2 * math.pi * torch.cumsum(hz.expand(len(hz), SAMPLES), dim=1) / RATE


@functools.cache
def street_sounds() -> Splits:
    """The splits, each of waves of shape (clips, 4096) and sounds, 0.0 or 1.0, as in `SOUNDS`."""
    random = torch.Generator().manual_seed(20171116)
    draw = Draw(COUNT, random)
    heard = torch.cat([draw.flag(OTHER_SOUND_SHARE) for _ in SOUNDS], dim=1)
    heard[torch.arange(COUNT), torch.randint(len(SOUNDS), (COUNT,), generator=random)] = 1.0
    noise = draw.noise(SAMPLES)
    falling = torch.arange(1, len(HZ) + 1) ** -draw.uniform(0, 1)
    waves = _loud(_filtered(noise, falling))
    for k, sound in enumerate(SOUNDS):
        having = heard[:, k].nonzero()[:, 0]
        draw = Draw(len(having), random)
        wave = _loud(sound(draw))
        waves[having] += draw.ratio(0.5, 2.0) * _window(draw) * wave
    return divided(waves, heard, TRAIN, VALIDATION)


def _loud(wave: Tensor) -> Tensor:
    """The wave with a mean power of 1."""
    return wave / wave.square().mean(dim=1, keepdim=True).sqrt()


def _filtered(wave: Tensor, response: Tensor) -> Tensor:
    """The wave whose spectrum is multiplied by a response, at the frequencies `HZ`."""
    return torch.fft.irfft(torch.fft.rfft(wave) * response, SAMPLES)  # type: ignore[no-any-return]


def _window(draw: Draw) -> Tensor:
    """1 from a random place on, for 0.15 to 0.4 s, with soft ends."""
    length = draw.uniform(0.15, 0.4)
    start = draw.uniform(0, 1) * (SAMPLES / RATE - length)
    return torch.sigmoid((TIME - start) / 0.005) * torch.sigmoid((start + length - TIME) / 0.005)


def _swing(draw: Draw, low: float, high: float) -> Tensor:
    """A sine of a random frequency and phase."""
    return torch.sin(2 * math.pi * draw.uniform(low, high) * TIME + draw.uniform(0, 6.28))


def _siren(draw: Draw) -> Tensor:
    """A tone that glides up and down."""
    phase = _phase(2 ** (0.4 * _swing(draw, 3, 6)) * draw.ratio(700, 1100))
    return phase.sin() + 0.4 * (2 * phase).sin()


def _two_tones(draw: Draw) -> Tensor:
    """In turn, a fourth apart."""
    phase = _phase(torch.where(_swing(draw, 5, 9) > 0, 4 / 3, 1.0) * draw.ratio(500, 800))
    return phase.sin() + 0.3 * (3 * phase).sin()


def _horn(draw: Draw) -> Tensor:
    """Two steady tones with harmonics, a third apart."""
    low = draw.ratio(300, 500)
    phases = _phase(low), _phase(1.26 * low)
    return sum(((h * p).sin() / h for p in phases for h in range(1, 6)), torch.zeros(()))


def _beeps(draw: Draw) -> Tensor:
    """A high tone, on and off."""
    return (_swing(draw, 8, 14) > 0) * _phase(draw.ratio(1000, 1600)).sin()


def _engine(draw: Draw) -> Tensor:
    """Low harmonics that throb."""
    phase = _phase(draw.ratio(60, 120) * (1 + draw.uniform(-0.3, 0.3) * TIME))
    wave = sum(((h * phase).sin() / h**0.5 for h in range(1, 9)), torch.zeros(()))
    return wave * (1 + 0.6 * (phase / 4).sin())


def _scream(draw: Draw) -> Tensor:
    """A rising voice with vibrato."""
    vibrato = 0.04 * torch.sin(2 * math.pi * draw.uniform(15, 25) * TIME)
    phase = _phase(draw.ratio(600, 1000) * (1 + draw.uniform(0.1, 0.5) * TIME + vibrato))
    return sum(((h * phase).sin() * h**-0.3 for h in range(1, 4)), torch.zeros(()))


def _skid(draw: Draw) -> Tensor:
    """Noise in a narrow band."""
    noise = draw.noise(SAMPLES)
    return _filtered(noise, torch.exp(-(((HZ - draw.ratio(1500, 3000)) / 150) ** 2)))


def _rattle(draw: Draw) -> Tensor:
    """Clicks at random times, each of 3 ms."""
    clicks = (draw.noise(SAMPLES).abs() > 2.9).float() * draw.noise(SAMPLES)
    return _filtered(clicks, torch.fft.rfft(torch.exp(-TIME / 0.003) * draw.noise(SAMPLES)))


SOUNDS = (_siren, _two_tones, _horn, _beeps, _engine, _scream, _skid, _rattle)
"""Each drawn for any number of clips."""
