"""Derivatives of a few steps along a line, in random modes, against differences of the values.

A case's weight, gradients, states and numbers, or some of them, move along a line: x + t d. A
scalar function F(t) of all that the steps return has derivatives at 0 by torch, order by order in a
random mode, and by differences of values without any derivative: the interpolation polynomials of
nine points, at twelve widths. Seventh differences of the values estimate the error of each, as
rounding, a kink and a polynomial of too low a degree all show in them; the width of the least error
counts. A derivative differs where it is farther away than this error and what a rounding error in
the inputs does to it. It is explained where the differences themselves change as much in a
neighbourhood (F has a kink, a jump or a threshold there), or where a test for scale invariance
decides otherwise at 0 than beside it.

It is unresolved where no width resolves it to `RESOLVED`, where it differs by an overflow in the
reverse mode of steps beyond `HUGE`, or where F changes between 0 and its neighbours on a scale that
no width sees: a clip at 1e-80 of a direction that is 0, or a root that adds less than one rounding
error to F and yet much to a third derivative. Torch shows that: it agrees with the differences
beside 0, and at 0 with itself as near as one likes. A fault at 0 alone fails the second of these,
and a fault in a neighbourhood the first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

from spherenorm import rules as r
from tests.fuzz.cases import Case, Group
from tests.fuzz.compare import Outcome, raised
from tests.fuzz.reference import Nudge, generator_of, nudge_of, reference

ORDERS = 3
RESOLVED = 1e-4
"""The largest error of a difference, as a part of it or, below 1, absolute."""
WIDTHS = 0.125 / 8.0 ** torch.arange(12, dtype=torch.float64)
ONLY_NOISE = 3
"""The narrowest widths, whose noise is that of the next wider ones, too."""
NODES = torch.arange(-4, 5, dtype=torch.float64) / 4
SHARES = torch.linalg.inv(NODES[:, None] ** torch.arange(9))[1 : ORDERS + 1]
SHARES *= torch.tensor([math.factorial(k) for k in range(1, ORDERS + 1)])[:, None]
SEVENTH = torch.tensor([(-1.0) ** k * math.comb(7, k) for k in range(8)], dtype=torch.float64)
SAFETY = 64
ROUNDING = 1e-9
"""Of a derivative, which a cancellation within a step may cost."""
HUGE = 1e77
"""The size of a step from which on products of four sizes overflow, and quotients underflow, as the
reverse mode has them in its derivatives."""
NEAREST = 1e-100
"""Nearer to 0 than any scale of a step is, the least eps of 1e-80 for one; its square is not 0."""
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


# ------------------------------------------------------------------ lines


@dataclass(frozen=True)
class Line:
    """Some steps of a case as a function of t, a polynomial of second degree in their results.

    Attributes:
        origin, direction: of the "weight", each "gradient 0", "state momentum" and "number lr" that
            moves; the numbers have an entry for each step.
        numbers: those that stay, of each step.
        ends: for the weight and each state after the steps, its value at t = 0, the size of what
            the steps do to it, and the shares of its entries in F.
    """

    case: Case
    origin: dict[str, Tensor]
    direction: dict[str, Tensor]
    numbers: tuple[dict[str, Any], ...]
    ends: Mapping[str, tuple[Tensor, float, Tensor]] = field(default_factory=dict)

    def __call__(self, t: Tensor) -> Tensor:
        total = 0 * t
        for name, value in self.steps(t).items():
            end, size, share = self.ends[name]
            y = (value - end) / size
            total = total + (share * (y + y * y / 2)).sum()
        return total

    def at(self, t: Tensor | float) -> Line:
        """Return the line through the same points whose origin is the point `t` of this one."""
        origin = {
            k: x + t * self.direction[k] if k in self.direction else x
            for k, x in self.origin.items()
        }
        return replace(self, origin=origin)

    def steps(self, t: Tensor) -> dict[str, Tensor]:
        """The weight and the states after the steps."""
        at = self.at(t).origin
        state, moving = (
            {k[len(of) :]: x for k, x in at.items() if k.startswith(of)}
            for of in ("state ", "number ")
        )
        weight = at["weight"]
        for step, staying in enumerate(self.numbers):
            rule = self.case.structure.recipe(**staying, **{n: x[step] for n, x in moving.items()})
            if state.keys() != set(rule.state_keys):
                state = {name: state.get(name, x) for name, x in rule.init(weight).items()}
            weight, state = rule.step(weight, at[f"gradient {step}"], state)
        return {"weight": weight, **{n: x for n, x in state.items() if n != "step"}}

    def moved(self, nudge: Nudge) -> Line:
        """The line from another origin; the counter of steps stays."""
        origin = {k: x if k == "state step" else nudge(x) for k, x in self.origin.items()}
        return replace(self, origin=origin)


def draw_line(case: Case) -> Line:
    """A few steps of the case, from the first or a later one, and what moves."""
    draw = random.Random(f"line {case.seed} {case.number}")
    generator = generator_of(0, case)
    weight, numbers = case.groups[0].weights[0], case.groups[0].numbers
    run = reference(replace(case, groups=(Group((weight,), numbers),)))
    first, count = draw.choice((0, 0, 1, 4)), draw.choice((1, 1, 2, 3))
    numbers = tuple(
        {name: _differentiable(name, x, 0 in weight.shape) for name, x in of.items()}
        for of in numbers[first : first + count]
    )
    start, state = run.moments[first - 1][0, 0] if first else (weight.first(), {})
    state = state or case.structure.recipe(**numbers[0]).init(start)
    origin = {"weight": start, **{f"state {name}": x for name, x in state.items()}}
    for step in range(count):
        given = run.gradients[first + step][0, 0]
        assert given is not None
        origin[f"gradient {step}"] = given
    # Off a momentum of 0 the dampening sets in: a jump, which a dampening of 0 would hide.
    jumps = "undamped_start=True" in case.structure.source or "recipes.sgd" in case.structure.source
    kinds = {
        k: draw.choice(("none", "share", "share", "share" if jumps else "all")) for k in origin
    }
    direction = {
        name: _direction(x, kinds[name], generator)
        for name, x in origin.items()
        if kinds[name] != "none" and name != "state step"
    }
    intervals = dict(case.structure.numbers)
    moving = [name for name in intervals if draw.random() < 0.5] or ["lr"]
    damped = jumps and ("dampening" in moving or any(of.get("dampening", 0) for of in numbers))
    if damped and not all(of.get("momentum", 1) for of in numbers):
        moving = [name for name in moving if name != "momentum"] or ["lr"]
    if damped and not all(x.any() for name, x in origin.items() if name.startswith("gradient")):
        # After a gradient of 0 the momentum is 0, unless a decay moves it, and the next undamped.
        moving = [name for name in moving if not name.startswith("weight_decay")] or ["lr"]
    for name in moving:
        x = torch.tensor([float(of[name]) for of in numbers], dtype=torch.float64)
        # (UnitMoments divides by eps where a unit has no entries.)
        stays = (damped and name == "momentum") or (name.startswith("eps") and not start.numel())
        if 0 in intervals[name] and draw.random() < 0.25 and not stays:
            x = torch.zeros_like(x)
        room = torch.where(x < 1, 1 - x, x) if intervals[name].high == 1 else x
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        origin[f"number {name}"] = x
        # (A power of a negative base has no derivative by its exponent, and modes may ask for it.)
        size = torch.where(x == 0, 0.1 * noise.sign(), torch.minimum(x, room))
        direction[f"number {name}"] = size * noise
    staying = tuple({n: x for n, x in of.items() if n not in moving} for of in numbers)
    line = Line(case, origin, direction, staying)
    with torch.no_grad():
        after = line.steps(torch.zeros((), dtype=torch.float64))
    ends = {}
    for name, end in after.items():
        before = start if name == "weight" else state.get(name, torch.zeros_like(end))
        share = torch.randn(end.shape, generator=generator, dtype=end.dtype) / max(end.numel(), 1)
        ends[name] = end, _largest(end - before) or _largest(end) or 1.0, share
    return replace(line, ends=ends)


def _differentiable(name: str, x: Any, is_empty: bool) -> Any:
    """A number without the values of which differences tell nothing.

    A third derivative by 1e-80 would overflow. A beta of 1e-12 moves in steps, as 1 - beta rounds.
    Where a unit has no entries, a derivative divides by an eps of 0.
    """
    if is_empty and x == 0 and name.startswith("eps"):
        return 0.01
    least = 1e-80 if name.startswith(("eps", "level", "nu")) else 1e-6 * name.startswith("beta")
    return least if x and 0 < x < least else x


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _direction(x: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """For each entry a share of it, or, in the kind "all", of the largest where it is 0."""
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return noise * torch.where((x == 0) & (kind == "all"), _largest(x) or 1.0, x)


# ------------------------------------------------------------------ derivatives


@torch.no_grad()
def estimates(line: Line) -> tuple[Tensor, Tensor]:
    """For each order and width: the derivative and its error."""
    points = (WIDTHS[:, None] * NODES).flatten()
    # What a sum absorbs at small widths is seen as noise, if its large part has some.
    nudge = nudge_of(1, line.case)
    expanded = {name: x.expand(len(points), *x.shape) for name, x in line.origin.items()}
    origins = replace(line, origin=expanded).moved(nudge).origin
    values = vmap(lambda t, origin: replace(line, origin=origin)(t))(points, origins)
    values = values.view(len(WIDTHS), -1)
    noise = torch.stack([values[:, :8] @ SEVENTH, values[:, 1:] @ SEVENTH]).abs().amax(0)
    noise = noise / (SEVENTH**2).sum().sqrt() + 1e-16 * values.abs().amax(1)
    # A rounding that decides for or against a number may decide alike at all points of a width, by
    # chance. At narrower widths rounding is as large, and all else that shows is smaller.
    noise = noise.flip(0).cummax(0).values.flip(0)
    noise[-ONLY_NOISE:] = torch.inf
    per_width = WIDTHS ** -torch.arange(1, ORDERS + 1)[:, None]
    errors = SAFETY * noise * SHARES.abs().sum(1, keepdim=True) * per_width
    return SHARES @ values.T * per_width, errors.nan_to_num(nan=torch.inf, posinf=torch.inf)


def differences(line: Line) -> tuple[Tensor, Tensor, Tensor]:
    """For each order: the derivative, its error, and the width that gave them."""
    found, errors = estimates(line)
    apart = (found[:, :, None] - found[:, None]).abs() > errors[:, :, None] + errors[:, None]
    # A branch of no width but 0 may leave no trace in the values at larger widths.
    errors[apart.triu().any(2)] = torch.inf
    best = errors.argmin(1, keepdim=True)
    return found.gather(1, best)[:, 0], errors.gather(1, best)[:, 0], WIDTHS[best[:, 0]]


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


def _resolved(value: Tensor, error: Tensor) -> bool:
    return bool(error <= RESOLVED * max(1.0, abs(value)))


def _not_smooth(line: Line, order: int, width: Tensor, far: Tensor) -> bool:
    """True if differences as near as one likes disagree by about as much as `far`."""
    wanted = differences(line)[0][order]

    def disagree(size: Tensor, run: int) -> bool:
        generator = generator_of(run, line.case)
        near = line.moved(lambda x: x + size * _direction(x, "all", generator))
        value, error, _ = (of[order] for of in differences(near))
        return not (_resolved(value, error) and abs(value - wanted) < far / 4)

    return all(any(disagree(width / 100**k, run) for run in range(8)) for k in (1, 2, 3))


def _decides_apart(line: Line, width: Tensor) -> bool:
    """True if a test for scale invariance decides otherwise at 0 than at a point of `width`."""
    decisions: list[list[bool]] = []

    def noting(cls: type[Any]) -> Any:
        def update(*of: Any, usual: Any = cls.update) -> Any:
            after, state = usual(*of)
            for flag in after.invariance.flags:
                decisions[-1] += flag.flatten().tolist()
            return after, state

        return patch.object(cls, "update", update)

    with torch.no_grad(), noting(r.ScaleInvarianceTest), noting(r.AccumulatedInvarianceTest):
        for node in NODES:
            decisions.append([])
            line(width * node)
    return any(others != decisions[0] for others in decisions)


def judge(line: Line, modes: tuple[str, ...], wanted: tuple[Tensor, ...]) -> tuple[str, str]:
    """The kind of the outcome and its detail for one derivative, by rounding alone."""
    value, error, _ = (of[len(modes) - 1] for of in wanted)
    if not _resolved(value, error):
        return "unresolved", ""
    found = by_torch(line, modes)
    allowed = error + ROUNDING * abs(value)
    if abs(found - value) <= allowed:
        return "equal", ""
    runs = [by_torch(line.moved(nudge_of(run, line.case)), modes) for run in range(8)]
    allowed = allowed + 16 * max(abs(run - found) for run in runs)
    detail = f"{', '.join(modes)}: {found:.12g}, differences {value:.12g}, allowed {allowed:.2g}"
    return ("explained" if abs(found - value) <= allowed else "different"), detail


def _is_narrow(line: Line, modes: tuple[str, ...], width: Tensor, far: Tensor) -> bool:
    """True if, by torch, the derivative changes by `far` next to 0, nearer than any width."""
    found = by_torch(line, modes)
    for sign in (-1.0, 1.0):
        nearest = by_torch(line.at(sign * NEAREST), modes)
        if not abs(nearest - found) < far / 8:
            return False
        beside = line.at(sign * width / 4)
        if judge(beside, modes, differences(beside))[0] not in ("equal", "explained"):
            return False
    return True


def compare(line: Line, modes: tuple[str, ...], wanted: tuple[Tensor, ...]) -> tuple[str, str]:
    """The kind of the outcome and its detail for one derivative."""
    kind, detail = judge(line, modes, wanted)
    if kind != "different":
        return kind, detail
    if max(size for _, size, _ in line.ends.values()) > HUGE:
        return "unresolved", detail
    order = len(modes) - 1
    value, _, width = (of[order] for of in wanted)
    far = abs(by_torch(line, modes) - value)
    far = far.nan_to_num(nan=abs(value) + 1, posinf=abs(value) + 1)
    if _is_narrow(line, modes, width, far):
        return "unresolved", detail
    if _decides_apart(line, width) or _not_smooth(line, order, width, far):
        return "explained", detail
    return "different", detail


def outcome(case: Case) -> Outcome:
    """A case is explained or unresolved if one of its derivatives is, and different if one is."""
    draw = random.Random(f"modes {case.seed} {case.number}")
    found = {"equal": ""}
    try:
        line = draw_line(case)
        wanted = differences(line)
        for order in range(1, ORDERS + 1):
            drawn = tuple(draw.choice(list(MODES)) for _ in range(order))
            for modes in {drawn, ("backward",) * order}:
                kind, detail = compare(line, modes, wanted)
                found[kind] = found.get(kind) or detail
    except Exception as error:
        found["different"] = f"raises {raised(error)}"
    kind = next(kind for kind in ("different", "unresolved", "explained", "equal") if kind in found)
    return Outcome("derivative", case.number, kind, found[kind])
