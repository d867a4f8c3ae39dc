"""The units of all watched weights of one device, side by side: which rows they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spherenorm._numerics import wide_dtype
from spherenorm._views import View
from spherenorm.probes._layout import Packs, Watched

MOST_FILLED = 2**16
"""Units, those that fill up included, on which one decision is taken rather than several."""


class Run(NamedTuple):
    """Equally many places for each of several owners, one owner after another.

    Attributes:
        first: the first place.
        owners: how many there are.
        length: places of each.
    """

    first: int
    owners: int
    length: int

    @property
    def last(self) -> int:
        return self.first + self.owners * self.length

    def of(self, x: Tensor) -> Tensor:
        """These places of `x`, shape (..., places), as (..., owners, length)."""
        return torch.unflatten(x[..., self.first : self.last], -1, (self.owners, self.length))


@dataclass(frozen=True)
class DecisionBatch:
    """Weights of one group on which one test decides at once.

    Attributes:
        indices: of the weights.
        units: for each tested view, the places of its units; shape (weights, units). Where a weight
            has fewer units than another, the place behind the last unit fills up: a unit of 0,
            which is no evidence.
        real: for each view, 1 at each unit, 0 at a place that fills up.
        counts: for each view, how many units each weight has.
    """

    indices: list[int]
    units: list[Tensor]
    real: list[Tensor]
    counts: list[Tensor]


class UnitTable:
    """The units of watched weights in all their views, and one more unit of 0, which fills up.

    A row of the packs is a unit as it is; units of several rows come behind all rows.

    Attributes:
        spans: for a weight and a view, the places of its units.
        roots: sqrt(dim) of each unit.
        order: the watched weights, by their measured units.
        measured: the places of the measured units, in this order.
        runs: the same units by weight, counted from the first of them.
        lengths: how many measured units each weight has, in this order.
        batches: weights on which one test decides at once.
    """

    def __init__(self, watched: Sequence[Watched], packs: Packs) -> None:
        self._watched, self._device = watched, watched[0].weight.device
        self.spans: dict[tuple[int, View], range] = {}
        self._sums: list[Run] = []
        sizes = self._place(packs)
        roots = torch.ones(sizes + 1, dtype=wide_dtype(self._device))
        for (index, view), span in self.spans.items():
            roots[span.start : span.stop] = view.size(watched[index].weight) ** 0.5
        self.roots = roots.to(self._device)
        own = [self.spans[index, each.view] for index, each in enumerate(watched)]
        self.order = sorted(range(len(own)), key=lambda index: own[index].start)
        self.measured = self._places([own[index] for index in self.order])
        lengths = [len(own[index]) for index in self.order]
        self.lengths = torch.tensor(lengths, device=self._device)
        self.runs = _runs(lengths)
        self.batches = list(self._groups())

    def units(self, rows: Tensor) -> Tensor:
        """Sums over units, shape (..., units), of sums over rows, shape (..., rows)."""
        several = [run.of(rows).sum(-1) for run in self._sums]
        return torch.cat([rows, *several, rows.new_zeros(*rows.shape[:-1], 1)], -1)

    def _place(self, packs: Packs) -> int:
        """Give the units of each weight and view their places; returns how many there are.

        The rows of one weight and dimension serve all views along it.
        """
        places = [
            (number, *packs.rows_of(index, view), index, view)
            for index, each in enumerate(self._watched)
            for number, view in enumerate(dict.fromkeys(each.views))
        ]
        count = packs.rows
        for _, start, length, index, view in sorted(places, key=lambda place: place[:2]):
            if view.dim is not None and view.groups is None:
                self.spans[index, view] = range(start, start + length)
                continue
            units = view.groups or 1
            self.spans[index, view] = range(count, count + units)
            self._sums = _joined(self._sums, Run(start, units, length // units))
            count += units
        return count

    def _groups(self) -> Iterator[DecisionBatch]:
        """Weights of one test, of which those with about as many units are together."""
        found: dict[object, list[int]] = {}
        most = max(len(span) for span in self.spans.values())
        few = most * len(self._watched) <= MOST_FILLED
        for index, each in enumerate(self._watched):
            if not each.test.views:  # a group whose weights are not tested
                continue
            lengths = [len(self.spans[index, view]) for view in each.test.views]
            if not each.test.state_names:  # (a test with a state asks how many units there are)
                lengths = [] if few else [length.bit_length() for length in lengths]
            key = each.group, each.weight.dtype, each.test.views, tuple(lengths)
            found.setdefault(key, []).append(index)
        last = len(self.roots) - 1
        for indices in found.values():
            views = self._watched[indices[0]].test.views
            spans = ([_range(self.spans[i, view]) for i in indices] for view in views)
            units = [nn.utils.rnn.pad_sequence(x, True, last) for x in spans]
            units = [x.to(self._device) for x in units]
            real = [(x < last).to(self.roots.dtype) for x in units]
            yield DecisionBatch(indices, units, real, [x.sum(1) for x in real])

    def _places(self, spans: Sequence[range]) -> slice | Tensor:
        """The places of all spans: a slice, which copies nothing, if they lie side by side."""
        first, last = spans[0].start, spans[-1].stop
        if sum(map(len, spans)) == last - first:
            return slice(first, last)
        return torch.cat([_range(span) for span in spans]).to(self._device)


def _runs(lengths: Sequence[int]) -> list[Run]:
    """Owners of so many places each as runs."""
    runs: list[Run] = []
    for length in lengths:
        runs = _joined(runs, Run(runs[-1].last if runs else 0, 1, length))
    return runs


def _joined(runs: list[Run], new: Run) -> list[Run]:
    """The runs with one more, which goes on with the last one if it can."""
    last = runs[-1] if runs else None
    if last is not None and (last.last, last.length) == (new.first, new.length):
        return [*runs[:-1], last._replace(owners=last.owners + new.owners)]
    return [*runs, new]


def _range(span: range) -> Tensor:
    return torch.arange(span.start, span.stop)
