"""A step: the hooks of a rule and of those within it, in order, each result checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from spherenorm._hooks import State
from spherenorm._manifold import Translation
from spherenorm._numerics import wide_dtype, working
from spherenorm._outline import outline_of
from spherenorm._tree import COUNTER, Node, Part
from spherenorm._update import Place, Update

__all__ = [
    "InPlaceError",
    "Measured",
    "apply",
    "apply_all",
    "begin",
    "called",
    "measure",
    "refuse_unless_real",
    "second_point",
    "shares_memory",
    "step",
    "versions",
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
    outline, update = outline_of(rule), begin(rule, weight, grad, state, measured)
    if measured is None and outline.measures:
        found = {place: numbers for place, _, numbers in measure(rule, update, state)}
        update = update.changed(measured=found)
    start = update.weight
    keys, parts = outline.parts(rule, start)
    if rule.in_order:
        update, new = apply_all(parts, _at(OUTERMOST, update), state)
    else:
        update, new = apply(Part(rule, keys), update, state)
    retraction = rule.retract(start, update.direction)
    moved = retraction.weight
    if not _fits(moved, start):
        moved = fitted(moved, start, Part(rule, keys), "the moved weight")
    if outline.transports or type(retraction) is not Translation:
        for key, value in rule.transport(new, retraction).items():
            new[key] = fitted(value, state[key], Part(rule, keys), f"the moved {key!r}")
    if outline.moves_on:
        moved, new = move_on(rule, update, moved, new, Part(rule, keys))
    if update.count is not None:
        new = {COUNTER: update.count, **new}
    return moved if moved.dtype is weight.dtype else moved.to(weight.dtype), new


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
    if grad.dtype is not start.dtype:
        grad = grad.to(start.dtype)
    count = _counted(rule, state) if rule.counts else None
    return Update.begun(start, grad, count=count, measured=measured or {})


def _counted(rule: Node, state: State) -> Tensor:
    """The number of the present step, which follows the counter.

    Raises:
        ValueError: the counter is not 0-dim; one of several entries would count column by column.
    """
    if COUNTER not in state:
        Part(rule, {COUNTER: COUNTER}).own(state)
    count = state[COUNTER]
    if count.ndim:
        raise ValueError(f"the state {COUNTER!r} must be 0-dim, got shape {tuple(count.shape)}")
    return count + 1


def apply(
    part: Part, update: Update, state: State, *, looked_after: bool = False
) -> tuple[Update, State]:
    """`update` of a rule on its own part of an outer rule's state, with the result checked.

    A direction and a state keep their dtype: a 0-dim float32 weight would otherwise be promoted
    by a float64 counter.

    Args:
        part: the rule.
        update: the step so far.
        state: of the outer rule.
        looked_after: the caller finds out if the rule writes into its arguments.

    Returns:
        The update, and the new entries of the outer rule's state.

    Raises:
        ValueError, TypeError: naming the rule, its place, and what it returned, or into which of
            its arguments it wrote.
    """
    own, outer = part.own(state), update
    if outer.measured:
        update = _at((*outer.place, part.place), outer)
        looked_after = False  # the caller does not know what this rule has measured
    if looked_after:
        result = part.rule.update(update, own)
    else:
        result = called(part, part.rule.update, update, own)
    pair = isinstance(result, tuple) and len(result) == 2
    if not (pair and isinstance(result[0], Update) and isinstance(result[1], dict)):
        raise TypeError(f"{part}: update must return (update, state), it returned {result!r}")
    after, new = result
    if new.keys() != own.keys():
        both = f"{sorted(new)}, its states are {sorted(own)}"
        raise ValueError(f"{part}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{part}: update returns another weight or gradient; {only}")
    direction = fitted(after.direction, update.weight, part, "the direction")
    # (A rule may have made another Update, without what is the chain's.)
    if direction is not after.direction or after.count is not outer.count or outer.measured:
        after = after.changed(direction=direction, count=outer.count, measured=outer.measured)
        after = _at(outer.place, after)
    return after, part.renamed(_kept(new, own, update, part)) if own else {}


def apply_all(parts: Sequence[Part], update: Update, state: State) -> tuple[Update, State]:
    """`apply` of rules one after another.

    One look behind the last rule finds a write of any; then they run again, to find out whose.

    Raises:
        InPlaceError, ValueError, TypeError: as `apply`.
    """
    watched = Watched(_tensors((update, state)))
    after = update
    new: State = {}
    try:
        for part in parts:
            before = after
            after, own = apply(part, before, state, looked_after=True)
            if own:
                new |= own
            if after is not before:
                watched.add(after, before)
    except Exception as error:
        if _is_refusal(error) or watched.written() is not None:
            _refuse_writer(parts, update, state)
        raise
    if watched.written() is not None:
        _refuse_writer(parts, update, state)
        names = ", ".join(map(str, parts))
        raise InPlaceError(f"{names}: one of the rules writes into what it is given; {_INSTEAD}")
    return after, new


def _refuse_writer(parts: Sequence[Part], update: Update, state: State) -> None:
    """Run rules of which one wrote into a tensor once more, with a look behind each.

    Raises:
        InPlaceError: naming the rule that does so again.
    """
    watched = Watched(_tensors((update, state)))
    for part in parts:
        before = update
        update, _ = called(part, partial(apply, part, state=state), before, watched=watched)
        watched.add(update, before)


class Watched:
    """Tensors that rules are given, and may not write into."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors, self._count = tensors, _counter()
        self._versions = self._count(tensors)

    def add(self, after: Update, before: Update) -> None:
        """Watch what a rule hands on, too."""
        fresh = [after.direction] if after.direction is not before.direction else []
        if after.notes is not before.notes:
            fresh += [x for x in after.notes.values() if isinstance(x, Tensor)]
        self._tensors += fresh
        self._versions += self._count(fresh)

    def written(self) -> Tensor | None:
        """The first tensor that was written into."""
        behind = self._count(self._tensors)
        if behind == self._versions:
            return None
        both = zip(self._tensors, self._versions, behind, strict=True)
        return next(x for x, before, later in both if before != later)


