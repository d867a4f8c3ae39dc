"""Adversarial training: the loss of images that PGD has changed against the model.

The data are CIFAR-10 on disk, or glyphs.

Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, 2018.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.metrics import Mean, Statistic
from spherenorm_experiments.paper.adversarial import cifar
from spherenorm_experiments.paper.adversarial.wide_resnet import WideResNet
from spherenorm_experiments.paper.shared import glyphs
from spherenorm_experiments.task import Batch, Budget, Splits, Task

CHARACTERS, SIZE = "ABEHKRSXZ3", 12
TRAIN, VALIDATION, TEST = 640, 200, 400
AUDITED = 16
"""Images of CIFAR-10 that the audit sees: it computes in float64, and WRN-34-10 is large."""

HELD_OUT = 1000
"""Training images of CIFAR-10 on which hyper-parameters are chosen."""
APPEARANCE = glyphs.Appearance(angle=5.0, scale=(0.85, 1.0), contrast=150.0)


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
        for name in ("radius", "step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}")
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps!r}")

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
        with _evaluating(model), torch.enable_grad():
            now = (images + self._start(images)).clamp(0, 1)
            for _ in range(self.steps):
                now = now.detach().requires_grad_()
                loss = F.cross_entropy(model(now), labels, reduction="sum")
                (grad,) = torch.autograd.grad(loss, now)
                moved = now.detach() + self.step * self._ascent(grad)
                now = (images + self._project(moved - images)).clamp(0, 1)
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
    norms: Tensor = torch.linalg.vector_norm(x, dim=(1, 2, 3), keepdim=True)
    return norms


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Hold the model in eval mode; then each module is in its own again, a frozen one in eval."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
        return _glyphs() if self.data_set == "glyphs" else _cifar10()

    def model(self) -> nn.Module:
        return WideResNet(self.depth, self.width, len(CHARACTERS), self.stem)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return F.cross_entropy(model(self.threat.attack(model, images, labels)), labels)

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
    how = {"size": SIZE, "characters": CHARACTERS, "appearance": APPEARANCE}
    drawn = glyphs.by_fonts(glyphs.glyph_images, (TRAIN, VALIDATION, TEST), **how)
    return Splits(*((images.float() / 255, labels) for images, labels in drawn))


@cifar.LAYOUT.reader
def _cifar10(folder: Path) -> Splits:
    images, labels = cifar.read_cifar10(folder, train=True)
    held = min(HELD_OUT, len(labels) // 2)
    return Splits(
        cifar.CifarImages(images[:-held], labels[:-held], augment=True),
        cifar.CifarImages(images[-held:], labels[-held:]),
        cifar.CifarImages(*cifar.read_cifar10(folder, train=False)),
    )
