"""ReBias: a network f learns what a network g that sees only the shortcut cannot represent.

g, which sees colour or texture alone, maximizes the dependence of its features on those of f, and f
minimizes it; both learn to classify.

Source: H. Bahng et al., *Learning De-biased Representations with Biased Representations*, 2020.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm_experiments.core import (
    Batch,
    Budget,
    Collected,
    Mean,
    Split,
    Splits,
    Statistic,
    Task,
    cross_entropy,
)
from spherenorm_experiments.paper.debiasing import biased, mnist, nine_class
from spherenorm_experiments.paper.debiasing._independence import hsic, reversed_gradient
from spherenorm_experiments.paper.debiasing.rebias import (
    BagNet18,
    ConvStack,
    FeaturedResNet,
    Rivals,
)
from spherenorm_experiments.paper.shared.resnet import ResNet, resnet18

__all__ = ["Debiasing", "grouped_accuracy"]

STRIPED = 12
"""Pixels of a side of the digits on stripes."""

PARTS = (slice(0, 1100), slice(1157, 1415), slice(1415, None))
"""The digits of training, validation and test.

A writer's digits lie together, and those of one begin at 1029, 1157, 1287 and 1415: the last two
parts have writers that are in no other. 57 digits of a writer of training are left out, so that
batches of 50 are full.
"""

UNBIASED, BIASED = 0, 1
"""The parts of an evaluation split: the ground has nothing to do with the class, or all."""

AUDITED = 8
"""Large images that the audit sees: it computes in float64."""

HELD_OUT = 1000
"""Training images of MNIST on which hyper-parameters are chosen."""

Paint = Callable[[Tensor], Tensor]
"""Images by the kinds of their grounds."""

Painted = tuple[Paint, Tensor]
"""A part of the data before its grounds are chosen; and its labels."""


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
        return _SPLITS[self.data_set](self.rho)

    def model(self) -> nn.Module:
        return _MODELS[self.data_set]()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        f_logits, f_features, g_logits, g_features = model(_pixels(images))
        shared = hsic(f_features, reversed_gradient(g_features), _SIGMAS.get(self.data_set))
        apart = cross_entropy(f_logits, labels) + cross_entropy(g_logits, labels)
        return apart + self.dependence * shared

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Statistic]:
        images, parts, *clusters, labels = batch
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


def _on_colours(strokes: Tensor) -> Paint:
    return lambda grounds: biased.colour_strokes(strokes, grounds)


@functools.lru_cache(maxsize=8)
def _digits(rho: float) -> Splits:
    strokes, labels = biased.handwritten_digits()
    return _splits(rho, *_parts(strokes, labels, lambda x, _: _on_colours(x)))


@functools.lru_cache(maxsize=8)
def _stripes(rho: float) -> Splits:
    def paint(strokes: Tensor, seed: int) -> Paint:
        return lambda grounds: biased.stripe_strokes(strokes, grounds, seed)

    strokes, labels = biased.handwritten_digits(STRIPED)
    return _splits(rho, *_parts(strokes, labels, paint))


def _parts(strokes: Tensor, labels: Tensor, paint: Callable[[Tensor, int], Paint]) -> list[Painted]:
    """Training, validation and test part of the digits, each by writers of its own."""
    return [(paint(strokes[part], seed), labels[part]) for seed, part in enumerate(PARTS)]


@functools.lru_cache(maxsize=2)
def _mnist(folder: Path, rho: float) -> Splits:
    strokes, labels = mnist.read_mnist(folder, train=True)
    held = min(HELD_OUT, len(labels) // 2)
    test, test_labels = mnist.read_mnist(folder, train=False)
    return _splits(
        rho,
        (_on_colours(strokes[:-held]), labels[:-held]),
        (_on_colours(strokes[-held:]), labels[-held:]),
        (_on_colours(test), test_labels),
    )


def _splits(rho: float, train: Painted, validation: Painted, test: Painted) -> Splits:
    """Paint each part: the first one biased, the others once without bias and once with all."""
    paint, labels = train
    kinds = len(biased.COLOURS)
    painted = paint(biased.draw_grounds(labels, rho, kinds, 0)), labels
    return Splits(painted, _judged(*validation, kinds, 1), _judged(*test, kinds, 2))


def _judged(paint: Paint, labels: Tensor, kinds: int, seed: int) -> Split:
    unbiased = biased.draw_grounds(labels, 1 / kinds, kinds, seed)
    parts = torch.tensor([UNBIASED, BIASED]).repeat_interleave(len(labels))
    return torch.cat([paint(unbiased), paint(labels)]), parts, labels.repeat(2)


_SPLITS: dict[str, Callable[[float], Splits]] = {
    "digits": _digits,
    "stripes": _stripes,
    "biased-mnist": lambda rho: _mnist(mnist.LAYOUT.folder(), rho),
    "nine-class": lambda _: nine_class.nine_class(),
}

_MODELS: dict[str, Callable[[], nn.Module]] = {
    "digits": lambda: Rivals(ConvStack(5, (8, 16, 16)), ConvStack(1, (8, 16, 16))),
    "stripes": lambda: Rivals(
        FeaturedResNet(ResNet("basic", (1, 1), 8, stem="small", classes=10)), ConvStack(3, (8, 16))
    ),
    "biased-mnist": lambda: Rivals(ConvStack(7), ConvStack(1)),
    "nine-class": lambda: Rivals(FeaturedResNet(resnet18(classes=9)), BagNet18(9)),
}

_SIGMAS: dict[str, float | None] = {"digits": 1.0, "biased-mnist": 1.0}
"""Of the kernels of HSIC; None takes the median distance."""
