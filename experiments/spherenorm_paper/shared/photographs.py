"""The paper's runs of image classification, which several studies share."""

from __future__ import annotations

from typing import Any

from spherenorm_experiments.comparison import Setup


def on_imagenet(
    network: str, *, options: Any = None, regime: Any = None, task: str = "", **fields: Any
) -> Setup:
    """The paper's network on its data."""
    all_options = {"network": network, "data_set": "imagenet", **(options or {})}
    return Setup(all_options, regime or {}, fields=fields, task=task)
