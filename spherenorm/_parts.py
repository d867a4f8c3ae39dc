"""A rule among others: its place in their state, and its hooks, called in order and checked."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from spherenorm._numerics import working
from spherenorm._update import Update

if TYPE_CHECKING:
    from spherenorm._manifold import Retraction
    from spherenorm._rule import Rule

__all__ = [
    "COUNTER",
    "Measured",
    "Part",
    "State",
    "apply",
    "defines",
    "fitted",
    "init_apart",
    "keys_of_init",
    "keys_within",
    "measure",
    "move_on",
    "optional",
    "parts_apart",
    "second_point",
    "transported",
    "zeros",
]

_F = TypeVar("_F", bound=Callable[..., Any])

State = dict[str, Tensor]
"""The state of one weight tensor, by name."""

Measured = Mapping[int, Mapping[str, Tensor]]
"""What rules have measured, by `id(rule)`."""

COUNTER = "step"
"""The name of a chain's step counter in the state."""


@dataclass(frozen=True)
class Part:
    """A rule within another one, and its place in that one's state.

    Attributes:
        rule: the inner rule.
        keys: the key in the outer rule's state, for each key of the inner one's.
        place: counted from 1 in a chain; 0 elsewhere.
    """

    rule: Rule
    keys: Mapping[str, str]
    place: int = 0

    def __str__(self) -> str:
        place = f" (rule {self.place} of the chain)" if self.place else ""
        return f"{type(self.rule).__name__}{place}"

    def own(self, state: State) -> State:
        """The inner rule's state.

        Raises:
            ValueError: the outer rule's state lacks it.
        """
        try:
            return {own: state[outer] for own, outer in self.keys.items()}
        except KeyError as error:
            held = f"the state has no {error.args[0]!r}, it has {sorted(state)}"
            raise ValueError(f"{self}: {held}") from None

    def renamed(self, own: Mapping[str, Tensor]) -> State:
        """Entries of the inner rule's state with the outer rule's keys."""
        return {self.keys[key]: value for key, value in own.items()}


def parts_apart(taken: Iterable[str], rules: Iterable[Rule], weight: Tensor | None) -> list[Part]:
    """The places of rules that keep their states in one dict, so that no two share a key.

    A rule's `name` comes before its keys. Where an earlier rule has one of them, all keys of the
    rule get a number behind: `exp_avg_2`. So a rule that is added behind changes no key.

    Args:
        taken: keys that none of them may have.
        rules: in order.
        weight: the one that the state is of; None where no rule's keys depend on it.
    """
    used, found = set(taken), []
    for place, rule in enumerate(rules, 1):
        named = {
            key: f"{rule.name}_{key}" if rule.name else key for key in keys_within(rule, weight)
        }
        number, keys = 1, named
        while not used.isdisjoint(keys.values()):
            number += 1
            keys = {key: f"{name}_{number}" for key, name in named.items()}
        used.update(keys.values())
        found.append(Part(rule, keys, place))
    return found


def keys_within(rule: Rule, weight: Tensor | None) -> tuple[str, ...]:
    """The keys of a rule's state where another rule holds it: the outermost chain counts."""
    keys = rule.keys(weight)
    return tuple(key for key in keys if key != COUNTER) if rule.counts else keys


def keys_of_init(rule: Rule, weight: Tensor | None) -> tuple[str, ...]:
    """The keys of the state that a rule's `init` makes for weights of one shape.

    It is tried on a tensor without memory, once, since a step asks often. An `init` that such a
    tensor does not suit (it reads values, or a field is a tensor of another device) is tried on
    zeros.

    Raises:
        ValueError: `weight` is None.
    """
    if weight is None:
        name = type(rule).__name__
        raise ValueError(f"{name}: its states depend on the weight; ask keys(weight)")
    if torch.compiler.is_compiling():
        return tuple(rule.init(torch.empty(weight.shape, dtype=weight.dtype, device="meta")))
    place = id(rule)
    if place not in _tried:
        _tried[place] = weakref.ref(rule, lambda _: _tried.pop(place, None)), {}
    known, kind = _tried[place][1], (weight.shape, weight.dtype)
    if kind not in known:
        with _disable_current_modes():  # of a recorder, which would take this for the step's
            try:
                empty = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
                known[kind] = tuple(rule.init(empty))
            except (RuntimeError, NotImplementedError):
                zero = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
                known[kind] = tuple(init_apart(rule, zero))
    return known[kind]


_tried: dict[int, tuple[weakref.ref[Rule], dict[Any, tuple[str, ...]]]] = {}
"""The keys that were found, by `id(rule)`, as long as the rule lives."""


def zeros(names: Iterable[str], weight: Tensor) -> State:
    """States of zeros shaped as the weight, in the precision that rules compute in."""
    like = working(weight)
    return {n: torch.zeros_like(like, memory_format=torch.preserve_format) for n in names}


