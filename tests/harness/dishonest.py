"""Dishonest rules: each breaks one promise of `spherenorm.testing.PROPERTIES`, and no other first.

A row is called by the hook and its target. `check` has to find each; the executors may use the
rows as well, as rules that no executor has to take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import spherenorm as sn
from spherenorm import Recipe, rules

WRITES, PURE = "writes into nothing", "pure"
calls = itertools.count(1)
"""A global that changes; a pure rule reads none."""


class Honest(sn.Rule):
    """An average with its own note and measurement, of which a row replaces one part."""

    beta: float = 0.9
    seen: list[int] = field(default_factory=list, compare=False)
    state_names = ("m",)

    def average(self, update: Any, state: Any) -> Any:
        return self.beta * state["m"] + (1 - self.beta) * update.direction

    def update(self, update: Any, state: Any) -> Any:
        average = self.average(update, state)
        return replace(update, direction=average), {"m": average}


@dataclass(frozen=True)
class Dishonest:
    """A rule that breaks a promise.

    Attributes:
        name: hook and target, in words.
        rule: the class of the rule; its name is `name` in capitals.
        promise: of `PROPERTIES`, which it breaks.
        argument: the argument, state or hyper-parameter that the finding has to name.
        named: the finding names the rule, too.
        alone: in a chain it does no harm.
        manifold: of the chain.
    """

    name: str
    rule: type[sn.Rule]
    promise: str
    argument: str
    named: bool = False
    alone: bool = False
    manifold: Any = field(default_factory=sn.Euclidean)

    @property
    def recipe(self) -> Recipe:
        """A recipe of it: between a momentum that notes its buffer, and a step size."""

        def dishonest(lr: float = 0.1, beta: float = 0.9) -> sn.Rule:
            if self.alone:
                return self.rule(beta)
            before = rules.HeavyBall(0.5), Notes()
            return sn.chain(*before, self.rule(beta), rules.StepSize(lr), manifold=self.manifold)

        dishonest.__qualname__ = f"dishonest.{self.rule.__name__}"
        return dishonest


class Notes(sn.Rule):
    """Notes for the rules behind."""

    needs_whole_weight = False

    def update(self, update: Any, state: Any) -> Any:
        return update.replace(notes={"length": update.direction.abs()}), {}


class Halves:
    """A manifold that halves the direction, in its own memory."""

    def move(self, weight: Any, direction: Any, tangents: Any) -> Any:
        return weight - direction.mul_(0.5), tangents


class Pushes:
    """A manifold that moves the weight in its own memory."""

    def move(self, weight: Any, direction: Any, tangents: Any) -> Any:
        return weight.sub_(direction), tangents


class Drifts:
    """A manifold on which a weight shrinks at each step, by itself."""

    def move(self, weight: Any, direction: Any, tangents: Any) -> Any:
        return 0.99 * weight - direction, tangents


class Tagged(torch.Tensor):
    """Tensors of a class that a checkpoint does not know."""


Member = Callable[..., Any]


def row(
    name: str, promise: str, argument: str = "", options: Any = None, **members: Member
) -> Dishonest:
    """A row whose rule has these members instead of those of `Honest`."""
    title = "".join(word.capitalize() for word in name.replace("'", "").split())
    cls = type(title, (Honest,), {"__module__": __name__, **members})
    options = {"named": promise in ("shapes", WRITES), **(options or {})}
    return Dishonest(name, cls, promise, argument, **options)


def towards(update: Any, direction: Any) -> Any:
    return replace(update, direction=direction)


def local(x: Any) -> Any:
    """The part of a tensor that lies in this process."""
    return getattr(x, "_local_tensor", x)


def acting(action: Callable[[Any, Any], object]) -> Member:
    """An `update` that acts, and then does as it should."""

    def update(self: Any, update: Any, state: Any) -> Any:
        action(update, state)
        return Honest.update(self, update, state)

    return update


def returning(change: Callable[[Any, Any], Any]) -> Member:
    """An `update` that returns `change` of the right update and state."""
    return lambda self, update, state: change(*Honest.update(self, update, state))


def scaled(factor: Callable[[Any, Any], Any]) -> Member:
    """An `average` times `factor` of the rule and the update."""
    return lambda self, update, state: Honest.average(self, update, state) * factor(self, update)


WRITTEN: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "the weight": ("weight", lambda u, s: u.weight.add_(1)),
    "the gradient": ("gradient", lambda u, s: u.grad.mul_(2)),
    "the direction": ("direction", lambda u, s: u.direction.mul_(2)),
    "the state": ("'m'", lambda u, s: s["m"].mul_(0.5)),
    "a note": ("length", lambda u, s: u.notes["length"].add_(1)),
    "the notes": ("mine", lambda u, s: u.notes.update(mine=u.grad)),
}
"""Targets of `update`: the argument, and the write."""

RETURNED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "too few states": ("m", lambda u, s: (u, {})),
    "too many states": ("n", lambda u, s: (u, {**s, "n": s["m"]})),
    "the update alone": ("Update", lambda u, s: u),
    "the direction alone": ("Tensor", lambda u, s: (u.direction, s)),
    "another weight": ("weight", lambda u, s: (replace(u, weight=2 * u.weight), s)),
    "another gradient": ("gradient", lambda u, s: (replace(u, grad=-u.grad), s)),
    "a state of another shape": ("'m'", lambda u, s: (u, {"m": s["m"].sum(0)})),
    "a number as a state": ("'m'", lambda u, s: (u, {"m": 1.0})),
    "a direction of another shape": ("direction", lambda u, s: (towards(u, u.direction[0]), s)),
    "a number as the direction": ("direction", lambda u, s: (towards(u, 0.0), s)),
    "a complex direction": ("direction", lambda u, s: (towards(u, u.direction * 1j), s)),
}
"""Results of `update`: the argument, and the result in place of the right update and state."""

IMPURE: dict[str, dict[str, Member]] = {
    "update counts its calls": {"average": scaled(lambda self, u: next(calls))},
    "update draws a number": {"average": scaled(lambda self, u: torch.rand(()))},
    "update remembers in a field": {
        "average": scaled(lambda self, u: self.seen.append(1) or len(self.seen))
    },
    "each rule differs from the one before": {
        "__post_init__": lambda self: self.seen.append(next(calls)),
        "average": scaled(lambda self, u: self.seen[0]),
    },
}

ROWS = [
    *(
        row(f"update writes into {what}", WRITES, argument, update=acting(action))
        for what, (argument, action) in WRITTEN.items()
    ),
    row(
        "update writes past the version counter",
        WRITES,
        "gradient",
        {"named": False},
        update=acting(lambda u, s: u.grad.data.mul_(2)),
    ),
    row(
        "init writes into the weight",
        WRITES,
        "weight",
        init=lambda self, weight: {"m": torch.zeros_like(weight.mul_(2))},
    ),
    row(
        "global_sum_terms writes into the gradient",
        WRITES,
        "gradient",
        global_sum_terms=lambda self, update, state: {"sum": update.grad.abs_().sum()},
    ),
    row(
        "global_sum_terms writes into the state",
        WRITES,
        "'m'",
        global_sum_terms=lambda self, update, state: {"sum": state["m"].add_(1).sum()},
    ),
    row(
        "a manifold writes into the weight",
        WRITES,
        "Pushes.move writes into the weight",
        {"manifold": Pushes(), "named": False},
    ),
    row(
        "a manifold writes into the direction",
        WRITES,
        "Halves.move writes into the direction",
        {"manifold": Halves(), "named": False},
    ),
    *(
        row(f"update returns {what}", "shapes", argument, update=returning(change))
        for what, (argument, change) in RETURNED.items()
    ),
    *(
        row(f"global_sum_terms returns {what}", "shapes", "'sum'", global_sum_terms=terms)
        for what, terms in {
            "a number": lambda self, update, state: {"sum": 1.0},
            "a matrix": lambda self, update, state: {"sum": update.grad},
        }.items()
    ),
    *(row(name, PURE, "the weight", **members) for name, members in IMPURE.items()),
    row(
        "update branches on a hyper-parameter",
        "vmap",
        "beta",
        average=lambda self, u, s: Honest.average(self, u, s) if self.beta < 0.95 else u.direction,
    ),
    row(
        "update branches on the direction",
        "vmap",
        "weights",
        average=lambda self, u, s: (
            Honest.average(self, u, s) if u.direction.norm() > 1 else u.direction
        ),
    ),
    row(
        "update reads a hyper-parameter as a number",
        "vmap",
        "beta",
        average=scaled(lambda self, u: float(self.beta)),
    ),
    row(
        "update squares below the least float32",
        "dtypes",
        "float32",
        average=lambda self, u, s: ((1e-30 * Honest.average(self, u, s)) ** 2).sqrt() * 1e30,
    ),
    row(
        "update rounds to float32",
        "dtypes",
        "torch.float32 by UpdateRoundsToFloat32",
        update=returning(lambda u, s: (towards(u, u.direction.float()), s)),
    ),
    row(
        "update divides by a norm of zero",
        "finite",
        "the weight",
        average=lambda self, u, s: Honest.average(self, u, s) / (u.direction**2).sum().sqrt(),
    ),
    row(
        "update ignores a hyper-parameter",
        "acts",
        "beta acts nowhere",
        average=lambda self, u, s: 0.9 * s["m"] + 0.1 * u.direction,
    ),
    row(
        "a number changes rounding alone",
        "acts",
        "beta acts nowhere",
        average=lambda self, u, s: (1 + self.beta) * u.direction / (1 + self.beta) + 0 * s["m"],
    ),
    row(
        "update averages where steps end",
        "ends",
        "UpdateAveragesWhereStepsEnd",
        average=lambda self, u, s: u.weight - self.beta * (u.weight - u.direction) - 0 * s["m"],
    ),
    row("a chain without a step size", "acts", "lr acts nowhere", {"alone": True}),
    row(
        "update moves without a step size",
        "acts",
        "lr = 0 moves",
        {"manifold": Drifts()},
    ),
    row(
        "init returns tensors of its own class",
        "resumes",
        "UnpicklingError",
        init=lambda self, weight: {"m": torch.zeros_like(weight).as_subclass(Tagged)},
    ),
]
DISHONEST = {each.name: each for each in ROWS}
"""By name."""

APART = [
    row(
        "update reads whether it is recorded",
        "compiled",
        "the weight",
        average=scaled(lambda self, u: 1 if _get_current_dispatch_mode_stack() else 2),
    ),
    row(
        "update sums what lies in this process",
        "sharded",
        "the weight",
        needs_whole_weight=False,
        average=scaled(lambda self, u: 1 + local(u.direction).abs().sum()),
    ),
]
DISHONEST_APART = {each.name: each for each in APART}
"""By name: those that show only in a kernel, or in several processes."""
