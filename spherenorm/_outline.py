"""Outlines: the facts that a step reads of a rule alone, once for each rule."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from spherenorm._tree import Node, Part, keys_within

_members = operator.attrgetter(
    *("init", "measure", "after", "update", "transport", "children", "keys", "held"),
    *("own_names", "state_names"),
)
"""The members that an outline reads of a class."""


class Outline:
    """The facts that a step reads of a rule alone: its hooks, and the places of its states.

    Attributes:
        in_order: see `Node.in_order`.
        measures: the rule, or one within it, defines `measure`.
        moves_on: one of them defines `after`.
        transports: one of them defines `transport`, which then is called in flat space, too.
        lasting: `is_current` notices every change. Rules in a list or a dict change unseen, and so
            do those in slots, and those that a class finds by a `children` of its own.
    """

    def __init__(self, rule: Node) -> None:
        nodes = list(rule.tree())
        self.in_order = rule.in_order
        self.measures = any(each.defines("measure") for each in nodes)
        self.moves_on = any(each.defines("after") for each in nodes)
        self.transports = any(each.moves_states for each in nodes)
        self.lasting = False
        self._within = nodes[1:]  # not the rule, which lives no longer for its outline
        self._parts: dict[Any, Sequence[Part]] = {}
        if not is_compiling():
            self.lasting = all(map(_tells_its_rules, nodes))
            self._naming = [number for number, node in enumerate(nodes) if _decides_names(node)]
            self._fields, self._facts = self._read(rule)

    def is_current(self, rule: Node) -> bool:
        """True if the rule and those within it have the same fields, hooks and states as before."""
        fields, facts = self._read(rule)
        same = len(fields) == len(self._fields) and all(map(operator.is_, fields, self._fields))
        return same and facts == self._facts

    def _read(self, rule: Node) -> tuple[list[Any], list[Any]]:
        """The values of all fields; the hooks of all classes, and the names of states."""
        nodes = [rule, *self._within]
        fields = [*chain.from_iterable(map(dict.values, map(vars, nodes)))]
        return fields, [
            *map(_members, map(type, nodes)),
            *[nodes[i].own_names for i in self._naming],
        ]

    def parts(self, rule: Node, weight: Tensor) -> Sequence[Part]:
        """The rules that a step of a weight applies: those of a chain, or the rule itself."""
        kind = weight.shape, weight.dtype
        if type(kind[0]) is not torch.Size:  # sizes that follow what is asked of them
            return _parts(rule, weight)
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = _parts(rule, weight)
        return found


def _parts(rule: Node, weight: Tensor) -> Sequence[Part]:
    if rule.in_order:
        return rule.held(weight)
    return (Part(rule, {key: key for key in keys_within(rule, weight)}),)


def _tells_its_rules(node: Node) -> bool:
    """True if the rules within a rule change with the values of its fields alone."""
    in_fields = type(node).children is Node.children and not hasattr(node, "__slots__")
    return in_fields and _is_settled(tuple(vars(node).values()))


def _decides_names(node: Node) -> bool:
    """True if code computes the names of a rule's states, from what may change."""
    cls = type(node)
    settled = cls.state_names is Node.state_names or isinstance(cls.state_names, tuple)
    return not (settled and cls.own_names is Node.own_names)


def _is_settled(value: Any) -> bool:
    """False for a list or a dict, or a value that holds one: rules may be put into it later."""
    if isinstance(value, tuple):
        return all(map(_is_settled, value))
    return not isinstance(value, list | dict)


_outlines: dict[int, tuple[weakref.ref[Node], Outline]] = {}
"""By `id(rule)`, as long as the rule lives."""


def outline_of(rule: Node) -> Outline:
    """The outline of a rule, made anew where the rule has changed."""
    if is_compiling():
        return Outline(rule)
    place = id(rule)
    found = _outlines.get(place)
    if found is not None and found[1].is_current(rule):
        return found[1]

    def forget(_: object, kept: dict[int, Any] = _outlines) -> None:  # also when Python ends
        kept.pop(place, None)

    outline = Outline(rule)
    if outline.lasting:
        _outlines[place] = weakref.ref(rule, forget), outline
    return outline
