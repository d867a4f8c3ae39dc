"""The weights that are measured, cut into rows and packed, so that many are measured at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm._numerics import wide_dtype
from spherenorm._views import View, uncut
from spherenorm.rules import InvarianceTest

__all__ = ["Packs", "Piece", "Watched", "plain"]

MOST_ENTRIES = {"cpu": 2**16, "cuda": 2**22}
"""Of a pack: few calls for it, and little memory to work in."""


@dataclass(frozen=True, eq=False)
class Watched:
    """A weight that is measured.

    Attributes:
        weight: the parameter.
        name: in measurements.
        group: the index of its param_group.
        view: splits it into the units that are measured.
        test: decides which of its units are scale-invariant.
    """

    weight: Tensor
    name: str
    group: int
    view: View
    test: InvarianceTest

    @property
    def views(self) -> tuple[View, ...]:
        """The measured view, and those that are tested."""
        return self.view, *self.test.views

    @property
    def key(self) -> Hashable:
        """A value that tells if the weight is to be laid out anew."""
        kind = self.weight.shape, self.weight.dtype, self.weight.device
        return id(self.weight), kind, self.name, self.views, self.test.per, type(self.test)


def plain(x: Tensor) -> Tensor:
    """`x` without a graph, dense, and whole in each process."""
    x = x.detach()
    if getattr(x, "device_mesh", None) is not None:
        x = uncut(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


@dataclass(frozen=True)
class Piece:
    """Rows of a weight: consecutive indices of a dimension that counts units.

    Attributes:
        index: of the weight, among the watched ones.
        dim: the dimension of the weight that counts its rows.
        first, last: the rows.
        shape: of the piece, the rows in front.
        whole: the piece is the weight as it lies.
    """

    index: int
    dim: int
    first: int
    last: int
    shape: tuple[int, ...]
    whole: bool

    @property
    def entries(self) -> int:
        return torch.Size(self.shape).numel()

    def of(self, tensors: Sequence[Tensor | None]) -> Tensor | None:
        """These rows of the weight's tensor, shaped as the piece."""
        x = tensors[self.index]
        return x if x is None or self.whole else x.movedim(self.dim, 0)[self.first : self.last]


class Pack:
    """Pieces of one dtype, one after another: a copy of their weights before a step."""

    def __init__(self, pieces: Sequence[Piece], like: Tensor) -> None:
        self.pieces, self._sizes = pieces, [piece.entries for piece in pieces]
        self.entries = sum(self._sizes)
        self._flat = torch.empty(self.entries, dtype=like.dtype, device=like.device)
        self._kept = self._shaped(self._flat)

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Copy the weights as they are before the step."""
        torch._foreach_copy_(self._kept, self._cut(weights))

    def add_sums(
        self,
        weights: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        work: Tensor,
        sums: Sequence[Tensor],
    ) -> None:
        """Write |w|, |d|, |g|, <w, d>, <w, g> of each row.

        Args:
            weights: after the step; d is their difference from the kept ones.
            grads: None is 0.
            work: memory to work in, of shape (5, entries or more).
            sums: for each piece, of shape (5, rows).
        """
        work = work[:, : self.entries]
        vectors, products = work[:3], work[3:]
        w, d, g = vectors.unbind()
        w.copy_(self._flat)
        torch._foreach_copy_(self._shaped(d), self._cut(weights))
        d.sub_(w)
        given = [piece.of(grads) for piece in self.pieces]
        found = [(to, x) for to, x in zip(self._shaped(g), given, strict=True) if x is not None]
        if len(found) < len(given):
            g.zero_()
        if found:
            torch._foreach_copy_([to for to, _ in found], [x for _, x in found])
        torch.mul(vectors[1:], w, out=products)
        parts = torch.split(work, self._sizes, 1)
        for piece, part, out in zip(self.pieces, parts, sums, strict=True):
            rows = part.view(5, piece.shape[0], -1)
            torch.linalg.vector_norm(rows[:3], dim=2, out=out[:3])
            torch.sum(rows[3:], 2, out=out[3:])

    def _cut(self, weights: Sequence[Tensor]) -> list[Tensor]:
        rows = (piece.of(weights) for piece in self.pieces)
        return [x for x in rows if x is not None]

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._sizes)
        return [x.view(piece.shape) for x, piece in zip(parts, self.pieces, strict=True)]


class Packs:
    """All rows of the watched weights of one device, in packs.

    A weight has its rows once for each dimension that counts the units of one of its views.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched, self._device = watched, watched[0].weight.device
        self._start: dict[tuple[int, int], int] = {}
        most, count = MOST_ENTRIES.get(self._device.type, 2**22), 0
        by_dtype: dict[torch.dtype, list[list[tuple[Piece, int]]]] = {}
        for index, each in enumerate(watched):
            packs = by_dtype.setdefault(each.weight.dtype, [[]])
            for dim in _dims(each):
                self._start[index, dim] = count
                for piece in _pieces(index, each.weight, dim, most):
                    if packs[-1] and sum(p.entries for p, _ in packs[-1]) + piece.entries > most:
                        packs.append([])
                    packs[-1].append((piece, count))
                    count += piece.shape[0]
        found = [pack for packs in by_dtype.values() for pack in packs]
        self._packs = [
            Pack([piece for piece, _ in pack], watched[pack[0][0].index].weight) for pack in found
        ]
        self._places = [[(at, at + piece.shape[0]) for piece, at in pack] for pack in found]
        self._count = count
        # A CPU clears new memory page by page, which takes as long as the sums.
        self._work = self._memory() if self._device.type == "cpu" else None

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Copy the weights as they are before the step."""
        for pack in self._packs:
            pack.keep(weights)

    def sums(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
        """<w, w>, <d, d>, <g, g>, <w, d>, <w, g> of each row, shape (5, rows); see `Pack`."""
        dtype = wide_dtype(self._device)
        sums = torch.empty(5, self._count, dtype=dtype, device=self._device)
        work = self._memory() if self._work is None else self._work
        for pack, places in zip(self._packs, self._places, strict=True):
            pack.add_sums(weights, grads, work, [sums[:, a:b] for a, b in places])
        sums[:3].square_()
        return sums

    def _memory(self) -> Tensor:
        entries = max(pack.entries for pack in self._packs)
        return torch.empty(5, entries, dtype=wide_dtype(self._device), device=self._device)

    def rows_of(self, index: int, view: View) -> tuple[int, int]:
        """The first row of a weight under a view, and how many rows it has."""
        each = self._watched[index]
        dim = _dims(each)[0] if view.dim is None else view.dim % each.weight.ndim
        return self._start[index, dim], each.weight.shape[dim]


def _dims(watched: Watched) -> list[int]:
    """The dimensions that count the units of a weight's views."""
    dims = {view.dim % watched.weight.ndim for view in watched.views if view.dim is not None}
    return sorted(dims or {0})


def _pieces(index: int, weight: Tensor, dim: int, most: int) -> Iterator[Piece]:
    """The rows of a weight along `dim`, in pieces of `most` entries, or of one row."""
    length, *rest = weight.shape[dim], *weight.shape[:dim], *weight.shape[dim + 1 :]
    step = max(1, most // torch.Size(rest).numel())
    for first in range(0, length, step):
        last = min(length, first + step)
        yield Piece(index, dim, first, last, (last - first, *rest), step >= length and dim == 0)
