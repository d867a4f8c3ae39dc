"""Projected gradient descent: images that a model gets wrong, within a small distance.

Source: A. Madry et al., *Towards Deep Learning Models Resistant to Adversarial Attacks*, 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Threat"]


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
        ValueError: an unknown norm, a radius or step that is not positive, a negative number of
            steps.
    """

    norm: Literal["linf", "l2"]
    radius: float
    steps: int
    step: float

    def __post_init__(self) -> None:
        if self.norm not in ("linf", "l2"):
            raise ValueError(f"norm must be linf or l2, got {self.norm!r}")
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
