"""Writes of a rule, or of one within it, into what it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm.core import Rule, Update

METHODS = "init", "measure", "update"


@contextlib.contextmanager
def writes_of(rule: Rule) -> Iterator[list[str]]:
    """Meanwhile, note each write into an argument: the class, the method, the argument.

    Values are compared, so that a write through `.data` is seen, too. Inner rules come first.
    """
    found: list[str] = []
    own: set[tuple[type, str]] = {(type(each), name) for each in rule.tree() for name in METHODS}
    own |= {(type(rule.manifold), "move")}
    before = [(cls, name, vars(cls).get(name)) for cls, name in own]
    for cls, name, _ in before:
        setattr(cls, name, _watched(getattr(cls, name), name, found))
    try:
        yield found
    finally:
        for cls, name, method in before:
            delattr(cls, name) if method is None else setattr(cls, name, method)


def _watched(method: Callable[..., Any], name: str, found: list[str]) -> Callable[..., Any]:
    def watched(rule: Any, *given: Any) -> Any:
        tensors = {what: x for each in reversed(given) for what, x in _tensors(each).items()}
        copies = {what: x.clone() for what, x in tensors.items()}
        keys = [list(each) for each in given if isinstance(each, dict)]
        result = method(rule, *given)
        where = f"{type(rule).__name__}.{name} writes into"
        found.extend(
            f"{where} {what}"
            for what, x in tensors.items()
            if not torch.equal(x.nan_to_num(), copies[what].nan_to_num())
        )
        if keys != [list(each) for each in given if isinstance(each, dict)]:
            found.append(f"{where} the dict of its state")
        return result

    return watched


def _tensors(given: Any) -> dict[str, Tensor]:
    """The tensors of an argument, by their names in messages."""
    if isinstance(given, Tensor):
        return {"the weight": given}
    if isinstance(given, Update):
        update = {"weight": given.weight, "gradient": given.grad, "direction": given.direction}
        notes = {f"update.notes[{name!r}]": x for name, x in _flat(given.notes)}
        return {f"the {name}": x for name, x in update.items()} | notes
    return {f"the state {name!r}": x for name, x in given.items()}


def _flat(notes: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in notes.items():
        for each in torch.utils._pytree.tree_leaves(value):
            if isinstance(each, Tensor):
                yield name, each
