"""The measurements of all watched weights of one device, as one vector per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spherenorm._measures import chord, cosine_of, move_of_sums
from spherenorm._numerics import working_dtype
from spherenorm._rule import State
from spherenorm.probes._layout import Packs, Watched, plain
from spherenorm.probes._measurement import Measurement, Units
from spherenorm.probes._table import Alike, UnitTable
from spherenorm.rules import InvarianceTest, UnitSums

__all__ = ["Bench"]

NUMBERS = 5
"""Of each weight: the norms before and after, the effective step, the turn and the cosine."""


class Bench:
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
        self._shapes: list[torch.Size] = []

    def keep(self, states: Mapping[Tensor, State]) -> None:
        """Copy what the step is about to change: the weights, and the states of their tests.

        Args:
            states: of the optimizer.
        """
        self._packs.keep([plain(each.weight) for each in self.watched])
        self._states = [_kept(each, states.get(each.weight, {})) for each in self.watched]

    def measure(self, tests: Sequence[InvarianceTest]) -> Tensor:
        """The numbers of the step that has been taken, as a vector; `read` tells them apart.

        Args:
            tests: of the watched weights, at their present hyper-parameters.
        """
        weights = [plain(each.weight) for each in self.watched]
        grads = [each.weight.grad for each in self.watched]
        sums = self._packs.sums(weights, [None if g is None else plain(g) for g in grads])
        table = self._table
        units = sums.new_zeros(5, len(table.roots))  # (the last one, which fills up, stays 0)
        units.index_add_(1, table.owners, sums[:, table.rows])
        by_unit = _numbers(units[:, table.measured])
        parts = [_mean_squares(by_unit, table.weights, len(self.watched))]
        if self._by_unit:
            parts.append(by_unit)
        # With sqrt(dim) in the product, all units are of dimension 1.
        tested = torch.stack([units[0], units[1], units[2] * table.roots])
        for alike in self._table.alike:
            first = alike.indices[0]
            dtype = working_dtype(self.watched[first].weight.dtype)
            flags = _flags(alike, tested.to(dtype), self._states, tests[first])
            shares = [(flag * x).sum(1) for flag, x in zip(flags, alike.shares, strict=True)]
            parts.append(torch.stack(shares))
            if self._by_unit:
                parts += [flag.to(by_unit.dtype) for flag in flags]
        self._shapes = [part.shape for part in parts]
        return torch.cat([part.flatten() for part in parts])

    def read(self, step: int, vector: Tensor) -> list[Measurement]:
        """The measurements in a vector of `measure` that is on the host."""
        cut = torch.split(vector, [shape.numel() for shape in self._shapes])
        parts = (part.view(shape) for part, shape in zip(cut, self._shapes, strict=True))
        numbers = next(parts).sqrt().T.tolist()
        by_unit = torch.split(next(parts), self._table.lengths, 1) if self._by_unit else ()
        passed = self._passed(parts)
        measured = [
            Measurement(step, each.name, str(each.view), *(*numbers[i], *passed[i][:2]))
            for i, each in enumerate(self.watched)
        ]
        for i, own in enumerate(by_unit):
            measured[i] = replace(measured[i], units=Units(*(*own.clone(), passed[i][2])))
        return measured

    def _passed(self, parts: Iterator[Tensor]) -> list[tuple[float, str | None, Tensor]]:
        """For each weight: the share of its first view that passed, the view, and its flags."""
        nothing = torch.zeros(0, dtype=torch.bool)
        found: list[tuple[float, str | None, Tensor]] = [(0.0, None, nothing)] * len(self.watched)
        for alike in self._table.alike:
            shares = next(parts).T.tolist()
            flags = [next(parts) > 0 for _ in alike.units] if self._by_unit else []
            for row, (index, own) in enumerate(zip(alike.indices, shares, strict=True)):
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
    alike: Alike, units: Tensor, states: Sequence[State], test: InvarianceTest
) -> Sequence[Tensor]:
    """The units that `test` finds scale-invariant: for each view, of shape (weights, units).

    Args:
        alike: the weights.
        units: <w, w>, <g, g> and <w, g> of all units, as if of dimension 1.
        states: of the tests of all weights.
        test: of these.
    """

    def decide(sums: list[Tensor], state: State) -> tuple[Tensor, ...]:
        pairs = list(zip(test.views, sums, strict=True))
        found, _ = test.decide(
            [UnitSums(view, 1, each.shape[1], *each.unbind()) for view, each in pairs], state
        )
        return tuple(
            flag.expand(each.shape[1]) for flag, (_, each) in zip(found.flags, pairs, strict=True)
        )

    sums = [units[:, places].transpose(0, 1) for places in alike.units]
    own_states = [states[i] for i in alike.indices]
    state = {name: torch.stack([s[name] for s in own_states]) for name in test.state_names}
    if len(alike.indices) == 1:  # vmap takes twice as long
        flags = decide([x[0] for x in sums], {name: x[0] for name, x in state.items()})
        return [flag[None] for flag in flags]
    found: tuple[Tensor, ...] = torch.vmap(decide)(sums, state)
    return found


def _numbers(units: Tensor) -> Tensor:
    """The numbers of each unit of its sums, shape (5, units)."""
    ww, gg, wg, wd, dd = units.unbind()
    move = move_of_sums(ww, wd, dd)
    cosine = cosine_of(wg, ww, gg)
    return torch.stack([ww.sqrt(), move.norm, chord(move.angle), move.angle, cosine])


def _mean_squares(numbers: Tensor, owners: Tensor, count: int) -> Tensor:
    """The mean square of each number over the units of each weight, shape (5, weights)."""
    squares = numbers.square()
    cosine = squares[-1]
    known = ~cosine.isnan()  # (a unit without a gradient has no cosine)
    ones = torch.ones_like(cosine)
    added = torch.stack([*squares[:-1], torch.where(known, cosine, 0), ones, known.to(ones.dtype)])
    sums = numbers.new_zeros(len(added), count).index_add_(1, owners, added)
    every, cosines = sums[: NUMBERS - 1] / sums[NUMBERS], sums[NUMBERS - 1] / sums[NUMBERS + 1]
    return torch.cat([every, cosines[None]])
