"""Rules within rules, which keep their states in one dict."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from spherenorm._hooks import Hooks, State
from spherenorm._manifold import Retraction, Translation

COUNTER = "step"
"""The name of a chain's step counter in the state."""


@dataclass(frozen=True)
class Node(Hooks):
    """A rule as a part of others: the rules within it, and the keys of its states."""

    name: str | None = field(default=None, kw_only=True, repr=False)

    @property
    def counts(self) -> bool:
        """True if this rule's own states include the counter of steps; only a chain's may."""
        return False

    @property
    def own_names(self) -> tuple[str, ...]:
        """The keys of this rule's own states, without those of the rules that it applies."""
        return self.state_names

    @property
    def in_order(self) -> bool:
        """True if this rule's `update` only applies the rules that it holds, in order."""
        return False

    @property
    def moves_states(self) -> bool:
        """True if this rule has a `transport` of its own."""
        return type(self).transport is not Node.transport

    def children(self) -> Iterator[Node]:
        """The rules among the fields and attributes, in order."""
        values = list(vars(self).values())
        if hasattr(self, "__slots__"):
            values += (getattr(self, f.name) for f in fields(self))
        yield from _nodes(values)

    def tree(self) -> Iterator[Node]:
        """This rule and all rules within it, the outer ones first."""
        yield self
        for child in self.children():
            yield from child.tree()

    def keys(self, weight: Tensor | None) -> tuple[str, ...]:
        """The keys of the state of a weight.

        Args:
            weight: of the shape that matters; None where no rule's keys depend on it.
        """
        cls = type(self)
        if cls.state_names is Hooks.state_names and cls.init is not Hooks.init:
            return _keys_of_init(self, weight)
        return tuple(self.state_names)

    def held(self, weight: Tensor | None) -> list[Part]:
        """The rules within this one whose states are among its own."""
        children = list(self.children())
        own = set(self.keys(weight)) if children else set()
        keys = [child.keys(weight) for child in children]
        both = zip(children, keys, strict=True)
        return [
            Part(child, {k: k for k in names}) for child, names in both if own.issuperset(names)
        ]

    def held_for(self, hook: str, weight: Tensor) -> list[Part]:
        """As `held`, where a hook of this rule is called for the rules within it.

        Raises:
            TypeError: a rule within this one has the hook, and states of which this one does not
                tell where they are, so that it would not be called.
        """
        held = self.held(weight)
        for child in self.children():
            lost = all(part.rule is not child for part in held)
            if lost and any(each.defines(hook) for each in child.tree()):
                own, inner = type(self).__name__, type(child).__name__
                raise TypeError(
                    f"{own}: {hook} of {inner} has no effect, since the states of {inner} are not "
                    f"among those of {own} under their names; derive {own} from Combination"
                )
        return held

    def transport(self, state: State, retraction: Retraction) -> State:
        """The entries of the state that change because the weight moved: its tangent vectors.

        They are those of this rule and of the rules within it whose state it holds.
        """
        own = {name: retraction.transport(state[name]) for name in self.tangent_names}
        if not (own or isinstance(retraction, Translation)):
            self.held_for("tangent_names", retraction.weight)
        return self.transport_held(state, retraction) | own

    def transport_held(self, state: State, retraction: Retraction) -> State:
        """As `transport`, of the rules within this one alone."""
        moved: State = {}
        for part in self.held(retraction.weight):
            moved |= part.renamed(part.rule.transport(part.own(state), retraction))
        return moved


