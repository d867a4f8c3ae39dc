"""A few steps of a case as a scalar function of how far their inputs have moved along a line."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.cases import Case, Group
from tests.fuzz.nudges import generator_of
from tests.fuzz.reference import reference


@dataclass(frozen=True)
class Line:
    """Some steps of a case as a function of t.

    Attributes:
        origin, direction: of the "weight", each "gradient 0", "state momentum" and "number lr" that
            moves; the numbers have an entry for each step.
        numbers: those that stay, of each step.
        pull: how much of a weight's move its gradients take up.
        path: the weight before each of the steps at t = 0.
        ends: for the weight and each state after the steps, its value at t = 0, the size of what
            the steps do to it, and the shares of its entries in F.
    """

    case: Case
    origin: dict[str, Tensor]
    direction: dict[str, Tensor]
    numbers: tuple[dict[str, Any], ...]
    pull: float = 0.0
    path: tuple[Tensor, ...] = ()
    ends: Mapping[str, tuple[Tensor, float, Tensor]] = field(default_factory=dict)

    def __call__(self, t: Tensor) -> Tensor:
        """A polynomial of second degree in the weight and the states after the steps."""
        total = 0 * t
        for name, value in self.steps(t)[0].items():
            end, size, share = self.ends[name]
            y = (value - end) / size
            total = total + (share * (y + y * y / 2)).sum()
        return total

    def steps(self, t: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The weight and the states after the steps, and the weights before each of them."""
        at = {
            name: x + t * self.direction[name] if name in self.direction else x
            for name, x in self.origin.items()
        }
        weight, state, path = at["weight"], _of("state ", at), []
        moving = _of("number ", at)
        for step, staying in enumerate(self.numbers):
            rule = self.case.structure.recipe(**staying, **{n: x[step] for n, x in moving.items()})
            if state.keys() != set(rule.state_names):
                state = {name: state.get(name, x) for name, x in rule.init(weight).items()}
            path.append(weight)
            gradient = at[f"gradient {step}"]
            if self.pull:
                gradient = gradient + self.pull * (weight - self.path[step])
            weight, state = rule.step(weight, gradient, state)
        return {"weight": weight, **{n: x for n, x in state.items() if n != "step"}}, path


def _of(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(kind) :]: x for name, x in tensors.items() if name.startswith(kind)}


def draw_line(case: Case) -> Line:
    """A few steps of the case, from the first or a later one, and what moves."""
    draw = random.Random(f"line {case.seed} {case.number}")
    generator = generator_of(0, case)
    weight, numbers = case.groups[0].weights[0], case.groups[0].numbers
    run = reference(replace(case, groups=(Group((weight,), numbers),)))
    first, count = draw.choice((0, 0, 1, 4)), draw.choice((1, 1, 2, 3))
    numbers = tuple(
        {name: _differentiable(name, x) for name, x in of.items()}
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
    leave = "share" if jumps else "all"
    kinds = {name: draw.choice(("none", "share", "share", leave)) for name in origin}
    direction = {
        name: direction_of(x, kinds[name], generator)
        for name, x in origin.items()
        if kinds[name] != "none" and name != "state step"
    }
    intervals = dict(case.structure.numbers)
    moving = [name for name in intervals if draw.random() < 0.5] or ["lr"]
    damped = jumps and ("dampening" in moving or any(of.get("dampening", 0) for of in numbers))
    if damped and not all(of.get("momentum", 1) for of in numbers):
        moving = [name for name in moving if name != "momentum"] or ["lr"]
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
        after, path = line.steps(torch.zeros((), dtype=torch.float64))
    ends = {}
    for name, end in after.items():
        before = start if name == "weight" else state.get(name, torch.zeros_like(end))
        share = torch.randn(end.shape, generator=generator, dtype=end.dtype) / max(end.numel(), 1)
        ends[name] = end, largest(end - before) or largest(end) or 1.0, share
    pull = draw.choice((0, 0.1)) * largest(origin["gradient 0"]) / (largest(start) or 1)
    return replace(line, pull=pull, path=tuple(path), ends=ends)


def _differentiable(name: str, x: Any) -> Any:
    """A number without the values of which differences tell nothing.

    A third derivative by 1e-80 would overflow. A beta of 1e-12 moves in steps, as 1 - beta rounds.
    """
    least = 1e-80 if name.startswith(("eps", "level", "nu")) else 1e-6 * name.startswith("beta")
    return least if x and 0 < x < least else x


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def direction_of(x: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """For each entry a share of it, or, in the kind "all", of the largest where it is 0."""
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return noise * torch.where((x == 0) & (kind == "all"), largest(x) or 1.0, x)


def nudged(
    line: Line, nudge: Callable[[Tensor], Tensor], shaped: Callable[[Tensor], Tensor] = lambda x: x
) -> Line:
    """The line from another origin; the counter of steps stays."""
    moved = {
        name: shaped(x) if name == "state step" else nudge(shaped(x))
        for name, x in line.origin.items()
    }
    return replace(line, origin=moved)
