"""Numbers that a measured step computes on its device: products of units, spectra of matrices.

`Scratch.inner_products` has <w, w>, <w, d>, <w, g>, <d, d> and <g, g>, with d = w' - w, from which
norms, turns and cosines follow. They are sums in float64.

`bidiagonalize` multiplies a matrix A by few vectors. A power iteration keeps the last vector of
v, A'A v, (A'A)^2 v, ... The method of Golub and Kahan takes the same products and keeps them all:
the largest singular value on the space that they span is that of a small bidiagonal matrix. Both
come from below; for weights of networks and their steps the latter is as close after 6 products as
the former after 16.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spherenorm.numerics import accumulation_dtype
from spherenorm.torch_internals import copy_tensors
from spherenorm.views import View

MAX_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Entries that are summed at once, by device: few calls, and little memory; on a CPU, what its
caches hold."""
SMALL_MATRIX = 2**14
"""Entries up to which matrices are multiplied in one operation, and as often as PRODUCTS says."""
PRODUCTS = {"small": 8, "large": 4}
"""Products of A'A and a vector, for a matrix of up to SMALL_MATRIX entries and beyond."""


PRODUCT_INDICES = (0, 0, 0, 1, 2), (0, 1, 2, 1, 2)
"""Where <w, w>, <w, d>, <w, g>, <d, d> and <g, g> are in the 3 x 3 products of w, d and g."""


