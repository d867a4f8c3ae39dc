"""ReBias: a network f learns what a network g that sees only the shortcut cannot represent.

g, which sees colour (1 x 1 kernels) or texture (5 x 5 pixels) but no shape, maximizes the
dependence of its features on those of f, and f minimizes it; both learn to classify.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
L. Song et al., *Feature Selection via Dependence Maximization*, 2012, Equation 5; W. Brendel and
M. Bethge, *Approximating CNNs with Bag-of-local-Features Models*, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spherenorm_experiments.task import Batch, Budget, Collected, Mean, Splits, Statistic, Task
from spherenorm_paper.debiasing import biased
from spherenorm_paper.shared.resnet import ResNet, resnet18


class Featured(nn.Module):
    """The means of a body's maps over the image, and a linear classifier of these features."""

    def __init__(self, body: Sequence[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(*body), head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of shape (n, classes), and features of shape (n, channels)."""
        features = self.body(images).mean((2, 3))
        return self.head(features), features


def resnet(network: ResNet) -> Featured:
    """A ResNet that returns its features too."""
    return Featured([network.stem, *network.stages], network.head[-1])


def conv_stack(kernel: int, widths: Sequence[int] = (16, 32, 64, 128)) -> Featured:
    """Convolutions with BatchNorm and ReLU, for ten classes.

    Args:
        kernel: the odd side of every kernel; Biased MNIST has 7 for f and 1 for g.
        widths: channels of the convolutions.

    Example:
        >>> sum(weight.numel() for weight in conv_stack(1).parameters())
        12810
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((3, *widths)):
        conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
    return Featured(layers, nn.Linear(widths[-1], 10))


def bagnet18(widths: Sequence[int] = (64, 128, 256, 512)) -> Featured:
    """ResNet-18 of nine classes in which nearly all kernels are 1 x 1 and nothing is padded.

    The stem is a 1 x 1 and a 3 x 3 convolution; of the blocks only the first has a 3 x 3 kernel. So
    a feature sees 5 x 5 pixels. (The released code has a parameter `rf=43` that it does not use.)

    Args:
        widths: channels of the four groups of two blocks; the stem has as many as the first.
    """
    stem = widths[0]
    layers = [_conv(3, stem, 1), _conv(stem, stem, 3)]
    layers += [nn.BatchNorm2d(stem, momentum=0.001), nn.ReLU()]
    groups = zip(pairwise((stem, *widths)), (3, 1, 1, 1), (2, 2, 2, 1), strict=True)
    for (inputs, outputs), kernel, stride in groups:
        layers += [_Block(inputs, outputs, kernel, stride), _Block(outputs, outputs)]
    return Featured(layers, nn.Linear(widths[-1], 9))


class _Block(nn.Module):
    """relu(s(x) + bn(conv(relu(bn(conv(x)))))), with x cropped to the size of the sum's rest.

    s is the identity, or a 1 x 1 convolution with BatchNorm where the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_conv(inputs, outputs, kernel, stride), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(_conv(outputs, outputs, 1), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride > 1:
            changed = _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            self.shortcut = nn.Sequential(*changed)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.body(x)
        height, width = inner.shape[2:]
        return (inner + self.shortcut(x)[:, :, :height, :width]).relu()  # type: ignore[no-any-return]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, bias=False)
    nn.init.normal_(conv.weight, std=math.sqrt(2 / (kernel**2 * outputs)))
    return conv


class Rivals(nn.Module):
    """f and g on the same images: f's logits and features, then g's."""

    def __init__(self, f: Featured, g: Featured) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (*self.f(images), *self.g(images))


SOURCES: dict[str, tuple[Any, Any, Any, float | None]] = {
    "digits": (
        partial(biased.handwritten, size=8, paint=biased.colour_strokes),
        lambda: conv_stack(5, (8, 16, 16)), lambda: conv_stack(1, (8, 16, 16)), 1.0,
    ),
    "stripes": (
        partial(biased.handwritten, size=12, paint=biased.stripe_strokes),
        lambda: resnet(ResNet("basic", (1, 1), 8, stem="small", classes=10)),
        lambda: conv_stack(3, (8, 16)), None,
    ),
    "biased-mnist": (biased.biased_mnist, lambda: conv_stack(7), lambda: conv_stack(1), 1.0),
    "nine-class": (
        lambda rho: biased.nine_class(), lambda: resnet(resnet18(classes=9)), bagnet18, None
    ),
}  # fmt: skip
"""The splits at a rho, the networks f and g, and the sigma of the kernels of HSIC."""


@dataclass(frozen=True)
class Debiasing(Task):
    """Descend on CE(f) + CE(g) + HSIC(f, g), whose gradient arrives at g with the opposite sign.

    The released code lets f and g take turns instead, with an optimizer each. HSIC is of the items
    of a batch together: with several processes, of each part by itself.

    Attributes:
        data_set: digits (of 8 x 8 pixels, on coloured grounds), stripes (digits on gray stripes),
            biased-mnist, or nine-class (the 9-Class ImageNet, and ImageNet-A).
        rho: the share of training images whose ground tells the class.
        dependence: the factor of HSIC; 0 for networks that learn apart from each other.
    """

    data_set: Literal["digits", "stripes", "biased-mnist", "nine-class"] = "digits"
    rho: float = 0.9
    dependence: float = 10.0

    name = "debiasing"
    metric = "unbiased accuracy (%)"
    better = "higher"
    is_mean = False  # HSIC compares all items of a batch
    evaluation_batch = 128  # the first maps of BagNet have nearly all pixels of the image
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 275),
        "small": Budget(10, 50),
        "full": Budget(80, 256),
    }

    def data(self) -> Splits:
        return SOURCES[self.data_set][0](self.rho)  # type: ignore[no-any-return]

    def model(self) -> nn.Module:
        _, f, g, _ = SOURCES[self.data_set]
        return Rivals(f(), g())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        f_logits, f_features, g_logits, g_features = model(_pixels(images))
        opposed = 2 * g_features.detach() - g_features  # their gradient has the opposite sign
        shared = hsic(f_features, opposed, SOURCES[self.data_set][3])
        apart = cross_entropy(f_logits, labels) + cross_entropy(g_logits, labels)
        return apart + self.dependence * shared

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels, parts, *clusters = batch
        hits = 100.0 * (model(_pixels(images))[0].argmax(1) == labels)
        if not clusters:
            return {
                "unbiased accuracy": Mean(hits[parts == biased.UNBIASED]),
                "biased accuracy": Mean(hits[parts == biased.BIASED]),
            }
        is_clean = parts != biased.IMAGENET_A
        judged = hits[is_clean], labels[is_clean], clusters[0][is_clean]
        statistics: dict[str, Statistic] = {
            "unbiased accuracy": Collected(grouped_accuracy, *judged)
        }
        if not (parts == biased.OF_TRAINING).any():  # which have one cluster for all
            statistics["biased accuracy"] = Mean(hits[is_clean])
            statistics["ImageNet-A accuracy"] = Mean(hits[~is_clean])
        return statistics

    def audit_inputs(self) -> tuple[Any, ...]:
        count = 8 if self.data_set == "nine-class" else 64
        return tuple(map(_pixels, self.first_batch(self.data().train, count)[:-1]))


def _pixels(images: Tensor) -> Tensor:
    """Bytes as numbers in [-1, 1]; other images as they are."""
    return images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images


def grouped_accuracy(hits: Tensor, labels: Tensor, clusters: Tensor, min_count: int = 10) -> float:
    """The mean over groups of the mean of hits, and over clusterings.

    A group is the items of a class in a cluster; those of fewer than `least` items do not count.

    Args:
        hits: 100 for an item that is right, else 0; shape (n,).
        labels: shape (n,).
        clusters: of each clustering, shape (n, clusterings).

    Example:
        >>> hits, labels = torch.tensor([100.0, 0.0, 0.0]), torch.tensor([0, 0, 0])
        >>> grouped_accuracy(hits, labels, torch.tensor([[1], [2], [2]]), min_count=1)
        50.0
    """
    table = pd.DataFrame({"hits": hits.double().numpy(), "label": labels.numpy()})
    means = []
    for cluster in clusters.unbind(1):
        groups = table.groupby(["label", cluster.numpy()]).hits.agg(["mean", "size"])
        means.append(groups["mean"][groups["size"] >= min_count].mean())
    return float(np.mean(means))


def hsic(x: Tensor, y: Tensor, sigma: float | None = None) -> Tensor:
    r"""The unbiased estimate of HSIC(x, y), which is 0 in expectation if x and y are independent:

        (tr(K L) + 1'K1 1'L1 / ((n-1)(n-2)) - 2 / (n-2) 1'K L1) / (n (n-3)),

    K and L the Gaussian kernels of x and of y, with zeros for their diagonals.

    Args:
        x, y: shape (n, any); below four items, where there is no estimate, the result is 0.
        sigma: of the kernels exp(-|a - b|^2 / (2 sigma^2)); None takes the square root of the
            median squared distance between items, for x and for y.

    Example:
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> f"{hsic(x, x, 1.0):.3f} {hsic(x, x.flip(0), 1.0):.3f}"
        '0.037 0.000'
    """
    n = len(x)
    if n < 4:
        return 0 * (x.sum() + y.sum())
    with torch.autocast(x.device.type, enabled=False):  # differences of large sums
        K, L = _kernel(x, sigma), _kernel(y, sigma)
        rows = K.sum(1), L.sum(1)
        total = (K * L).sum() + rows[0].sum() * rows[1].sum() / ((n - 1) * (n - 2))
        return (total - 2 / (n - 2) * (rows[0] @ rows[1])) / (n * (n - 3))


def _kernel(x: Tensor, sigma: float | None) -> Tensor:
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    squares = (x * x).sum(1)
    distances = (squares[:, None] + squares - 2 * x @ x.T).clamp(min=0)
    off_diagonal = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    if sigma is None:
        square = distances.detach()[off_diagonal].median().clamp(min=torch.finfo(x.dtype).tiny)
    else:
        square = x.new_tensor(sigma**2)
    return torch.exp(-distances / (2 * square)) * off_diagonal
