"""Outlines: the facts that a step reads of a rule alone, once for each rule."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._tree import Node, Part, keys_within

__all__ = ["Outline", "outline_of"]

_members = operator.attrgetter(
    *("init", "measure", "after", "update", "transport", "children", "keys", "held")
)
"""The members that an outline reads of a class."""


class Outline:
    """The facts that a step reads of a rule alone: its hooks, and the places of its states.

    Attributes:
        measures: the rule, or one within it, defines `measure`.
        moves_on: one of them defines `after`.
        transports: one of them defines `transport`, which then is called in flat space, too.
        lasting: `is_current` notices every change. Rules in a list or a dict change unseen, and so
            do those in slots, and those that a class finds by a `children` of its own.
    """

    def __init__(self, rule: Node) -> None:
        nodes = list(rule.tree())
        self.measures = any(each.defines("measure") for each in nodes)
        self.moves_on = any(each.defines("after") for each in nodes)
        self.transports = any(each.moves_states for each in nodes)
        self.lasting = False
        self._within = nodes[1:]  # not the rule, which lives no longer for its outline
        self._parts: dict[Any, tuple[Mapping[str, str], Sequence[Part]]] = {}
        if not torch.compiler.is_compiling():
            self.lasting = all(map(_tells_its_rules, nodes))
            self._read = _read(nodes)

    def is_current(self, rule: Node) -> bool:
        """True if the rule and those within it have the same fields, hooks and states as before."""
        fields, others = _read([rule, *self._within])
        were, before = self._read
        same = len(fields) == len(were) and all(map(operator.is_, fields, were))
        return same and others == before

    def parts(self, rule: Node, weight: Tensor) -> tuple[Mapping[str, str], Sequence[Part]]:
        """The keys of the rule's state for a weight, and the rules that a chain applies."""
        if type(weight.shape) is not torch.Size:  # sizes that follow what is asked of them
            return _parts(rule, weight)
        kind = weight.shape, weight.dtype
        if kind not in self._parts:
            self._parts[kind] = _parts(rule, weight)
        return self._parts[kind]


def _parts(rule: Node, weight: Tensor) -> tuple[Mapping[str, str], Sequence[Part]]:
    keys = {key: key for key in keys_within(rule, weight)}
    return keys, rule.held(weight) if rule.in_order else ()


def _read(nodes: Sequence[Node]) -> tuple[list[Any], list[Any]]:
    """The values of all fields; the hooks of all classes, and the names of all states."""
    fields = [value for node in nodes for value in vars(node).values()]
    return fields, [(_members(type(node)), node.own_names) for node in nodes]


def _tells_its_rules(node: Node) -> bool:
    """True if the rules within a rule change with the values of its fields alone."""
    in_fields = type(node).children is Node.children and not hasattr(node, "__slots__")
    return in_fields and _is_settled(tuple(vars(node).values()))


def _is_settled(value: Any) -> bool:
    """True unless a value holds a list or a dict, or is one: other rules may come to lie there."""
    if isinstance(value, tuple):
        return all(map(_is_settled, value))
    return not isinstance(value, list | dict)


_outlines: dict[int, tuple[weakref.ref[Node], Outline]] = {}
"""By `id(rule)`, as long as the rule lives."""


def outline_of(rule: Node) -> Outline:
    """The outline of a rule, made anew where the rule has changed."""
    if torch.compiler.is_compiling():
        return Outline(rule)
    place = id(rule)
    found = _outlines.get(place)
    if found is not None and found[1].is_current(rule):
        return found[1]
    outline = Outline(rule)
    if outline.lasting:
        _outlines[place] = weakref.ref(rule, lambda _: _outlines.pop(place, None)), outline
    return outline
