"""A step: the hooks of a rule and of those within it, in order, each result checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._numerics import wide_dtype, working
from spherenorm._tree import COUNTER, Node, Part, keys_within
from spherenorm._update import Place, Update

__all__ = [
    "InPlaceError",
    "Measured",
    "apply",
    "begin",
    "called",
    "measure",
    "refuse_unless_real",
    "second_point",
    "shares_memory",
    "step",
]

Measured = Mapping[Place, Mapping[str, Tensor]]
"""The numbers that rules have measured of all weights, by the places of the rules."""
OUTERMOST: Place = (0,)
T = TypeVar("T")


class InPlaceError(ValueError):
    """A rule writes into its arguments; the message says into which."""


def step(
    rule: Node, weight: Tensor, grad: Tensor, state: State, measured: Measured | None
) -> tuple[Tensor, State]:
    """The new weight and state; see `Rule.step`."""
    update, rules = begin(rule, weight, grad, state, measured), list(rule.tree())
    if measured is None and any(each.defines("measure") for each in rules):
        found = {place: numbers for place, _, numbers in measure(rule, update, state)}
        update = replace(update, measured=found)
    start, whole = update.weight, Part(rule, {key: key for key in keys_within(rule, weight)})
    update, new = apply(whole, update, state)
    retraction = rule.retract(start, update.direction)
    moved = fitted(retraction.weight, start, whole, "the moved weight")
    for key, value in rule.transport(new, retraction).items():
        new[key] = fitted(value, state[key], whole, f"the moved {key!r}")
    if any(each.defines("after") for each in rules):
        moved, new = move_on(rule, update, moved, new, whole)
    if update.count is not None:
        new = {COUNTER: update.count, **new}
    return moved.to(weight.dtype), new


def begin(
    rule: Node, weight: Tensor, grad: Tensor, state: State, measured: Measured | None
) -> Update:
    """The update before the first rule.

    Args:
        rule, weight, grad, state, measured: as for `Rule.step`.

    Raises:
        ValueError, TypeError: as `Rule.step`.
    """
    refuse_unless_real(weight, "weight")
    if grad.is_complex():
        raise TypeError(f"grad is complex ({grad.dtype}), and the weight is real")
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        raise ValueError(f"grad must be shaped as the weight, {shapes}")
    if rule.needs_step and not rule.counts:
        name = type(rule).__name__
        raise ValueError(f"{name}: a chain counts the steps that it needs: chain({name}(...))")
    start = working(weight)
    grad = grad.to(start.dtype)
    count = _counted(rule, state) if rule.counts else None
    return Update(start, grad, direction=grad, count=count, measured=measured or {})


def _counted(rule: Node, state: State) -> Tensor:
    """The number of the present step, which follows the counter.

    Raises:
        ValueError: the counter is not 0-dim; one of several entries would count column by column.
    """
    count = Part(rule, {COUNTER: COUNTER}).own(state)[COUNTER]
    if count.ndim:
        raise ValueError(f"the state {COUNTER!r} must be 0-dim, got shape {tuple(count.shape)}")
    return count + 1


def apply(part: Part, update: Update, state: State) -> tuple[Update, State]:
    """`update` of a rule on its own part of an outer rule's state, with the result checked.

    A direction and a state keep their dtype: a 0-dim float32 weight would otherwise be promoted
    by a float64 counter.

    Returns:
        The update, and the new entries of the outer rule's state.

    Raises:
        ValueError, TypeError: naming the rule, its place, and what it returned, or into which of
            its arguments it wrote.
    """
    own, outer = part.own(state), update
    update = _at((*outer.place, part.place), outer)
    result = called(part, part.rule.update, update, own)
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
    # (A rule may have made another Update, without what is the chain's.)
    if direction is not after.direction or after.count is not outer.count or outer.measured:
        after = replace(after, direction=direction, count=outer.count, measured=outer.measured)
        after = _at(outer.place, after)
    return after, part.renamed(_kept(new, own, update, part))


def called(part: Part, hook: Callable[..., T], *given: Any) -> T:
    """The result of a rule's hook.

    Args:
        part: the rule.
        hook: its method.
        *given: the hook's arguments.

    Raises:
        InPlaceError: the rule writes into one of them.
    """
    arguments = _tensors(given)
    before = [_version(x) for x in arguments]
    try:
        result = hook(*given)
    except RuntimeError as error:
        if any(word in str(error) for word in _IN_PLACE):  # torch refuses some writes itself
            raise InPlaceError(f"{part}: the rule writes in place; {_INSTEAD}: {error}") from error
        raise
    for number, (x, version) in enumerate(zip(arguments, before, strict=True)):
        if _version(x) != version:
            what = _names(given)[number]
            raise InPlaceError(f"{part}: the rule writes into {what}; {_INSTEAD}")
    return result


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    """The tensors that a hook is given."""
    found: list[Tensor] = []
    for each in given:
        if isinstance(each, Update):
            found += (each.weight, each.grad, each.direction)
            shared = [each.count, *each.notes.values(), *each.shared.values()]
            found += [x for x in shared if isinstance(x, Tensor)]
        else:
            found += (each,) if isinstance(each, Tensor) else each.values()
    return found


def _names(given: Iterable[Any]) -> list[str]:
    """The names in messages of the tensors that a hook is given, in the same order."""
    names: list[str] = []
    for each in given:
        if isinstance(each, Update):
            names += ("the weight", "the gradient", "the direction")
            named = {"update.step": each.count}
            named |= {f"update.notes[{key!r}]": x for key, x in each.notes.items()}
            named |= {f"update.shared[{key!r}]": x for key, x in each.shared.items()}
            names += [name for name, x in named.items() if isinstance(x, Tensor)]
        else:
            whole = isinstance(each, Tensor)
            names += ["the weight"] if whole else [f"the state {key!r}" for key in each]
    return names


def _at(place: Place, update: Update) -> Update:
    """The update for the rule in a place, with the numbers that it has measured."""
    if not update.measured:
        return update
    return replace(update, place=place, shared=update.measured.get(place, {}))


def _kept(new: Mapping[str, Any], own: State, update: Update, part: Part) -> State:
    """The new entries of a rule's state, in the dtypes of the old ones.

    Momentum at 0 is the gradient itself, into which a training loop writes: it is copied.
    """
    kept: State = {}
    for key, value in own.items():
        entry = fitted(new[key], value, part, repr(key))
        given = shares_memory(entry, update.weight) or shares_memory(entry, update.grad)
        kept[key] = entry.clone() if given else entry
    return kept


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """True if `x` is `y` or a view of it, as far as it is known."""
    if x is y or torch.compiler.is_compiling():
        return x is y
    alias: bool = torch._C._is_alias_of(x, y)  # type: ignore[attr-defined]
    return alias


_INSTEAD = "return new tensors instead"
_IN_PLACE = ("in-place", "inplace", "written-to tensor")
"""Words of torch's messages about writes that it refuses, most of them under its transforms."""