def _nodes(value: Any) -> Iterator[Node]:
    """The rules in a value, however its lists, tuples and dicts nest."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple | list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _nodes(each)


@dataclass(frozen=True)
class Part:
    """A rule within another one, and its place in that one's state.

    Attributes:
        rule: the inner rule.
        keys: the key in the outer rule's state, for each key of the inner one's.
        place: counted from 1 in a chain; 0 elsewhere.
    """

    rule: Node
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


def parts_apart(taken: Iterable[str], rules: Iterable[Node], weight: Tensor | None) -> list[Part]:
    """The places of rules that keep their states in one dict, so that no two share a key.

    A rule's `name` comes before its keys. Where an earlier rule has one of them, all keys of the
    rule get a number behind: `exp_avg_2`. So a rule that is added behind changes no key.

    Args:
        taken: keys that none of them may have.
        rules: in order.
        weight: the one that the state is of; None where no rule's keys depend on it.
    """
    rules = tuple(rules)
    claims = tuple((rule.name, keys_within(rule, weight)) for rule in rules)
    keys_apart: Any = _keys_apart
    if torch.compiler.is_compiling():  # Dynamo warns of a cache, which it does not use
        keys_apart = _keys_apart.__wrapped__
    keys = keys_apart(tuple(taken), claims)
    return [Part(*pair, place) for place, pair in enumerate(zip(rules, keys, strict=True), 1)]


@functools.lru_cache(1024)
def _keys_apart(
    taken: tuple[str, ...], claims: tuple[tuple[str | None, tuple[str, ...]], ...]
) -> list[dict[str, str]]:
    """The outer keys for the keys of each rule, by the rules' names; see `parts_apart`."""
    used, found = set(taken), []
    for name, own in claims:
        named = {key: f"{name}_{key}" if name else key for key in own}
        number, keys = 1, named
        while not used.isdisjoint(keys.values()):
            number += 1
            keys = {key: f"{outer}_{number}" for key, outer in named.items()}
        used.update(keys.values())
        found.append(keys)
    return found


def refuse_renamed(old: Iterable[str], new: Iterable[str]) -> None:
    """Refuse other keys of a state if numbers behind them may now belong to other rules.

    Where a rule comes or goes, "momentum" may become "momentum_2" or the other way round.

    Raises:
        ValueError: a key has come or gone, and one that stays differs in the number only.
    """
    old, new = set(old), set(new)
    stay = {_unnumbered(key) for key in old & new}
    if any(_unnumbered(key) in stay for key in old ^ new):
        both = f"the state holds {sorted(old)}, the rule's is {sorted(new)}"
        name = 'such as HeavyBall(0.9, name="slow")'
        raise ValueError(
            f"{both}, and the numbers do not tell which rule has come or gone. Give rules of one "
            f"kind a name, {name}, and start with a new state"
        )


def _unnumbered(key: str) -> str:
    return re.sub(r"(_\d+)+$", "", key)


def keys_within(rule: Node, weight: Tensor | None) -> tuple[str, ...]:
    """The keys of an inner rule's state, without the counter, which the outermost chain keeps."""
    keys = rule.keys(weight)
    return tuple(key for key in keys if key != COUNTER) if rule.counts else keys


def _keys_of_init(rule: Node, weight: Tensor | None) -> tuple[str, ...]:
    """The keys of the state that a rule's `init` makes for weights of one shape.

    `init` runs once per shape, on a tensor without memory. An `init` that such a
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
    noted = [x for node in rule.tree() for x in (type(node).init, *vars(node).values())]
    found = _tried.get(place)
    if found is None or not (len(found[1]) == len(noted) and all(map(is_, found[1], noted))):

        def forget(_: object, kept: dict[int, Any] = _tried) -> None:  # also when Python ends
            kept.pop(place, None)

        found = weakref.ref(rule, forget), noted, {}
        _tried[place] = found
    known = found[2]
    # Apart from the modes of a recorder, which would take this for a part of the step.
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        kind = weight.shape, weight.dtype
        if kind not in known:
            try:
                empty = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
                known[kind] = tuple(rule.init(empty))
            except (RuntimeError, NotImplementedError):
                zero = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
                known[kind] = tuple(init_apart(rule, zero))
        return known[kind]


_tried: dict[int, tuple[weakref.ref[Node], list[Any], dict[Any, tuple[str, ...]]]] = {}
"""The keys that were found, by `id(rule)`, as long as the rule lives, and its fields then."""


def init_apart(rule: Node, weight: Tensor) -> State:
    """`rule.init(weight)`, which leaves the states of the random generators as they were."""
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        return rule.init(weight)
