"""Harmonic CNN: band-pass filters at the harmonics of a scale, of trainable width, and a CNN.

    HarmonicCNN(50, pools=POOLS["magnatagatune"])    # 3,631,551 weights

The filters make a channel of each harmonic: band k of channel n is centred at n times the k-th
note's frequency, so that a 3 x 3 convolution sees all harmonics of a note at one place.

Source: M. Won, S. Chun, O. Nieto, X. Serra, *Data-driven Harmonic Filters for Audio Representation
Learning*, ICASSP 2020, and its code. That code takes a window of 512, whatever its default of 513.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

Pool = int | tuple[int, int]

WIDTHS = (*(128,) * 4, *(256,) * 3)
POOLS: dict[str, tuple[Pool, ...]] = {
    "magnatagatune": (*(2,) * 5, (2, 3), (2, 3)),
    "speech_commands": (*(2,) * 6, (2, 1)),
    "dcase2017": (2,) * 7,
}
"""The authors' max-pooling over (bands, frames) after each block, by data set."""


class HarmonicFilters(nn.Module):
    """The power of a wave in triangular bands around harmonics, in decibels.

    Band (n, k) is centred at f = n f_k and weighs the power at a frequency x by

        max(0, 1 - 2 |x - f| / b),    b = (0.1079 f + 24.7) / Q,

    the bandwidth in Hz of human hearing (Glasberg and Moore 1990). f_k rises from the lowest note
    in equal steps, as long as its highest harmonic is below half the sample rate. Q is trained; a
    larger one makes all bands narrower.

    Args:
        rate: samples a second.
        window: samples of a frame (Hann); frames are half a window apart.
        harmonics: channels of the output.
        per_semitone: bands in a semitone.
        lowest: the MIDI note of the lowest band; 24 is C1.

    Attributes:
        q: shape (1,), at first 1.
        bands: how many bands a harmonic has.

    Example:
        >>> HarmonicFilters()(torch.zeros(2, 16000)).shape
        torch.Size([2, 6, 128, 63])
    """

    def __init__(
        self,
        rate: int = 16_000,
        window: int = 512,
        harmonics: int = 6,
        per_semitone: int = 2,
        lowest: int = 24,
    ) -> None:
        super().__init__()
        self.window, self.harmonics = window, harmonics
        # A MIDI note n has the frequency 440 * 2 ** ((n - 69) / 12).
        highest = round(69 + 12 * math.log2(rate / (2 * harmonics) / 440.0))
        self.bands = (highest - lowest) * per_semitone
        notes = lowest + torch.arange(self.bands) / per_semitone
        hz = 440.0 * 2.0 ** ((notes - 69.0) / 12.0)
        self.q = nn.Parameter(torch.ones(1))
        centres = (torch.arange(1, harmonics + 1)[:, None] * hz).flatten()
        self.centres = nn.Buffer(centres, persistent=False)
        self.bins = nn.Buffer(torch.linspace(0, rate / 2, window // 2 + 1), persistent=False)
        self.hann = nn.Buffer(torch.hann_window(window), persistent=False)

    def weights(self) -> Tensor:
        """The triangles, of shape (harmonics * bands, frequencies)."""
        distance = (self.bins - self.centres[:, None]).abs()
        hearing = (0.1079 * self.centres + 24.7)[:, None]
        # Q is a factor: it may pass through 0 on its way without a division by 0.
        return torch.relu(1 - 2 * distance * self.q / hearing)

    def forward(self, waves: Tensor) -> Tensor:
        """Decibels of shape (items, harmonics, bands, 1 + samples // (window / 2)).

        Args:
            waves: shape (items, samples).
        """
        with torch.autocast(waves.device.type, enabled=False):  # powers span ten decades
            waves, hop = waves.to(self.hann.dtype), self.window // 2
            spectrum = torch.stft(waves, self.window, hop, window=self.hann, return_complex=True)
            power = spectrum.real.square() + spectrum.imag.square()
            banded = (self.weights() @ power).clamp(min=1e-10)  # -100 dB
            return 10 * banded.log10().reshape(len(waves), self.harmonics, self.bands, -1)


class Block(nn.Module):
    """Convolution, BatchNorm, ReLU, max-pooling.

    Where the number of channels stays, two convolutions with BatchNorm beside the identity.
    """

    def __init__(self, inputs: int, outputs: int, pool: Pool) -> None:
        super().__init__()
        self.residual, self.pool = inputs == outputs, nn.MaxPool2d(pool)
        body = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
        if self.residual:
            last = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
            body = [*body, nn.ReLU(), *last]
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.body(x) if self.residual else self.body(x)
        return self.pool(y.relu())  # type: ignore[no-any-return]


class HarmonicCNN(nn.Module):
    """Harmonic filters, blocks of 3 x 3 convolutions with max-pooling, and two linear layers.

    Args:
        filters: the paper's at 16 kHz, if None.
        widths, pools: of each block the channels, and the pooling over (bands, frames).

    Example:
        >>> net = HarmonicCNN(35, pools=POOLS["speech_commands"])
        >>> sum(weight.numel() for weight in net.parameters())
        3627696
    """

    def __init__(
        self,
        classes: int,
        pools: Sequence[Pool],
        widths: Sequence[int] = WIDTHS,
        filters: HarmonicFilters | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.filters = filters or HarmonicFilters()
        channels = [self.filters.harmonics, *widths]
        self.filters_norm = nn.BatchNorm2d(channels[0])
        self.blocks = nn.Sequential(*map(Block, channels, widths, pools))
        self.hidden = nn.Linear(widths[-1], widths[-1])
        self.hidden_norm = nn.BatchNorm1d(widths[-1])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, waves: Tensor) -> Tensor:
        """Logits of shape (items, classes) for waves of shape (items, samples)."""
        x = self.blocks(self.filters_norm(self.filters(waves)))
        x = self.hidden(x.amax(dim=(2, 3)))  # over all frames; one band is left
        norm = self.hidden_norm
        if self.training and len(x) == 1:  # the last of an epoch: the running statistics
            x = batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)
        else:
            x = norm(x)
        return self.head(self.dropout(x.relu()))  # type: ignore[no-any-return]
