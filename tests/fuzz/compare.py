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
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import spherenorm as sn
from tests.fuzz.cases import STEPS, Case, Place
from tests.fuzz.reference import (
    Gradients,
    Moment,
    Reordered,
    Rounded,
    Trajectory,
    nudge_of,
    reference,
    working_dtype,
)

CONSTANT = 16
ROUNDINGS = 8
RUNS = (8, 24)
"""Few runs decide most cases; more of them catch decisions that rarely fall the other way."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case on one path.

    Attributes:
        kind: "equal", "explained" by rounding of the inputs, "unresolved" if there is nothing to
            compare with, "of operations", "different", or "refused".
        detail: the first difference, or the error.
    """

    path: str
    number: int
    kind: str
    detail: str = ""

    def line(self, seed: int) -> str:
        command = f"python -m tests.fuzz --seed {seed} --paths {self.path} --only {self.number}"
        return f"{self.kind}: {command}  # {self.detail}"


def outcome(path: str, case: Case, run: Callable[[Case, Gradients], list[Moment]]) -> Outcome:
    """The case on the path that `run` takes."""
    torch.manual_seed(case.number)
    doing = "the rule's own code"
    try:
        gradients = reference(case).gradients
        doing = "the path"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            moments = run(case, gradients)
        doing = "the rule's own code, from the path's weights and states,"
        return Outcome(path, case.number, *judge(case, moments, gradients))
    except sn.BackendError as error:
        return Outcome(path, case.number, "refused", raised(error))
    except Exception as error:
        return Outcome(path, case.number, "different", f"{doing} raises {raised(error)}")


def raised(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def judge(case: Case, moments: list[Moment], gradients: Gradients) -> tuple[str, str]:
    """The kind of an outcome and its detail."""
    shown = all(state is not None for moment in moments for _, state in moment.values())
    rerun = functools.partial(reference, case, gradients, moments if shown else None)
    wanted = rerun()
    left = [(step, place) for step in range(STEPS) for place in moments[step]]
    found = differences(moments, wanted, [], left)
    if not found:
        return "equal", ""
    runs: list[Trajectory] = []
    for more in RUNS:
        first = len(runs)
        for number in range(first, first + more):
            errors = 1 + number % 4 if first else 1
            with Reordered(number, case) if first else nullcontext():
                nudged = rerun(nudge_of(number, case, errors), found)
            runs.append(replace(nudged, rounding_errors=errors))
        remaining = differences(moments, wanted, runs, found)
        if not remaining:
            return "explained", _first(found)
        found = remaining
    for number in range(RUNS[-1]):
        nudge = nudge_of(-1 - number, case)
        with Rounded(nudge):
            runs.append(rerun(nudge, found))
    remaining = differences(moments, wanted, runs, found)
    return ("different", _first(remaining)) if remaining else ("of operations", _first(found))


def differences(
    moments: list[Moment],
    wanted: Trajectory,
    runs: Sequence[Trajectory],
    left: Iterable[tuple[int, Place]],
) -> dict[tuple[int, Place], str]:
    """The first difference of each step of a weight, of those that are left."""
    found = {}
    for step, place in left:
        ours, theirs = moments[step][place], wanted.moments[step][place]
        one, other = _tensors(ours), _tensors(theirs)
        nudged = [(_tensors(run.moments[step][place]), run.rounding_errors) for run in runs]
        if ours[1] is None:  # a path that does not show its states
            other = {"weight": other["weight"]}
        if one.keys() != other.keys():
            found[step, place] = f" has {sorted(one)}, not {sorted(other)}"
            continue
        for name, x in one.items():
            moved = [(tensors[name], errors) for tensors, errors in nudged]
            if difference := _difference(x, other[name], moved):
                found[step, place] = f", {name}{difference}"
                break
    return found


def _first(found: dict[tuple[int, Place], str]) -> str:
    (step, place), difference = next(iter(found.items()))
    return f"step {step}, weight {place}{difference}"


def _tensors(moment: tuple[Tensor, dict[str, Tensor] | None]) -> dict[str, Tensor]:
    return {"weight": moment[0], **(moment[1] or {})}


def _difference(one: Tensor, other: Tensor, nudged: Sequence[tuple[Tensor, int]]) -> str | None:
    """The first entry of `one` that is too far from `other`.

    Args:
        nudged: of each run, the tensor and by how many rounding errors the run's inputs moved.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return f": {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
    a, b = one.double(), other.double()
    distances = [_per_rounding_error((run.double() - b).abs(), b, n) for run, n in nudged]
    spread = functools.reduce(torch.maximum, distances, torch.zeros_like(b))
    allowed = CONSTANT * spread + _few_roundings(b, other.dtype)
    none = torch.zeros_like(b, dtype=torch.bool)
    strays = torch.stack([none, *(~_alike(run.double(), b) for run, _ in nudged)])
    far = a.isfinite() & b.isfinite() & ~((a - b).abs() <= allowed)
    astray = ~_alike(a, b) & ~strays.any(0)
    alone = (strays & (strays.sum(0) == 1)).reshape(len(strays), a.numel())
    wrong = far & ~strays.any(0)
    if astray.sum() > alone.sum(1).max():
        wrong = wrong | astray
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    x, y, least = (of[at].item() for of in (one, other, allowed))
    return f"{list(at)}: {x!r}, reference {y!r}, allowed {least:.2g}"


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