class Scratch:
    """Memory in float64 that all meters of a probe share: to allocate it anew costs more than sums.

    Example:
        >>> w, new_w, g = (torch.full((1, 1, 2), x) for x in (1.0, 3.0, 5.0))
        >>> Scratch().inner_products([w], [new_w], [g], dim=0).flatten()
        tensor([ 2.,  4., 10.,  4.,  8., 20., 10., 20., 50.], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._buffers: dict[torch.device, Tensor] = {}

    def _take(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return memory of a shape, with any content."""
        size = math.prod(shape)
        buffer = self._buffers.get(device)
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=accumulation_dtype(device), device=device)
            self._buffers[device] = buffer
        return buffer[:size].view(*shape)

    def inner_products(
        self, before: Sequence[Tensor], after: Sequence[Tensor], grads: Sequence[Tensor], dim: int
    ) -> Tensor:
        """Return the products of w, d = w' - w and g with each other at each index of `dim`.

        They are computed in parts of little memory: some weights, or some rows of one.

        Args:
            before, after, grads: of one shape.
            dim: a dimension of them.

        Returns:
            A tensor of shape (weights, indices, 3, 3).
        """
        device, size, length = before[0].device, before[0].numel(), before[0].shape[dim]
        max_entries = MAX_ENTRIES.get(device.type, MAX_ENTRIES["cuda"])
        n_weights = max(1, max_entries // size)
        n_rows = max(1, max_entries * length // size)
        vectors: list[Sequence[Tensor]] = [before, after, grads]
        if dim:
            vectors = [[x.movedim(dim, 0) for x in tensors] for tensors in vectors]
        dtype = accumulation_dtype(device)
        products = torch.empty(len(before), length, 3, 3, dtype=dtype, device=device)
        for start in range(0, len(before), n_weights):
            part = [tensors[start : start + n_weights] for tensors in vectors]
            part_products = products[start : start + n_weights]
            if n_rows >= length:
                self._multiply(part, part_products)
                continue
            for row in range(0, length, n_rows):
                rows = [[x[row : row + n_rows] for x in tensors] for tensors in part]
                self._multiply(rows, part_products[:, row : row + n_rows])
        return products

    def _multiply(self, tensors: Sequence[Sequence[Tensor]], products: Tensor) -> None:
        """Write the products of each row of a few weights into `products`.

        Args:
            tensors: w, w' and g of each weight.
            products: of shape (weights, rows, 3, 3).
        """
        before, after, grads = tensors
        vectors = self._take((3, len(before), *before[0].shape), before[0].device)
        copy_tensors(vectors.flatten(0, 1).unbind(), [*before, *after, *grads])
        vectors[1].sub_(vectors[0])
        _multiply_entries(vectors, products)


class VectorProducts:
    """Products of vectors of any lengths, in memory of their own.

    Args:
        vectors: the vectors, which are padded by 0 to the longest.

    Example:
        >>> w, new_w, g = (torch.full((2,), x) for x in (1.0, 3.0, 5.0))
        >>> VectorProducts([w]).inner_products([w], [new_w], [g]).flatten()
        tensor([ 2.,  4., 10.,  4.,  8., 20., 10., 20., 50.], dtype=torch.float64)
    """

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        device, length = vectors[0].device, max(x.numel() for x in vectors)
        dtype = accumulation_dtype(device)
        self._memory = torch.zeros(3, len(vectors), 1, length, dtype=dtype, device=device)
        rows = self._memory.view(3, len(vectors), length)
        self._slots = [
            row[: x.numel()].view(x.shape)
            for part in rows
            for row, x in zip(part, vectors, strict=True)
        ]

    def inner_products(
        self, before: Sequence[Tensor], after: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> Tensor:
        """Return the products of w, d = w' - w and g, of shape (vectors, 1, 3, 3)."""
        copy_tensors(self._slots, [*before, *after, *grads])
        self._memory[1].sub_(self._memory[0])
        products = self._memory.new_empty(len(before), 1, 3, 3)
        _multiply_entries(self._memory, products)
        return products


def _multiply_entries(vectors: Tensor, products: Tensor) -> None:
    """Write the products of w, d and g, which are one tensor of shape (3, weights, rows, ...)."""
    matrices = vectors.flatten(3).flatten(1, 2).transpose(0, 1)
    torch.bmm(matrices, matrices.mT, out=products.flatten(0, 1))


def n_products(matrix: Tensor) -> int:
    """Return how many products with A'A are taken of a matrix; more than its rank tell no more."""
    kind = "small" if matrix.numel() <= SMALL_MATRIX else "large"
    rows, columns = matrix.shape
    return max(1, min(PRODUCTS[kind], rows, columns))


def matrices_of(x: Tensor, view: View) -> list[Tensor]:
    """Return the matrices of a weight: the units of a view, as `rules.Orthogonalize` has them.

    A unit without two dimensions is no matrix: the whole weight is one then.
    """
    if view.dim is None or x.ndim - (view.groups is None) < 2:
        return [x.flatten(1)]
    dim = view.dim % x.ndim
    if view.groups is not None:
        x = torch.unflatten(x, dim, (view.groups, x.shape[dim] // view.groups))
    return [unit.flatten(1) for unit in x.movedim(dim, 0)]


def bidiagonalize(groups: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return the bidiagonal of each matrix: its diagonal, and the entries above it.

    The vectors of all matrices lie in one tensor, padded by 0, so that all norms are one operation.

    Args:
        groups: matrices of one shape each; all of one device, in the dtype of the products.

    Returns:
        For each group a tensor of shape (matrices, 2 k), with k diagonal entries, k - 1 above them,
        and a 0.
    """
    # Those of many products come first, so that the others are at the end of all vectors.
    order = sorted(range(len(groups)), key=lambda i: -n_products(groups[i][0]))
    products = [_Products(groups[i]) for i in order]
    stops = list(itertools.accumulate(len(x.matrices) for x in products))
    slices = [slice(stop - len(x.matrices), stop) for x, stop in zip(products, stops, strict=True)]
    like = products[0].matrices[0]
    starts = [_start_vector(x.n_columns, like) for x in products]
    v = like.new_zeros(stops[-1], max(x.n_columns for x in products))
    u = like.new_zeros(stops[-1], max(x.n_rows for x in products))
    for x, part, start in zip(products, slices, starts, strict=True):
        v[part, : x.n_columns] = start
    beta = like.new_zeros(stops[-1], 1)
    diagonal, above = [], []
    for step in range(products[0].count):
        active = [i for i, x in enumerate(products) if x.count > step]
        n = stops[active[-1]]
        z = torch.zeros_like(u[:n])
        for i in active:
            products[i].multiply(v[slices[i]], z[slices[i]])
        norm, alpha, u = _normalized(z.addcmul_(beta[:n], u[:n], value=-1))
        diagonal.append(norm)
        z = torch.zeros_like(v[:n])
        for i in active:
            products[i].multiply_transposed(u[slices[i]], z[slices[i]])
        norm, beta, v = _normalized(z.addcmul_(alpha, v[:n], value=-1))
        above.append(norm)
    results: list[Tensor] = [like] * len(groups)
    for i, x, part in zip(order, products, slices, strict=True):
        above_of_group = [norm[part] for norm in above[: x.count - 1]]
        zero = torch.zeros_like(diagonal[0][part])
        diagonal_of_group = [norm[part] for norm in diagonal[: x.count]]
        results[i] = torch.cat([*diagonal_of_group, *above_of_group, zero], 1)
    return results


@functools.cache
def _normal_numbers(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def _start_vector(size: int, like: Tensor) -> Tensor:
    v: Tensor = _normal_numbers(size).to(like)
    return v / v.square().sum().sqrt()


def _normalized(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return norms in float64 and in the dtype of z, and z / |z|; a vector of 0 stays 0."""
    dtype = accumulation_dtype(z.device)
    if z.dtype is dtype:
        # Squares of numbers of the same dtype may underflow or overflow, unless they are scaled.
        scale = z.abs().amax(1, keepdim=True)
        scale = torch.where(scale > 0, scale, 1)
        norm = scale * torch.linalg.vector_norm(z / scale, dim=1, keepdim=True)
    else:
        norm = torch.linalg.vector_norm(z, dim=1, keepdim=True, dtype=dtype)
    same_dtype = norm.to(z.dtype)
    return norm, same_dtype, z / same_dtype.clamp(min=torch.finfo(z.dtype).tiny)


class _Products:
    """The products of matrices of one shape, and of their transposes, with a vector each.

    A matrix with more columns than rows is transposed: the shorter side is that of the vectors v.

    Attributes:
        matrices: none of them is wide.
        count: how many products are taken.
    """

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        is_wide = matrices[0].shape[0] < matrices[0].shape[1]
        self.matrices = [x.mT for x in matrices] if is_wide else [*matrices]
        self.n_rows, self.n_columns = self.matrices[0].shape
        self.count = n_products(matrices[0])
        # A product of one large matrix at a time is twice as fast, and needs no copy.
        is_small = matrices[0].numel() <= SMALL_MATRIX
        self._stack = torch.stack(self.matrices) if is_small else None

    def multiply(self, v: Tensor, z: Tensor) -> None:
        """Write A v into z, for the rows of v and z; both may be longer."""
        v, z = v[:, : self.n_columns], z[:, : self.n_rows]
        if self._stack is not None:
            z.copy_(torch.bmm(self._stack, v.unsqueeze(2)).squeeze(2))
            return
        for matrix, x, y in zip(self.matrices, v, z, strict=True):
            torch.mv(matrix, x, out=y)

    def multiply_transposed(self, u: Tensor, z: Tensor) -> None:
        """Write A' u into z, for the rows of u and z; both may be longer."""
        u, z = u[:, : self.n_rows], z[:, : self.n_columns]
        if self._stack is not None:
            z.copy_(torch.bmm(self._stack.mT, u.unsqueeze(2)).squeeze(2))
            return
        for matrix, x, y in zip(self.matrices, u, z, strict=True):
            torch.mv(matrix.mT, x, out=y)


def largest_singular_values(bidiagonals: Tensor) -> Tensor:
    """Return the largest singular value of each bidiagonal; nan where it is not finite.

    Args:
        bidiagonals: of shape (..., 2 k), from `bidiagonalize`, on the host.
    """
    diagonal, above = bidiagonals.chunk(2, -1)
    scale = diagonal.abs().amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    diagonal, above = diagonal / scale, above / scale
    is_finite = (diagonal.isfinite() & above.isfinite()).all(-1)
    diagonal, above = (torch.where(is_finite[..., None], x, 0) for x in (diagonal, above))
    matrix = torch.diag_embed(diagonal)
    if diagonal.shape[-1] > 1:
        matrix = matrix + torch.diag_embed(above[..., :-1], 1)
    values = torch.linalg.eigvalsh(matrix.mT @ matrix)[..., -1].clamp(min=0).sqrt()
    return torch.where(is_finite, values * scale[..., 0], torch.nan)
