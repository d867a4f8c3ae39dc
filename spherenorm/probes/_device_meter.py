"""The measurements of all watched weights of one device, as one vector per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._measures import chord, cosine_of, move_of_sums
from spherenorm._numerics import working_dtype
from spherenorm.probes._layout import Packs, Watched, plain
from spherenorm.probes._measurement import Measurement, Units
from spherenorm.probes._table import DecisionBatch, Run, UnitTable
from spherenorm.rules import (
    AccumulatedInvarianceTest,
    InvarianceTest,
    ScaleInvarianceTest,
    UnitSums,
)

NUMBERS = 5
"""Of each weight: the norms before and after, the effective step, the turn and the cosine."""

OF_SEVERAL_WEIGHTS = ScaleInvarianceTest.decide, AccumulatedInvarianceTest.decide
"""Decisions that take the units of several weights at once; others get one weight at a time."""


class _Grad:
    """A gradient before a step.

    Args:
        grad: that of the weight.
        copied: keep a copy.
    """

    def __init__(self, grad: Tensor, copied: bool) -> None:
        self._grad, self._version = grad, grad._version
        self._copy = grad.clone() if copied else None

    @property
    def written(self) -> bool:
        """True if the step has written into it."""
        return self._grad._version != self._version

    @property
    def raw(self) -> Tensor | None:
        """Its values before the step; None if they were not copied and are lost."""
        if self._copy is not None:
            return self._copy
        return None if self.written else self._grad


class DeviceMeter:
    """Measures the watched weights of one device, without a word to the host.

    Every weight is summed row by row, in packs. What follows is arithmetic on all units of all
    weights and views at once, and one decision for all weights with as many units.

    Args:
        watched: the weights.
        units: report each unit, too.
    """

    def __init__(self, watched: Sequence[Watched], units: bool) -> None:
        self.watched, self._by_unit = watched, units
        self._packs = Packs(watched)
        self._table = UnitTable(watched, self._packs)
        self._states: list[State] = []
        self._grads: list[_Grad | None] = []
        self._copied = set(range(len(watched)))
        self._shapes: list[torch.Size] = []

    def keep(self, states: Mapping[Tensor, State], has_closure: bool) -> None:
        """Keep what the step is about to change: weights, states of their tests, and gradients.

        Gradients are copied at the first time, and then where a step has written into them, as one
        that adds its decay to them.

        Args:
            states: of the optimizer.
            has_closure: the step itself makes the gradients.
        """
        self._packs.keep([plain(each.weight) for each in self.watched])
        self._states = [_kept(each, states.get(each.weight, {})) for each in self.watched]
        grads = [None if has_closure else each.weight.grad for each in self.watched]
        self._grads = [
            None if grad is None else _Grad(grad, copied=i in self._copied)
            for i, grad in enumerate(grads)
        ]

    def measure(self, tests: Sequence[InvarianceTest]) -> Tensor:
        """The numbers of the step that has been taken, as a vector; `read` tells them apart.

        Args:
            tests: of the watched weights, at their present hyper-parameters.
        """
        weights = [plain(each.weight) for each in self.watched]
        grads = self._raw_gradients()
        sums = self._packs.sums(weights, [None if g is None else plain(g) for g in grads])
        table = self._table
        units = table.units(sums)
        by_unit = _numbers(units[:, table.measured])
        parts = [_mean_squares(by_unit, table.runs, table.lengths)]
        if self._by_unit:
            parts.append(by_unit)
        # With sqrt(dim) in the product, all units are of dimension 1.
        tested = torch.stack([units[0], units[1], units[2] * table.roots])
        for batch in table.batches:
            first = batch.indices[0]
            dtype = working_dtype(self.watched[first].weight.dtype)
            flags = _flags(batch, tested.to(dtype), self._states, tests[first])
            known = zip(flags, batch.real, batch.counts, strict=True)
            parts.append(torch.stack([_share(flag, x, count) for flag, x, count in known]))
            if self._by_unit:
                pairs = zip(flags, batch.units, strict=True)
                parts += [flag.expand(own.shape).to(by_unit.dtype) for flag, own in pairs]
        self._shapes = [part.shape for part in parts]
        return torch.cat([part.flatten() for part in parts])

    def _raw_gradients(self) -> list[Tensor | None]:
        """The gradients before the step, or those that it has made; None of one that is lost."""
        kept, self._grads = self._grads, []
        self._copied = {i for i, grad in enumerate(kept) if grad is not None and grad.written}
        return [
            each.weight.grad if grad is None else grad.raw
            for each, grad in zip(self.watched, kept, strict=True)
        ]

    def read(self, step: int, vector: Tensor) -> list[Measurement]:
        """The measurements in a vector of `measure` that is on the host."""
        cut = torch.split(vector, [shape.numel() for shape in self._shapes])
        parts = (part.view(shape) for part, shape in zip(cut, self._shapes, strict=True))
        numbers = next(parts).sqrt().T.tolist()
        lengths = self._table.lengths.tolist()
        by_unit = torch.split(next(parts), lengths, 1) if self._by_unit else ()
        passed = self._passed(parts)
        found: dict[int, Measurement] = {}
        for place, i in enumerate(self._table.order):
            each, own = self.watched[i], (*numbers[place], *passed[i][:2])
            found[i] = Measurement(step, each.name, str(each.view), *own)
            if by_unit:
                units = Units(*(*by_unit[place].clone(), passed[i][2]))
                found[i] = replace(found[i], units=units)
        return [found[i] for i in range(len(found))]

    def _passed(self, parts: Iterator[Tensor]) -> list[tuple[float, str | None, Tensor]]:
        """For each weight: the share of its first view that passed, the view, and its flags."""
        nothing = torch.zeros(0, dtype=torch.bool)
        found: list[tuple[float, str | None, Tensor]] = [(0.0, None, nothing)] * len(self.watched)
        for batch in self._table.batches:
            shares = next(parts).T.tolist()
            flags = [next(parts) > 0 for _ in batch.units] if self._by_unit else []
            for row, (index, own) in enumerate(zip(batch.indices, shares, strict=True)):
                number = next((i for i, share in enumerate(own) if share > 0), None)
                if number is not None:
                    view = self.watched[index].test.views[number]
                    count = len(self._table.spans[index, view])
                    flagged = flags[number][row, :count].clone() if self._by_unit else nothing
                    found[index] = own[number], str(view), flagged
        return found


def _kept(watched: Watched, state: State) -> State:
    """A copy of the state of a weight's test, by units; its first one before the first step."""
    names, test = watched.test.state_names, watched.test
    if not names:
        return {}
    if not state.keys() >= set(names):
        state = test.init(watched.weight)
    return {name: x.clone() for name, x in test.by_units(state).items()}


