"""`chain`: rules applied one after another, and the manifold on which the weight then moves."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spherenorm._manifold import EUCLIDEAN, Manifold, Retraction, Sphere, check_shape, complaints
from spherenorm._rule import Rule, State, apply
from spherenorm._update import Update

__all__ = ["Chain", "chain", "refuse_lost_manifold", "sphere_of"]


@dataclass(frozen=True)
class Chain(Rule):
    """Rules applied one after another, and a manifold. Made by `chain`.

    Attributes:
        rules: in the order in which they are applied.
        manifold: moves the weight by minus the direction that the last rule returns.
    """

    rules: tuple[Rule, ...]
    manifold: Manifold = EUCLIDEAN

    def __post_init__(self) -> None:
        if not isinstance(self.manifold, Manifold):
            known = 'a Manifold such as Sphere("channel")'
            raise TypeError(f"chain: manifold must be {known}, got {self.manifold!r}")
        owner: dict[str, Rule] = {}
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"chain takes rules, got {rule!r}")
            for name in rule.state_names:
                if name in owner:
                    both = f"{type(owner[name]).__name__} and {type(rule).__name__}"
                    raise ValueError(f"two rules of a chain claim the state {name!r}: {both}")
                owner[name] = rule
        refuse_lost_manifold(self)

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(name for rule in self.rules for name in rule.state_names)

    def init(self, weight: Tensor) -> State:
        check_shape(self.manifold, weight)
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

    def retract(self, weight: Tensor, direction: Tensor) -> Retraction:
        return self.manifold.retract(weight, direction)

    def complaints(self, weight: Tensor) -> list[str]:
        return complaints(self.manifold, weight)


def chain(*rules: Rule, manifold: Manifold = EUCLIDEAN) -> Chain:
    """Compose rules: each takes the update of the one before it; their states merge into one dict.

    The first rule sees `direction = grad`; after the last, `manifold` moves the weight by minus the
    direction. A chain is a rule, so chains nest; the outermost one has the manifold.

    Args:
        *rules: in the order in which they are applied.
        manifold: where the weight lives; by default flat space, in which w' = w - d.

    Raises:
        TypeError: an argument is not a rule, or `manifold` is not a manifold.
        ValueError: two rules claim the same key of the state; an inner chain has a manifold of its
            own.

    Example:
        >>> rule = chain(rules.HeavyBall(0.9), rules.StepSize(0.1))
        >>> rule.state_names
        ('momentum',)
    """
    return Chain(rules, manifold)


def sphere_of(rule: Rule | None) -> Sphere | None:
    """The sphere that a rule keeps weights on; None if it keeps them on none.

    Args:
        rule: any rule; None counts as one without a manifold.

    Example:
        >>> sphere_of(sn.bind("sgdg").rule).view.name, sphere_of(sn.bind("sgd").rule)
        ('channel', None)
    """
    return rule.manifold if isinstance(rule, Chain) and isinstance(rule.manifold, Sphere) else None


def refuse_lost_manifold(rule: Rule) -> None:
    """Refuse a chain within `rule` that has a manifold of its own, which would have no effect.

    Raises:
        ValueError: an inner chain has another manifold than `rule`.
    """
    own = rule.manifold if isinstance(rule, Chain) else EUCLIDEAN
    for inner in rule.tree():
        if isinstance(inner, Chain) and inner.manifold not in (EUCLIDEAN, own):
            raise ValueError(
                f"{type(rule).__name__}: an inner chain has manifold={inner.manifold!r}, which "
                "would be lost; give it to the outermost chain, which moves the weight"
            )
