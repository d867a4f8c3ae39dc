"""The parts that the studies of image classification share."""

from __future__ import annotations

from typing import Any

from spherenorm_experiments.comparison import Setup

SGD_RATES, ADAM_RATES = (0.08, 0.4, 2.0), (1e-2, 3e-2, 9e-2)
"""Learning rates of a search."""


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
