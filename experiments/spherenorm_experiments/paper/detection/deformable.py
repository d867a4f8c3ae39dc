"""Deformable convolutions: the nine taps of a kernel move by offsets that the input decides.

Source: X. Zhu et al., *Deformable ConvNets v2: More Deformable, Better Results*, CVPR 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def deformable_convolution(
    x: Tensor, offsets: Tensor, mask: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    r"""A 3 x 3 convolution of stride 1 that keeps the size, with moved and weighted taps.

        y(p) = b + sum_k w_k m_k(p) x(p + p_k + \Delta p_k(p)),

    with x interpolated bilinearly between pixels and 0 outside.

    Args:
        x: shape (images, inputs, height, width).
        offsets: \Delta p, shape (images, 18, height, width): the vertical offset of tap k in
            channel 2 k, the horizontal one in 2 k + 1; pixels.
        mask: m, shape (images, 9, height, width).
        weight: shape (outputs, inputs, 3, 3).
        bias: shape (outputs,).

    Returns:
        Shape (images, outputs, height, width).
    """
    images, _, height, width = x.shape
    pixel = _grid(height, width, x)[:, None]  # 2, 1, height, width
    tap = _grid(3, 3, x).flatten(1)[..., None, None] - 1  # 2, 9, 1, 1
    moves = offsets.view(images, 9, 2, height, width).transpose(1, 2)
    place = pixel + tap + moves  # images, 2, 9, height, width
    size = torch.tensor([height, width], dtype=x.dtype, device=x.device).view(2, 1, 1, 1)
    grid = ((2 * place + 1) / size - 1).flip(1)  # grid_sample takes (horizontal, vertical)
    grid = grid.flatten(3).permute(0, 2, 3, 1)  # images, 9, height width, 2
    sampled = F.grid_sample(x, grid, align_corners=False) * mask.flatten(2)[:, None]
    y = weight.flatten(1) @ sampled.flatten(1, 2) + bias[:, None]
    return y.view(images, -1, height, width)


def _grid(height: int, width: int, like: Tensor) -> Tensor:
    """The coordinates (vertical, horizontal) of each pixel, shape (2, height, width)."""
    axes = (torch.arange(n, dtype=like.dtype, device=like.device) for n in (height, width))
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


class DeformableConv2d(nn.Module):
    """A deformable 3 x 3 convolution that decides its own offsets and mask.

    An ordinary convolution gives 27 channels: 18 offsets, and 9 logits of the mask. It starts at
    zero, so that the layer starts as a convolution with half of its weight.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        plain = nn.Conv2d(inputs, outputs, 3)  # for its initialization
        self.weight, self.bias = plain.weight, plain.bias
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]
        self.offset = nn.Conv2d(inputs, 27, 3, padding=1)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, shape (images, outputs, height, width)."""
        offsets, logits = self.offset(x).split([18, 9], dim=1)
        return deformable_convolution(x, offsets, logits.sigmoid(), self.weight, self.bias)  # type: ignore[arg-type]
