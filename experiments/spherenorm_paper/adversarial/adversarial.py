"""Adversarial training of wide residual networks: the loss of images that PGD has changed.

The data are CIFAR-10 on disk, or glyphs.

Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, 2018;
S. Zagoruyko and N. Komodakis, *Wide Residual Networks*, 2016; A. Krizhevsky, *Learning Multiple
Layers of Features from Tiny Images*, 2009.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.task import Batch, Budget, Mean, Splits, Statistic, Task
from spherenorm_paper.shared import glyphs
from spherenorm_paper.shared.facts import layout
from spherenorm_paper.shared.items import Items

CHARACTERS, SIZE, COUNTS = "ABEHKRSXZ3", 12, (640, 200, 400)
APPEARANCE = glyphs.Appearance(angle=5.0, scale=(0.85, 1.0), contrast=150.0)
"""Counts of glyphs in training, validation and test of the embedded data."""


@dataclass(frozen=True)
class Threat:
    r"""PGD from a random start, `steps` times

        x' = clip(x_0 + P(x + `step` d(grad L(x)) - x_0)),   L the cross-entropy,

    with P the projection onto the ball of the radius, d(g) = sign g (linf) or g / |g| (l2) for each
    image, and clip to [0, 1].

    Attributes:
        norm: linf or l2.
        radius: of the ball, in the units of pixels, which are in [0, 1].
        steps: of ascent; 0 for the random start alone.
        step: the length of one.

    Raises:
        ValueError: a radius or step that is not positive, a negative number of steps.
    """

    norm: Literal["linf", "l2"]
    radius: float
    steps: int
    step: float

    def __post_init__(self) -> None:
        if not (self.radius > 0 and self.step > 0 and self.steps >= 0):
            raise ValueError(f"radius and step must be positive, steps at least 0, got {self}")

    def attack(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Images within the radius with a high loss.

        The model is in eval mode meanwhile. The start is drawn from the global random state.

        Args:
            model: of images to logits.
            images: shape (n, channels, height, width), in [0, 1].
            labels: shape (n,).
        """
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module  # it must not expect a backward pass for each of these calls
        training = model.training
        model.eval()
        with torch.enable_grad():
            now = (images + self._start(images)).clamp(0, 1)
            for _ in range(self.steps):
                now = now.detach().requires_grad_()
                loss = F.cross_entropy(model(now), labels, reduction="sum")
                (grad,) = torch.autograd.grad(loss, now)
                shifted = now.detach() + self.step * self._ascent(grad)
                now = (images + self._project(shifted - images)).clamp(0, 1)
        model.train(training)
        return now.detach()

    def _start(self, images: Tensor) -> Tensor:
        """Uniform in the ball (linf); of a random direction and a uniform norm (l2)."""
        if self.norm == "linf":
            return torch.empty_like(images).uniform_(-self.radius, self.radius)
        direction = torch.randn_like(images)
        norm = _norms(direction)
        return direction / norm * torch.rand_like(norm) * self.radius

    def _ascent(self, grad: Tensor) -> Tensor:
        if self.norm == "linf":
            return grad.sign()
        return grad / _norms(grad).clamp(min=torch.finfo(grad.dtype).tiny)

    def _project(self, delta: Tensor) -> Tensor:
        if self.norm == "linf":
            return delta.clamp(-self.radius, self.radius)
        return delta * (self.radius / _norms(delta)).clamp(max=1)


def _norms(x: Tensor) -> Tensor:
    """The norm of each image, of shape (n, 1, 1, 1)."""
    return torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)  # type: ignore[no-any-return]


class WideResNet(nn.Module):
    """WRN-depth-width: a stem, three groups of residual blocks, mean over pixels, a linear layer.

    Group k = 0, 1, 2 has (depth - 4) / 6 blocks of 2^k `stem` `width` channels; the second and the
    third halve the image. Depth counts both convolutions of each block, the stem, two shortcuts and
    the classifier. Takes images of shape (n, 3, height, width), returns logits.

    Args:
        depth: 4 more than a multiple of 6; WRN-34-10 has 34.

    Raises:
        ValueError: a depth that no number of blocks has.

    Example:
        >>> sum(weight.numel() for weight in WideResNet(16, 4).parameters())
        2748890
    """

    def __init__(self, depth: int = 34, width: int = 10, classes: int = 10, stem: int = 16) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 10, 16, 22, 28, 34, ..., got {depth}")
        self.stem = _conv3(3, stem)
        outputs = [stem * width * 2**group for group in range(3) for _ in range(blocks)]
        strides = [2 if k in (blocks, 2 * blocks) else 1 for k in range(3 * blocks)]
        self.blocks = nn.Sequential(*map(_Block, (stem, *outputs), outputs, strides))
        channels = outputs[-1]
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm(self.blocks(self.stem(images))))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]


