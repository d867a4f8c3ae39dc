"""Update rules: the step of one weight tensor, and rules composed of other rules.

`Rule.step` passes the gradient to a rule as the direction, the rule changes the direction, and a
manifold moves the weight by minus the direction. All of it is pure: a step returns new tensors and
writes into none of its arguments.

From top to bottom: `Update` is the data that rules pass on, `Rule` is one rule, `chain` composes
rules, and the functions below run and check a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.compiler import is_compiling

from spherenorm.fields import FrozenDataclass, cached_property, check_fields, views_of
from spherenorm.global_sums import check_term, sum_over_weights
from spherenorm.manifolds import EUCLIDEAN, Manifold, check_shape, weight_warnings
from spherenorm.numerics import (
    Scalar,
    accumulation_dtype,
    cast_like_checked,
    derivatives_are_taken,
    is_zero,
    refuse_unless_real,
    shares_memory,
    to_accumulation_dtype,
    to_compute_dtype,
    without_autocast,
)
from spherenorm.schedule import Schedule, is_checked_at_once, is_scheduled
from spherenorm.support import annotated_names, did_you_mean

if TYPE_CHECKING:
    from spherenorm.rules.invariance import Invariance

State = dict[str, Tensor]
"""The state of one weight tensor, by name.

Example:
    >>> sn.recipes.sgdp(momentum=0.9).init(torch.ones(2))
    {'momentum': tensor([0., 0.])}
"""

OTHER_LABEL = "*"
"""The label of all other parameters in a `spherenorm.partition`: those without a label."""
_CLASS_FLAGS = (
    *("vector_policy", "needs_flat_space", "needs_whole_weight"),
    *("uses_endpoint", "is_partition"),
)
"""The class attributes by which a rule says how it may be used; see `Rule`."""
STEP_KEY = "step"
"""The state that counts steps: t = 1 in the first step, 0-dim, float64 where the device has it.

All rules of a chain share it.
"""


@dataclass(frozen=True)
class Update:
    """The step of one weight tensor, as rules pass it on. All tensors have the weight's shape.

    Attributes:
        weight: the weight before the step, in the dtype of the computation.
        grad: the gradient of the loss; no rule changes it.
        direction: the step so far; in flat space the weight moves by minus the direction.
        invariance: the result of a scale-invariance test, for projections and weight decay; None
            without a test.
        notes: values for later rules, by name: `AdaptiveMoments` notes its "second_moment". Global
            sums (`Rule.global_sum_terms`) are present from the start.
        rate: the step size by which `StepSize` multiplied the direction; None before it, and None
            again once a later rule changes the direction.

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

    def replace(self, **values: Any) -> Update:
        """Return a copy with other values of some attributes, like `dataclasses.replace`.

        A new direction resets `rate` to None unless a rate is given with it.

        Raises:
            TypeError: an update has no attribute of that name.

        Example:
            >>> zero = torch.zeros(2)
            >>> Update(zero, zero, zero).replace(direction=zero + 1).direction
            tensor([1., 1.])
        """
        if "direction" in values and "rate" not in values:
            values["rate"] = None
        if is_compiling():
            return dataclasses.replace(self, **values)
        for name in values:
            if name not in self.__dict__:
                hint = did_you_mean(name, self.__dict__)
                raise TypeError(f"an Update has no attribute {name!r}; {hint}")
        # dataclasses.replace sets the attributes of a frozen class one by one, which takes as long
        # as an operation on a small tensor.
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **values)
        return copy

    def unless_rate_is_zero(self, direction: Tensor) -> Tensor:
        """Return `direction`, or this update's own direction where `rate` is 0.

        For rules that end a step on a set of weights, such as a sphere: a step of size 0 does not
        move a weight that is not there yet.

        Example:
            >>> weight, step = torch.tensor([3.0]), torch.tensor([0.0])
            >>> Update(weight, step, step, rate=0.0).unless_rate_is_zero(torch.tensor([2.0]))
            tensor([0.])
        """
        if self.rate is None:
            return direction
        if not isinstance(self.rate, Tensor):
            return self.direction if self.rate == 0 else direction
        direction_at_zero = self.direction
        if derivatives_are_taken(direction):
            # Training of a rate may start at 0: there the derivative is that of the other branch.
            direction_at_zero = direction_at_zero.detach() + (direction - direction.detach())
        return torch.where(self.rate == 0, direction_at_zero, direction)


