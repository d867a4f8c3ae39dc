"""Published weights: a file of torchvision's models into the trunk of a network of ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

__all__ = ["load_published"]

CLASSIFIERS, COUNTERS = ("fc.", "classifier."), "num_batches_tracked"
"""Entries of a file that are not the trunk's, and one of BatchNorm that changes nothing here."""


def load_published(modules: Iterable[nn.Module], file: Path) -> None:
    """Copy the weights and BatchNorm's statistics of a file into modules, one after the other.

    Our networks name their layers otherwise than torchvision, and have them in the same order.

    Args:
        modules: of the trunk, in order.
        file: a state that `torch.save` wrote, such as those of torchvision's `resnet18` and
            `vgg16_bn`; it is read without running any code in it.

    Raises:
        ValueError: there is no such file, or it has other tensors; nothing has changed then.
    """
    if not file.is_file():
        raise ValueError(f"published weights: there is no file {file}")
    state = torch.load(file, map_location="cpu", weights_only=True)
    theirs = [pair for pair in state.items() if not pair[0].startswith(CLASSIFIERS)]
    ours = [pair for module in modules for pair in module.state_dict().items()]
    theirs, ours = (
        [pair for pair in pairs if not pair[0].endswith(COUNTERS)] for pairs in (theirs, ours)
    )
    if len(theirs) != len(ours):
        wrong = f"has {len(theirs)} tensors before its classifier, and the trunk {len(ours)}"
        raise ValueError(f"published weights: {file} {wrong}")
    for (name, x), (own, y) in zip(theirs, ours, strict=True):
        if name.rpartition(".")[2] != own.rpartition(".")[2] or x.shape != y.shape:
            wrong = f"{name} of shape {tuple(x.shape)} where {own} has shape {tuple(y.shape)}"
            raise ValueError(f"published weights: {file} has {wrong}")
    for (_, x), (_, y) in zip(theirs, ours, strict=True):
        y.copy_(x)  # a state is detached: this is no operation on the parameter
