"""Steps by a rule's own code, which may not write into its arguments."""

from __future__ import annotations

from dataclasses import is_dataclass
from operator import is_
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from spherenorm._rule import Rule, State
from spherenorm._step import Measured
from spherenorm._tree import Node
from spherenorm._watch import Watched
from spherenorm.compile._backends import Work

__all__ = ["Identity", "OwnSteps"]

MOST_KINDS = 1024
"""Kinds of weights of which it is remembered that a rule did not write into its arguments."""


class OwnSteps:
    """Steps weights by their rules' own code, and refuses a rule that writes into its arguments."""

    def __init__(self) -> None:
        self._proven: set[tuple[Identity, torch.Size, torch.dtype]] = set()
        """Kinds of weights that a rule has stepped without writing into its arguments."""
        self._firsts: dict[Identity, Identity] = {}
        """For each identity the first one equal to it; an object equals itself at no cost."""
        self._last: tuple[Identity | None, Identity | None] = None, None
        """The identity of the weight before, and the first one equal to it."""

    def step(
        self, rule: Rule, identity: Identity | None, work: Work, measured: Measured | None
    ) -> tuple[Tensor, State]:
        """The new weight and state. A write at the first weight of a kind is undone.

        Args:
            rule: steps the weight.
            identity: of the rule; None: it is read here.
            work: the weight, its gradient and its state.
            measured: of all weights; see `Rule.step`.

        Raises:
            ValueError: the rule writes into its arguments.
            Exception: of any type, which the rule raises.
        """
        kind = self._first(identity or Identity(rule)), work.weight.shape, work.weight.dtype
        if kind in self._proven:
            return rule.step(work.weight, work.grad, work.state, measured)
        given = [
            (x, x.clone(), Watched([x])) for x in (work.weight, work.grad, *work.state.values())
        ]
        try:
            result = rule.step(work.weight, work.grad, work.state, measured)
        finally:
            for x, before, watched in given:
                if watched.written() is not None:
                    x.copy_(before)
        if len(self._proven) >= MOST_KINDS:  # a rule keeps changing
            self._proven.clear()
            self._firsts.clear()
        self._proven.add(kind)
        return result

    def _first(self, identity: Identity) -> Identity:
        last, first = self._last
        if first is None or identity is not last:
            first = self._firsts.setdefault(identity, identity)
            self._last = identity, first
        return first


class Identity:
    """All that decides if a rule writes into its arguments: everything in it but its numbers.

    It reads the settings of a rule and of those within it, and the code of their classes.
    """

    __slots__ = ("_code", "_hash", "_settings")

    def __init__(self, rule: Rule) -> None:
        nodes = list(rule.tree())
        self._settings = tuple(_settings(each) for each in nodes)
        classes = dict.fromkeys(cls for each in nodes for cls in type(each).__mro__[:-1])
        members = [member for cls in classes for member in vars(cls).values()]
        self._code = [getattr(member, "__code__", member) for member in members]
        self._hash = hash(self._settings)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return NotImplemented
        same = self is other or (
            len(self._code) == len(other._code) and all(map(is_, self._code, other._code))
        )
        return same and self._settings == other._settings


def _settings(value: Any) -> tuple[Any, ...]:
    return (type(value), *map(_setting, getattr(value, "__dict__", {}).values()))


def _setting(value: Any) -> Any:
    """A value of a rule's field, without its number: a rule may leave out the term of a 0 alone."""
    if isinstance(value, float | Tensor):
        return type(value) if isinstance(value, Tensor) or value else 0
    if isinstance(value, tuple | list):
        return tuple(map(_setting, value))
    if isinstance(value, Node) or is_dataclass(value):
        return _settings(value)
    if isinstance(value, FunctionType):
        return value.__code__
    try:
        hash(value)
    except TypeError:
        return type(value)
    return value
