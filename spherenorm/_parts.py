"""Rules within rules: which they are, and where their states lie in one dict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Self

from spherenorm._annotations import annotated_names
from spherenorm._fields import Checked, derived

COUNTER = "step"
"""The state that counts steps from 1, in float64 (where the device has it), shared by all rules."""


@dataclass(frozen=True)
class Parts(Checked):
    """A rule as a part of others: its states by name, those of the rules within it included.

    Attributes:
        name: put before the names of this rule's states, to tell them from another rule's.
    """

    name: str | None = field(default=None, kw_only=True, repr=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in annotated_names(cls):
            raise TypeError(f"{cls.__name__}: the field `name` tells a rule's states apart")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of this rule's own states; see the class."""
        return ()

    @property
    def tangent_names(self) -> tuple[str, ...]:
        """Those of its own states that are tangent vectors."""
        return ()

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Those of its own states that are one number for all weights; see the class."""
        return ()

    @property
    def shared_fields(self) -> tuple[str, ...]:
        """The fields on which these states depend, in which all weights must agree."""
        return ()

    @derived
    def within(self) -> tuple[Self, ...]:
        """The rules among the fields, in order, those of a tuple one by one."""
        values = [getattr(self, each.name) for each in fields(self)]
        each = [x for value in values for x in (value if type(value) is tuple else (value,))]
        return tuple(x for x in each if isinstance(x, Parts))  # type: ignore[misc]

    def tree(self) -> Iterator[Self]:
        """This rule and all rules within it, the outer ones first."""
        yield self
        for rule in self.within:
            yield from rule.tree()

    @derived
    def keys(self) -> tuple[str, ...]:
        """The keys of the state: the counter, this rule's own, those of the rules within it."""
        if len({*self.state_names}) < len(self.state_names):
            twice = f"state_names has a name twice: {self.state_names}"
            raise ValueError(f"{type(self).__name__}: {twice}")
        inner = [key for rule in self.within for key in self.outer[id(rule)].values()]
        every = dict.fromkeys((*self.state_names, *inner))
        return tuple(sorted(every, key=lambda key: key != COUNTER))

    @derived
    def tangent_keys(self) -> tuple[str, ...]:
        """Those of `keys` that are tangent vectors."""
        outer = [[self.outer[id(r)][key] for key in r.tangent_keys] for r in self.within]
        return (*self.tangent_names, *(key for keys in outer for key in keys))

    @derived
    def shared_keys(self) -> dict[str, tuple[str, ...]]:
        """Those of `keys` that all weights share, by the class of the rule that has them."""
        shared = {type(self).__qualname__: self.shared_names} if self.shared_names else {}
        for rule in self.within:
            outer = self.outer[id(rule)]
            for owner, keys in rule.shared_keys.items():
                shared[owner] = tuple(outer[key] for key in keys)
        return shared

    @derived
    def outer(self) -> dict[int, dict[str, str]]:
        """By the id of a rule within this one: its keys, and this rule's keys for them.

        A rule's `name` comes before its keys. Where an earlier rule has one of them, all keys of
        the rule get a number behind: `exp_avg_2`. So a rule that is added behind changes no key.
        """
        taken = {*self.state_names}
        found: dict[int, dict[str, str]] = {}
        for rule in self.within:
            if id(rule) in found:
                alone = "give each place a rule of its own"
                raise ValueError(f"{type(self).__name__} holds one rule object twice; {alone}")
            own = [key for key in rule.keys if key != COUNTER]
            named = {key: f"{rule.name}_{key}" if rule.name else key for key in own}
            number, keys = 1, named
            while not taken.isdisjoint(keys.values()):
                number += 1
                keys = {key: f"{outer}_{number}" for key, outer in named.items()}
            taken.update(keys.values())
            found[id(rule)] = {COUNTER: COUNTER, **keys} if COUNTER in rule.keys else keys
        return found
