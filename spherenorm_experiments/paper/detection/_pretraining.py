"""The embedded pretrained start: a trunk that was trained on the classification of glyphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.core import preserved_randomness, seed_everything
from spherenorm_experiments.paper.detection.scenes import OBJECTS
from spherenorm_experiments.paper.shared.augmentation import MEAN, STD
from spherenorm_experiments.paper.shared.glyphs import (
    CHARACTERS,
    TRAIN_FONTS,
    glyph_images,
    photographs,
)

__all__ = ["pretrained_trunk"]

CLASSES = "BDHMPTZ4"
"""Characters; none of them is an object of the detection."""

COUNT, SIDE, BATCH, EPOCHS = 1600, 24, 32, 4
RATE = 3e-3
"""Of Adam."""

_known: dict[str, dict[str, Tensor]] = {}


def pretrained_trunk(
    name: str, make: Callable[[], Sequence[nn.Module]], pool: nn.Module
) -> dict[str, Tensor]:
    """The state of a trunk after a short training; the same always, trained once for a process.

    Args:
        name: of the trunk.
        make: makes its modules, which run one after the other; the means over the last maps are
            classified.
        pool: what follows each of them.

    Returns:
        The state of a `ModuleList` of the modules.
    """
    if name not in _known:
        with preserved_randomness(), torch.enable_grad():
            seed_everything(0)
            _known[name] = _trained(nn.ModuleList(make()), pool)
    return {key: x.clone() for key, x in _known[name].items()}


def _trained(trunk: nn.ModuleList, pool: nn.Module) -> dict[str, Tensor]:
    assert not set(CLASSES) & set(OBJECTS)
    assert set(CLASSES) <= set(CHARACTERS)
    drawn = glyph_images(
        COUNT, 7, size=SIDE, characters=CLASSES, fonts=TRAIN_FONTS, grounds=photographs()
    )
    images, labels = map(torch.from_numpy, drawn)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    images = (images.float() / 255 - mean) / std
    head = nn.LazyLinear(len(CLASSES))
    parts = [module for part in trunk for module in (part, pool)]
    network = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    network(images[:2])  # the head's number of inputs
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (COUNT // BATCH))
    for _ in range(EPOCHS):
        order = torch.randperm(COUNT)
        for first in range(0, COUNT, BATCH):
            part = order[first : first + BATCH]
            loss = F.cross_entropy(network(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return {name: x.detach().clone() for name, x in trunk.state_dict().items()}
