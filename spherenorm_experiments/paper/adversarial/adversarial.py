"""Adversarial training: the loss of images that PGD has changed against the model.

The data are CIFAR-10 on disk, or glyphs.

Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, 2018.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import (
    Batch,
    Budget,
    Mean,
    Split,
    Splits,
    Statistic,
    Task,
    cross_entropy,
)
from spherenorm_experiments.paper.adversarial import cifar
from spherenorm_experiments.paper.adversarial._attacks import Threat
from spherenorm_experiments.paper.adversarial.wide_resnet import WideResNet
from spherenorm_experiments.paper.shared import glyphs

__all__ = ["Adversarial"]

CHARACTERS, SIZE = "ABEHKRSXZ3", 12
TRAIN, VALIDATION, TEST = 640, 200, 400
AUDITED = 16
"""Images of CIFAR-10 that the audit sees: it computes in float64, and WRN-34-10 is large."""

HELD_OUT = 1000
"""Training images of CIFAR-10 on which hyper-parameters are chosen."""
APPEARANCE = glyphs.Appearance(angle=5.0, scale=(0.85, 1.0), contrast=150.0)


@dataclass(frozen=True)
class Adversarial(Task):
    """Train a wide residual network on attacked images; score it on attacked and clean ones.

    Attributes:
        data_set: glyphs (ten characters of 12 x 12 pixels), or cifar10.
        depth, width, stem: of the network; the paper's has 34, 10, 16.
        norm: of the threat model, linf or l2.
        radius: of the attack in training, in units of pixels, which are in [0, 1].
        steps: of the attack in training.
        step: the length of one; 0 takes 2.5 radius / steps.
        test_radius, test_steps, test_step: of the attack in the evaluation; 0 takes those of the
            training.
        harder_radius, harder_steps: of a second attack in the evaluation; 0 leaves it out.
    """

    data_set: Literal["glyphs", "cifar10"] = "glyphs"
    depth: int = 10
    width: int = 1
    stem: int = 8
    norm: Literal["linf", "l2"] = "linf"
    radius: float = 8 / 255
    steps: int = 2
    step: float = 0.0
    test_radius: float = 0.0
    test_steps: int = 0
    test_step: float = 0.0
    harder_radius: float = 0.0
    harder_steps: int = 0

    name = "adversarial"
    metric = "attacked accuracy (%)"
    evaluation_batch = 128  # an attack keeps all activations
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 320),
        "small": Budget(9, 64),
        "full": Budget(200, 128),
    }

    def data(self) -> Splits:
        return _glyphs() if self.data_set == "glyphs" else _cifar10(cifar.LAYOUT.folder())

    def model(self) -> nn.Module:
        return WideResNet(self.depth, self.width, len(CHARACTERS), self.stem)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return cross_entropy(model(self.threat.attack(model, images, labels)), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels = batch

        def accuracy(of: Tensor) -> Statistic:
            return Mean(100.0 * (model(of).argmax(1) == labels))

        found = {
            "attacked accuracy": accuracy(self.test_threat.attack(model, images, labels)),
            "clean accuracy": accuracy(images),
        }
        if self.harder_radius and self.harder_steps:
            harder = self._threat(self.harder_radius, self.harder_steps, self.test_step)
            found["harder attacked accuracy"] = accuracy(harder.attack(model, images, labels))
        return found

    def audit_inputs(self) -> tuple[Any, ...]:
        count = AUDITED if self.data_set == "cifar10" else 4 * AUDITED
        return tuple(self.first_batch(self.data().train, count)[:-1])

    def rehearse(self) -> None:
        """Rehearse with attacks of one step, which would raise what the later ones do."""
        harder = min(1, self.harder_steps)
        Task.rehearse(replace(self, steps=1, test_steps=1, harder_steps=harder))

    @property
    def threat(self) -> Threat:
        """The attack in training."""
        return self._threat(self.radius, self.steps, self.step)

    @property
    def test_threat(self) -> Threat:
        """The attack in the evaluation."""
        radius, steps = self.test_radius or self.radius, self.test_steps or self.steps
        return self._threat(radius, steps, self.test_step or self.step)

    def _threat(self, radius: float, steps: int, step: float) -> Threat:
        return Threat(self.norm, radius, steps, step or 2.5 * radius / max(1, steps))


@functools.cache
def _glyphs() -> Splits:
    def split(count: int, seed: int, fonts: tuple[str, ...]) -> Split:
        images, labels = glyphs.glyph_images(
            count, seed, size=SIZE, characters=CHARACTERS, fonts=fonts, appearance=APPEARANCE
        )
        return torch.from_numpy(images).float() / 255, torch.from_numpy(labels)

    return Splits(
        split(TRAIN, 0, glyphs.TRAIN_FONTS),
        split(VALIDATION, 1, glyphs.TRAIN_FONTS),
        split(TEST, 2, glyphs.TEST_FONTS),
    )


@functools.cache
def _cifar10(folder: Path) -> Splits:
    images, labels = cifar.read_cifar10(folder, train=True)
    held = min(HELD_OUT, len(labels) // 2)
    return Splits(
        cifar.CifarImages(images[:-held], labels[:-held], augment=True),
        cifar.CifarImages(images[-held:], labels[-held:]),
        cifar.CifarImages(*cifar.read_cifar10(folder, train=False)),
    )
