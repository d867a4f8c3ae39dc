"""Records of what rules do in a step: writes into arguments, updates, casts to lower precision."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.rule import Chain, Rule, State, Update
from spherenorm.support import signature_of
from spherenorm.torch_internals import TorchDispatchMode, pytree

RECORDED_ARGUMENTS = {
    "init": ("weight",),
    "global_sum_terms": ("update", "state"),
    "update": ("update", "state"),
    "move": ("weight", "direction", "tangents"),
}
"""For each method whose writes are recorded, its arguments; the last is a manifold's method."""


def rule_class_of(frames: Iterable[FrameType]) -> type[Rule] | None:
    """Return the class of the first rule, other than a chain, whose method runs in one of them."""
    for frame in frames:
        owner_class = type(frame.f_locals.get("self"))
        if issubclass(owner_class, Rule) and owner_class is not Chain:
            return owner_class
    return None


# Writes of a rule into its arguments


@contextlib.contextmanager
def record_writes(rule: Rule) -> Iterator[list[str]]:
    """Record each write of a rule, or of a child rule, into an argument of its methods.

    Values are compared, so that a write through `.data` is seen, too. The writes of child rules
    come first. Classes are patched while the context is open.

    Yields:
        A list that receives a sentence for each write: the class, the method, the argument.
    """
    writes: list[str] = []
    methods: set[tuple[type, str]] = {(type(rule.manifold), "move")}
    for part in rule.walk():
        methods |= {(type(part), name) for name in RECORDED_ARGUMENTS if name != "move"}
    wraps = {
        (cls, name): functools.partial(_wrap_method, name=name, writes=writes)
        for cls, name in methods
    }
    with _patched(wraps):
        yield writes


@contextlib.contextmanager
def _patched(
    wraps: Mapping[tuple[type, str], Callable[[Callable[..., Any]], Callable[..., Any]]],
) -> Iterator[None]:
    """Replace methods of classes while the context is open.

    Args:
        wraps: functions from a method to its replacement, by the class and the method's name.
    """
    originals = {(cls, name): vars(cls).get(name) for cls, name in wraps}
    methods = {(cls, name): getattr(cls, name) for cls, name in wraps}
    for (cls, name), wrap in wraps.items():
        setattr(cls, name, wrap(methods[cls, name]))
    try:
        yield
    finally:
        for (cls, name), original in originals.items():
            if original is None:  # The class inherits the method.
                delattr(cls, name)
            else:
                setattr(cls, name, original)


def _wrap_method(method: Callable[..., Any], name: str, writes: list[str]) -> Callable[..., Any]:
    """Return a method that appends its writes into its arguments to `writes`."""

    def recording(rule: Any, *args: Any, **kwargs: Any) -> Any:
        values = signature_of(method).bind(rule, *args, **kwargs).args[1:]
        arguments = dict(zip(RECORDED_ARGUMENTS[name], values, strict=False))
        before = {label: x.clone() for label, x in _labeled_tensors(arguments).items()}
        result = method(rule, *args, **kwargs)
        after = _labeled_tensors(arguments)
        labels = [
            label
            for label, x in before.items()
            if label not in after or not _equal_values(x, after[label])
        ]
        labels += after.keys() - before.keys()
        writes.extend(f"{type(rule).__name__}.{name} writes into {label}" for label in labels)
        return result

    return recording


def _equal_values(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num())


def _labeled_tensors(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of arguments, by their names in messages."""
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, Update):
            values["the weight"] = value.weight
            values["the gradient"] = value.grad
            values["the direction"] = value.direction
            values |= {f"update.notes[{key!r}]": x for key, x in value.notes.items()}
            invariance = value.invariance
            if invariance is not None:
                values["update.invariance"] = (*invariance.flags, *invariance.squared_norms)
        elif isinstance(value, Mapping):
            values |= {f"the state {key!r}": x for key, x in value.items()}
        else:
            values[f"the {name}"] = value
    tensors = {}
    for label, value in values.items():
        leaves = pytree.tree_leaves(value)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                tensors[label if len(leaves) == 1 else f"{label}, {i}"] = leaf
    return tensors


# Updates


class UpdateRecord(NamedTuple):
    """A call of `update`, with the results of its operations that have the weight's size."""

    rule: Rule
    before: Update
    after: Update
    results: list[Tensor]

    def computes_end(self, rounding: float) -> bool:
        """Return True if a result is w - d, d the direction before or after the rule.

        Args:
            rounding: the largest difference that counts as rounding, relative to w - d.
        """
        weight = self.before.weight.flatten()
        for update in (self.before, self.after):
            end = weight - update.direction.flatten()
            tolerance = rounding * end.abs().max()
            if (weight - end).abs().max() <= tolerance:
                continue  # The weight itself has the values of such an end.
            if any((x.flatten() - end).abs().max() <= tolerance for x in self.results):
                return True
        return False


@contextlib.contextmanager
def record_updates(rule: Rule) -> Iterator[list[UpdateRecord]]:
    """Record the updates of a rule and of its children, inner ones first."""
    records: list[UpdateRecord] = []

    def wrap(update_method: Callable[..., Any]) -> Callable[..., Any]:
        def recording(part: Rule, update: Update, state: State) -> Any:
            with _ResultsMode(update.weight.numel()) as mode:
                new_update, new_state = update_method(part, update, state)
            records.append(UpdateRecord(part, update, new_update, mode.results))
            return new_update, new_state

        return recording

    with _patched({(type(part), "update"): wrap for part in rule.walk()}):
        yield records


class _ResultsMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps copies of the floating results of operations that have some number of entries."""

    def __init__(self, n_entries: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_entries = n_entries
        self.results: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_float = isinstance(result, Tensor) and result.is_floating_point()
        if is_float and result.numel() == self.n_entries:
            self.results.append(result.clone())
        return result


# Casts


class CastsMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records where a user's rule makes a float of lower precision from a float64 tensor.

    The rules of the library do so only where a field asks for it, such as that of
    `LowPrecisionState`.

    Args:
        accepted: the dtypes of the states, in which the rule stores by intention.
    """

    def __init__(self, accepted: Collection[torch.dtype]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.accepted = {torch.float64, *accepted}
        self.casts: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        arguments = pytree.tree_leaves((args, kwargs))
        is_from_float64 = any(isinstance(x, Tensor) and x.dtype is torch.float64 for x in arguments)
        if is_from_float64 and result.dtype not in self.accepted:
            rule_class = rule_class_of(frame for frame, _ in traceback.walk_stack(None))
            if rule_class is not None and not rule_class.__module__.startswith("spherenorm."):
                self.casts.append(f"{result.dtype} by {rule_class.__name__} ({func})")
        return result