def _version(x: Tensor) -> int:
    """A count of the writes into the memory of `x`, as far as it is known."""
    if torch.compiler.is_compiling():
        return 0
    while torch._C._functorch.is_functorch_wrapped_tensor(x):  # which has a count of its own
        x = torch._C._functorch.get_unwrapped(x)
    return 0 if x.is_inference() else x._version


def measure(
    rule: Node, update: Update, state: State, place: Place = OUTERMOST
) -> Iterator[tuple[Place, Node, Mapping[str, Tensor]]]:
    """The numbers that a rule and those within it measure of one weight, before the first rule.

    Raises:
        TypeError, ValueError: one of them is no 0-dim tensor.
    """
    if rule.defines("measure"):
        numbers = called(Part(rule, {}), rule.measure, update, state)
        yield place, rule, {name: _number(x, rule, name) for name, x in numbers.items()}
    for number, part in enumerate(rule.held_for("measure", update.weight), 1):
        yield from measure(part.rule, update, part.own(state), (*place, number))


def _number(value: Any, rule: Node, name: str) -> Tensor:
    what = f"{type(rule).__name__}: measure()[{name!r}] must be"
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} a tensor, got {value!r}")
    if value.ndim:
        raise ValueError(f"{what} 0-dim, got shape {tuple(value.shape)}")
    return value.to(wide_dtype(value.device))


def second_point(
    rule: Node, update: Update, state: State, place: Place = OUTERMOST
) -> Tensor | None:
    """The weight at which a rule, or one within it, wants the gradient once more."""
    points: list[Tensor | None] = []
    if rule.defines("evaluate_at"):
        points.append(called(Part(rule, {}), rule.evaluate_at, _at(place, update), state))
    for number, part in enumerate(rule.held_for("evaluate_at", update.weight), 1):
        points.append(second_point(part.rule, update, part.own(state), (*place, number)))
    found = [point for point in points if point is not None]
    if len(found) > 1:
        raise ValueError(f"{type(rule).__name__}: two rules evaluate the gradient elsewhere")
    return fitted(found[0], update.weight, Part(rule, {}), "evaluate_at") if found else None


def move_on(
    rule: Node,
    before: Update,
    weight: Tensor,
    state: State,
    part: Part,
    place: Place = OUTERMOST,
) -> tuple[Tensor, State]:
    """The weight and a rule's state after the hooks behind the move, in the order of the rules."""
    new = dict(state)
    for number, inner in enumerate(rule.held_for("after", before.weight), 1):
        at = *place, number
        weight, own = move_on(inner.rule, before, weight, inner.own(new), inner, at)
        new |= inner.renamed(own)
    if not rule.defines("after"):
        return weight, new
    before = _at(place, before)
    moved, after = called(part, rule.after, before, weight, dict(new))
    if after.keys() != new.keys():
        both = f"{sorted(after)}, its states are {sorted(new)}"
        raise ValueError(f"{part}: after returns the state {both}")
    moved = fitted(moved, weight, part, "the weight of after")
    return moved, _kept(after, new, before, part)


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


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Refuse a complex or integer weight: steps of an integer weight would be truncated.

    Args:
        weight: of any type.
        what: the weight is called in the message.

    Raises:
        TypeError: the weight is complex or integer.
    """
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        raise TypeError(
            f"{what} is {kind} ({weight.dtype}); only real floating-point weights can be optimized"
        )