def called(part: Part, hook: Callable[..., T], *given: Any, watched: Watched | None = None) -> T:
    """The result of a rule's hook.

    Args:
        part: the rule.
        hook: its method.
        *given: the hook's arguments.
        watched: the tensors among them, and others; None: they are read from `given`.

    Raises:
        InPlaceError: the rule writes into one of them.
    """
    watched = watched or Watched(_tensors(given))
    try:
        result = hook(*given)
    except RuntimeError as error:
        if _is_refusal(error):
            raise InPlaceError(f"{part}: the rule writes in place; {_INSTEAD}: {error}") from error
        raise
    written = watched.written()
    if written is not None:
        both = zip(_names(given), _tensors(given), strict=True)
        what = next((name for name, x in both if x is written), "what other rules are given")
        raise InPlaceError(f"{part}: the rule writes into {what}; {_INSTEAD}")
    return result


def _is_refusal(error: Exception) -> bool:
    """True if torch itself refuses a write."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _IN_PLACE)


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    """The tensors that a hook is given."""
    found: list[Tensor] = []
    for each in given:
        if isinstance(each, Update):
            found += (each.weight, each.grad, each.direction)
            if each.count is not None:
                found.append(each.count)
            found += [x for x in each.notes.values() if isinstance(x, Tensor)]
            found += [x for x in each.shared.values() if isinstance(x, Tensor)]
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
    return update.changed(place=place, shared=update.measured.get(place, {}))


def _kept(new: Mapping[str, Any], own: State, update: Update, part: Part) -> State:
    """The new entries of a rule's state, in the dtypes of the old ones.

    Momentum at 0 is the gradient itself, into which a training loop writes: it is copied.
    """
    kept: State = {}
    for key, value in own.items():
        entry = new[key]
        if not _fits(entry, value):
            entry = fitted(entry, value, part, repr(key))
        given = shares_memory(entry, update.weight, update.grad)
        kept[key] = entry.clone() if given else entry
    return kept


def shares_memory(x: Tensor, *others: Tensor) -> bool:
    """True if `x` is one of `others` or a view of it, as far as it is known."""
    if torch.compiler.is_compiling():
        return any(x is y for y in others)
    alias: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
    for y in others:  # noqa: SIM110  (a generator would take longer than the calls)
        if x is y or alias(x, y):
            return True
    return False


_INSTEAD = "return new tensors instead"
_IN_PLACE = ("in-place", "inplace", "written-to tensor")
"""Words of torch's messages about writes that it refuses, most of them under its transforms."""


def versions(tensors: Sequence[Tensor]) -> list[int]:
    """Counts of the writes into the memory of tensors, as far as they are known."""
    return _counter()(tensors)


def _counter() -> Callable[[Sequence[Tensor]], list[int]]:
    """The way to count writes here and now."""
    if torch.compiler.is_compiling():
        return lambda tensors: [0] * len(tensors)
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return _versions_of_any if transformed else _versions


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    try:
        return [x._version for x in tensors]
    except RuntimeError:  # a tensor of inference mode has none
        return _versions_of_any(tensors)


def _versions_of_any(tensors: Sequence[Tensor]) -> list[int]:
    return [_version(x) for x in tensors]


def _version(x: Tensor) -> int:
    """A count of the writes into the memory of `x`, as far as it is known."""
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
    if _fits(value, like):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, Tensor):
        raise TypeError(f"{part}: {what} must be a tensor, got {value!r}")
    if value.shape != like.shape:
        shapes = f"{tuple(like.shape)}, got {tuple(value.shape)}"
        raise ValueError(f"{part}: {what} must have shape {shapes}")
    if value.is_complex() or (value.is_floating_point() and not like.is_floating_point()):
        raise ValueError(f"{part}: {what} must be {like.dtype}, got {value.dtype}")
    return value.to(like.dtype)


def _fits(value: Any, like: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dtype is like.dtype and value.shape == like.shape


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
