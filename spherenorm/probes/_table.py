"""The units of all watched weights of one device, side by side: which rows they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spherenorm._numerics import wide_dtype
from spherenorm._views import View
from spherenorm.probes._layout import Packs, Watched

__all__ = ["Alike", "UnitTable"]

MOST_FILLED = 2**16
"""Units, those that fill up included, on which one decision is taken rather than several."""


@dataclass(frozen=True)
class Alike:
    """Weights of one group on which one test decides at once.

    Attributes:
        indices: of the weights.
        units: for each tested view, the places of its units; shape (weights, units). Where a weight
            has fewer units than another, the place behind the last unit fills up: a unit of 0,
            which is no evidence.
        shares: for each view, 1 over the number of its weight's units at each unit, 0 at a place
            that fills up.
    """

    indices: list[int]
    units: list[Tensor]
    shares: list[Tensor]


class UnitTable:
    """The units of watched weights in all their views, and one more unit of 0, which fills up.

    Attributes:
        spans: for a weight and a view, the places of its units.
        rows, owners: rows of the packs, and the units that own them.
        roots: sqrt(dim) of each unit.
        measured: the units of the measured views, and `weights`, to which they belong.
        lengths: how many measured units each weight has.
        alike: weights on which one test decides at once.
    """

    def __init__(self, watched: Sequence[Watched], packs: Packs) -> None:
        self._watched, self._device = watched, watched[0].weight.device
        self.spans: dict[tuple[int, View], range] = {}
        rows, owners, roots = map(list, zip(*self._units(packs), strict=True))
        self.rows, self.owners = self._here(torch.cat(rows)), self._here(torch.cat(owners))
        all_roots = torch.cat([*roots, torch.ones(1)])
        self.roots = self._here(all_roots).to(wide_dtype(self._device))
        measured = [self._span(i, each.view) for i, each in enumerate(watched)]
        self.measured = self._here(torch.cat(measured))
        self.lengths = [len(span) for span in measured]
        owned = torch.arange(len(watched)).repeat_interleave(torch.tensor(self.lengths))
        self.weights = self._here(owned)
        self.alike = list(self._groups())

    def _units(self, packs: Packs) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each weight and view: its rows, the units that own them, and sqrt(dim) of the units.

        The rows of one weight and dimension serve all views along it.
        """
        count = 0
        for index, each in enumerate(self._watched):
            for view in dict.fromkeys(each.views):
                start, length = packs.rows_of(index, view)
                units = 1 if view.dim is None else view.groups or length
                self.spans[index, view] = range(count, count + units)
                rows = torch.arange(length)
                owners = count + rows // max(1, length // units)
                yield start + rows, owners, torch.full((units,), view.size(each.weight) ** 0.5)
                count += units

    def _groups(self) -> Iterator[Alike]:
        """Weights of one test, of which those with about as many units are together."""
        found: dict[object, list[int]] = {}
        most = max(len(span) for span in self.spans.values())
        few = most * len(self._watched) <= MOST_FILLED
        for index, each in enumerate(self._watched):
            lengths = [len(self.spans[index, view]) for view in each.test.views]
            if not each.test.state_names:  # (a test with a state asks how many units there are)
                lengths = [] if few else [length.bit_length() for length in lengths]
            key = each.group, each.weight.dtype, each.test.views, tuple(lengths)
            found.setdefault(key, []).append(index)
        for indices in found.values():
            views = self._watched[indices[0]].test.views
            spans = ([self._span(i, view) for i in indices] for view in views)
            units = [nn.utils.rnn.pad_sequence(x, True, len(self.roots) - 1) for x in spans]
            real = [(x < len(self.roots) - 1).to(self.roots.dtype).cpu() for x in units]
            shares = [self._here(x / x.sum(1, keepdim=True)) for x in real]
            yield Alike(indices, [self._here(x) for x in units], shares)

    def _span(self, index: int, view: View) -> Tensor:
        span = self.spans[index, view]
        return torch.arange(span.start, span.stop)

    def _here(self, x: Tensor) -> Tensor:
        return x.to(self._device)
