"""The measurements of all watched weights of one device, as one vector per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spherenorm._measures import chord, cosine_of, move_of_sums
from spherenorm._numerics import wide_dtype, working_dtype
from spherenorm._rule import State
from spherenorm._views import View
from spherenorm.probes._layout import Packs, Watched, plain
from spherenorm.probes._measurement import Measurement
from spherenorm.rules import InvarianceTest, UnitSums

__all__ = ["Bench"]

NUMBERS = 5
"""Of each weight: the norms before and after, the effective step, the turn and the cosine."""

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
        at: the place of their first share in the vector of a step.
    """

    indices: list[int]
    units: list[Tensor]
    shares: list[Tensor]
    at: int


class Bench:
    """Measures the watched weights of one device, without a word to the host.

    Every weight is summed row by row, in packs. What follows is arithmetic on all units of all
    weights and views at once, and one decision for all weights with as many units.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self.watched = watched
        self._device = watched[0].weight.device
        self._packs = Packs(watched)
        self._spans: dict[tuple[int, View], range] = {}
        rows, owners, roots = map(list, zip(*self._unit_table(), strict=True))
        self._rows, self._owners = self._here(torch.cat(rows)), self._here(torch.cat(owners))
        all_roots = torch.cat([*roots, torch.ones(1)])
        self._roots = self._here(all_roots).to(wide_dtype(self._device))
        measured = [self._span(i, each.view) for i, each in enumerate(watched)]
        self._measured = self._here(torch.cat(measured))
        lengths = torch.tensor([len(span) for span in measured])
        self._weights = self._here(torch.arange(len(watched)).repeat_interleave(lengths))
        self._alike = list(self._groups())
        self._states: list[State] = []

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
        units = sums.new_zeros(5, len(self._roots))  # (the last one, which fills up, stays 0)
        units.index_add_(1, self._owners, sums[:, self._rows])
        measured = units[:, self._measured]
        numbers = [_mean_squares(measured, self._weights, len(self.watched)).flatten()]
        # With sqrt(dim) in the product, all units are of dimension 1.
        tested = torch.stack([units[0], units[1], units[2] * self._roots])
        for alike in self._alike:
            first = alike.indices[0]
            dtype = working_dtype(self.watched[first].weight.dtype)
            numbers.append(_shares(alike, tested.to(dtype), self._states, tests[first]))
        return torch.cat(numbers)

    def read(self, step: int, vector: Tensor) -> list[Measurement]:
        """The measurements in a vector of `measure` that is on the host."""
        count = len(self.watched)
        numbers = vector[: NUMBERS * count].view(NUMBERS, count).sqrt().T.tolist()
        found: dict[int, tuple[float, str | None]] = {}
        for alike in self._alike:
            shape = len(alike.indices), len(alike.units)
            shares = vector[alike.at : alike.at + shape[0] * shape[1]].view(shape).tolist()
            for index, row in zip(alike.indices, shares, strict=True):
                views = self.watched[index].test.views
                passed = [(x, str(v)) for x, v in zip(row, views, strict=True) if x > 0]
                found[index] = passed[0] if passed else (0.0, None)
        return [
            Measurement(step, each.name, str(each.view), *(*numbers[i], *found[i]))
            for i, each in enumerate(self.watched)
        ]

    def _unit_table(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each weight and view: its rows, the units that own them, and sqrt(dim) of the units.

        The rows of one weight and dimension serve all views along it.
        """
        count = 0
        for index, each in enumerate(self.watched):
            for view in dict.fromkeys(each.views):
                start, length = self._packs.rows_of(index, view)
                units = 1 if view.dim is None else view.groups or length
                self._spans[index, view] = range(count, count + units)
                rows = torch.arange(length)
                owners = count + rows // max(1, length // units)
                yield start + rows, owners, torch.full((units,), view.size(each.weight) ** 0.5)
                count += units

    def _groups(self) -> Iterator[Alike]:
        """Weights of one test, of which those with about as many units are together."""
        found: dict[object, list[int]] = {}
        most = max(len(span) for span in self._spans.values())
        few = most * len(self.watched) <= MOST_FILLED
        for index, each in enumerate(self.watched):
            lengths = [len(self._spans[index, view]) for view in each.test.views]
            if not each.test.state_names:  # (a test with a state asks how many units there are)
                lengths = [] if few else [length.bit_length() for length in lengths]
            key = each.group, each.weight.dtype, each.test.views, tuple(lengths)
            found.setdefault(key, []).append(index)
        at = NUMBERS * len(self.watched)
        for indices in found.values():
            views = self.watched[indices[0]].test.views
            spans = ([self._span(i, view) for i in indices] for view in views)
            units = [nn.utils.rnn.pad_sequence(x, True, len(self._roots) - 1) for x in spans]
            real = [(x < len(self._roots) - 1).to(self._roots.dtype).cpu() for x in units]
            shares = [self._here(x / x.sum(1, keepdim=True)) for x in real]
            yield Alike(indices, [self._here(x) for x in units], shares, at)
            at += len(indices) * len(views)

    def _span(self, index: int, view: View) -> Tensor:
        span = self._spans[index, view]
        return torch.arange(span.start, span.stop)

    def _here(self, x: Tensor) -> Tensor:
        return x.to(self._device)


