"""`chain`: rules applied one after another, and the manifold on which the weight then moves."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from spherenorm._hooks import State, zeros
from spherenorm._manifold import (
    EUCLIDEAN,
    Manifold,
    Retraction,
    Sphere,
    check_shape,
    weight_warnings,
)
from spherenorm._numerics import working
from spherenorm._rule import Rule, scalar_state
from spherenorm._step import apply, apply_all
from spherenorm._tree import COUNTER, Part, parts_apart
from spherenorm._update import Update
from spherenorm._watch import called, copy_shared


@dataclass(frozen=True)
class Combination(Rule):
    """A rule that applies others, and keeps their states with its own, no two under one key.

    A subclass has the rules among its fields, and names further states of its own, shaped as the
    weight, in `own_names`. Known combinations: `Chain`, `rules.FeedbackMomentum`.

    Example:
        >>> class Twice(Combination):
        ...     rule: Rule
        ...     def update(self, update, state):
        ...         update, _ = self.apply_children(update, state)
        ...         return self.apply_children(update, state)
        >>> chain(Twice(HeavyBall(0.5)), HeavyBall(0.9)).state_names
        ('momentum', 'momentum_2')
    """

    @property
    def own_names(self) -> tuple[str, ...]:
        """The keys of this rule's own states, without those of the rules within it."""
        return ()

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.keys(None)

    def held(self, weight: Tensor | None) -> list[Part]:
        return parts_apart(self.own_names, self.children(), weight)

    def keys(self, weight: Tensor | None) -> tuple[str, ...]:
        return (*self.own_names, *(key for part in self.held(weight) for key in part.keys.values()))

    def init(self, weight: Tensor) -> State:
        weight = working(weight)  # so that no rule begins with a state in half precision
        state = zeros(self.own_names, weight)
        for part in self.held(weight):
            own = called(part, part.rule.init, weight)
            if part.rule.counts:
                del own[COUNTER]
            if own.keys() != part.keys.keys():
                names = f"{sorted(own)}, state_names says {sorted(part.keys)}"
                raise TypeError(f"{part}: init returns {names}")
            copy_shared(own, weight, weight)
            state |= part.renamed(own)
        return state

    def weight_warnings(self, weight: Tensor) -> list[str]:
        return [each for rule in self.children() for each in rule.weight_warnings(weight)]

    def apply_children(self, update: Update, state: State) -> tuple[Update, State]:
        """The update after the rules within this one, in order, and the new values of their states.

        Args:
            update: the step so far.
            state: this rule's part of the state.
        """
        return apply_all(self.held(update.weight), update, state)

    def apply_each(self, update: Update, state: State) -> tuple[list[Update], State]:
        """The update after each of the rules within this one alone, and the new values of all.

        For rules side by side, such as averages of one gradient that are mixed.

        Args:
            update, state: as for `apply_children`.
        """
        applied = [apply(part, update, state) for part in self.held(update.weight)]
        return [after for after, _ in applied], {k: x for _, own in applied for k, x in own.items()}


@dataclass(frozen=True)
class Chain(Combination):
    """Rules applied one after another, and a manifold. Made by `chain`.

    Attributes:
        rules: in the order in which they are applied.
        manifold: moves the weight by minus the direction that the last rule returns.
        counted: True if a rule needs the number of the step, which is then among the states.

    Example:
        >>> rule = sn.recipes.adamp()
        >>> rule.rules[0], rule.rules[-1]
        (AdaptiveMoments(...), StepSize(lr=0.001))
        >>> rule.manifold, rule.counted
        (Euclidean(), True)
    """

    rules: tuple[Rule, ...]
    manifold: Manifold = EUCLIDEAN
    counted: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.manifold, Manifold):
            known = 'a Manifold such as Sphere("channel")'
            raise TypeError(f"chain: manifold must be {known}, got {self.manifold!r}")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"chain takes rules, got {rule!r}")
        refuse_lost_manifold(self)
        object.__setattr__(self, "counted", any(rule.needs_step for rule in self.tree()))

    @property
    def counts(self) -> bool:
        return self.counted

    @property
    def in_order(self) -> bool:
        cls = type(self)
        return cls.update is Chain.update and cls.apply_children is Chain.apply_children

    @property
    def moves_states(self) -> bool:
        return type(self).transport is not Chain.transport

    @property
    def own_names(self) -> tuple[str, ...]:
        return (COUNTER,) if self.counted else ()

    @property
    def tangent_names(self) -> tuple[str, ...]:
        held = self.held(None)
        return tuple(part.keys[name] for part in held for name in part.rule.tangent_names)

    def init(self, weight: Tensor) -> State:
        check_shape(self.manifold, weight)
        state = super().init(weight)
        return state | {COUNTER: scalar_state(weight)} if self.counts else state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        return self.apply_children(update, state)

    def transport(self, state: State, retraction: Retraction) -> State:
        return self.transport_held(state, retraction)

    def retract(self, weight: Tensor, direction: Tensor) -> Retraction:
        return self.manifold.retract(weight, direction)

    def weight_warnings(self, weight: Tensor) -> list[str]:
        return weight_warnings(self.manifold, weight) + super().weight_warnings(weight)


def chain(*rules: Rule, manifold: Manifold = EUCLIDEAN) -> Chain:
    """Compose rules: each takes the update of the one before it; their states lie in one dict.

    Where two rules have a state of one name, the later one's gets a number behind, or its rule's
    `name` before it. The chain counts the steps, under "step", if a rule needs them.

    The first rule sees `direction = grad`; after the last, `manifold` moves the weight by minus the
    direction. A chain is a rule, so chains nest; the outermost one has the manifold.

    Args:
        *rules: in the order in which they are applied.
        manifold: where the weight lives; by default flat space, in which w' = w - d.

    Raises:
        TypeError: an argument is not a rule, or `manifold` is not a manifold.
        ValueError: an inner chain has a manifold of its own.

    Example:
        >>> rule = chain(rules.HeavyBall(0.9), rules.HeavyBall(0.5), rules.StepSize(0.1))
        >>> rule.state_names
        ('momentum', 'momentum_2')
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