def _flags(
    batch: DecisionBatch, units: Tensor, states: Sequence[State], test: InvarianceTest
) -> Sequence[Tensor]:
    """The units that `test` finds scale-invariant.

    For each view a tensor of shape (weights, units), or (weights, 1) where a weight's units share
    one decision.

    Args:
        batch: the weights.
        units: <w, w>, <g, g> and <w, g> of all units, as if of dimension 1.
        states: of the tests of all weights.
        test: of these.
    """

    def decide(sums: list[Tensor], state: State, over: int | None = None) -> tuple[Tensor, ...]:
        pairs = zip(test.views, sums, strict=True)
        every = [UnitSums(view, 1, x.shape[-1], *x.unbind(), over=over) for view, x in pairs]
        return test.decide(every, state)[0].flags

    def decide_alone(sums: list[Tensor], state: State) -> tuple[Tensor, ...]:
        flags = decide(list(sums), state)
        return tuple(flag.expand(x.shape[-1]) for flag, x in zip(flags, sums, strict=True))

    sums = [torch.unflatten(units.index_select(1, x.flatten()), 1, x.shape) for x in batch.units]
    own_states = [states[i] for i in batch.indices]
    state = {name: torch.stack([s[name] for s in own_states]) for name in test.state_names}
    if type(test).decide in OF_SEVERAL_WEIGHTS:
        return decide(sums, state, over=1)
    found: tuple[Tensor, ...] = torch.vmap(decide_alone)([x.transpose(0, 1) for x in sums], state)
    return found


def _share(flag: Tensor, real: Tensor, count: Tensor) -> Tensor:
    """The share of each weight's units that have a flag; see `_flags` and `DecisionBatch`."""
    return flag[:, 0].to(real.dtype) if flag.shape[1] == 1 else (flag * real).sum(1) / count


def _numbers(units: Tensor) -> Tensor:
    """The numbers of each unit of its sums, shape (5, units)."""
    ww, gg, wg, wd, dd = units.unbind()
    move = move_of_sums(ww, wd, dd)
    cosine = cosine_of(wg, ww, gg)
    return torch.stack([ww.sqrt(), move.norm, chord(move.angle), move.angle, cosine])


def _mean_squares(numbers: Tensor, runs: Sequence[Run], lengths: Tensor) -> Tensor:
    """The mean square of each number over the units of each weight, shape (5, weights).

    Args:
        numbers: of all units.
        runs: the units of the weights.
        lengths: how many units each weight has.
    """
    squares = numbers.new_empty(NUMBERS + 1, numbers.shape[1])
    torch.mul(numbers, numbers, out=squares[:NUMBERS])
    cosine, known = squares[NUMBERS - 1 :]
    known.copy_(cosine.isnan().logical_not_())  # (a unit without a gradient has no cosine)
    cosine.nan_to_num_()
    sums = torch.cat([run.of(squares).sum(-1) for run in runs], 1)
    return torch.cat([sums[: NUMBERS - 1] / lengths, (sums[NUMBERS - 1] / sums[NUMBERS])[None]])
