"""A path differs where it is farther from the rule's own code than rounding of the inputs explains.

Each step is judged by itself: the rule's own code, the reference, takes it from the path's own
weights and states, so that a step does not answer for what rounding made of the steps before it.
(A sweep shows no states; the reference of its eight steps is one run.)

A few roundings of a tensor's largest entry are always allowed, in the precision that rules compute
in; a weight of half precision may also be rounded to the next number. Beyond them, the reference
runs again with weights, gradients, states and numbers each moved by one rounding error, up or down
at random, entry by entry or a tensor at a time. An entry may lie `CONSTANT` times as far from the
reference as the farthest of these runs. A nan or inf must be in its place unless these runs
disagree about it. The later runs

- also sum in another order, which no path promises: a shard sums its own entries first;
- move by up to four rounding errors, and their distance is divided by that number: where one
  scalar, such as the angle of a long move, decides all entries, its few nearest floats leave some
  entries where they were by coincidence.

Chance has its share: where rounding decides about a thousand entries, whether they overflow and
with which sign, each run makes a few decisions like no other run. So a path may have nan or inf
in places where no run agrees, but not in more entries of a tensor than the worst of the runs has
when it is judged by the others.

A difference that remains is of operations if it is explained by runs that also move the result of
every operation, and add products that are rounded first: the path fuses or splits operations, or
keeps more digits between them, before a cancellation that the inputs' rounding does not disturb.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spherenorm._numerics import working_dtype
from tests.fuzz.cases import STEPS, Case
from tests.fuzz.nudges import Reordered, Rounded, nudge_of
from tests.fuzz.reference import Gradients, Moment, State, Trajectory, reference

CONSTANT = 16
ROUNDINGS = 8
RUNS = (8, 24)
"""Few runs decide most cases; more of them catch decisions that rarely fall the other way."""


@dataclass(frozen=True)
class Difference:
    """The first entry that differs."""

    step: int
    place: str
    ours: float = 0.0
    reference: float = 0.0
    allowed: float = 0.0

    def __str__(self) -> str:
        return (
            f"step {self.step}, {self.place}: {self.ours!r}, reference {self.reference!r}, "
            f"allowed {self.allowed:.2g}"
        )


def judge(case: Case, moments: list[Moment], gradients: Gradients) -> tuple[str, Difference | None]:
    """("equal", None), or the kind of the difference and its first entry.

    The kind is "explained" by rounding of the inputs, "of operations", or "different".
    """
    shown = all(state is not None for moment in moments for _, state in moment.values())
    rerun = functools.partial(reference, case, gradients, moments if shown else None)
    wanted = rerun()
    found = first_difference(moments, wanted, [])
    if found is None:
        return "equal", None
    runs: list[Trajectory] = []
    for more in RUNS:
        first = len(runs)
        for number in range(first, first + more):
            errors = 1 + number % 4 if first else 1
            with Reordered(number, case) if first else nullcontext():
                nudged = rerun(nudge_of(number, case, errors))
            runs.append(replace(nudged, rounding_errors=errors))
        remaining = first_difference(moments, wanted, runs)
        if remaining is None:
            return "explained", found
        found = remaining
    for number in range(RUNS[-1]):
        nudge = nudge_of(-1 - number, case)
        with Rounded(nudge):
            runs.append(rerun(nudge))
    remaining = first_difference(moments, wanted, runs)
    return ("of operations", found) if remaining is None else ("different", remaining)


def first_difference(
    moments: list[Moment], wanted: Trajectory, runs: Sequence[Trajectory]
) -> Difference | None:
    for step in range(STEPS):
        for place in wanted.moments[step]:
            if place not in moments[step]:
                continue
            ours, theirs = _tensors(moments[step][place]), _tensors(wanted.moments[step][place])
            nudged = [(_tensors(run.moments[step][place]), run.rounding_errors) for run in runs]
            if moments[step][place][1] is None:  # a path that does not show its states
                theirs = {"weight": theirs["weight"]}
            if ours.keys() != theirs.keys():
                return Difference(step, f"{place} has {sorted(ours)}, not {sorted(theirs)}")
            for name, one in ours.items():
                moved = [(tensors[name], errors) for tensors, errors in nudged]
                found = _difference(one, theirs[name], moved)
                if found is not None:
                    return replace(found, step=step, place=f"{name} {place} {found.place}")
    return None


def _tensors(moment: tuple[Tensor, State | None]) -> State:
    weight, state = moment
    return {"weight": weight, **(state or {})}


def _difference(
    one: Tensor, other: Tensor, nudged: Sequence[tuple[Tensor, int]]
) -> Difference | None:
    """The first difference of two tensors, of which the place is an index."""
    if one.shape != other.shape or one.dtype != other.dtype:
        kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (one, other)]
        return Difference(0, f"is {kinds[0]}, not {kinds[1]}")
    wrong, allowed = _wrong(one, other, nudged)
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return Difference(0, str(at), one[at].item(), other[at].item(), allowed[at].item())


def _wrong(
    one: Tensor, other: Tensor, nudged: Sequence[tuple[Tensor, int]]
) -> tuple[Tensor, Tensor]:
    """The entries of `one` that are too far from `other`, and how far each may be.

    Args:
        nudged: of each run, the tensor and by how many rounding errors the run's inputs moved.
    """
    a, b = one.double(), other.double()
    runs = [(run.double(), errors) for run, errors in nudged]
    distances = [_per_rounding_error((run - b).abs(), b, errors) for run, errors in runs]
    spread = functools.reduce(torch.maximum, distances, torch.zeros_like(b))
    allowed = CONSTANT * spread + _few_roundings(b, other.dtype)
    strays = torch.stack([torch.zeros_like(b, dtype=bool)] + [~_alike(run, b) for run, _ in runs])
    far = a.isfinite() & b.isfinite() & ~((a - b).abs() <= allowed)
    astray = ~_alike(a, b) & ~strays.any(0)
    alone = (strays & (strays.sum(0) == 1)).reshape(len(strays), a.numel())
    if astray.sum() <= alone.sum(1).max():
        astray = torch.zeros_like(astray)
    return (far & ~strays.any(0)) | astray, allowed


def _per_rounding_error(distance: Tensor, wanted: Tensor, errors: int) -> Tensor:
    """A run's distance for one rounding error.

    A distance as large as the entry itself is that of chaos, in which no digit is determined. It
    does not grow with the number of rounding errors.
    """
    return torch.where(distance >= wanted.abs(), distance, distance / errors)


def _few_roundings(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Of the largest entry in the precision of the rule, and one of each entry in its own."""
    rule, own = torch.finfo(working_dtype(dtype)), torch.finfo(dtype)
    finite = x[x.isfinite()].abs()
    largest = finite.max() if finite.numel() else 0.0
    allowed = ROUNDINGS * rule.eps * (largest + rule.smallest_normal) * torch.ones_like(x)
    if own.eps != rule.eps:
        allowed += own.eps * (x.abs() + own.smallest_normal)
    return allowed


def _alike(a: Tensor, b: Tensor) -> Tensor:
    """Both finite, both nan, or the same infinity."""
    return (a.isfinite() & b.isfinite()) | (a.isnan() & b.isnan()) | (a.isinf() & (a == b))