@dataclass(frozen=True)
class Rule(FrozenDataclass):
    """A pure update rule for one weight tensor.

    A subclass is a frozen dataclass (the decorator is optional) with:

    - fields: hyper-parameters (`hyper`, `choice`, `view`, `views`) and child rules.
    - `state_names`: the names of its states. They start as zeros of the weight's shape unless
      `init` returns something else. The name "step" asks for the step count (see `STEP_KEY`).
    - `tangent_names`: the states that are tangent vectors, which a manifold transports.
    - `shared_names`: the states that are one number for all weights, computed from global sums;
      the one that never decreases comes first. A weight that joins late takes them from the other
      weights. `shared_fields` are the hyper-parameters in which all weights must then agree; a
      weight with a 0 there takes no part.
    - `optional_names`: the states that no step reads, which a checkpoint may lack.
    - `update(update, state)`: returns the new `Update` and the new states, without "step". It
      writes into no argument, reads no other data that may change, and has no Python branch on
      tensor values, so that a step compiles, vmaps and traces. It runs the i-th child rule, in the
      order of the fields, with `self.update_child(i, update, state)`.

    It may also override `global_sum_terms`, `eval_weight` and `weight_warnings`, which by default
    ask the child rules. `spherenorm.testing.check` tests a rule against all of this.

    Args:
        name: a prefix for the state keys of this rule inside another rule. Without names, equal
            keys are numbered: `exp_avg`, `exp_avg_2`.

    Raises:
        TypeError, ValueError: a field has a value that it does not allow.

    Example:
        >>> class SignDescent(Rule):
        ...     def update(self, update, state):
        ...         return update.replace(direction=update.direction.sign()), {}
        >>> SignDescent().step(torch.tensor([1.0]), torch.tensor([0.3]), {})
        (tensor([0.]), {})
    """

    name: str | None = field(default=None, kw_only=True, repr=False)

    vector_policy: ClassVar[Literal["step", "skip", "refuse"]] = "step"
    """Step weights of fewer than two dimensions, skip them, or refuse them."""
    needs_flat_space: ClassVar[bool] = False
    """True if the rule is wrong on a curved manifold: it reads where a straight step ends, say."""
    needs_whole_weight: ClassVar[bool | None] = None
    """True if a step needs the whole weight, so that one process, its owner, steps a sharded one.

    False if the rule's own code takes a sharded weight as it is. None leaves it to the record: a
    step that could not be recorded, and is not entry by entry, is the owner's.
    """
    uses_endpoint: ClassVar[bool] = False
    """True if the rule sets or reads where the step ends, w - d, so that it is wrong before a rule
    that changes the direction."""

    is_partition: ClassVar[bool] = False
    """True for a partition, which has a rule for each parameter and no step of one weight."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = annotated_names(cls)
        if "name" in names:
            raise TypeError(f"{cls.__name__}: rename the field `name`; it prefixes state keys")
        for flag in _CLASS_FLAGS:
            if flag in names:
                raise TypeError(
                    f"{cls.__name__}: rename the field `{flag}`; every rule has a flag of this "
                    f"name, which a class sets without an annotation: {flag} = ..."
                )

    def __post_init__(self) -> None:
        super().__post_init__()
        for child in self.children:
            if child.is_partition:
                raise ValueError(
                    f"{type(self).__name__}: a partition has no step of one weight, so no rule can "
                    "hold it; put the other rules into the parts of the partition"
                )
            if child.manifold not in (EUCLIDEAN, self.manifold):
                raise ValueError(
                    f"{type(self).__name__}: an inner chain has manifold={child.manifold!r}, which "
                    "would have no effect; give it to the outermost chain"
                )

    # Methods of a rule's author

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of this rule's own states; `state_keys` adds the states of the children."""
        return ()

    @property
    def tangent_names(self) -> tuple[str, ...]:
        """The names of those states that are tangent vectors."""
        return ()

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The names of those states that are one number for all weights."""
        return ()

    @property
    def optional_names(self) -> tuple[str, ...]:
        """The names of those states that no step reads, so that a checkpoint may lack them."""
        return ()

    @property
    def shared_fields(self) -> tuple[str, ...]:
        """The fields on which the shared states depend, in which all weights must agree."""
        return ()

    @property
    def manifold(self) -> Manifold:
        """The manifold on which a step moves the weight: flat space for all rules but chains."""
        return EUCLIDEAN

    def init(self, weight: Tensor) -> State:
        """Return the state before the first step: zeros, and the initial states of the children.

        Raises:
            ValueError: the rule cannot step a weight of this shape, or with these values.
        """
        if weight.ndim < 2 and self.vector_policy == "refuse":
            raise ValueError(
                f"{type(self).__name__} needs a matrix, got shape {tuple(weight.shape)}; give "
                "biases and gains another recipe, as spherenorm.param_groups does"
            )
        if weight.ndim >= 2 or self.vector_policy == "step":
            for view in views_of(self):
                view.size(weight)  # raises if the weight has no such units
        weight = to_compute_dtype(weight)
        state = {name: torch.zeros_like(weight) for name in self.state_names if name != STEP_KEY}
        for index in range(len(self.children)):
            state |= self.init_child(index, weight)
        if STEP_KEY in self.state_keys:
            state = {STEP_KEY: _initial_step_count(weight), **state}
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        """Return the update after this rule, and the new values of its states.

        Args:
            update: the step so far.
            state: the states of this rule and its children.
        """
        raise TypeError(f"{type(self).__name__} does not define update(update, state)")

    def rule_for(self, name: str, weight: Tensor) -> Rule:
        """Return the rule that steps a parameter: this one, or that of a partition's label.

        Args:
            name: the name of the parameter in its model.
            weight: the parameter.
        """
        return self

    def global_sum_terms(self, update: Update, state: State) -> Mapping[str, Tensor]:
        """Return this weight's terms of sums over all weights: 0-dim tensors, by name.

        Runs once per step, before the first rule. The sums are in `update.notes`.

        Raises:
            ValueError: two children use the same name.
        """
        terms: dict[str, Tensor] = {}
        for index, child in enumerate(self.children):
            if not child.needs_global_sums:
                continue
            child_state = self.child_state(index, state, update.weight)
            for name, term in child.global_sum_terms(update, child_state).items():
                if name in terms:
                    raise ValueError(
                        f"{type(child).__name__}: an earlier rule has a global sum named {name!r}"
                    )
                terms[name] = check_term(child, name, term)
        return terms

    def eval_weight(self, weight: Tensor, state: State) -> Tensor:
        """Return the weight to evaluate with: the weight itself, or an average in the state.

        Example:
            >>> rule = chain(rules.StepSize(0.5), rules.WeightAverage(0.5))
            >>> weight, state = torch.tensor([1.0]), rule.init(torch.tensor([1.0]))
            >>> for _ in range(2):
            ...     weight, state = rule.step(weight, torch.tensor([1.0]), state)
            >>> weight, rule.eval_weight(weight, state)  # the mean of 0.5 and 0
            (tensor([0.]), tensor([0.2500]))
        """
        rule = self.at_last_step(state)
        for index, child in enumerate(rule.children):
            weight = child.eval_weight(weight, rule.child_state(index, state, weight))
        return weight

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        """Return the state with everything that remembers earlier weights restarted at `weight`.

        A step goes back towards such a remembered weight, and would undo what was written into the
        weight from outside. Moments and the step count continue.

        Example:
            >>> rule, weight = sn.zoo.schedulefree_sgd(lr=1.0), torch.tensor([0.0])
            >>> _, state = rule.step(weight, torch.tensor([1.0]), rule.init(weight))
            >>> rule.restart_weight_averages(torch.tensor([5.0]), state)["z"]
            tensor([5.])
        """
        rule = self.at_last_step(state)
        new_state = dict(state)
        for index in range(len(rule.children)):
            new_state |= rule.restart_child(index, weight, state)
        return new_state

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Return sentences on why this rule suits a weight badly; see `Sphere.weight_warnings`."""
        return [text for child in self.children for text in child.weight_warnings(weight)]

    # The step

    def step(
        self,
        weight: Tensor,
        grad: Tensor,
        state: State,
        global_sums: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """Take one step.

        Args:
            weight: the weight, of any shape; steps of half precision are computed in float32.
            grad: the gradient, of the weight's shape.
            state: the result of `init` or of the last step.
            global_sums: the sums of `global_sum_terms` over all weights; None if this is the only
                weight.

        Returns:
            The new weight, in the dtype of the old one, and the new state.

        Raises:
            TypeError: the weight is complex or integer, or the gradient is complex.
            ValueError: the gradient has another shape, the state has other keys, or a rule returns
                a tensor of another shape or other states.
        """
        update = make_checked_update(self, weight, grad, state)
        with without_autocast(weight.device):
            rule = self.at_next_step(state)
            if rule.needs_global_sums:
                if global_sums is None:
                    global_sums = sum_over_weights([(rule, update, state)])
                update = update.replace(notes=_copy_sums_to(global_sums, weight.device))
            if STEP_KEY in state:
                state = {**state, STEP_KEY: state[STEP_KEY] + 1}
            update, changes = _run_update(rule, update, dict(state))
            new_state = {**state, **changes}
            tangents = {key: new_state[key] for key in rule.tangent_keys}
            new_weight, new_tangents = rule.manifold.move(update.weight, update.direction, tangents)
            for key, value in new_tangents.items():
                new_state[key] = cast_like_checked(new_state[key], value, "a tangent vector", key)
            for key, value in new_state.items():
                # Momentum of 0 returns the gradient itself, into which training loops write.
                if shares_memory(value, update.weight) or shares_memory(value, update.grad):
                    new_state[key] = value.clone()
            if new_weight.dtype is not weight.dtype:
                new_weight = new_weight.to(weight.dtype)
        return new_weight, new_state

    # Schedules among the hyper-parameters

    @cached_property
    def is_scheduled(self) -> bool:
        """True if a hyper-parameter of this rule or of a rule inside it is a schedule."""
        if any(is_scheduled(getattr(self, item.name)) for item in fields(self)):
            return True
        return any(child.is_scheduled for child in self.children)

    def at_step(self, t: Scalar) -> Self:
        """Return the rule of step t, with numbers in the place of schedules.

        `step` does so at the step count of the weight, and an optimizer at the one of the
        param_group.

        Args:
            t: the step, from 1: a number, or a tensor, whose values are not checked.

        Raises:
            ValueError: a hyper-parameter is outside its interval at step t.

        Example:
            >>> rule = sn.chain(sn.rules.StepSize(sn.schedule.cosine(1.0, steps=4)))
            >>> rule.at_step(3).rules
            (StepSize(lr=0.5),)
        """
        if not self.is_scheduled:
            return self
        if is_compiling():
            values = {item.name: _value_at(getattr(self, item.name), t) for item in fields(self)}
            return dataclasses.replace(self, **values)
        copy = object.__new__(type(self))
        attributes = copy.__dict__
        attributes.update(self._unscheduled_attributes)
        for name, value, zero_is_ordinary in self._scheduled_fields:
            attributes[name] = _value_at(value, t, zero_is_ordinary)
        if self._fields_checked_per_step and not isinstance(t, Tensor):
            check_fields(copy, self._fields_checked_per_step)
        if "state_keys" not in attributes:
            self._unscheduled_attributes.update(
                (name, getattr(copy, name)) for name in _KEY_PROPERTIES
            )
        return copy

    @cached_property
    def _scheduled_fields(self) -> list[tuple[str, Any, bool]]:
        """The fields with a schedule inside: name, value, and whether 0 is a number as others."""
        result = []
        for item in fields(self):
            value = getattr(self, item.name)
            parts = value if type(value) is tuple else (value,)
            has_scheduled_rule = any(isinstance(x, Rule) and x.is_scheduled for x in parts)
            if has_scheduled_rule or is_scheduled(value):
                zero_is_ordinary = item.metadata.get("zero_is_ordinary", False)
                result.append((item.name, value, zero_is_ordinary))
        return result

    @cached_property
    def _fields_checked_per_step(self) -> list[str]:
        """The fields whose schedules cannot be checked for all steps at once."""
        return [name for name, value, _ in self._scheduled_fields if not is_checked_at_once(value)]

    @cached_property
    def _unscheduled_attributes(self) -> dict[str, Any]:
        """The attributes that are the same at all steps; `at_step` adds the keys of the state.

        `state_names` cannot depend on the numbers of a schedule, which refuses comparisons, and
        which at 0 is a tensor.
        """
        scheduled_names = [name for name, _, _ in self._scheduled_fields]
        attributes = {name: x for name, x in vars(self).items() if name not in scheduled_names}
        for name in list(attributes):
            if isinstance(getattr(type(self), name, None), cached_property):
                del attributes[name]
        attributes["is_scheduled"] = False
        return attributes if self.children else {**attributes, "children": ()}

    def at_next_step(self, state: State) -> Self:
        """Return the rule of the step that follows a state; see `at_step`."""
        return self.at_step(state[STEP_KEY] + 1) if self.is_scheduled else self

    def at_last_step(self, state: State) -> Self:
        """Return the rule of the step that led to a state; see `at_step`."""
        return self.at_step(state[STEP_KEY].clamp(min=1)) if self.is_scheduled else self

    # Children, numbered in the order of the fields

    @cached_property
    def children(self) -> tuple[Rule, ...]:
        """The rules among the fields, in order; each rule of a tuple is one child."""
        result: list[Rule] = []
        for item in fields(self):
            value = getattr(self, item.name)
            candidates = value if type(value) is tuple else (value,)
            result.extend(rule for rule in candidates if isinstance(rule, Rule))
        return tuple(result)

    def walk(self) -> Iterator[Rule]:
        """Iterate over this rule and all rules inside it, outer rules first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def init_child(self, index: int, weight: Tensor) -> State:
        """Return the initial state of a child, under the keys of this rule's state."""
        keys = self.child_keys[index]
        state = initial_state(self.children[index], weight)
        return {keys[child_key]: value for child_key, value in state.items()}

    def update_child(self, index: int, update: Update, state: State) -> tuple[Update, State]:
        """Run a child; return the update after it, and its new states under this rule's keys.

        Raises:
            ValueError: the child returns other states than its own, or another shape.
        """
        child_state = self.child_state(index, state, update.weight)
        update, changes = _run_update(self.children[index], update, child_state)
        keys = self.child_keys[index]
        return update, {keys[child_key]: value for child_key, value in changes.items()}

    def restart_child(self, index: int, weight: Tensor, state: State) -> State:
        """Return `restart_weight_averages` of a child, under the keys of this rule's state."""
        child_state = self.child_state(index, state, weight)
        child_state = self.children[index].restart_weight_averages(weight, child_state)
        keys = self.child_keys[index]
        return {keys[child_key]: value for child_key, value in child_state.items()}

    def child_state(self, index: int, state: State, weight: Tensor) -> State:
        """Return a child's part of this rule's state, under the child's own keys."""
        if index >= len(self.child_keys):
            names = ", ".join(type(child).__name__ for child in self.children)
            raise IndexError(
                f"{type(self).__name__} has no child rule {index}; its children are ({names}), "
                "numbered from 0 in the order of the fields"
            )
        return {child_key: state[key] for child_key, key in self.child_keys[index].items()}

    # Keys of the state

    @cached_property
    def state_keys(self) -> tuple[str, ...]:
        """The keys of the state: "step", this rule's `state_names`, then the children's states."""
        names = self.state_names
        if len(set(names)) < len(names):
            raise ValueError(f"{type(self).__name__}: state_names has a name twice: {names}")
        keys = [*names]
        for child_keys in self.child_keys:
            keys.extend(child_keys.values())
        if self.is_scheduled:
            keys.append(STEP_KEY)
        unique = dict.fromkeys(keys)  # children share "step"
        return tuple(sorted(unique, key=lambda key: key != STEP_KEY))

    @cached_property
    def tangent_keys(self) -> tuple[str, ...]:
        """The keys of the states that are tangent vectors, including those of the children."""
        keys = [*self.tangent_names]
        for child, child_keys in zip(self.children, self.child_keys, strict=True):
            keys.extend(child_keys[key] for key in child.tangent_keys)
        return tuple(keys)

    @cached_property
    def optional_keys(self) -> tuple[str, ...]:
        """The keys of the states that no step reads, including those of the children."""
        keys = [*self.optional_names]
        for child, child_keys in zip(self.children, self.child_keys, strict=True):
            keys.extend(child_keys[key] for key in child.optional_keys)
        return tuple(keys)

    @cached_property
    def shared_keys(self) -> dict[str, tuple[str, ...]]:
        """The keys of the states that all weights share, by the class of the rule that has them."""
        shared = {type(self).__qualname__: self.shared_names} if self.shared_names else {}
        for child, child_keys in zip(self.children, self.child_keys, strict=True):
            for rule_class, keys in child.shared_keys.items():
                shared[rule_class] = tuple(child_keys[key] for key in keys)
        return shared

    @cached_property
    def child_keys(self) -> tuple[dict[str, str], ...]:
        """For each child, a dict from the keys of its state to the keys of this rule's state.

        A child's `name` is a prefix of its keys. If an earlier rule has one of the keys, all keys
        of the child get a number: `exp_avg_2`. So a rule that is appended changes no key.
        """
        used = set(self.state_names)
        result = []
        for child in self.children:
            prefix = f"{child.name}_" if child.name else ""
            plain_keys = {key: prefix + key for key in child.state_keys if key != STEP_KEY}
            keys, number = plain_keys, 1
            while not used.isdisjoint(keys.values()):
                number += 1
                keys = {key: f"{plain_key}_{number}" for key, plain_key in plain_keys.items()}
            used.update(keys.values())
            counter = {STEP_KEY: STEP_KEY} if STEP_KEY in child.state_keys else {}
            result.append({**counter, **keys})
        return tuple(result)

    @cached_property
    def needs_global_sums(self) -> bool:
        """True if this rule or a rule inside it has global sums."""
        return any(type(r).global_sum_terms is not Rule.global_sum_terms for r in self.walk())

    @cached_property
    def has_eval_weight(self) -> bool:
        """True if the weight to evaluate with may differ from the weight itself."""
        return any(type(r).eval_weight is not Rule.eval_weight for r in self.walk())


@dataclass(frozen=True)
class Chain(Rule):
    """Rules that run one after another, and a manifold; `chain` makes one.

    Attributes:
        rules: the rules in the order in which they run.
        manifold: moves the weight by minus the direction of the last rule; None becomes
            `Euclidean()`.

    Example:
        >>> rule = sn.recipes.adamp()
        >>> rule.rules[0], rule.rules[-1], rule.manifold
        (AdaptiveMoments(...), StepSize(lr=0.001), Euclidean())
    """

    rules: tuple[Rule, ...]
    # torch.compile accepts no object as a default before torch 2.13.
    manifold: Manifold = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.manifold is None:
            object.__setattr__(self, "manifold", EUCLIDEAN)
        if not isinstance(self.manifold, Manifold):
            raise TypeError(
                f'chain: manifold must be like Sphere("channel"), got {self.manifold!r}'
            )
        for rule in self.rules:
            if isinstance(rule, type):
                raise TypeError(f"chain takes rules, got {rule!r}; write {rule.__name__}()")
            if not isinstance(rule, Rule):
                raise TypeError(f"chain takes rules, got {rule!r}")
        super().__post_init__()
        if self.manifold != EUCLIDEAN:
            for rule in self.walk():
                if rule.needs_flat_space:
                    name = type(rule).__name__
                    raise ValueError(f"chain: {name} needs flat space, got {self.manifold!r}")

    @cached_property
    def children(self) -> tuple[Rule, ...]:
        return self.rules

    def init(self, weight: Tensor) -> State:
        check_shape(self.manifold, weight)
        return super().init(weight)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        changes: State = {}
        for index in range(len(self.children)):
            update, child_changes = self.update_child(index, update, state)
            changes |= child_changes
        return update, changes

    def weight_warnings(self, weight: Tensor) -> list[str]:
        texts = weight_warnings(self.manifold, weight) + super().weight_warnings(weight)
        return list(dict.fromkeys(texts))  # an inner chain may have the same manifold


def chain(*rules: Rule, manifold: Manifold = EUCLIDEAN) -> Chain:
    """Compose rules: each one continues the update of the rule before it.

    The first rule receives `direction = grad`. After the last one, `manifold` moves the weight by
    minus the direction. The states of all rules are in one dict. A chain is a rule, so chains nest;
    only the outermost one has a manifold.

    Args:
        *rules: the rules in the order in which they run.
        manifold: the space of the weight; by default flat space, in which w' = w - d.

    Raises:
        TypeError: an argument is not a rule, or `manifold` is not a manifold.
        ValueError: an inner chain has a manifold of its own.

    Example:
        >>> rule = chain(rules.HeavyBall(0.9), rules.HeavyBall(0.5), rules.StepSize(0.1))
        >>> rule.state_keys
        ('momentum', 'momentum_2')
    """
    return Chain(rules, manifold)


# Parts of a step


def _initial_step_count(weight: Tensor) -> Tensor:
    """Return the step count before the first step of a weight."""
    return torch.zeros((), dtype=accumulation_dtype(weight.device), device=weight.device)


_KEY_PROPERTIES = (
    *("state_keys", "tangent_keys", "optional_keys", "shared_keys", "child_keys"),
    *("needs_global_sums", "has_eval_weight"),
)
"""The cached properties of a rule that depend on its structure alone."""


def _value_at(value: Any, t: Scalar, zero_is_ordinary: bool = True) -> Any:
    """Return the value of a field at step t: numbers for schedules, rules at t for rules."""
    if isinstance(value, Schedule):
        number = value(t)
        if zero_is_ordinary or not is_zero(number):
            return number
        # At a Python number 0 the rule may lack a state that it has at all other steps.
        return torch.zeros((), dtype=torch.float64, device="cpu")
    if type(value) in (tuple, list):
        return type(value)([_value_at(item, t, zero_is_ordinary) for item in value])
    return value.at_step(t) if isinstance(value, Rule) else value


def make_checked_update(rule: Rule, weight: Tensor, grad: Tensor, state: State) -> Update:
    """Check the arguments of `Rule.step`, and return the update that the first rule receives."""
    refuse_unless_real(weight, "weight")
    if not isinstance(grad, Tensor):
        raise TypeError(f"grad must be a real tensor, got {type(grad).__name__}")
    if grad.is_complex():
        raise TypeError(f"grad must be a real tensor, got complex ({grad.dtype})")
    if grad.shape != weight.shape:
        raise ValueError(
            f"grad must have the weight's shape {tuple(weight.shape)}, got {tuple(grad.shape)}"
        )
    if state.keys() != set(rule.state_keys):
        keys = sorted(rule.state_keys)
        raise ValueError(f"{type(rule).__name__}: the state must have {keys}, got {sorted(state)}")
    weight = to_compute_dtype(weight)
    if grad.dtype is not weight.dtype:
        grad = grad.to(weight.dtype)
    return Update(weight, grad, grad)


def _copy_sums_to(global_sums: Mapping[str, Tensor], device: torch.device) -> State:
    """Return a copy of the sums on the device of a weight; they may lie on another weight's."""
    return {
        name: total if total.device == device else to_accumulation_dtype(total, device)
        for name, total in global_sums.items()
    }


def _run_update(rule: Rule, update: Update, state: State) -> tuple[Update, State]:
    """Call `rule.update`, check the result, and return it in the dtypes of the arguments.

    The step count is float64 and promotes 0-dim tensors of other dtypes.
    """
    name = type(rule).__name__
    result = (
        rule.update(update, state)
        if is_compiling()
        else _call_update_with_key_hint(rule, update, state)
    )
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], Update):
        parts = result if isinstance(result, tuple) else (result,)
        types = ", ".join(type(part).__name__ for part in parts)  # values of tensors are long
        raise TypeError(f"{name}: update must return (update, state), it returned {types}")
    new_update, changes = result
    if (changes.keys() ^ state.keys()) - {STEP_KEY}:
        raise ValueError(
            f"{name}: update returns the states {sorted(changes)}, its states are {sorted(state)}"
        )
    if new_update.weight is not update.weight or new_update.grad is not update.grad:
        raise ValueError(f"{name}: update may change only the direction, not weight or gradient")
    new_states = {
        key: cast_like_checked(state[key], value, name, key)
        for key, value in changes.items()
        if key != STEP_KEY
    }
    direction = cast_like_checked(update.weight, new_update.direction, name, "the direction")
    if direction is not new_update.direction:
        new_update = new_update.replace(direction=direction, rate=new_update.rate)
    return new_update, new_states


