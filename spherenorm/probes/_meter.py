"""`Meter`: the numbers of one weight at some steps, of the inner products of its units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spherenorm._measures import chord, cosine_of, move_of_sums
from spherenorm._numerics import wide_dtype, working_dtype
from spherenorm._views import replicate
from spherenorm.core import State
from spherenorm.probes._measurement import Measurement, Units
from spherenorm.probes._weights import Watched
from spherenorm.rules import (
    AccumulatedInvarianceTest,
    ScaleInvarianceTest,
    UnitSums,
)

MOST_ENTRIES = {"cpu": 2**16, "cuda": 2**21}
"""Entries that are summed at once: few calls, and little memory; on a CPU, what its caches hold."""

OF_SEVERAL = ScaleInvarianceTest.decide, AccumulatedInvarianceTest.decide
"""Decisions that take the units of several steps at once; others get one step at a time."""


class Meter:
    """Measures one weight, without a word to the host.

    A measured step costs a copy of the weight and one matrix product. The numbers of several
    steps are made of these together, by `table`.

    Args:
        watched: the weight.
        by_unit: report each unit, too.
    """

    def __init__(self, watched: Watched, by_unit: bool) -> None:
        self.watched, self._by_unit, self._tested = watched, by_unit, watched.test.views
        self.weight, weight = watched.weight, watched.weight
        self._views = list(dict.fromkeys((watched.view, *self._tested)))
        self._counts = {view: weight.numel() // view.size(weight) for view in self._views}
        own = [0 if view.dim is None else view.dim % weight.ndim for view in self._views]
        self._dims = dict(zip(self._views, own, strict=True))
        if None in [view.dim for view in self._views] and len(set(own)) > 1:  # any dimension serves
            serves = next(dim for view, dim in self._dims.items() if view.dim is not None)
            self._dims |= {view: serves for view in self._views if view.dim is None}
        self._before = torch.empty_like(plain(weight))
        self._gradient: tuple[Tensor, int, Tensor] | None = None
        self._copies_gradient = True
        self._state: State = {}
        self._sums: list[dict[int, Tensor]] = []
        self._states: list[State] = []

    def keep(self, state: State) -> None:
        """Keep what the step is about to change: the weight, and the `state` of its test."""
        self._before.copy_(plain(self.weight))
        test = self.watched.test
        if test.state_names:
            first = state.keys() >= set(test.state_names)
            own = test.by_units(state if first else test.init(self.weight))
            self._state = {name: plain(own[name]).clone() for name in test.state_names}

    def keep_gradient(self) -> None:
        """Keep the raw gradient, before the step or, with a closure, as soon as it makes it.

        It is copied at the first time, and then where a step has written into it, as one that adds
        its decay to it.
        """
        grad = self.weight.grad
        self._gradient = None
        if grad is not None:
            kept = grad.clone() if self._copies_gradient else grad
            self._gradient = grad, grad._version, kept

    def sum(self) -> None:
        """Keep the inner products of the step that has been taken."""
        after, grad = plain(self.weight), self._raw_gradient()
        given = torch.zeros_like(after) if grad is None else plain(grad)
        whole = self._before, after, given
        self._sums.append({dim: _products(*whole, dim) for dim in set(self._dims.values())})
        self._states.append(self._state)

    def _raw_gradient(self) -> Tensor | None:
        """The gradient that was kept; None if it is lost, or was not there."""
        kept, self._gradient = self._gradient, None
        if kept is None:
            return None
        grad, version, values = kept
        written = grad._version != version
        lost, self._copies_gradient = written and values is grad, written
        return None if lost else values

    def table(self) -> Tensor:
        """The numbers of the steps since the last table, one per row, which `read` tells apart."""
        steps, states = self._sums, self._states
        self._sums, self._states = [], []
        sums = {  # by view, each of shape (5, steps, units)
            view: view.of_indices(torch.stack([each[dim] for each in steps], 1))
            for view, dim in self._dims.items()
        }
        numbers = _numbers(sums[self.watched.view])
        flags = self._flags(sums, states)
        # (a unit without a gradient has no cosine)
        squares = numbers.square()
        parts = [squares[:-1].mean(-1).T, squares[-1].nanmean(-1)[:, None]]
        parts += [flag.to(numbers.dtype).mean(-1, keepdim=True) for flag in flags]
        if self._by_unit:
            parts += [*numbers]
            for flag, view in zip(flags, self._tested, strict=True):
                parts.append(flag.to(numbers.dtype).expand(-1, self._counts[view]))
        return torch.cat(parts, 1)

    def _flags(self, sums: dict[Any, Tensor], states: Sequence[State]) -> Sequence[Tensor]:
        """The units that the test finds scale-invariant at each step, by tested view.

        Each is of shape (steps, units), or (steps, 1) where units share one decision.
        """
        test = self.watched.test
        if not test.views:
            return []
        dtype = working_dtype(self.weight.dtype)
        every = [sums[view].to(dtype).unbind() for view in self._tested]
        given = [torch.stack([ww, gg, wg]) for ww, _, wg, _, gg in every]
        state = {name: torch.stack([own[name] for own in states]) for name in test.state_names}

        def decide(given: Sequence[Tensor], state: State, over: int | None) -> tuple[Tensor, ...]:
            units = [
                UnitSums(view, view.size(self.weight), self._counts[view], *x.unbind(), over=over)
                for view, x in zip(self._tested, given, strict=True)
            ]
            flags = test.decide(units, state)[0].flags
            return tuple(flag if flag.ndim else flag[None] for flag in flags)

        if type(test).decide in OF_SEVERAL:
            return decide(given, state, 1)
        found: tuple[Tensor, ...] = torch.vmap(lambda x, own: decide(x, own, None), (1, 0))(
            given, state
        )
        return found

    def read(self, step: int, row: Tensor) -> Measurement:
        """The measurement in a row of `table` that is on the host."""
        name, view = self.watched.name, self.watched.view
        numbers = row[:5].sqrt().tolist()
        shares, rest = row[5 : 5 + len(self._tested)].tolist(), row[5 + len(self._tested) :]
        first = next((i for i, share in enumerate(shares) if share > 0), None)
        share, found = (0.0, None) if first is None else (shares[first], self._tested[first])
        own = *numbers, share, found and str(found)
        measured = Measurement(step, name, str(view), *own)
        if not self._by_unit:
            return measured
        count = self._counts[view]
        units, flags = rest[: 5 * count].view(5, count), rest[5 * count :]
        by_view = torch.split(flags, [self._counts[view] for view in self._tested])
        invariant = torch.zeros(0) if first is None else by_view[first]
        return replace(measured, units=Units(*(*units.clone(), invariant > 0)))


def plain(x: Tensor) -> Tensor:
    """`x` without a graph, dense, and whole in each process."""
    x = x.detach()
    if getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


def tables_on_host(waiting: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of two dimensions, by one copy per device."""
    found: dict[int, Tensor] = {}
    for device in {x.device for x in waiting}:
        own = [(i, x) for i, x in enumerate(waiting) if x.device == device]
        whole = torch.cat([x.flatten() for _, x in own]).cpu()
        cut = torch.split(whole, [x.numel() for _, x in own])
        found |= {i: part.view(x.shape) for (i, x), part in zip(own, cut, strict=True)}
    return [found[i] for i in range(len(waiting))]