def _kept(watched: Watched, state: State) -> State:
    """A copy of the state of a weight's test, by units; its first one before the first step."""
    names, test = watched.test.state_names, watched.test
    if not names:
        return {}
    if not state.keys() >= set(names):
        state = test.init(watched.weight)
    return {name: x.clone() for name, x in test.by_units(state).items()}


def _shares(alike: Alike, units: Tensor, states: Sequence[State], test: InvarianceTest) -> Tensor:
    """The share of units that `test` finds scale-invariant, by weight and view, flat.

    Args:
        alike: the weights.
        units: <w, w>, <g, g> and <w, g> of all units, as if of dimension 1.
        states: of the tests of all weights.
        test: of these.
    """

    def decide(sums: list[Tensor], shares: list[Tensor], state: State) -> Tensor:
        found, _ = test.decide(
            [
                UnitSums(view, 1, each.shape[1], *each.unbind())
                for view, each in zip(test.views, sums, strict=True)
            ],
            state,
        )
        counted = zip(found.flags, shares, strict=True)
        return torch.stack([(flag * each).sum() for flag, each in counted])

    sums = [units[:, places].transpose(0, 1) for places in alike.units]
    own_states = [states[i] for i in alike.indices]
    state = {name: torch.stack([s[name] for s in own_states]) for name in test.state_names}
    if len(alike.indices) == 1:  # vmap takes twice as long
        own = {name: x[0] for name, x in state.items()}
        return decide([x[0] for x in sums], [x[0] for x in alike.shares], own)
    shares: Tensor = torch.vmap(decide)(sums, alike.shares, state)
    return shares.flatten()


def _mean_squares(units: Tensor, owners: Tensor, count: int) -> Tensor:
    """The mean square of each number over the units of each weight, shape (5, weights)."""
    ww, gg, wg, wd, dd = units.unbind()
    move = move_of_sums(ww, wd, dd)
    cosine = cosine_of(wg, ww, gg)
    known = ~cosine.isnan()  # (a unit without a gradient has no cosine)
    numbers = [ww.sqrt(), move.norm, chord(move.angle), move.angle, torch.where(known, cosine, 0)]
    squares = [*(x.square() for x in numbers), torch.ones_like(ww), known.to(ww.dtype)]
    added = units.new_zeros(len(squares), count).index_add_(1, owners, torch.stack(squares))
    every, cosines = added[:4] / added[5], added[4:5] / added[6]
    return torch.cat([every, cosines])
