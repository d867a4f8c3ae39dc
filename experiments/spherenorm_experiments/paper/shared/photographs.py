"""The parts that the studies of image classification share."""

from __future__ import annotations

from typing import Any

from spherenorm_experiments.comparison import Setup

SGD_RATES, ADAM_RATES = (0.08, 0.4, 2.0), (1e-2, 3e-2, 9e-2)
"""Learning rates of a search."""

GLYPHS = (
    ("data", "ImageNet, 1.28 million photographs of 1,000 classes",
     "1,920 glyphs of ten classes, 12 x 12 pixels, on textures; other fonts for the test",
     "a small machine"),
    ("weight decay", "SGD and Adam 1e-4, SGDP 1e-5, AdamP 1e-6", "ten times that",
     "a run is 3,000 times shorter; a hundred times shrinks SGD's norm to a half"),
)  # fmt: skip
"""Departures of all of them."""

WARM_UP = (
    "warm-up", "none is stated", "one epoch",
    "so short a run without it depends on its seed more than on its optimizer",
)  # fmt: skip
"""A departure of all but one."""


def on_glyphs(network: str, *, options: Any = None, regime: Any = None, **fields: Any) -> Setup:
    """A small network of the family on the embedded data."""
    return Setup(
        {"network": network, **(options or {})}, {"warmup": 1.0, **(regime or {})}, fields=fields
    )


def on_imagenet(
    network: str, *, options: Any = None, regime: Any = None, task: str = "", **fields: Any
) -> Setup:
    """The paper's network on its data."""
    given = {"network": network, "data_set": "imagenet", **(options or {})}
    return Setup(given, regime or {}, fields=fields, task=task)
