"""An embedding and its loss: features of a ResNet, pooled, mapped to a vector of length 1.

`Embedding(resnet50())` has 24,557,120 parameters, 23,508,032 of them below the linear layer.

The length of W f + b is divided out, so that only the direction of W and b together matters, of the
layer as a whole: no row of W is scale-invariant by itself. With a bias W alone is not either.

Source: S. Kim et al., *Proxy Anchor Loss for Deep Metric Learning*, 2020, and its released code;
F. Schroff et al., *FaceNet*, 2015.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from spherenorm_experiments.errors import require_extra
from spherenorm_experiments.paper.shared.resnet import ResNet

MARGIN = 0.1
"""Of triplets and proxies, as in the released code of ProxyAnchor."""


class Embedding(nn.Module):
    """l2-normalized W (mean + maximum over the image) + b.

    Args:
        trunk: its classifier is taken off.
        dimension: of the embedding.
        bias: has the linear layer one.
        frozen_statistics: BatchNorm keeps its statistics in training. The convolutions below it
            are then not scale-invariant.
    """

    def __init__(
        self,
        trunk: ResNet,
        dimension: int = 512,
        *,
        bias: bool = True,
        frozen_statistics: bool = False,
    ) -> None:
        super().__init__()
        trunk.head = nn.Sequential()
        self.trunk, self.frozen_statistics = trunk, frozen_statistics
        self.linear = nn.Linear(trunk.features, dimension, bias=bias)
        nn.init.kaiming_normal_(self.linear.weight, mode="fan_out")
        if bias:
            nn.init.zeros_(self.linear.bias)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Shape (items, dimension), of images of shape (items, 3, height, width)."""
        features = self.trunk(images)
        pooled = features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))
        return F.normalize(self.linear(pooled))

    def train(self, mode: bool = True) -> Embedding:
        """As every module's, but for frozen statistics."""
        super().train(mode)
        if self.frozen_statistics:
            self.trunk.eval()  # which has no other layer with a mode
        return self


class Learner(nn.Module):
    """An embedding with its loss: in training the loss of a batch, else its embeddings.

    Args:
        embedding: of images.
        objective: triplet or proxy-anchor; the losses are those of pytorch-metric-learning.
        classes: proxies.
        dimension: of the embedding.
    """

    def __init__(self, embedding: Embedding, objective: str, classes: int, dimension: int) -> None:
        super().__init__()
        require_extra("pytorch_metric_learning", "retrieval")
        from pytorch_metric_learning import losses, miners

        self.embedding, self.miner = embedding, None
        if objective == "triplet":
            self.miner = miners.TripletMarginMiner(MARGIN, type_of_triplets="semihard")
            self.criterion: nn.Module = losses.TripletMarginLoss(MARGIN)
        else:
            self.criterion = losses.ProxyAnchorLoss(classes, dimension, margin=MARGIN, alpha=32)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Embeddings of shape (items, dimension), or with labels the loss.

        Args:
            images: shape (items, 3, height, width).
            labels: classes, shape (items).
        """
        embeddings: Tensor = self.embedding(images)
        if labels is None:
            return embeddings
        with torch.autocast(images.device.type, enabled=False):
            if embeddings.dtype in (torch.float16, torch.bfloat16):
                embeddings = embeddings.float()  # the library would cast the proxies to the half
            triplets = None if self.miner is None else self.miner(embeddings, labels)
            return self.criterion(embeddings, labels, triplets)  # type: ignore[no-any-return]
