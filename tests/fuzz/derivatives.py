"""Derivatives of a few steps along a line, in random modes, against differences of the values.

A case's weight, gradients, states and numbers, or some of them, move along a line: x + t d. A
scalar function F(t) of all that the steps return has derivatives at 0 by torch, order by order in a
random mode, and by differences of values without any derivative: the interpolation polynomials of
nine points, at twelve widths. Seventh differences of the values estimate the error of each, as
rounding, a kink and a polynomial of too low a degree all show in them; the width of the least error
counts. A derivative differs where it is farther away than this error and what a rounding error in
the inputs does to it. It is explained where no width resolves it to `RESOLVED`, where the
differences themselves change as much in a neighbourhood (F has a kink, a jump or a threshold
there), where a test for scale invariance decides otherwise at 0 than beside it, or where the
narrowest widths agree with torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

from spherenorm import Update, View
from spherenorm._update import Invariance
from spherenorm.rules import HeavyBall
from tests.fuzz.cases import Case, draw_case
from tests.fuzz.lines import Line, direction_of, draw_line, nudged
from tests.fuzz.nudges import generator_of, nudge_of
from tests.fuzz.outcome import Outcome, short
from tests.fuzz.reference import State

ORDERS = 3
RESOLVED = 1e-4
"""The largest error of a difference, as a part of it or, below 1, absolute."""
WIDTHS = 0.125 / 8.0 ** torch.arange(12, dtype=torch.float64)
NODES = torch.arange(-4, 5, dtype=torch.float64) / 4
WEIGHTS = torch.linalg.inv(NODES[:, None] ** torch.arange(9))[1 : ORDERS + 1]
WEIGHTS *= torch.tensor([math.factorial(k) for k in range(1, ORDERS + 1)])[:, None]
SEVENTH = torch.tensor([(-1.0) ** k * math.comb(7, k) for k in range(8)], dtype=torch.float64)
SAFETY = 64
ROUNDING = 1e-9
"""Of a derivative, which a cancellation within a step may cost."""
Function = Callable[[Tensor], Tensor]

MODES: dict[str, Callable[[Function], Function]] = {
    "grad": grad,
    "jvp": lambda f: lambda t: jvp(f, (t,), (torch.ones_like(t),))[1],
    "vjp": lambda f: lambda t: vjp(f, t)[1](torch.ones_like(t))[0],
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "vmap grad": lambda f: lambda t: vmap(grad(f))(torch.stack([t + 1e-6, t]))[1],
    "vmap jvp": lambda f: lambda t: vmap(MODES["jvp"](f))(torch.stack([t, t + 1e-6]))[0],
}


@torch.no_grad()
def estimates(line: Line) -> tuple[Tensor, Tensor]:
    """For each order and width: the derivative and its error."""
    points = (WIDTHS[:, None] * NODES).flatten()
    # What a sum absorbs at small widths is seen as noise, if its large part has some.
    origins = nudged(line, nudge_of(1, line.case), lambda x: x.expand(len(points), *x.shape)).origin
    values = vmap(lambda t, origin: replace(line, origin=origin)(t))(points, origins)
    values = values.view(len(WIDTHS), -1)
    noise = torch.stack([values[:, :8] @ SEVENTH, values[:, 1:] @ SEVENTH]).abs().amax(0)
    noise = noise / (SEVENTH**2).sum().sqrt() + 1e-16 * values.abs().amax(1)
    per_width = WIDTHS ** -torch.arange(1, ORDERS + 1)[:, None]
    errors = SAFETY * noise * WEIGHTS.abs().sum(1, keepdim=True) * per_width
    return WEIGHTS @ values.T * per_width, errors.nan_to_num(nan=torch.inf)


def differences(line: Line) -> tuple[Tensor, Tensor, Tensor]:
    """For each order: the derivative, its error, and the width that gave them."""
    found, errors = estimates(line)
    apart = (found[:, :, None] - found[:, None]).abs() > errors[:, :, None] + errors[:, None]
    # A branch of no width but 0 may leave no trace in the values at larger widths.
    errors[apart.triu().any(2)] = torch.inf
    best = errors.argmin(1, keepdim=True)
    return found.gather(1, best)[:, 0], errors.gather(1, best)[:, 0], WIDTHS[best[:, 0]]


def narrower_agrees(line: Line, order: int, wanted: Tensor, found: Tensor) -> bool:
    """True if the two narrowest widths speak for `found`: F changes on a scale that is as narrow.

    Noise, which does not know `found`, gives values that are as far from it as from `wanted`.
    """
    narrowest = estimates(line)[0][order, -2:]
    return bool(((narrowest - found).abs() < (narrowest - wanted).abs() / 8).all())


def by_torch(f: Function, modes: tuple[str, ...]) -> Tensor:
    """The derivative of `f` at 0, of as many orders as there are modes, the innermost first."""
    t = torch.zeros((), dtype=torch.float64)
    if modes[0] == "backward":
        t.requires_grad_()
        value = f(t)
        for _ in modes:
            value = value + 0 * t  # which has a derivative in any case
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        return value.detach()
    for mode in modes:
        f = MODES[mode](f)
    return f(t)


def resolved(value: Tensor, error: Tensor) -> bool:
    return bool(error <= RESOLVED * max(1.0, abs(value)))


def not_smooth(line: Line, order: int, width: Tensor, far: Tensor) -> bool:
    """True if differences as near as one likes disagree by about as much as `far`."""
    wanted = differences(line)[0][order]

    def disagree(size: Tensor, run: int) -> bool:
        generator = generator_of(run, line.case)
        near = nudged(line, lambda x: x + size * direction_of(x, "all", generator))
        value, error, _ = (of[order] for of in differences(near))
        return not (resolved(value, error) and abs(value - wanted) < far / 4)

    return all(any(disagree(width / 100**k, run) for run in range(8)) for k in (1, 2, 3))


def decides_apart(line: Line, width: Tensor) -> bool:
    """True if a step decides otherwise at 0 than at a point of `width`.

    A test for scale invariance decides, and a momentum that takes its first gradient whole.
    """
    decisions: list[list[bool]] = []
    decided_on, update = Invariance.decided_on, HeavyBall.update

    def noting(before: Invariance, view: View, passing: Tensor, *args: Any) -> Invariance:
        decisions[-1] += passing.flatten().tolist()
        return decided_on(before, view, passing, *args)

    def starting(rule: HeavyBall, before: Update, state: State) -> tuple[Update, State]:
        decisions[-1].append(rule.undamped_start and not state[rule.buffer].any())
        return update(rule, before, state)

    noted = patch.object(Invariance, "decided_on", noting)
    with torch.no_grad(), noted, patch.object(HeavyBall, "update", starting):
        for node in NODES:
            decisions.append([])
            line(width * node)
    return any(others != decisions[0] for others in decisions)


def compare(line: Line, modes: tuple[str, ...], wanted: tuple[Tensor, ...]) -> tuple[str, str]:
    """The kind of the outcome and its detail for one derivative."""
    value, error, width = (of[len(modes) - 1] for of in wanted)
    if not resolved(value, error):
        return "explained", ""
    found = by_torch(line, modes)
    allowed = error + ROUNDING * abs(value)
    if abs(found - value) <= allowed:
        return "equal", ""
    runs = [by_torch(nudged(line, nudge_of(run, line.case)), modes) for run in range(8)]
    allowed = allowed + 16 * max(abs(run - found) for run in runs)
    if abs(found - value) <= allowed:
        return "explained", ""
    far = abs(found - value).nan_to_num(nan=abs(value) + 1, posinf=abs(value) + 1)
    detail = f"{', '.join(modes)}: {found:.12g}, differences {value:.12g}, allowed {allowed:.2g}"
    order = len(modes) - 1
    explained = decides_apart(line, width) or narrower_agrees(line, order, value, found)
    if explained or not_smooth(line, order, width, far):
        return "explained", detail
    return "different", detail


def outcomes(seed: int, numbers: Iterable[int]) -> Iterator[Outcome]:
    return (outcome(draw_case("derivative", seed, number)) for number in numbers)


def outcome(case: Case) -> Outcome:
    """A case is explained if one of its derivatives is, and different if one is."""
    draw = random.Random(f"modes {case.seed} {case.number}")
    found = {"equal": ""}
    try:
        line = draw_line(case)
        wanted = differences(line)
        for order in range(1, ORDERS + 1):
            drawn = tuple(draw.choice(list(MODES)) for _ in range(order))
            for modes in {drawn, ("backward",) * order}:
                kind, detail = compare(line, modes, wanted)
                found[kind] = detail
    except Exception as error:
        found["different"] = f"raises {type(error).__name__}: {short(error)}"
    kind = next(kind for kind in ("different", "explained", "equal") if kind in found)
    return Outcome("derivative", case.number, kind, found[kind])
