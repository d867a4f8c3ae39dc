"""`Meter`: the numbers of alike weights at some steps, of the inner products of their units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm.numerics import accumulation_dtype, compute_dtype
from spherenorm.probes.measurement import Measurement, Units
from spherenorm.probes.weights import Watched
from spherenorm.rule import State
from spherenorm.rules import AccumulatedInvarianceTest, ScaleInvarianceTest, UnitSums
from spherenorm.unit_measures import chord, cosine_of, norm_and_angle
from spherenorm.views import View, replicate

MOST_ENTRIES = {"cpu": 2**17, "cuda": 2**21}
"""Entries that are summed at once: few calls, and little memory; on a CPU, what its caches hold."""

OF_SEVERAL = ScaleInvarianceTest.decide, AccumulatedInvarianceTest.decide
"""Decisions that take the units of several weights at once; others get one weight at a time."""


class Meter:
    """Measures weights of one shape, view and test, without a word to the host.

    A measured step costs a copy of the weights and one batch of matrix products. The numbers of
    several steps are made of these together, by `table`.

    Args:
        those: the weights.
        by_unit: report each unit, too.
    """

    def __init__(self, those: Sequence[Watched], by_unit: bool) -> None:
        self.those, self._by_unit = those, by_unit
        self.weights = [each.weight for each in those]
        first = those[0]
        self._view, self._test, weight = first.view, first.test, first.weight
        views = list(dict.fromkeys((self._view, *self._test.views)))
        self._sizes = {view: view.size(weight) for view in views}
        self._counts = {view: weight.numel() // self._sizes[view] for view in views}
        own = {view: 0 if view.dim is None else view.dim % weight.ndim for view in views}
        if own.keys() - {View(None)}:  # of the whole weight, any dimension serves
            serves = next(dim for view, dim in own.items() if view.dim is not None)
            own |= {view: serves for view in views if view.dim is None}
        self._dims = own
        self._before = torch.empty(
            len(those), *weight.shape, dtype=weight.dtype, device=weight.device
        )
        self._gradients: list[tuple[Tensor, int, Tensor] | None] = [None] * len(those)
        self._copies_gradients = [True] * len(those)
        self._own_states = list[State]()
        self._sums: list[dict[int, Tensor]] = []
        self._states = list[State]()

    def keep(self, states: Sequence[State]) -> None:
        """Keep what the step is about to change: the weights, and the `states` of their test."""
        torch._foreach_copy_(self._before.unbind(), [plain(weight) for weight in self.weights])
        names, self._own_states = self._test.state_names, []
        for weight, state in zip(self.weights, states if names else (), strict=False):
            own = self._test.by_units(
                state if state.keys() >= set(names) else self._test.init(weight)
            )
            self._own_states.append({name: plain(own[name]).clone() for name in names})

    def keep_gradients(self) -> None:
        """Keep the raw gradients, before the step or, with a closure, as soon as it makes them.

        One is copied at the first time, and then where a step has written into it, as one that adds
        its decay to it.
        """
        for i, weight in enumerate(self.weights):
            grad, self._gradients[i] = weight.grad, None
            if grad is not None:
                kept = grad.clone() if self._copies_gradients[i] else grad
                self._gradients[i] = grad, grad._version, kept

    def sum(self) -> None:
        """Keep the inner products of the step that has been taken."""
        before, after = self._before.unbind(), [plain(weight) for weight in self.weights]
        grads = [self._raw_gradient(i, x) for i, x in enumerate(after)]
        dims = dict.fromkeys(self._dims.values())
        self._sums.append({dim: _products(before, after, grads, dim) for dim in dims})
        self._states += self._own_states

    def _raw_gradient(self, index: int, weight: Tensor) -> Tensor:
        """The gradient that was kept; zeros if it is lost, or was not there."""
        kept, self._gradients[index] = self._gradients[index], None
        if kept is not None:
            grad, version, values = kept
            written = grad._version != version
            lost, self._copies_gradients[index] = written and values is grad, written
            if not lost:
                return plain(values)
        return torch.zeros_like(weight)

    def table(self) -> tuple[Tensor, ...]:
        """The numbers of the steps since the last table, for `read`.

        Returns:
            The means over units, shape (steps * weights, numbers and tests); with `by_unit` the
            numbers of units, (5, steps * weights, units), and the flags of each test.
        """
        states, steps, self._states, self._sums = self._states, self._sums, [], []
        sums = {  # by view, each of shape (5, steps * weights, units)
            view: view.sums_of_index_groups(torch.cat([each[dim] for each in steps], 1))
            for view, dim in self._dims.items()
        }
        numbers = _numbers(sums[self._view])
        flags = [flag.to(numbers.dtype) for flag in self._flags(sums, states)]
        # (a unit without a gradient has no cosine)
        squares = numbers.square()
        means = [*squares[:-1].mean(-1).sqrt(), squares[-1].nanmean(-1).sqrt()]
        whole = torch.stack([*means, *(flag.mean(-1) for flag in flags)], 1)
        if not self._by_unit:
            return (whole,)
        pairs = zip(flags, self._test.views, strict=True)
        return whole, numbers, *(flag.expand(-1, self._counts[view]) for flag, view in pairs)

    def _flags(self, sums: Mapping[View, Tensor], states: Sequence[State]) -> Sequence[Tensor]:
        """The units that the test finds scale-invariant, by tested view.

        Each is of shape (steps * weights, units), or (..., 1) where units share one decision.
        """
        test, dtype = self._test, compute_dtype(self._before.dtype)
        if not test.views:
            return []
        every = [sums[view].to(dtype).unbind() for view in test.views]
        given = [torch.stack([ww, gg, wg]) for ww, _, wg, _, gg in every]
        state = {name: torch.stack([own[name] for own in states]) for name in test.state_names}

        def decide(given: Sequence[Tensor], state: State, over: int | None) -> tuple[Tensor, ...]:
            units = [
                UnitSums(view, self._sizes[view], self._counts[view], *x.unbind(), over=over)
                for view, x in zip(test.views, given, strict=True)
            ]
            flags = test.decide(units, state)[0].flags
            return tuple(flag if flag.ndim else flag[None] for flag in flags)

        if type(test).decide in OF_SEVERAL:
            return decide(given, state, 1)

        def decide_one(given: Sequence[Tensor], state: State) -> tuple[Tensor, ...]:
            return decide(given, state, None)

        found: tuple[Tensor, ...] = torch.vmap(decide_one, (1, 0))(given, state)
        return found

    def read(
        self, steps: Sequence[int], table: Sequence[Tensor]
    ) -> Iterator[tuple[int, int, Measurement]]:
        """The measurements in a `table` that is on the host, each after its step and place."""
        whole, *of_units = table
        views, row = self._test.views, 0
        lines = whole.tolist()
        for step in steps:
            for each in self.those:
                numbers, shares = lines[row][:5], lines[row][5:]
                first = next((i for i, share in enumerate(shares) if share > 0), None)
                found = (0.0, None) if first is None else (shares[first], str(views[first]))
                measured = Measurement(step, each.name, str(self._view), *numbers, *found)
                if of_units:
                    none = torch.zeros(0, dtype=torch.bool)
                    invariant = none if first is None else of_units[1 + first][row] > 0
                    units = Units(*(*of_units[0][:, row].clone(), invariant))
                    measured = replace(measured, units=units)
                yield step, each.place, measured
                row += 1


def meters_of(watched: Sequence[Watched], by_unit: bool) -> list[Meter]:
    """Meters for weights that are alike: for one each, if they are large."""
    alike: dict[tuple[object, ...], list[Watched]] = {}
    for each in watched:
        weight = each.weight
        key = weight.shape, weight.dtype, weight.device, each.view, id(each.test)
        alike.setdefault(key, []).append(each)
    found = []
    for those in alike.values():
        many = max(1, MOST_ENTRIES["cuda"] // those[0].weight.numel())
        parts = (those[i : i + many] for i in range(0, len(those), many))
        found += [Meter(part, by_unit) for part in parts]
    return found


def plain(x: Tensor) -> Tensor:
    """`x` without a graph, dense, and whole in each process."""
    x = x.detach()
    if type(x) is not Tensor and getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


def _products(
    w: Sequence[Tensor], after: Sequence[Tensor], g: Sequence[Tensor], dim: int
) -> Tensor:
    """<w, w>, <w, d>, <w, g>, <d, d> and <g, g> at each index of `dim`, with d = w' - w.

    Returns:
        Of shape (5, weights, indices), made in parts of little memory: some weights, or some rows
        of one.
    """
    most = MOST_ENTRIES.get(w[0].device.type, MOST_ENTRIES["cuda"])
    size, length = w[0].numel(), w[0].shape[dim]
    many, rows = max(1, most // size), max(1, most * length // size)
    triple: list[Sequence[Tensor]] = [w, after, g]
    if dim:
        triple = [[x.movedim(dim, 0) for x in those] for those in triple]
    found = []
    for start in range(0, len(w), many):
        part = [those[start : start + many] for those in triple]
        if rows >= length:
            found.append(_of_part(*part))
            continue
        ends = range(0, length, rows)
        pieces = [[[x[i : i + rows] for x in those] for those in part] for i in ends]
        found.append(torch.cat([_of_part(*piece) for piece in pieces], 2))
    return torch.cat(found, 1)


def _of_part(w: Sequence[Tensor], after: Sequence[Tensor], g: Sequence[Tensor]) -> Tensor:
    shape, device = (3, len(w), *w[0].shape), w[0].device
    vectors = torch.empty(shape, dtype=accumulation_dtype(device), device=device)
    torch._foreach_copy_(vectors.flatten(0, 1).unbind(), [*w, *after, *g])
    vectors[1].sub_(vectors[0])
    matrices = vectors.flatten(3).flatten(1, 2).transpose(0, 1)
    ww, wd, wg, _, dd, _, _, _, gg = torch.bmm(matrices, matrices.mT).flatten(1).unbind(1)
    return torch.stack([ww, wd, wg, dd, gg]).view(5, *shape[1:3])


def _numbers(products: Tensor) -> Tensor:
    """The numbers of each unit, from `norm_before` to `cosine`, shape (5, steps, units)."""
    ww, wd, wg, dd, gg = products
    norm_after, angle = norm_and_angle(ww, wd, dd)
    return torch.stack([ww.sqrt(), norm_after, chord(angle), angle, cosine_of(wg, ww, gg)])
