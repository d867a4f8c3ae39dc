"""The core: what flows (`Update`), what acts (`Rule`), what composes (`Chain`), and one step.

A step gives the gradient to a rule as the direction, lets the rule change it, and moves the weight
by minus the direction, straight or along a manifold. All of it is pure: new tensors come out, the
arguments stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from spherenorm._fields import derived, views_of
from spherenorm._invariance import Invariance
from spherenorm._manifold import EUCLIDEAN, Manifold, check_shape, weight_warnings
from spherenorm._numerics import (
    Scalar,
    like,
    refuse_unless_real,
    shares_memory,
    to_wide,
    wide_dtype,
    without_autocast,
    working,
)
from spherenorm._parts import COUNTER, Parts
from spherenorm._steps import summand, sums_over
from spherenorm.support import did_you_mean

State = dict[str, Tensor]
"""The state of one weight tensor, by name.

Example:
    >>> sn.recipes.sgdp(momentum=0.9).init(torch.ones(2))
    {'momentum': tensor([0., 0.])}
"""


@dataclass(frozen=True)
class Update:
    """One step of one weight tensor, under construction. All tensors have the weight's shape.

    Attributes:
        weight: the weight before the step.
        grad: the raw gradient; no rule changes it.
        direction: the step so far; in flat space the weight moves by minus this.
        invariance: set by a scale-invariance test, read by projection and decay; None before it.
        notes: what rules tell the rules behind them, by name: `AdaptiveMoments` and its kin note
            their "second_moment". Sums over all weights (`Rule.measure`) are there from the start.
        rate: the step size that `StepSize` multiplied the direction by; None before it, and again
            once a rule changes the direction.

    Example:
        >>> weight, grad = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25])
        >>> update, _ = sn.rules.StepSize(0.1).update(Update(weight, grad, grad), {})
        >>> update.direction
        tensor([0.0500, 0.0250])
    """

    weight: Tensor
    grad: Tensor
    direction: Tensor
    invariance: Invariance | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    rate: Scalar | None = None

    def changed(self, **values: Any) -> Update:
        """This update with other values of some attributes, as `dataclasses.replace` makes it.

        Another direction has no `rate`, unless one is given with it.

        Raises:
            TypeError: an update has no attribute of that name.

        Example:
            >>> zero = torch.zeros(2)
            >>> Update(zero, zero, zero).changed(direction=zero + 1).direction
            tensor([1., 1.])
        """
        if "direction" in values and "rate" not in values:
            values["rate"] = None
        if is_compiling():
            return replace(self, **values)
        for name in values.keys() - self.__dict__.keys():
            hint = did_you_mean(name, self.__dict__)
            raise TypeError(f"an Update has no attribute {name!r}; {hint}")
        # `replace` sets each attribute of a frozen class by itself, as slow as a small operation.
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, **values)
        return changed

    def unless_at_rest(self, direction: Tensor) -> Tensor:
        """Return `direction`, or this update's own where its `rate` is 0.

        For rules that end a step on a set of weights, such as a sphere: a step of size 0 leaves a
        weight that is not there yet where it is.

        Example:
            >>> weight, step = torch.tensor([3.0]), torch.tensor([0.0])
            >>> Update(weight, step, step, rate=0.0).unless_at_rest(torch.tensor([2.0]))
            tensor([0.])
        """
        if self.rate is None:
            return direction
        if not isinstance(self.rate, Tensor):
            return self.direction if self.rate == 0 else direction
        return torch.where(self.rate == 0, self.direction, direction)


@dataclass(frozen=True)
class Told(Parts):
    """The answers of a rule beside its steps; by default those of the rules within it."""

    def measure(self, update: Update, state: State) -> Mapping[str, Tensor]:
        """Numbers of one weight, by name, measured once a step, before the first rule.

        Their sums over all weights are in `update.notes`.

        Raises:
            ValueError: two rules within this one measure something under one name.
        """
        found: dict[str, Tensor] = {}
        for rule in self.within:
            own = (
                rule.measure(update, self._part(rule, state, update.weight))
                if rule.measures
                else {}
            )
            if twice := found.keys() & own.keys():
                raise ValueError(f"{type(rule).__name__}: an earlier rule measures {min(twice)!r}")
            found |= {key: summand(value, rule, key) for key, value in own.items()}
        return found

    def readout(self, weight: Tensor, state: State) -> Tensor:
        """The weight to evaluate with, of one that is stepped: w itself, or an average that a rule
        within this one keeps of it. Nothing is written into.

        Example:
            >>> rule = chain(rules.StepSize(0.5), rules.WeightAverage(0.5))
            >>> weight, state = torch.tensor([1.0]), rule.init(torch.tensor([1.0]))
            >>> for _ in range(2):
            ...     weight, state = rule.step(weight, torch.tensor([1.0]), state)
            >>> weight, rule.readout(weight, state)  # the mean of 0.5 and 0
            (tensor([0.]), tensor([0.2500]))
        """
        for rule in self.within:
            weight = rule.readout(weight, self._part(rule, state, weight))
        return weight

    def restart_averages(self, weight: Tensor, state: State) -> State:
        """Return the state with all that is held of earlier weights begun anew at `weight`.

        A step goes back towards such a weight: one that was written from outside would be undone.
        Moments and the count of steps go on.

        Example:
            >>> rule, weight = sn.zoo.schedulefree_sgd(lr=1.0), torch.tensor([0.0])
            >>> _, state = rule.step(weight, torch.tensor([1.0]), rule.init(weight))
            >>> rule.restart_averages(torch.tensor([5.0]), state)["z"]
            tensor([5.])
        """
        new = dict(state)
        for rule in self.within:
            new |= self._restart_child(rule, weight, state)
        return new

    def _restart_child(self, rule: Any, weight: Tensor, state: State) -> State:
        child_state = rule.restart_averages(weight, self._part(rule, state, weight))
        keys = self.outer[id(rule)]
        return {keys[key]: value for key, value in child_state.items()}

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Sentences on why this rule does not suit a weight; see `Sphere.weight_warnings`."""
        return [each for rule in self.within for each in rule.weight_warnings(weight)]

    def _part(self, rule: Parts, state: State, weight: Tensor) -> State:
        """The state of a rule within this one, as it is given to it."""
        return {key: state[outer] for key, outer in self.outer[id(rule)].items()}

    @derived
    def measures(self) -> bool:
        """True if this rule, or one within it, measures something of all weights."""
        return any(type(each).measure is not Told.measure for each in self.tree())

    @derived
    def reads_out(self) -> bool:
        """True if the weight to evaluate with may be another than the one that is stepped."""
        return any(type(each).readout is not Told.readout for each in self.tree())