class _Block(nn.Module):
    """s(x) + conv(relu(bn(conv(a)))), a = relu(bn(x)).

    s is the identity, or a 1 x 1 convolution of a where the number of channels changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv3(inputs, outputs, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv3(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        return shortcut + self.conv2(F.relu(self.norm2(self.conv1(active))))  # type: ignore[no-any-return]


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


@functools.cache
def _glyphs() -> Splits:
    how = {"size": SIZE, "characters": CHARACTERS, "appearance": APPEARANCE}
    drawn = glyphs.by_fonts(glyphs.glyph_images, COUNTS, **how)
    return Splits(*((images.float() / 255, labels) for images, labels in drawn))


FOLDER = "cifar-10-batches-bin"
TRAIN, TEST = tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)

HELD_OUT = 1000
"""Training images on which hyper-parameters are chosen."""


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Read one part: images as bytes of shape (n, 3, 32, 32), and labels of shape (n,).

    A record has one byte for the label and 3,072 for the red, the green and the blue plane.

    Raises:
        ValueError: a file is cut off.
    """
    parts = []
    for name in TRAIN if train else TEST:
        content = np.fromfile(folder / FOLDER / name, dtype=np.uint8)
        if not len(content) or len(content) % 3073:
            wrong = f"must have records of 3073 bytes, got {len(content)} bytes"
            raise ValueError(f"{folder / FOLDER / name} {wrong}")
        parts.append(content.reshape(-1, 3073))
    records = torch.from_numpy(np.concatenate(parts))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


LAYOUT = layout("cifar10")


@LAYOUT.reader
def cifar10(folder: Path) -> Splits:
    """Images in [0, 1] with labels; those of training are shifted and flipped."""
    images, labels = read_cifar10(folder, train=True)
    n_validation = min(HELD_OUT, len(labels) // 2)
    tested, classes = read_cifar10(folder, train=False)
    return Splits(
        Items(shifted, images[:-n_validation], labels[:-n_validation], form="shifted"),
        (images[-n_validation:].float() / 255, labels[-n_validation:]),
        (tested.float() / 255, classes),
    )


def shifted(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """The image with 4 black pixels around it, cropped at a random place and flipped or not."""
    top, column = torch.randint(9, (2,)).tolist()
    image = F.pad(image, (4,) * 4)[:, top : top + 32, column : column + 32]
    return (image.flip(2) if torch.rand(()) < 0.5 else image).float() / 255, label


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
    better = "higher"
    evaluation_batch = 128  # an attack keeps all activations
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 320),
        "small": Budget(9, 64),
        "full": Budget(200, 128),
    }

    def data(self) -> Splits:
        return _glyphs() if self.data_set == "glyphs" else cifar10()

    def model(self) -> nn.Module:
        return WideResNet(self.depth, self.width, len(CHARACTERS), self.stem)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(self.threat.attack(model, images, labels)), labels)

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels = batch

        def accuracy(of: Tensor) -> Statistic:
            return Mean(100.0 * (model(of).argmax(1) == labels))

        threats = {"attacked accuracy": self.test_threat, "clean accuracy": None}
        if self.harder_radius and self.harder_steps:
            harder = self._threat(self.harder_radius, self.harder_steps, self.test_step)
            threats["harder attacked accuracy"] = harder
        return {
            name: accuracy(threat.attack(model, images, labels) if threat else images)
            for name, threat in threats.items()
        }

    def audit_inputs(self) -> tuple[Any, ...]:
        """Return few images of CIFAR-10: the audit computes in float64, and WRN-34-10 is large."""
        count = 16 if self.data_set == "cifar10" else 64
        return tuple(self.first_batch(self.data().train, count)[:-1])

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
