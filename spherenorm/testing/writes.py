"""Writes of a rule, or of one within it, into what it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm.annotations import signature_of
from spherenorm.rule import Rule, Update
from spherenorm.torch_internals import pytree

ARGUMENTS = {
    "init": ("weight",),
    "global_sum_terms": ("update", "state"),
    "update": ("update", "state"),
    "move": ("weight", "direction", "tangents"),
}
"""The arguments of the methods that are watched; the last is a manifold's."""


@contextlib.contextmanager
def writes_of(rule: Rule) -> Iterator[list[str]]:
    """Meanwhile, note each write into an argument: the class, the method, the argument.

    Values are compared, so that a write through `.data` is seen, too. Inner rules come first.
    """
    found: list[str] = []
    *methods, move = ARGUMENTS
    own: set[tuple[type, str]] = {(type(each), name) for each in rule.walk() for name in methods}
    own |= {(type(rule.manifold), move)}
    before = [(cls, name, vars(cls).get(name)) for cls, name in own]
    for cls, name, _ in before:
        setattr(cls, name, _watched(getattr(cls, name), name, found))
    try:
        yield found
    finally:
        for cls, name, method in before:
            delattr(cls, name) if method is None else setattr(cls, name, method)


def _watched(method: Callable[..., Any], name: str, found: list[str]) -> Callable[..., Any]:
    def watched(rule: Any, *given: Any, **named: Any) -> Any:
        values = signature_of(method).bind(rule, *given, **named).args[1:]
        arguments = dict(zip(ARGUMENTS[name], values, strict=False))
        before = {what: x.clone() for what, x in _tensors(arguments).items()}
        result = method(rule, *given, **named)
        after = _tensors(arguments)
        written = [w for w, x in before.items() if w not in after or not _equal(x, after[w])]
        written += after.keys() - before.keys()
        found.extend(f"{type(rule).__name__}.{name} writes into {what}" for what in written)
        return result

    return watched


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num())


def _tensors(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of arguments, by their names in messages."""
    found: dict[str, Any] = {}
    for label, value in arguments.items():
        if isinstance(value, Update):
            found |= {"the weight": value.weight, "the gradient": value.grad}
            found["the direction"] = value.direction
            found |= {f"update.notes[{key!r}]": x for key, x in value.notes.items()}
            decided = value.invariance
            if decided is not None:
                found["update.invariance"] = (*decided.flags, *decided.squared_norms)
        elif isinstance(value, Mapping):
            found |= {f"the state {key!r}": x for key, x in value.items()}
        else:
            found[f"the {label}"] = value
    leaves = {what: pytree.tree_leaves(x) for what, x in found.items()}
    return {
        what if len(each) == 1 else f"{what}, {i}": x
        for what, each in leaves.items()
        for i, x in enumerate(each)
        if isinstance(x, Tensor)
    }