def init_apart(rule: Rule, weight: Tensor) -> State:
    """`rule.init(weight)`, drawn apart: the caller's random numbers stay as they were."""
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return rule.init(weight)


def apply(part: Part, update: Update, state: State) -> tuple[Update, State]:
    """`update` of a rule on its own part of an outer rule's state, with the result checked.

    A direction and a state keep their dtype: a 0-dim float32 weight would otherwise be promoted
    by a float64 counter.

    Returns:
        The update, and the new entries of the outer rule's state.

    Raises:
        ValueError, TypeError: naming the rule, its place and what it returned.
    """
    rule, own = part.rule, part.own(state)
    if update.measured:
        update = replace(update, shared=update.measured.get(id(rule), {}))
    result = rule.update(update, own)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise TypeError(f"{part}: update must return (update, state), it returned {result!r}")
    after, new = result
    if not isinstance(after, Update):
        raise TypeError(f"{part}: update must return (update, state), it returned {result!r}")
    if new.keys() != own.keys():
        both = f"{sorted(new)}, its states are {sorted(own)}"
        raise ValueError(f"{part}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{part}: update returns another weight or gradient; {only}")
    direction = fitted(after.direction, update.weight, part, "the direction")
    if direction is not after.direction:
        after = replace(after, direction=direction)
    for key, value in own.items():
        kept = fitted(new[key], value, part, repr(key))
        # Momentum at 0 is the gradient itself, into which a training loop writes.
        given = kept is update.weight or kept is update.grad
        new[key] = kept.clone() if given else kept
    return after, part.renamed(new)


def transported(rule: Rule, state: State, retraction: Retraction) -> State:
    """The tangent vectors among the states of the rules within a rule, moved along."""
    moved: State = {}
    for part in rule.held(retraction.weight):
        moved |= part.renamed(part.rule.transport(part.own(state), retraction))
    return moved


def measure(
    rule: Rule, update: Update, state: State
) -> Iterator[tuple[Rule, Mapping[str, Tensor]]]:
    """What a rule and those within it measure of one weight, before the first rule runs."""
    if defines(rule, "measure"):
        yield rule, rule.measure(update, state)
    for part in rule.held(update.weight):
        yield from measure(part.rule, update, part.own(state))


def second_point(rule: Rule, update: Update, state: State) -> Tensor | None:
    """The weight at which a rule, or one within it, wants the gradient once more."""
    points = []
    if defines(rule, "evaluate_at"):
        if update.measured:
            update = replace(update, shared=update.measured.get(id(rule), {}))
        points.append(rule.evaluate_at(update, state))
    for part in rule.held(update.weight):
        points.append(second_point(part.rule, update, part.own(state)))
    points = [point for point in points if point is not None]
    if len(points) > 1:
        raise ValueError(f"{type(rule).__name__}: two rules evaluate the gradient elsewhere")
    return fitted(points[0], update.weight, Part(rule, {}), "evaluate_at") if points else None


def move_on(
    rule: Rule, before: Update, weight: Tensor, state: State, part: Part
) -> tuple[Tensor, State]:
    """The weight and a rule's state after the hooks behind the move, in the order of the rules."""
    new = dict(state)
    for inner in rule.held(before.weight):
        weight, own = move_on(inner.rule, before, weight, inner.own(new), inner)
        new |= inner.renamed(own)
    if not defines(rule, "after"):
        return weight, new
    if before.measured:
        before = replace(before, shared=before.measured.get(id(rule), {}))
    moved, after = rule.after(before, weight, dict(new))
    if after.keys() != new.keys():
        both = f"{sorted(after)}, its states are {sorted(new)}"
        raise ValueError(f"{part}: after returns the state {both}")
    moved = fitted(moved, weight, part, "the weight of after")
    return moved, {key: fitted(after[key], value, part, repr(key)) for key, value in new.items()}


def optional(hook: _F) -> _F:
    """Mark a hook of `Rule` that does nothing; `defines` tells it from one that a rule defines."""
    hook.__dict__["optional"] = True
    return hook


def defines(rule: Rule, hook: str) -> bool:
    """True if the rule's class defines the hook."""
    return not hasattr(getattr(type(rule), hook), "optional")


def fitted(value: Any, like: Tensor, part: Part, what: str) -> Tensor:
    """`value` in the dtype of `like`.

    Raises:
        ValueError: it has another shape, or a dtype that would lose more than precision.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{part}: {what} must be a tensor, got {value!r}")
    if value.shape != like.shape:
        shapes = f"{tuple(like.shape)}, got {tuple(value.shape)}"
        raise ValueError(f"{part}: {what} must have shape {shapes}")
    if value.dtype == like.dtype:
        return value
    if value.is_complex() or (value.is_floating_point() and not like.is_floating_point()):
        raise ValueError(f"{part}: {what} must be {like.dtype}, got {value.dtype}")
    return value.to(like.dtype)
