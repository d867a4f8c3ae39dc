"""The inner products of the units of weights before and after a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spherenorm._views import View, replicate

MOST_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Entries that are summed at once: few calls, and little memory; on a CPU, what its caches hold."""


class Stack:
    """Weights of one shape and dtype: a copy before a step, and the sums after it.

    Small weights are summed together, so that calls hardly depend on the number of weights; a
    large one is summed in parts, row by row.

    Args:
        weights: of one shape, dtype and device.
        views: split each weight into units.
    """

    def __init__(self, weights: Sequence[Tensor], views: Sequence[View]) -> None:
        first = weights[0]
        self._weights, self._views, self._ndim = weights, views, first.ndim
        self.count = len(weights)
        self._most = MOST_ENTRIES.get(first.device.type, MOST_ENTRIES["cuda"])
        dims = {view.dim % first.ndim for view in views if view.dim is not None}
        self._dims = sorted(dims or {0})
        like = torch.empty(0, dtype=first.dtype, device=first.device)
        self._kept = [like.new_empty(first.shape) for _ in weights]
        self._zero = like.new_zeros(()).expand(first.shape)
        longest_row = max(first.numel() // first.shape[dim] for dim in self._dims)
        self.work = max(longest_row, min(self._most, first.numel() * len(weights)))
        """Entries of memory that `sums` needs to work in."""

    def keep(self) -> None:
        """Copy the weights as they are before the step."""
        torch._foreach_copy_(self._kept, list(map(plain, self._weights)))

    def products(self, grads: Sequence[Tensor | None], work: Tensor) -> list[Tensor]:
        """The inner products of w, d = w' - w and g, shape (3, 3, weights, units), for each view.

        Args:
            grads: g of each weight; None is 0.
            work: memory to work in, of shape (3, `self.work` or more), in the dtype of the sums.
        """
        after = list(map(plain, self._weights))
        given = [self._zero if grad is None else plain(grad) for grad in grads]
        rows = {dim: self._rows(dim, after, given, work) for dim in self._dims}
        dims = [self._dims[0] if v.dim is None else v.dim % self._ndim for v in self._views]
        return [view.of_indices(rows[dim]) for view, dim in zip(self._views, dims, strict=True)]

    def _rows(
        self, dim: int, after: Sequence[Tensor], grads: Sequence[Tensor], work: Tensor
    ) -> Tensor:
        """The same of each index of a dimension, shape (3, 3, weights, indices)."""
        products = []
        lists = (_pieces(x, dim, self._most) for x in (self._kept, after, grads))
        for w, moved, g in zip(*lists, strict=True):
            vectors = work[:, : w.numel()].view(3, *w.shape)
            for to, x in zip(vectors, (w, moved, g), strict=True):
                to.copy_(x)
            vectors[1].sub_(vectors[0])
            matrices = vectors.flatten(2).transpose(0, 1)
            products.append(torch.bmm(matrices, matrices.mT))
        return torch.unflatten(torch.cat(products), 0, (len(after), -1)).permute(2, 3, 0, 1)


def count_units(weight: Tensor, view: View) -> int:
    """The number of units of a weight that is not empty."""
    return weight.numel() // view.size(weight)


def plain(x: Tensor) -> Tensor:
    """`x` without a graph, dense, and whole in each process."""
    x = x.detach()
    if getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


def _pieces(weights: Sequence[Tensor], dim: int, most: int) -> Iterator[Tensor]:
    """Rows of weights of one shape along `dim`: of several small ones, or a part of a large one.

    Each piece has `most` entries at most, or is one row; its first dimension counts the rows.
    """
    size = weights[0].numel()
    together = most // size
    if together > 1 < len(weights):
        for first in range(0, len(weights), together):
            some = list(weights[first : first + together])
            yield torch.stack(some).movedim(dim + 1, 1).flatten(0, 1)
        return
    step = max(1, most * weights[0].shape[dim] // size)
    for weight in weights:
        rows = weight.movedim(dim, 0) if dim else weight
        yield from torch.split(rows, step) if size > most else [rows]
