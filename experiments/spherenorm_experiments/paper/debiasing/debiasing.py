"""ReBias: a network f learns what a network g that sees only the shortcut cannot represent.

g, which sees colour or texture alone, maximizes the dependence of its features on those of f, and f
minimizes it; both learn to classify.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020;
L. Song et al., *Feature Selection via Dependence Maximization*, 2012, Equation 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spherenorm_experiments.metrics import Collected, Mean, Statistic
from spherenorm_experiments.paper.debiasing import biased, nine_class
from spherenorm_experiments.paper.debiasing.biased import BIASED, UNBIASED
from spherenorm_experiments.paper.debiasing.rebias import (
    BagNet18,
    ConvStack,
    FeaturedResNet,
    Rivals,
)
from spherenorm_experiments.paper.shared.resnet import ResNet, resnet18
from spherenorm_experiments.task import Batch, Budget, Splits, Task

AUDITED = 8
"""Large images that the audit sees: it computes in float64."""

FEWEST = 4
"""Items below which the estimate does not exist."""


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
    is_mean = False  # HSIC compares all items of a batch
    evaluation_batch = 128  # the first maps of BagNet have nearly all pixels of the image
    tiers = {  # noqa: RUF012
        "smoke": Budget(1, 275),
        "small": Budget(10, 50),
        "full": Budget(80, 256),
    }

    def data(self) -> Splits:
        return SOURCES[self.data_set].splits(self.rho)

    def model(self) -> nn.Module:
        return SOURCES[self.data_set].model()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        f_logits, f_features, g_logits, g_features = model(_pixels(images))
        opposed = 2 * g_features.detach() - g_features  # their gradient has the opposite sign
        shared = hsic(f_features, opposed, SOURCES[self.data_set].sigma)
        apart = cross_entropy(f_logits, labels) + cross_entropy(g_logits, labels)
        return apart + self.dependence * shared

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, labels, parts, *clusters = batch
        hits = 100.0 * (model(_pixels(images))[0].argmax(1) == labels)
        if clusters:
            return _of_nine_classes(hits, parts, clusters[0], labels)
        return {
            "unbiased accuracy": Mean(hits[parts == UNBIASED]),
            "biased accuracy": Mean(hits[parts == BIASED]),
        }

    def audit_inputs(self) -> tuple[Any, ...]:
        count = AUDITED if self.data_set == "nine-class" else 8 * AUDITED
        return tuple(map(_pixels, self.first_batch(self.data().train, count)[:-1]))


def _of_nine_classes(
    hits: Tensor, parts: Tensor, clusters: Tensor, labels: Tensor
) -> dict[str, Statistic]:
    """The metrics of the 9-Class ImageNet; held-out images have no clusters, so one for all."""
    judged = parts != nine_class.IMAGENET_A
    columns = (column[judged] for column in (hits, labels, clusters))
    unbiased: dict[str, Statistic] = {"unbiased accuracy": Collected(grouped_accuracy, *columns)}
    if (parts == nine_class.HELD_OUT).any():
        return unbiased
    return unbiased | {
        "biased accuracy": Mean(hits[judged]),
        "ImageNet-A accuracy": Mean(hits[~judged]),
    }


def grouped_accuracy(hits: Tensor, labels: Tensor, clusters: Tensor, least: int = 10) -> float:
    """The mean over groups of the mean of hits, and over clusterings.

    A group is the items of a class in a cluster; those of fewer than `least` items do not count.

    Args:
        hits: 100 for an item that is right, else 0; shape (n,).
        labels: shape (n,).
        clusters: of each clustering, shape (n, clusterings).

    Example:
        >>> hits, labels = torch.tensor([100.0, 0.0, 0.0]), torch.tensor([0, 0, 0])
        >>> grouped_accuracy(hits, labels, torch.tensor([[1], [2], [2]]), least=1)
        50.0
    """
    means = []
    for clustering in clusters.unbind(1):
        _, groups = torch.unique(torch.stack([labels, clustering]), dim=1, return_inverse=True)
        counts = torch.bincount(groups)
        sums = torch.bincount(groups, weights=hits.double())
        large = counts >= least
        means.append((sums[large] / counts[large]).mean())
    return float(torch.stack(means).mean())


def _pixels(images: Tensor) -> Tensor:
    """Bytes as numbers in [-1, 1]; other images as they are."""
    return images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images


def hsic(x: Tensor, y: Tensor, sigma: float | None = None) -> Tensor:
    r"""The unbiased estimate of HSIC(x, y), which is 0 in expectation if x and y are independent:

        (tr(K L) + 1'K1 1'L1 / ((n-1)(n-2)) - 2 / (n-2) 1'K L1) / (n (n-3)),

    K and L the Gaussian kernels of x and of y, with zeros for their diagonals.

    Args:
        x, y: shape (n, any); below four items the result is 0.
        sigma: of the kernels exp(-|a - b|^2 / (2 sigma^2)); None takes the square root of the
            median squared distance between items, for x and for y.

    Example:
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> f"{hsic(x, x, 1.0):.3f} {hsic(x, x.flip(0), 1.0):.3f}"
        '0.056 -0.000'
    """
    n = len(x)
    if n < FEWEST:
        return 0 * (x.sum() + y.sum())
    with torch.autocast(x.device.type, enabled=False):  # differences of large sums
        K, L = _kernel(x, sigma), _kernel(y, sigma)
        rows = K.sum(1), L.sum(1)
        total = (K * L).sum() + rows[0].sum() * rows[1].sum() / ((n - 1) * (n - 2))
        return (total - 2 / (n - 2) * (rows[0] @ rows[1])) / (n * (n - 3))


def _kernel(x: Tensor, sigma: float | None) -> Tensor:
    """exp(-|x_i - x_j|^2 / (2 sigma^2)), with zeros for the diagonal."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    squares = (x * x).sum(1)
    distances = (squares[:, None] + squares - 2 * x @ x.T).clamp(min=0)
    others = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    if sigma is None:
        scale = distances.detach()[others].median().clamp(min=torch.finfo(x.dtype).tiny)
    else:
        scale = torch.tensor(sigma**2, dtype=x.dtype, device=x.device)
    return torch.exp(-distances / (2 * scale)) * others


class _Source(NamedTuple):
    """A data set.

    Attributes:
        splits: by the share of training images whose ground tells the class.
        model: f and g.
        sigma: of the kernels of HSIC; None takes the median distance.
    """

    splits: Callable[[float], Splits]
    model: Callable[[], nn.Module]
    sigma: float | None


SOURCES = {
    "digits": _Source(
        biased.digits,
        lambda: Rivals(ConvStack(5, (8, 16, 16)), ConvStack(1, (8, 16, 16))),
        1.0,
    ),
    "stripes": _Source(
        biased.stripes,
        lambda: Rivals(
            FeaturedResNet(ResNet("basic", (1, 1), 8, stem="small", classes=10)),
            ConvStack(3, (8, 16)),
        ),
        None,
    ),
    "biased-mnist": _Source(biased.biased_mnist, lambda: Rivals(ConvStack(7), ConvStack(1)), 1.0),
    "nine-class": _Source(
        lambda _: nine_class.nine_class(),
        lambda: Rivals(FeaturedResNet(resnet18(classes=9)), BagNet18(9)),
        None,
    ),
}
