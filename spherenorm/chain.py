"""`chain`: rules applied one after another, and the geometry in which the weight then moves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spherenorm.geometry import EUCLIDEAN, Geometry, Move
from spherenorm.rule import Rule, State
from spherenorm.update import Update

__all__ = ["Chain", "chain"]


@dataclass(frozen=True)
class Chain(Rule):
    """See `chain`."""

    rules: tuple[Rule, ...]
    geometry: Geometry = EUCLIDEAN

    def __post_init__(self) -> None:
        if not isinstance(self.geometry, Geometry):
            raise TypeError(f'chain: geometry must be a Geometry such as Sphere("channel"), got {self.geometry!r}')
        owner: dict[str, Rule] = {}
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"chain takes rules, got {rule!r}")
            for name in rule.state_names:
                if name in owner:
                    raise ValueError(
                        f"two rules of a chain claim the state {name!r}: {type(owner[name]).__name__} and {type(rule).__name__}"
                    )
                owner[name] = rule

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for rule in self.rules for name in rule.state_names)

    def init(self, weight: Tensor) -> State:
        state: State = {}
        for rule in self.rules:
            own = rule.init(weight)
            if own.keys() != set(rule.state_names):
                raise TypeError(f"{type(rule).__name__}: init returns {sorted(own)}, state_names says {sorted(rule.state_names)}")
            state.update(own)
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        new: State = {}
        for rule in self.rules:
            update, own = rule.update(update, state)
            if own.keys() != set(rule.state_names):
                raise ValueError(
                    f"{type(rule).__name__}: update returns the state {sorted(own)}, state_names says {sorted(rule.state_names)}"
                )
            new.update(own)
        return update, new

    def move(self, weight: Tensor, direction: Tensor) -> Move:
        return self.geometry.move(weight, direction)

    def transport(self, state: State, move: Move) -> State:
        return {name: value for rule in self.rules for name, value in rule.transport(state, move).items()}


def chain(*rules: Rule, geometry: Geometry = EUCLIDEAN) -> Chain:
    """Compose rules into one: each takes the update that the one before it returned; the states merge into one flat dict.

    The first rule sees `direction = grad`; after the last, `geometry` moves the weight by minus the direction. A chain is
    a rule, so chains nest; the geometry of the outermost one counts.

    Raises:
        TypeError: an argument is not a rule, or `geometry` is none.
        ValueError: two rules claim the same key of the state.
    """
    return Chain(rules, geometry)
