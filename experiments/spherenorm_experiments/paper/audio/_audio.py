"""Clips: audio files as waves of one length at 16 kHz, mono."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.paper.shared.layout import sampled_digest

RATE = 16_000
"""Samples a second."""


def resampled(wave: Tensor, rate: int) -> Tensor:
    """A wave of shape (samples,) at 16 kHz, by a polyphase filter; rounded up to a sample."""
    if rate == RATE:
        return wave
    from scipy.signal import resample_poly

    common = math.gcd(RATE, rate)
    found = resample_poly(wave.numpy(), RATE // common, rate // common)
    return torch.from_numpy(found).to(wave.dtype)


def read_wave(path: Path, start: int = 0, samples: int | None = None) -> Tensor:
    """Read a part of an audio file: WAV, FLAC, OGG or MP3; the mean of its channels at 16 kHz.

    Only that part is decoded, and of MP3 all that lies before it.

    Args:
        start: the first sample, at 16 kHz.
        samples: how many; to the end if None.

    Returns:
        A tensor of shape (samples,), or less where the file ends before.

    Raises:
        ValueError: the file cannot be decoded.
    """
    audio = require_extra("soundfile", "reading audio")
    try:
        with audio.SoundFile(path) as file:
            rate = file.samplerate
            first = min(start * rate // RATE, file.frames)
            # A frame of MP3 needs bits of earlier ones: after a seek, up to 0.25 s were silent.
            skipped = first if file.format == "MP3" else 0
            file.seek(first - skipped)
            wanted = -1 if samples is None else skipped - (-samples * rate // RATE)
            found = torch.from_numpy(file.read(wanted, "float32", always_2d=True)[skipped:])
    except audio.LibsndfileError as error:
        raise ValueError(f"{path} cannot be decoded: {error}") from error
    return resampled(found.mean(dim=1), rate)[:samples]


def length_of(path: Path) -> int:
    """The samples that a file has at 16 kHz, by its header."""
    info = require_extra("soundfile", "reading audio").info(path)
    return int(info.frames * RATE // info.samplerate)


@dataclass(frozen=True)
class Clips:
    """A map-style data set of (wave, target).

    Attributes:
        files: one an item.
        targets: one row an item.
        samples: of a crop. A shorter file has zeros around it.
        chunks: None for one crop of shape (samples,) at a random place; else this many, of shape
            (chunks, samples), at multiples of floor((length - samples) / chunks), as the authors of
            Harmonic CNN have them; the zeros around a shorter file are then equally many on both
            sides.
    """

    files: Sequence[Path]
    targets: Tensor
    samples: int
    chunks: int | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.files[index]
        wave = self._random(path) if self.chunks is None else self._spaced(path, self.chunks)
        return wave, self.targets[index]

    def fingerprint(self) -> str:
        """A hash of names, targets and crops, and of the bytes of a few files."""
        form = self.samples, self.chunks, self.targets.dtype, tuple(self.targets.shape)
        # The names count, wherever the folder lies.
        names = "".join(f"{path.parent.name}/{path.name}\n" for path in self.files)
        header = str(form).encode() + self.targets.numpy().tobytes() + names.encode()
        return sampled_digest(header, len(self), self.files.__getitem__)

    def _random(self, path: Path) -> Tensor:
        room = length_of(path) - self.samples
        place = int(torch.randint(abs(room) + 1, ()))
        if room >= 0:
            return _placed(read_wave(path, place, self.samples), self.samples, 0)
        return _placed(read_wave(path), self.samples, place)

    def _spaced(self, path: Path, chunks: int) -> Tensor:
        wave = read_wave(path)
        room = len(wave) - self.samples
        if room < 0:
            wave = _placed(wave, self.samples, -room // 2)
        hop = max(room, 0) // chunks
        return torch.stack([wave[i * hop : i * hop + self.samples] for i in range(chunks)])


def _placed(wave: Tensor, samples: int, place: int) -> Tensor:
    """The wave from a place on, zeros around it, and nothing beyond the end."""
    whole = torch.zeros(samples)
    wave = wave[: samples - place]
    whole[place : place + len(wave)] = wave
    return whole