@dataclass(frozen=True)
class Rule(Told):
    """A pure update rule for one weight tensor.

    A subclass is a frozen dataclass (the decorator may be left out). Its author writes:

    - fields: hyper-parameters (`hyper`, `choice`, `view`, `views`), and rules within this one.
    - `state_names`: its states, zeros shaped as the weight unless `init` says otherwise. "step" is
      t, the number of the step from 1, which all rules of a chain share.
    - `tangent_names`: the states that are tangent vectors, which move along on a manifold.
    - `shared_names`: the states that are one number for all weights, updated from sums over them
      (see `measure`), the one that never falls first. A weight that joins late takes them from the
      others. `shared_fields` are the hyper-parameters in which all weights must agree then; a
      weight takes no part where one of them is 0.
    - `update(update, state)`: returns the new `Update`, and its new states (without "step"). It
      reads nothing else that changes, writes into nothing that it is given, and takes no Python
      branch on a tensor's values, so that it compiles, vmaps and traces.

    `spherenorm.testing.check` holds a rule against these promises. A rule within this one is
    applied by `self.apply(self.rule, update, state)`.

    Args:
        name: put before the names of this rule's states, to tell them from another rule's. Rules
            without a name get a number instead: `exp_avg`, `exp_avg_2`.

    Raises:
        TypeError, ValueError: a field holds what it does not declare.

    Example:
        >>> class SignDescent(Rule):
        ...     def update(self, update, state):
        ...         return update.changed(direction=update.direction.sign()), {}
        >>> SignDescent().step(torch.tensor([1.0]), torch.tensor([0.3]), {})
        (tensor([0.]), {})
    """

    vectors: ClassVar[Literal["step", "skip", "refuse"]] = "step"
    """The rule steps weights of fewer than two dimensions, leaves them alone, or refuses them."""
    flat: ClassVar[bool] = False
    """The rule is right in flat space alone: it reads where a straight step ends, say."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self.within:
            if rule.manifold not in (EUCLIDEAN, self.manifold):
                lost = f"an inner chain has manifold={rule.manifold!r}, which would be lost"
                raise ValueError(f"{type(self).__name__}: {lost}; give it to the outermost chain")

    @property
    def manifold(self) -> Manifold:
        """The space in which a step moves the weight; only a chain has another than flat space."""
        return EUCLIDEAN

    def init(self, weight: Tensor) -> State:
        """The state before the first step: zeros, and what the rules within it begin with.

        Raises:
            ValueError: the rule cannot step a weight of this shape, or of these values.
        """
        if weight.ndim < 2 and self.vectors == "refuse":
            other = "give biases and gains another recipe, as spherenorm.param_groups does"
            name, shape = type(self).__name__, tuple(weight.shape)
            raise ValueError(f"{name} needs a matrix, got shape {shape}; {other}")
        for view in views_of(self) if weight.ndim >= 2 or self.vectors == "step" else ():
            view.size(weight)  # which refuses a weight without such units
        start = working(weight)
        state = {n: torch.zeros_like(start) for n in self.state_names if n != COUNTER}
        for rule in self.within:
            state |= self.init_of(rule, start)
        if COUNTER in self.keys:
            counter = torch.zeros((), dtype=wide_dtype(weight.device), device=weight.device)
            state = {COUNTER: counter, **state}
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        """The update after this rule, and the new values of its states.

        Args:
            update: the step so far.
            state: this rule's states, the rules' within it included.
        """
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def step(
        self, weight: Tensor, grad: Tensor, state: State, sums: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, State]:
        """One whole step.

        Args:
            weight: of any shape; half precision is computed with in float32.
            grad: the raw gradient, shaped as the weight.
            state: as `init` or the last step returned it.
            sums: over all weights, of what rules measure; None: this is the only weight.

        Returns:
            The new weight, in the old one's dtype, and the new state.

        Raises:
            TypeError: the weight is complex or integer, or the gradient is complex.
            ValueError: the gradient, the state, or what a rule returns has another shape, or other
                names, than it must.
        """
        update = begun(self, weight, grad, state)
        with without_autocast(weight.device):
            return _stepped(self, update, weight, state, sums)

    def apply(self, rule: Rule, update: Update, state: State) -> tuple[Update, State]:
        """`rule.update` of a rule within this one, on its part of this rule's state.

        Returns:
            The update after it, and its new states under the keys of this rule's state.

        Raises:
            ValueError: it returns other states than its own, or a direction of another shape.
        """
        after, new = _updated(rule, update, self._part(rule, state, update.weight))
        keys = self.outer[id(rule)]
        return after, {keys[key]: value for key, value in new.items()}

    def init_of(self, rule: Rule, weight: Tensor) -> State:
        """`rule.init` of a rule within this one, under the keys of this rule's state.

        Raises:
            TypeError: it returns other states than its own.
        """
        keys, own = self.outer[id(rule)], rule.init(weight)
        if own.keys() != keys.keys():
            both = f"{sorted(own)}, state_names says {sorted(keys)}"
            raise TypeError(f"{type(rule).__name__}: init returns {both}")
        return {keys[k]: x.clone() if shares_memory(x, weight) else x for k, x in own.items()}


@dataclass(frozen=True)
class Chain(Rule):
    """Rules applied one after another, and a manifold. Made by `chain`.

    Attributes:
        rules: in the order in which they are applied.
        manifold: moves the weight by minus the direction that the last rule returns; None becomes
            `Euclidean()`.

    Example:
        >>> rule = sn.recipes.adamp()
        >>> rule.rules[0], rule.rules[-1], rule.manifold
        (AdaptiveMoments(...), StepSize(lr=0.001), Euclidean())
    """

    rules: tuple[Rule, ...]
    # torch.compile takes no object as a default before torch 2.13.
    manifold: Manifold = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.manifold is None:
            object.__setattr__(self, "manifold", EUCLIDEAN)
        if not isinstance(self.manifold, Manifold):
            known = 'a Manifold such as Sphere("channel")'
            raise TypeError(f"chain: manifold must be {known}, got {self.manifold!r}")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                made = f"; write {rule.__name__}()" if isinstance(rule, type) else ""
                raise TypeError(f"chain takes rules, got {rule!r}{made}")
        super().__post_init__()
        for rule in self.tree() if self.manifold != EUCLIDEAN else ():
            if rule.flat:
                only = f"{type(rule).__name__} is for flat space"
                raise ValueError(f"chain: {only}, got manifold={self.manifold!r}")

    def init(self, weight: Tensor) -> State:
        check_shape(self.manifold, weight)
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        new: State = {}
        for rule in self.rules:
            update, own = self.apply(rule, update, state)
            new |= own
        return update, new

    def weight_warnings(self, weight: Tensor) -> list[str]:
        warnings = weight_warnings(self.manifold, weight) + super().weight_warnings(weight)
        return [*dict.fromkeys(warnings)]  # an inner chain may have the same manifold


def chain(*rules: Rule, manifold: Manifold = EUCLIDEAN) -> Chain:
    """Compose rules: each takes the update of the one before it; their states lie in one dict.

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
        >>> rule.keys
        ('momentum', 'momentum_2')
    """
    return Chain(rules, manifold)


def _stepped(
    rule: Rule, update: Update, weight: Tensor, state: State, sums: Mapping[str, Tensor] | None
) -> tuple[Tensor, State]:
    """The new weight and state; see `Rule.step`."""
    if rule.measures:
        notes = sums_over([(rule, update, state)]) if sums is None else sums
        # A dict of its own, since others share the sums, which may lie on another weight's device.
        here = weight.device
        notes = {k: x if x.device == here else to_wide(x, here) for k, x in notes.items()}
        update = update.changed(notes=notes)
    if COUNTER in state:
        state = {**state, COUNTER: state[COUNTER] + 1}
    after, new = _updated(rule, update, dict(state))
    new = {**state, **new}
    held = {key: new[key] for key in rule.tangent_keys}
    moved, carried = rule.manifold.move(update.weight, after.direction, held)
    new |= {key: like(new[key], x, "a moved state", key) for key, x in carried.items()}
    for key, value in new.items():
        if shares_memory(value, update.weight) or shares_memory(value, update.grad):
            new[key] = value.clone()  # momentum at 0 is the gradient, and loops write there
    return (moved if moved.dtype is weight.dtype else moved.to(weight.dtype)), new


def begun(rule: Rule, weight: Tensor, grad: Tensor, state: State) -> Update:
    """The update before the first rule; `Rule.step` says what is refused."""
    refuse_unless_real(weight, "weight")
    if not isinstance(grad, Tensor) or grad.is_complex():
        kind = f"complex ({grad.dtype})" if isinstance(grad, Tensor) else type(grad).__name__
        raise TypeError(f"grad must be a real tensor, got {kind}")
    if grad.shape != weight.shape:
        shapes = f"{tuple(weight.shape)}, got {tuple(grad.shape)}"
        raise ValueError(f"grad must be shaped as the weight, {shapes}")
    if state.keys() != set(rule.keys):
        both = f"{sorted(rule.keys)}, got {sorted(state)}"
        raise ValueError(f"{type(rule).__name__}: the state must have {both}")
    start = working(weight)
    grad = grad if grad.dtype is start.dtype else grad.to(start.dtype)
    return Update(start, grad, grad)


def _updated(rule: Rule, update: Update, state: State) -> tuple[Update, State]:
    """`rule.update`, whose result fits; a counter may have promoted the direction of a number."""
    name = type(rule).__name__
    result = rule.update(update, state) if is_compiling() else _called(rule, update, state)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Update)):
        each = result if isinstance(result, tuple) else (result,)
        kinds = ", ".join(type(x).__name__ for x in each)  # not its tensors: they are long
        raise TypeError(f"{name}: update must return (update, state), it returned {kinds}")
    after, new = result
    if (new.keys() ^ state.keys()) - {COUNTER}:
        both = f"{sorted(new)}, its states are {sorted(state)}"
        raise ValueError(f"{name}: update returns the state {both}")
    if after.weight is not update.weight or after.grad is not update.grad:
        only = "a rule may only change the direction"
        raise ValueError(f"{name}: update returns another weight or gradient; {only}")
    new = {key: like(state[key], value, name, key) for key, value in new.items() if key != COUNTER}
    direction = like(update.weight, after.direction, name, "the direction")
    if direction is not after.direction:
        after = after.changed(direction=direction, rate=after.rate)
    return after, new


def _called(rule: Rule, update: Update, state: State) -> tuple[Update, State]:
    try:
        return rule.update(update, state)
    except KeyError as error:
        if isinstance(error.__cause__, KeyError):  # of a rule within, which has its name
            raise
        there = f"its states are {sorted(state)}, the notes {sorted(update.notes)}"
        raise KeyError(f"{type(rule).__name__} reads {error}; {there}") from error
