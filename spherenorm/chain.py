"""`chain`: rules applied one after another, and the geometry in which the weight then moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from spherenorm.geometry import EUCLIDEAN, Geometry, Move, check_shape
from spherenorm.rule import Rule, State, apply
from spherenorm.update import Update

__all__ = ["Chain", "chain", "refuse_lost_geometry"]


@dataclass(frozen=True)
class Chain(Rule):
    """See `chain`."""

    rules: tuple[Rule, ...]
    geometry: Geometry = EUCLIDEAN

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, Geometry):
            raise TypeError(
                f'chain: geometry must be a Geometry such as Sphere("channel"), got {self.geometry!r}'
            )
        owner: dict[str, Rule] = {}
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"chain takes rules, got {rule!r}")
            for name in rule.state_names:
                if name in owner:
                    both = f"{type(owner[name]).__name__} and {type(rule).__name__}"
                    raise ValueError(f"two rules of a chain claim the state {name!r}: {both}")
                owner[name] = rule
        refuse_lost_geometry(self)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for rule in self.rules for name in rule.state_names)

    def init(self, weight: Tensor) -> State:
        check_shape(self.geometry, weight)
        state: State = {}
        for rule in self.rules:
            own = rule.init(weight)
            if own.keys() != set(rule.state_names):
                name, names = type(rule).__name__, sorted(rule.state_names)
                raise TypeError(f"{name}: init returns {sorted(own)}, state_names says {names}")
            state.update(own)
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        new: State = {}
        for rule in self.rules:
            update, own = apply(rule, update, state)
            new.update(own)
        return update, new

    def move(self, weight: Tensor, direction: Tensor) -> Move:
        return self.geometry.move(weight, direction)

    def transport(self, state: State, move: Move) -> State:
        moved: State = {}
        for rule in self.rules:
            own = {name: state[name] for name in rule.state_names}
            moved.update(rule.transport(own, move))
        return moved


def chain(*rules: Rule, geometry: Geometry = EUCLIDEAN) -> Chain:
    """Compose rules: each takes the update of the one before it; their states merge into one dict.

    The first rule sees `direction = grad`; after the last, `geometry` moves the weight by minus the
    direction. A chain is a rule, so chains nest; the outermost one has the geometry.

    Raises:
        TypeError: an argument is not a rule, or `geometry` is none.
        ValueError: two rules claim the same key of the state; an inner chain has a geometry of its
            own.

    Example:
        >>> rule = chain(rules.HeavyBall(0.9), rules.StepSize(0.1))
        >>> rule.state_names
        ('momentum',)
    """
    return Chain(rules, geometry)


def refuse_lost_geometry(rule: Rule) -> None:
    """Refuse a chain within `rule` that has a geometry of its own.

    Raises:
        ValueError: the weight would not move in it.
    """
    own = rule.geometry if isinstance(rule, Chain) else EUCLIDEAN
    for inner in _chains_within(rule):
        if inner.geometry not in (EUCLIDEAN, own):
            raise ValueError(
                f"{type(rule).__name__}: an inner chain has geometry={inner.geometry!r}, which "
                "would be lost; give it to the outermost chain, which moves the weight"
            )


def _chains_within(rule: Rule) -> Iterator[Chain]:
    for child in rule.children():
        if isinstance(child, Chain):
            yield child
        yield from _chains_within(child)
