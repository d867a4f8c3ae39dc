"""The numbers of weights that are measured together, of the inner products of their units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm._measures import chord, cosine_of, move_of_sums
from spherenorm._numerics import wide_dtype, working_dtype
from spherenorm.core import State
from spherenorm.probes._measurement import Measurement, Units
from spherenorm.probes._sums import Stack, count_units, plain
from spherenorm.probes._weights import Watched
from spherenorm.rules import (
    AccumulatedInvarianceTest,
    InvarianceTest,
    ScaleInvarianceTest,
    UnitSums,
)

FEW_DIGITS = 10
"""Weights whose numbers of units have so many binary digits at most share a table."""

OF_SEVERAL_WEIGHTS = ScaleInvarianceTest.decide, AccumulatedInvarianceTest.decide
"""Decisions that take the units of several weights at once; others get one weight at a time."""


class _Gradients:
    """The gradients of weights as they are before a step that may write into them.

    They are copied at the first time, and then where a step has written into them, as one that
    adds its decay to them.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._copied = set(range(len(weights)))
        self._kept: list[tuple[Tensor, int, Tensor] | None] = [None] * len(weights)

    def keep(self) -> None:
        """Keep them as they are now."""
        self._kept = []
        for index, weight in enumerate(self._weights):
            grad, kept = weight.grad, None
            if grad is not None:
                kept = grad, grad._version, grad.clone() if index in self._copied else grad
            self._kept.append(kept)

    def raw(self) -> list[Tensor | None]:
        """Those that were kept; None for one that is lost, or was not there."""
        found: list[Tensor | None] = []
        written = set()
        for index, kept in enumerate(self._kept):
            if kept is None:
                found.append(None)
                continue
            grad, version, values = kept
            if grad._version != version:
                written.add(index)
            found.append(None if values is grad and index in written else values)
        self._kept, self._copied = [None] * len(self._weights), written
        return found


class Meter:
    """Measures weights of one group together, without a word to the host. Made by `meters`.

    Each view has a table of the weights' units, one weight per row. A weight with fewer units than
    another has units of 0 behind its own, which are no evidence for a test.

    Args:
        watched: weights of one group, dtype, device and view, those of one shape side by side.
        by_unit: report each unit, too.
    """

    def __init__(self, watched: Sequence[Watched], by_unit: bool) -> None:
        self.watched, self._by_unit = watched, by_unit
        views, self._tested = [watched[0].view], watched[0].test.views
        views += [view for view in self._tested if view not in views]
        self._tables = [views.index(view) for view in self._tested]
        weights = [each.weight for each in watched]
        self.group, self.device = watched[0].group, weights[0].device
        same = dict.fromkeys(weight.shape for weight in weights)
        stacked = [[w for w in weights if w.shape == shape] for shape in same]
        self._stacks = [Stack(those, views) for those in stacked]
        self._lengths = [[count_units(w, view) for w in weights] for view in views]
        wide = torch.empty(0, dtype=wide_dtype(self.device), device=self.device)
        self._products = [wide.new_zeros(3, 3, len(weights), max(n)) for n in self._lengths]
        self._counts = [torch.tensor(n, device=self.device) for n in self._lengths]
        roots = [[view.size(w) ** 0.5 for w in weights] for view in self._tested]
        self._roots = [wide.new_tensor(each)[:, None] for each in roots]
        self._states: list[State] = []
        self._gradients = _Gradients(weights)
        self._shapes: list[torch.Size] = []

    @property
    def work(self) -> int:
        """The entries of memory that `measure` needs to work in."""
        return max(stack.work for stack in self._stacks)

    def keep(self, states: Mapping[Tensor, State]) -> None:
        """Keep what the step is about to change: weights, and the `states` of their tests."""
        for stack in self._stacks:
            stack.keep()
        self._states = [_kept_state(each, states.get(each.weight, {})) for each in self.watched]

    def keep_gradients(self) -> None:
        """Keep the raw gradients, before the step or, with a closure, as soon as it makes them."""
        self._gradients.keep()

    def measure(self, test: InvarianceTest, work: Tensor) -> Tensor:
        """The numbers of the step that has been taken, as a vector, which `read` tells apart.

        Args:
            test: of the weights' group, at its present hyper-parameters.
            work: memory to work in, of shape (3, `self.work` or more).
        """
        self._sum(work)
        numbers = _numbers(self._products[0])
        flags = self._flags(test)
        # (a unit without a gradient has no cosine)
        squares, norms_and_turns = numbers.square(), slice(None, -1)
        parts = [squares[norms_and_turns].sum(-1) / self._counts[0], squares[-1].nanmean(-1)]
        parts += [self._share(flag, table) for flag, table in zip(flags, self._tables, strict=True)]
        if self._by_unit:
            parts += [numbers[:, i, :count] for i, count in enumerate(self._lengths[0])]
            for flag, table in zip(flags, self._tables, strict=True):
                lengths = self._lengths[table]
                every = flag.to(numbers.dtype).expand(-1, max(lengths))
                parts += [every[i, :count] for i, count in enumerate(lengths)]
        self._shapes = [part.shape for part in parts]
        return torch.cat([part.flatten() for part in parts])

    def read(self, step: int, vector: Tensor) -> Iterator[Measurement]:
        """The measurements in a vector of `measure` that is on the host, one for each weight."""
        cut = torch.split(vector, [shape.numel() for shape in self._shapes])
        parts = iter([part.view(shape) for part, shape in zip(cut, self._shapes, strict=True)])
        numbers = torch.cat([next(parts), next(parts)[None]]).sqrt().T.tolist()
        shares = [next(parts).tolist() for _ in self._tested]
        units = [next(parts) for _ in self.watched if self._by_unit]
        flags = [[next(parts) > 0 for _ in units] for _ in self._tested]
        for index, each in enumerate(self.watched):
            passed = [share[index] for share in shares]
            first = next((i for i, share in enumerate(passed) if share > 0), None)
            share, view = (0.0, None) if first is None else (passed[first], self._tested[first])
            own = *numbers[index], share, view and str(view)
            found = Measurement(step, each.name, str(each.view), *own)
            if units:
                none = torch.zeros(0, dtype=torch.bool)
                invariant = none if first is None else flags[first][index]
                found = replace(found, units=Units(*(*units[index].clone(), invariant)))
            yield found

    def _sum(self, work: Tensor) -> None:
        """Fill the tables of the inner products of units."""
        grads, first = self._gradients.raw(), 0
        for stack in self._stacks:
            last = first + stack.count
            for table, own in zip(
                self._products, stack.products(grads[first:last], work), strict=True
            ):
                table[..., first:last, : own.shape[-1]] = own
            first = last

    def _flags(self, test: InvarianceTest) -> Sequence[Tensor]:
        """The units that `test` finds scale-invariant; see `_decisions`."""
        sums = []
        for table, roots in zip(self._tables, self._roots, strict=True):
            x = self._products[table]
            # With sqrt(dim) in the product, all units are of dimension 1.
            sums.append(torch.stack([x[0, 0], x[2, 2], x[0, 2] * roots]))
        dtype = working_dtype(self.watched[0].weight.dtype)
        return _decisions(test, [x.to(dtype) for x in sums], self._states)

    def _share(self, flag: Tensor, table: int) -> Tensor:
        """The share of each weight's units that have a flag."""
        shared = flag.shape[-1] < self._products[table].shape[-1]
        total = flag.sum(-1, dtype=self._products[0].dtype)
        return total if shared else total / self._counts[table]