def _call_update_with_key_hint(rule: Rule, update: Update, state: State) -> tuple[Update, State]:
    """Call `rule.update`, and add the known names to the message of a KeyError."""
    try:
        return rule.update(update, state)
    except KeyError as error:
        if isinstance(error.__cause__, KeyError):  # a rule inside this one has added its names
            raise
        raise KeyError(
            f"{type(rule).__name__} reads {error}; its states are {sorted(state)}, the notes are "
            f"{sorted(update.notes)}"
        ) from error


class InPlaceError(ValueError):
    """A rule writes into its arguments."""


def initial_state(rule: Rule, weight: Tensor) -> State:
    """Return `rule.init(weight)` in the dtype of the step, in memory of its own.

    Raises:
        TypeError: `init` returns other states than `state_names`.
    """
    weight = to_compute_dtype(weight)
    with without_autocast(weight.device):
        state = rule.at_step(1).init(weight)
    if rule.is_scheduled and STEP_KEY not in state:
        state = {
            STEP_KEY: _initial_step_count(weight),
            **state,
        }  # an `init` of a user knows of no schedule
    if state.keys() != set(rule.state_keys):
        keys = sorted(rule.state_keys)
        raise TypeError(f"{type(rule).__name__}: init returns {sorted(state)} instead of {keys}")
    return {k: x.clone() if shares_memory(x, weight) else x for k, x in state.items()}


def initial_state_keeping_rng(rule: Rule, weight: Tensor) -> State:
    """Return `initial_state` without advancing the random generators, for a check."""
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return initial_state(rule, weight)
