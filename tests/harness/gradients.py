"""Gradient families that drive the scale-invariance test through its branches.

Of ten planted faults of the projection, random gradients missed one or two and tangential ones up
to four; rows that mix tangential and radial parts missed none. Every differential test runs all
families.
"""

from __future__ import annotations

import torch
from torch import Tensor

FAMILIES = ("random", "row_tangential", "layer_tangential", "mixed", "alternating")


def remove_radial_part(weight: Tensor, x: Tensor) -> Tensor:
    """`x` minus its part along `weight`, as whole tensors, without the library's views."""
    w, v = weight.reshape(-1), x.reshape(-1)
    return (v - w * (w @ v) / (w @ w)).reshape(x.shape)


def gradient(family: str, weight: Tensor, generator: torch.Generator, step: int) -> Tensor:
    """A gradient of `weight` of the given family.

    random: neither view passes (nearly always); row_tangential: each row passes; layer_tangential:
        only the whole tensor
    passes; mixed: half of the rows tangential, half with a radial part; alternating: all of these
    in turn.
    """
    if family == "alternating":
        family = FAMILIES[step % 4]
    x = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
    if family == "random" or weight.ndim < 2:
        # A visible radial part keeps the comparison away from the threshold.
        return x + 0.5 * weight
    if family == "row_tangential":
        return torch.stack([remove_radial_part(w, row) for w, row in zip(weight, x, strict=True)])
    if family == "layer_tangential":
        return remove_radial_part(
            weight,
            x
            + torch.linspace(-1, 1, len(weight), dtype=weight.dtype).reshape(
                -1, *[1] * (weight.ndim - 1)
            )
            * weight,
        )
    assert family == "mixed"
    rows = [
        remove_radial_part(w, row) if i % 2 else row + w
        for i, (w, row) in enumerate(zip(weight, x, strict=True))
    ]
    return torch.stack(rows)
