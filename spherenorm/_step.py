"""A step: the hooks of a rule and of those within it, in order, each result checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from spherenorm._hooks import State
from spherenorm._manifold import Translation
from spherenorm._numerics import wide_dtype, working
from spherenorm._outline import outline_of
from spherenorm._tree import COUNTER, Node, Part
from spherenorm._update import EMPTY, Place, Update
from spherenorm._watch import INSTEAD, InPlaceError, Watched, called, copy_shared, is_refusal

Measured = Mapping[Place, Mapping[str, Tensor]]
"""The numbers that rules have measured of all weights, by the places of the rules."""
OUTERMOST: Place = (0,)
T = TypeVar("T")


def step(
    rule: Node, weight: Tensor, grad: Tensor, state: State, measured: Measured | None
) -> tuple[Tensor, State]:
    """The new weight and state; see `Rule.step`."""
    outline, update = outline_of(rule), begin(rule, weight, grad, state, measured)
    if measured is None and outline.measures:
        found = {place: numbers for place, _, numbers in measure(rule, update, state)}
        update = update.changed(measured=found)
    if update.measured and outline.in_order:
        update = _at(OUTERMOST, update)
    start, count, parts = update.weight, update.count, outline.parts(rule, update.weight)
    with _Watch(parts, update, state) as watch:
        update, new = _in_order(parts, update, state, watch)
        retraction = rule.retract(start, update.direction)
        moved = retraction.weight
        if not _fits(moved, start):
            moved = fitted(moved, start, Part(rule, {}), "the moved weight")
        if outline.transports or type(retraction) is not Translation:
            watch.watch([*new.values()])
            for key, value in rule.transport(new, retraction).items():
                new[key] = fitted(value, state[key], Part(rule, {}), f"the moved {key!r}")
        if outline.moves_on:
            moved, new = move_on(rule, update, moved, new, Part(rule, {key: key for key in new}))
            copy_shared(new, moved, moved)  # a state may be the new weight, which is the caller's
    # Momentum at 0 is the gradient itself, into which a training loop writes.
    copy_shared(new, start, update.grad)
    if count is not None:
        new = {COUNTER: count, **new}
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
    if not isinstance(grad, Tensor):
        raise TypeError(f"grad must be a tensor, got {type(grad).__name__}")
    if grad.is_complex():
        raise TypeError(f"grad is complex ({grad.dtype}), and the weight is real")
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        raise ValueError(f"grad must be shaped as the weight, {shapes}")
    counts = rule.counts
    if rule.needs_step and not counts:
        name = type(rule).__name__
        raise ValueError(f"{name}: a chain counts the steps that it needs: chain({name}(...))")
    start = working(weight)
    if grad.dtype is not start.dtype:
        grad = grad.to(start.dtype)
    count = _counted(rule, state) if counts else None
    return EMPTY.changed(
        weight=start,
        grad=grad,
        direction=grad,
        notes={},  # of its own: what a rule writes into it is of this weight and step
        count=count,
        measured=measured or {},
    )


def _counted(rule: Node, state: State) -> Tensor:
    """The number of the present step: the counter plus 1.

    Raises:
        ValueError: the counter is not 0-dim; one of several entries would count column by column.
    """
    if COUNTER not in state:
        Part(rule, {COUNTER: COUNTER}).own(state)
    count = state[COUNTER]
    if count.ndim:
        raise ValueError(f"the state {COUNTER!r} must be 0-dim, got shape {tuple(count.shape)}")
    return count + (1.0 if count.is_floating_point() else 1)  # (1 takes longer to convert)


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
    outer = update
    own: State = part.own(state) if part.keys else {}
    if outer.measured:
        update = _at((*outer.place, part.place), outer)
        looked_after = False  # the caller does not know what this rule has measured
    if looked_after:
        result = part.rule.update(update, {**own})  # a copy: a rule may fill it, and return it
    else:
        result = called(part, part.rule.update, update, {**own})
    pair = isinstance(result, tuple) and len(result) == 2
    if not (pair and isinstance(result[0], Update) and isinstance(result[1], dict)):
        kinds = ", ".join(type(each).__name__ for each in result) if pair else ""
        kind = f"({kinds})" if pair else type(result).__name__  # not its tensors: they are long
        raise TypeError(f"{part}: update must return (update, state), it returned {kind}")
    after, new = result
    if new.keys() != own.keys():
        both = f"{sorted(new)}, its states are {sorted(own)}"
        raise ValueError(f"{part}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{part}: update returns another weight or gradient; {only}")
    direction = after.direction
    if not _fits(direction, update.weight):
        direction = fitted(direction, update.weight, part, "the direction")
    # (A rule may have made another Update, without what is the chain's.)
    if direction is not after.direction or after.count is not outer.count or outer.measured:
        after = after.changed(direction=direction, count=outer.count, measured=outer.measured)
        after = _at(outer.place, after)
    return after, _alike(new, own, part) if own else own


def apply_all(parts: Sequence[Part], update: Update, state: State) -> tuple[Update, State]:
    """`apply` of rules one after another.

    Raises:
        InPlaceError, ValueError, TypeError: as `apply`.
    """
    with _Watch(parts, update, state) as watch:
        return _in_order(parts, update, state, watch)


def _in_order(
    parts: Sequence[Part], update: Update, state: State, watch: _Watch
) -> tuple[Update, State]:
    """`apply` of rules one after another; what they hand on is watched from then on."""
    new: State = {}
    for part in parts:
        before = update
        update, own = apply(part, before, state, looked_after=True)
        if own:
            new |= own
        if update is not before:
            watch.add(update, before)
    return update, new


class _Watch(Watched):
    """One check, after several rules, that none has written into the update or the state.

    After a write, the rules run again one by one, to name the one that wrote.
    """

    def __init__(self, parts: Sequence[Part], update: Update, state: State) -> None:
        super().__init__((update, state))
        self._given = parts, update, state

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None and self.written() is None:
            return
        if isinstance(error, InPlaceError) or not isinstance(error, Exception | None):
            return  # whose it is has been said, or Python is interrupted
        if error is not None and self.written() is None and not is_refusal(error):
            return
        parts, update, state = self._given
        watched = Watched((update, state))
        for part in parts:
            before = update
            update, _ = called(part, partial(apply, part, state=state), before, watched=watched)
            watched.add(update, before)
        if error is None:
            names = ", ".join(map(str, parts))
            which = "one of the rules writes into what it is given, or the manifold does"
            raise InPlaceError(f"{names}: {which}; {INSTEAD}")


def _at(place: Place, update: Update) -> Update:
    """The update for the rule in a place, with the numbers that it has measured."""
    if not update.measured:
        return update
    return update.changed(place=place, shared=update.measured.get(place, {}))


def _alike(new: Mapping[str, Any], own: State, part: Part) -> State:
    """The new entries of a rule's state with the outer rule's keys, in the dtypes of the old."""
    found: State = {}
    for key, outer in part.keys.items():
        value = new[key]
        fits = _fits(value, own[key])
        found[outer] = value if fits else fitted(value, own[key], part, repr(key))
    return found


def measure(
    rule: Node, update: Update, state: State, place: Place = OUTERMOST
) -> Iterator[tuple[Place, Node, Mapping[str, Tensor]]]:
    """The numbers that a rule and those within it measure of one weight, before the first rule.

    Raises:
        TypeError, ValueError: one of them is no 0-dim tensor.
    """
    if rule.defines("measure"):
        numbers = _asked(rule, rule.measure, update, state)
        yield place, rule, {name: _number(x, rule, name) for name, x in numbers.items()}
    for number, part in enumerate(rule.held_for("measure", update.weight), 1):
        yield from measure(part.rule, update, part.own(state), (*place, number))


def _asked(rule: Node, hook: Callable[[Update, State], T], update: Update, state: State) -> T:
    """The result of a hook that returns no state.

    Raises:
        InPlaceError: it puts tensors into the one that it is given, where a chain loses them.
    """
    given = {**state}
    result = called(Part(rule, {}), hook, update, given)
    if given.keys() != state.keys() or any(given[key] is not state[key] for key in state):
        only = "only update and after return a new one"
        raise InPlaceError(f"{type(rule).__name__}: {hook.__name__} changes the state; {only}")
    return result


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
        points.append(_asked(rule, rule.evaluate_at, _at(place, update), state))
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
    """The weight and a rule's state after all `after` hooks, in the order of the rules."""
    new = dict(state)
    for number, inner in enumerate(rule.held_for("after", before.weight), 1):
        at = *place, number
        weight, own = move_on(inner.rule, before, weight, inner.own(new), inner, at)
        new |= own
    if not rule.defines("after"):
        return weight, part.renamed(new)
    before = _at(place, before)
    moved, after = called(part, rule.after, before, weight, dict(new))
    if after.keys() != new.keys():
        both = f"{sorted(after)}, its states are {sorted(new)}"
        raise ValueError(f"{part}: after returns the state {both}")
    moved = fitted(moved, weight, part, "the weight of after")
    return moved, _alike(after, new, part)


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
        TypeError: the weight is no tensor, or complex, or of integers.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(weight).__name__}")
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        raise TypeError(
            f"{what} is {kind} ({weight.dtype}); only real floating-point weights can be optimized"
        )
