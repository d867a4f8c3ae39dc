"""The watch over a step: writes into what a rule is given are found, and the rule is named."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling

from spherenorm._hooks import State
from spherenorm._tree import Part
from spherenorm._update import Update

T = TypeVar("T")


class InPlaceError(ValueError):
    """A rule writes into its arguments; the message says into which."""


class Watched:
    """Tensors that rules are given, and may not write into."""

    def __init__(self, given: Iterable[Any]) -> None:
        self._tensors, self._count = _tensors(given), _counter()
        self._versions = self._count(self._tensors)

    def add(self, after: Update, before: Update) -> None:
        """Watch what a rule hands on, too."""
        fresh = [after.direction] if after.direction is not before.direction else []
        if after.notes is not before.notes:
            fresh += _within(after.notes)
        if fresh:
            self.watch(fresh)

    def watch(self, tensors: Sequence[Tensor]) -> None:
        """Watch further tensors."""
        self._tensors += tensors
        self._versions += self._count(tensors)

    def written(self) -> Tensor | None:
        """The first tensor that was written into."""
        behind = self._count(self._tensors)
        if behind == self._versions:
            return None
        both = zip(self._tensors, self._versions, behind, strict=True)
        return next(x for x, before, later in both if before != later)


def called(part: Part, hook: Callable[..., T], *given: Any, watched: Watched | None = None) -> T:
    """The result of a rule's hook.

    Args:
        part: the rule.
        hook: its method.
        *given: the hook's arguments.
        watched: the tensors among them, and others; None: they are read from `given`.

    Raises:
        InPlaceError: the rule writes into one of them.
    """
    watched = watched or Watched(given)
    try:
        result = hook(*given)
    except RuntimeError as error:
        if is_refusal(error):
            raise InPlaceError(f"{part}: the rule writes in place; {INSTEAD}: {error}") from error
        raise
    written = watched.written()
    if written is not None:
        both = zip(_names(given), _tensors(given), strict=True)
        what = next((name for name, x in both if x is written), "what other rules are given")
        raise InPlaceError(f"{part}: the rule writes into {what}; {INSTEAD}")
    return result


def is_refusal(error: BaseException) -> bool:
    """True if torch itself refuses a write."""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _IN_PLACE)


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    """The tensors that a hook is given."""
    found: list[Tensor] = []
    for each in given:
        if type(each) is dict:
            found += each.values()
        elif isinstance(each, Update):
            found += each.weight, each.grad, each.direction
            if each.count is not None:
                found.append(each.count)
            for held in (each.notes, each.shared):
                if held:
                    found += _within(held)
        else:
            found += (each,) if isinstance(each, Tensor) else each.values()
    return found


def _within(value: Any) -> list[Tensor]:
    """The tensors in a note, however its lists, tuples and dicts nest."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for each in value for tensor in _within(each)]


def _names(given: Iterable[Any]) -> list[str]:
    """The names in messages of the tensors that a hook is given, in the same order."""
    names: list[str] = []
    for each in given:
        if isinstance(each, Update):
            names += ("the weight", "the gradient", "the direction")
            named = {"update.step": each.count}
            named |= {f"update.notes[{key!r}]": x for key, x in each.notes.items()}
            named |= {f"update.shared[{key!r}]": x for key, x in each.shared.items()}
            names += [name for name, x in named.items() for _ in _within(x)]
        else:
            whole = isinstance(each, Tensor)
            names += ["the weight"] if whole else [f"the state {key!r}" for key in each]
    return names


def copy_shared(state: State, one: Tensor, other: Tensor) -> None:
    """Copy the entries of a state that are one of two tensors or a view of it, as far as known."""
    alias = operator.is_ if is_compiling() else _shares_memory
    for name, value in state.items():
        if alias(value, one) or alias(value, other):
            state[name] = value.clone()


_shares_memory: Callable[[Tensor, Tensor], bool]
_shares_memory = torch._C._is_alias_of  # type: ignore[attr-defined]
INSTEAD = "return new tensors instead"
_IN_PLACE = ("in-place", "inplace", "written-to tensor")
"""Words of torch's messages about writes that it refuses, most of them under its transforms."""


def _counter() -> Callable[[Sequence[Tensor]], list[int]]:
    """The way to count writes here and now."""
    if is_compiling():
        return lambda tensors: [0] * len(tensors)
    return _versions if peek_interpreter_stack() is None else _versions_of_any


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    try:
        return [x._version for x in tensors]
    except RuntimeError:  # a tensor of inference mode has none
        return _versions_of_any(tensors)


def _versions_of_any(tensors: Sequence[Tensor]) -> list[int]:
    return [_version(x) for x in tensors]


def _version(x: Tensor) -> int:
    """A count of the writes into the memory of `x`, as far as it is known."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):  # which has a count of its own
        x = torch._C._functorch.get_unwrapped(x)
    return 0 if x.is_inference() else x._version
