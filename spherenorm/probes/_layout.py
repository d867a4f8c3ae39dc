"""The weights that are measured, cut into rows and packed, so that many are measured at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from spherenorm._numerics import wide_dtype
from spherenorm._views import View, replicate
from spherenorm.rules import InvarianceTest

MOST_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Of a pack: few calls for it, and little memory to work in; on a CPU, what its caches hold."""


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


def plain(x: Tensor) -> Tensor:
    """`x` without a graph, dense, and whole in each process."""
    x = x.detach()
    if getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
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
    def length(self) -> int:
        """The entries of a row."""
        return torch.Size(self.shape[1:]).numel()

    @property
    def entries(self) -> int:
        return self.shape[0] * self.length

    def of(self, x: Tensor) -> Tensor:
        """These rows of the weight, or of a tensor of its shape."""
        if self.whole:
            return x
        return (x.movedim(self.dim, 0) if self.dim else x)[self.first : self.last]


class Pack:
    """Pieces of one dtype, one after another: a copy of their weights before a step.

    Pieces with rows of one length lie together, as a block that is summed at once.

    Args:
        pieces: by the length of their rows.
        like: has their dtype and device.
        work: memory to work in, of shape (3, entries or more).
        sums: memory for the inner products of w, d and g, of shape (rows, 3, 3).
    """

    def __init__(self, pieces: Sequence[Piece], like: Tensor, work: Tensor, sums: Tensor) -> None:
        self.pieces, self._sizes = pieces, [piece.entries for piece in pieces]
        entries = sum(self._sizes)
        self._flat = like.new_empty(entries)
        self._kept = self._shaped(self._flat)
        self._w, self._d, self._g = (x[:entries] for x in work)
        self._moves, self._grads = self._shaped(self._d), self._shaped(self._g)
        self._products: list[tuple[Tensor, Tensor, Tensor]] = []
        first = row = 0
        for length, block in groupby(pieces, lambda piece: piece.length):
            rows = sum(piece.shape[0] for piece in block)
            vectors = work[:, first : first + rows * length].view(3, rows, length).transpose(0, 1)
            self._products.append((vectors, vectors.mT, sums[row : row + rows]))
            first, row = first + rows * length, row + rows

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Copy the weights as they are before the step."""
        _copy(self._kept, self._cut(weights))

    def sum(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Write the inner products of w, d and g of each row.

        Args:
            weights: after the step; d is their difference from the kept ones.
            grads: None is 0.
        """
        self._w.copy_(self._flat)
        _copy(self._moves, self._cut(weights))
        self._d.sub_(self._w)
        given = [grads[piece.index] for piece in self.pieces]
        if any(grad is None for grad in given):
            self._g.zero_()
        pairs = zip(self._grads, self.pieces, given, strict=True)
        cut = [(to, piece.of(grad)) for to, piece, grad in pairs if grad is not None]
        _copy([to for to, _ in cut], [grad for _, grad in cut])
        for vectors, transposed, products in self._products:
            torch.bmm(vectors, transposed, out=products)

    def _cut(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [piece.of(weights[piece.index]) for piece in self.pieces]

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        parts = torch.split(flat, self._sizes)
        return [x.view(piece.shape) for x, piece in zip(parts, self.pieces, strict=True)]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if len(targets) == 1:  # (by which most packs of a large model are half as slow to call)
        targets[0].copy_(sources[0])
    elif targets:
        torch._foreach_copy_(targets, sources)


class Packs:
    """All rows of the watched weights of one device, in packs.

    A weight has its rows once for each dimension that counts the units of one of its views.

    Attributes:
        rows: how many there are.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched, self._device = watched, watched[0].weight.device
        most = MOST_ENTRIES.get(self._device.type, MOST_ENTRIES["cuda"])
        dims = [(index, dim) for index, each in enumerate(watched) for dim in _dims(each)]
        pieces = [p for i, dim in dims for p in _pieces(i, watched[i].weight, dim, most)]
        dtypes = list(dict.fromkeys(each.weight.dtype for each in watched))
        pieces.sort(key=lambda p: self._order(p, dtypes))
        self._start: dict[tuple[int, int], int] = {}
        self.rows = 0
        for piece in pieces:
            self._start.setdefault((piece.index, piece.dim), self.rows)
            self.rows += piece.shape[0]
        runs = list(_runs(pieces, [watched[p.index].weight.dtype for p in pieces], most))
        wide = torch.empty(0, dtype=wide_dtype(self._device), device=self._device)
        self._sums = wide.new_empty(self.rows, 3, 3)
        # One for all, kept: a CPU clears new memory page by page, which takes as long as the sums.
        work = wide.new_empty(3, max(sum(p.entries for p in run) for run in runs))
        parts = torch.split(self._sums, [sum(p.shape[0] for p in run) for run in runs])
        self._packs = [
            # (made of no weight, which may be a DTensor)
            Pack(run, wide.new_empty(0, dtype=watched[run[0].index].weight.dtype), work, part)
            for run, part in zip(runs, parts, strict=True)
        ]

    def _order(self, piece: Piece, dtypes: Sequence[torch.dtype]) -> tuple[int, ...]:
        """Pieces are sorted by this, so that those of weights of one shape lie together."""
        weight = self._watched[piece.index].weight
        return dtypes.index(weight.dtype), piece.length, weight.shape[piece.dim]

    def keep(self, weights: Sequence[Tensor]) -> None:
        """Copy the weights as they are before the step."""
        for pack in self._packs:
            pack.keep(weights)

    def sums(self, weights: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
        """<w, w>, <g, g>, <w, g>, <w, d>, <d, d> of each row, shape (5, rows); see `Pack`."""
        for pack in self._packs:
            pack.sum(weights, grads)
        places = (0, 0), (2, 2), (0, 2), (0, 1), (1, 1)
        return torch.stack([self._sums[:, i, j] for i, j in places])

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


def _runs(
    pieces: Sequence[Piece], dtypes: Sequence[torch.dtype], most: int
) -> Iterator[list[Piece]]:
    """The pieces in runs of one dtype and of `most` entries, or of one piece."""
    run: list[Piece] = []
    entries, last = 0, None
    for piece, dtype in zip(pieces, dtypes, strict=True):
        if run and (dtype != last or entries + piece.entries > most):
            yield run
            run, entries = [], 0
        run.append(piece)
        entries, last = entries + piece.entries, dtype
    yield run
