"""The embedded pretrained start: a trunk that was trained on the classification of glyphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import preserved_randomness, seed_everything
from spherenorm_experiments.paper.shared.augmentation import standardized
from spherenorm_experiments.paper.shared.glyphs import TRAIN_FONTS, glyph_images, photographs

__all__ = ["pretrained"]

CLASSES = "BDHMPTZ4"
"""Characters; none of them is an object of the detection."""

COUNT, SIDE, BATCH, EPOCHS = 1600, 24, 32, 4
RATE = 3e-3
"""Of Adam."""


def pretrained(make: Callable[[], Sequence[nn.Module]], pool: nn.Module) -> dict[str, Tensor]:
    """The state of a trunk, as a `ModuleList`, after a short training; always the same.

    Args:
        make: makes its modules, which run one after the other; the means over the last maps are
            classified.
        pool: what follows each of them.
    """
    with preserved_randomness(), torch.enable_grad():
        seed_everything(0)
        trunk = nn.ModuleList(make())
        _train(trunk, pool)
        return trunk.state_dict()


def _train(trunk: nn.ModuleList, pool: nn.Module) -> None:
    drawn = glyph_images(
        COUNT, 7, size=SIDE, characters=CLASSES, fonts=TRAIN_FONTS, grounds=photographs()
    )
    pixels, labels = map(torch.from_numpy, drawn)
    images, head = standardized(pixels), nn.LazyLinear(len(CLASSES))
    parts = [module for part in trunk for module in (part, pool)]
    network = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    network(images[:2])  # the head's number of inputs
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (COUNT // BATCH))
    for _ in range(EPOCHS):
        for part in torch.split(torch.randperm(COUNT), BATCH):
            loss = F.cross_entropy(network(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