def _products(w: Tensor, after: Tensor, g: Tensor, dim: int) -> Tensor:
    """<w, w>, <w, d>, <w, g>, <d, d> and <g, g> at each index of `dim`, with d = w' - w.

    Returns:
        Of shape (5, indices), made in parts of little memory.
    """
    most = MOST_ENTRIES.get(w.device.type, MOST_ENTRIES["cuda"])
    rows = max(1, most * w.shape[dim] // w.numel())
    pieces = zip(*(torch.split(x.movedim(dim, 0), rows) for x in (w, after, g)), strict=True)
    return torch.cat([_of_piece(*piece) for piece in pieces], 1)


def _of_piece(w: Tensor, after: Tensor, g: Tensor) -> Tensor:
    vectors = torch.empty(3, *w.shape, dtype=wide_dtype(w.device), device=w.device)
    for to, x in zip(vectors, (w, after, g), strict=True):
        to.copy_(x)
    vectors[1].sub_(vectors[0])
    matrices = vectors.flatten(2).transpose(0, 1)
    ww, wd, wg, _, dd, _, _, _, gg = torch.bmm(matrices, matrices.mT).flatten(1).unbind(1)
    return torch.stack([ww, wd, wg, dd, gg])


def _numbers(products: Tensor) -> Tensor:
    """The numbers of each unit, from `norm_before` to `cosine`, shape (5, steps, units)."""
    ww, wd, wg, dd, gg = products
    norm_after, angle = move_of_sums(ww, wd, dd)
    return torch.stack([ww.sqrt(), norm_after, chord(angle), angle, cosine_of(wg, ww, gg)])


def read_all(
    those: Sequence[Meter], steps: Sequence[int], tables: Sequence[Tensor]
) -> Iterator[Measurement]:
    """The measurements in the tables of all meters, in the order of steps and weights."""
    for index, step in enumerate(steps):
        for meter, table in zip(those, tables, strict=True):
            yield meter.read(step, table[index])
