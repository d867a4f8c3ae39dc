"""An embedding: the features of a ResNet, pooled, mapped to a vector of length 1.

`Embedding(resnet50())` has 24,557,120 parameters, 23,508,032 of them below the linear layer.

The length of W f + b is divided out, so that only the direction of W and b together matters, of the
layer as a whole: no row of W is scale-invariant by itself. With a bias W alone is not either.

Source: S. Kim et al., *Proxy Anchor Loss for Deep Metric Learning*, 2020, and its released code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.paper.shared.resnet import ResNet

__all__ = ["Embedding"]


class Embedding(nn.Module):
    """l2-normalized W (mean + maximum over the image) + b.

    Args:
        trunk: its classifier is taken off.
        dimension: of the embedding.
        bias: has the linear layer one.
        frozen_statistics: BatchNorm keeps its statistics in training. The convolutions below it
            are then not scale-invariant.
        alone: in so many first steps of training only the linear layer takes a gradient; for one
            process, whose gradients are None before each step.
    """

    passes: Tensor

    def __init__(
        self,
        trunk: ResNet,
        dimension: int = 512,
        *,
        bias: bool = True,
        frozen_statistics: bool = False,
        alone: int = 0,
    ) -> None:
        super().__init__()
        trunk.head = nn.Sequential()
        self.trunk, self.frozen_statistics, self.alone = trunk, frozen_statistics, alone
        self.linear = nn.Linear(trunk.features, dimension, bias=bias)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")
        if bias:
            nn.init.zeros_(self.linear.bias)
        if alone:  # a buffer: a resumed run knows it
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.train()

    def forward(self, images: Tensor, step: bool = False) -> Tensor:
        """Shape (items, dimension).

        Args:
            images: shape (items, 3, height, width).
            step: it is the forward pass of a training step, which `alone` counts.
        """
        features = self.trunk(images)
        pooled = features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))
        if self.alone and step:
            if self.linear.weight.grad is None:  # of the first micro-batch of a step
                self.passes += 1
            if self.passes <= self.alone:
                pooled = pooled.detach()
        return F.normalize(self.linear(pooled))

    def train(self, mode: bool = True) -> Embedding:
        """As every module's, but for frozen statistics."""
        super().train(mode)
        if self.frozen_statistics:
            for module in self.trunk.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