def _decisions(
    test: InvarianceTest, sums: list[Tensor], states: Sequence[State]
) -> Sequence[Tensor]:
    """The units that a test finds scale-invariant.

    Args:
        test: of the weights.
        sums: <w, w>, <g, g> and <w, g>, shape (3, weights, units), for each tested view.
        states: of the weights' tests.

    Returns:
        For each view a tensor of shape (weights, units), or (weights, 1) where a weight's units
        share one decision.
    """
    if not test.views:  # a group whose weights are not tested
        return []

    def decide(sums: list[Tensor], state: State, over: int | None = None) -> tuple[Tensor, ...]:
        pairs = zip(test.views, sums, strict=True)
        every = [UnitSums(view, 1, x.shape[-1], *x.unbind(), over=over) for view, x in pairs]
        return test.decide(every, state)[0].flags

    def decide_alone(sums: list[Tensor], state: State) -> tuple[Tensor, ...]:
        return tuple(flag if flag.ndim else flag[None] for flag in decide(sums, state))

    state = {name: torch.stack([own[name] for own in states]) for name in test.state_names}
    if type(test).decide in OF_SEVERAL_WEIGHTS:
        return decide(sums, state, over=1)
    found: tuple[Tensor, ...] = torch.vmap(decide_alone, (1, 0))(sums, state)
    return found


def meters(watched: Iterable[Watched], by_unit: bool) -> list[Meter]:
    """The meters of all watched weights: one for those that can share tables."""
    kinds: dict[Hashable, list[Watched]] = {}
    for each in watched:
        weight, test = each.weight, each.test
        counts = [count_units(weight, view) for view in each.views]
        if (
            type(test).decide is ScaleInvarianceTest.decide
        ):  # others may ask how many units there are
            counts = [max(FEW_DIGITS, count.bit_length()) for count in counts]
        key = each.group, weight.dtype, weight.device, each.view, *counts
        kinds.setdefault(key, []).append(each)
    return [Meter(_by_shape(those), by_unit) for those in kinds.values()]


def read_all(those: Sequence[Meter], step: int, vectors: Sequence[Tensor]) -> list[Measurement]:
    """The measurements of all meters at a step, in the order of the weights."""
    found: dict[int, Measurement] = {}
    for meter, vector in zip(those, vectors, strict=True):
        pairs = zip(meter.watched, meter.read(step, vector), strict=True)
        found |= {each.place: measured for each, measured in pairs}
    return [found[place] for place in sorted(found)]


def work_of(those: Iterable[Meter]) -> dict[torch.device, Tensor]:
    """Memory to work in, one for all meters of a device.

    It is kept, as a CPU clears new memory page by page, which takes as long as the sums.
    """
    entries: dict[torch.device, int] = {}
    for meter in those:
        entries[meter.device] = max(entries.get(meter.device, 0), meter.work)
    return {d: torch.empty(3, n, dtype=wide_dtype(d), device=d) for d, n in entries.items()}


def _by_shape(watched: Sequence[Watched]) -> list[Watched]:
    shapes = list(dict.fromkeys(each.weight.shape for each in watched))
    return sorted(watched, key=lambda each: shapes.index(each.weight.shape))


def _kept_state(watched: Watched, state: State) -> State:
    """A copy of the state of a weight's test, by units; its first one before the first step."""
    names, test = watched.test.state_names, watched.test
    if not names:
        return {}
    if not state.keys() >= set(names):
        state = test.init(watched.weight)
    return {name: plain(x).clone() for name, x in test.by_units(state).items()}


def _numbers(products: Tensor) -> Tensor:
    """The numbers of each unit, from `norm_before` to `cosine`, shape (5, weights, units).

    Args:
        products: the inner products of w, d and g.
    """
    ww, wd, wg, _, dd, _, _, _, gg = products.flatten(0, 1)
    norm_after, angle = move_of_sums(ww, wd, dd)
    return torch.stack([ww.sqrt(), norm_after, chord(angle), angle, cosine_of(wg, ww, gg)])
