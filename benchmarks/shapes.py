"""Shapes of the parameters of well-known networks."""

from __future__ import annotations

from collections.abc import Callable

Shape = tuple[int, ...]


def _norm(width: int) -> list[Shape]:
    return [(width,), (width,)]


def resnet18() -> list[Shape]:
    """Return the shapes of torchvision's ResNet-18 (He et al. 2016)."""
    shapes: list[Shape] = [(64, 3, 7, 7), *_norm(64)]
    width = 64
    for planes, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(2):
            shapes += [
                (planes, width, 3, 3),
                *_norm(planes),
                (planes, planes, 3, 3),
                *_norm(planes),
            ]
            if block == 0 and stride == 2:
                shapes += [(planes, width, 1, 1), *_norm(planes)]
            width = planes
    return [*shapes, (1000, 512), (1000,)]


def resnet50() -> list[Shape]:
    """Return the shapes of torchvision's ResNet-50 (He et al. 2016)."""
    shapes: list[Shape] = [(64, 3, 7, 7), *_norm(64)]
    width = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [
                (planes, width, 1, 1),
                *_norm(planes),
                (planes, planes, 3, 3),
                *_norm(planes),
            ]
            shapes += [(4 * planes, planes, 1, 1), *_norm(4 * planes)]
            if block == 0:
                shapes += [(4 * planes, width, 1, 1), *_norm(4 * planes)]
            width = 4 * planes
    return [*shapes, (1000, 2048), (1000,)]


def _transformer_block(width: int) -> list[Shape]:
    attention = [(3 * width, width), (3 * width,), (width, width), (width,)]
    return [
        *_norm(width),
        *attention,
        *_norm(width),
        (4 * width, width),
        (4 * width,),
        (width, 4 * width),
        (width,),
    ]


def vit_b() -> list[Shape]:
    """Return the shapes of torchvision's ViT-B/16 (Dosovitskiy et al. 2021)."""
    shapes: list[Shape] = [(1, 1, 768), (1, 197, 768), (768, 3, 16, 16), (768,)]
    return [
        *shapes,
        *(shape for _ in range(12) for shape in _transformer_block(768)),
        *_norm(768),
        (1000, 768),
        (1000,),
    ]


def gpt2() -> list[Shape]:
    """Return the shapes of OpenAI's GPT-2 of 124 M weights, whose head is the embedding."""
    return [
        (50257, 768),
        (1024, 768),
        *(shape for _ in range(12) for shape in _transformer_block(768)),
        *_norm(768),
    ]


def small_resnet() -> list[Shape]:
    """Return the shapes of CIFAR's ResNet-20 (He et al. 2016), its head without a bias."""
    shapes: list[Shape] = [(16, 3, 3, 3), *_norm(16)]
    width = 16
    for planes in (16, 32, 64):
        for _ in range(3):
            shapes += [(planes, width, 3, 3), *_norm(planes)]
            shapes += [(planes, planes, 3, 3), *_norm(planes)]
            width = planes
    return [*shapes, (10, width)]


def small_gpt() -> list[Shape]:
    """Return the shapes of a GPT of three blocks of width 128, with an untied head."""
    width = 128
    blocks = [shape for _ in range(3) for shape in _transformer_block(width)]
    return [(512, width), (512, width), *blocks, *_norm(width), (512, width)]


def many_small() -> list[Shape]:
    """Return 200 shapes of 1,000 entries."""
    return [(25, 40)] * 200


SETS: dict[str, Callable[[], list[Shape]]] = {
    "small-resnet": small_resnet,
    "small-gpt": small_gpt,
    "many-small": many_small,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vit-b": vit_b,
    "gpt2-124m": gpt2,
}
