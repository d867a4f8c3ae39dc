"""The executor of each kind of weight, compared once with the rule's own code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile import cpp
from spherenorm.compile.backends import BackendError, Work
from spherenorm.compile.batches import Recorded, batch_of
from spherenorm.compile.check import difference, small_shape
from spherenorm.compile.graph import StepGraph
from spherenorm.compile.horizontal import Horizontal
from spherenorm.compile.key import OtherNumbersError, RuleKey, UnsupportedRuleError
from spherenorm.compile.lower import lower
from spherenorm.compile.memory import misfit, scattered
from spherenorm.numerics import accumulation_dtype
from spherenorm.rule import Rule, State

HORIZONTAL = {"cuda"}
"""The devices whose weights step horizontally; sharded weights do so everywhere."""
MOST = 2**13
"""Kinds of weights of which a process remembers executors; beyond that it forgets all."""
_KNOWN: dict[Any, Any] = {}
"""By kinds: graphs, paths, differences from own code; or the refusals of these."""


@dataclass(frozen=True)
class OwnCode:
    """The rule's own code, one weight after another; of equal matrices, one step of their stack."""

    reason: str
    name: str = "rule"


@dataclass(frozen=True)
class Stack:
    """The rule's own code under vmap, on stacks of weights of equal shapes."""

    reason: str
    name: str = "stack"


Path = OwnCode | Stack | Recorded | BackendError
"""One way to step a weight, with its `name` and the `reason` for which it is taken; or the error
that there is none."""


def path_of(key: RuleKey, backend: str, work: Work) -> Path:
    """The path of a weight under `backend`, "auto" or "compiled"."""
    try:
        return recorded(key, work)
    except UnsupportedRuleError as error:
        if backend == "auto":
            return OwnCode(str(error))
        if isinstance(error, OtherNumbersError):
            return refusal_of(key, work, str(error), error)
        reason = str(error)
    try:
        return _stack(key, work, reason)
    except UnsupportedRuleError as error:
        return refusal_of(key, work, str(error), error)


def refusal_of(
    key: RuleKey, work: Work, reason: str, cause: Exception | None = None
) -> BackendError:
    """The error that `backend="compiled"` has no path for a weight."""
    weight = (work.whole or work).weight
    what = f"shape {tuple(weight.shape)}, {weight.dtype}, on {weight.device}"
    error = BackendError(
        f'backend="compiled" cannot take the step of {key.names} for a weight of {what}: '
        f'{reason}; backend="auto" steps it by the rule\'s own code'
    )
    error.__cause__ = cause
    return error


def recorded(key: RuleKey, work: Work) -> Recorded:
    """The executor of a weight's recorded step.

    Raises:
        UnsupportedRuleError: there is none, or it would give other numbers.
    """
    weight = (work.whole or work).weight  # all processes take that of the whole shape
    shape, dtype, device = weight.shape, weight.dtype, weight.device
    if device.type not in {"cpu", *HORIZONTAL}:
        raise UnsupportedRuleError(f"no executor is made for {device.type}")
    graph = _graph(key, shape, dtype)
    if reason := misfit(work, graph.states):
        raise UnsupportedRuleError(reason)
    horizontal = work.whole is not None or device.type in HORIZONTAL
    if horizontal and accumulation_dtype(device) is not torch.float64:
        raise UnsupportedRuleError(f"{device} does not compute in float64, as sums are added up")
    if not horizontal and (reason := scattered(work)):
        raise UnsupportedRuleError(reason)

    def made(shape: tuple[int, ...]) -> Recorded:
        return _made(_graph(key, shape, dtype), len(key.numbers), dtype, horizontal)

    machine = device, horizontal, os.environ.get("CXX"), os.environ.get("PATH")
    found: Recorded = _once((*_kind(key, shape, dtype), machine), lambda: made(shape))
    off = _once(
        ("difference", key.rest, dtype, machine, found.identity),
        lambda: _compared(found.identity, made, key, shape, dtype, device),
    )
    if off is not None:
        said = f"the {found.name} would give other numbers than the rule's own code: {off}"
        raise OtherNumbersError(said)
    return found


def _kind(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return key.rest, shape, dtype, torch.get_default_dtype(), torch.get_default_device()


def _graph(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    kind = ("graph", *_kind(key, shape, dtype))
    return _once(kind, lambda: lower(key, shape, dtype))  # type: ignore[no-any-return]


def _once(kind: Any, make: Callable[[], Any]) -> Any:
    """The result of `make` for a kind, or the refusal that it raised; it is asked once."""
    if kind not in _KNOWN:
        if len(_KNOWN) >= MOST:
            _KNOWN.clear()
        try:
            _KNOWN[kind] = make()
        except UnsupportedRuleError as error:
            _KNOWN[kind] = error
    found = _KNOWN[kind]
    if isinstance(found, UnsupportedRuleError):
        raise type(found)(*found.args) from found
    return found


def _made(graph: StepGraph, numbers: int, dtype: torch.dtype, horizontal: bool) -> Recorded:
    """The executor of a graph.

    Raises:
        UnsupportedRuleError: there is no kernel.
    """
    literals = np.array(graph.literals, dtype=np.float64)
    if horizontal:
        reason = "recorded; all weights of its kind at once"
        return Recorded(graph, literals, graph.structure, reason, Horizontal)
    try:
        kernel = cpp.kernel(graph, numbers, dtype)
    except cpp.BuildError as error:
        _warn(str(error))
        raise UnsupportedRuleError(str(error)) from error
    return Recorded(graph, literals, kernel, "recorded; one kernel for all of its kind", kernel)


def _compared(
    identity: Any,
    made: Callable[[tuple[int, ...]], Recorded],
    key: RuleKey,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """The difference of an executor from the rule's own code on small weights, in words."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("take a step before it is captured: it is compared with own code once")
    small = _small(key.rule, shape)
    probe = made(small)
    if probe.identity != identity:
        probe, small = made(shape), shape
    visible = key.with_visible_steps()

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        work = Work(weight, grad, state)
        batch_of(probe, [work]).run([work], visible.numbers)

    return difference(visible.rule, run, small, dtype, device)


def _small(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A small shape, or the weight's own, if a view has no units in the small one."""
    small = small_shape(shape)
    try:
        rule.init(torch.ones(small, device="cpu"))
    except ValueError:
        return shape
    return small


def _stack(key: RuleKey, work: Work, reason: str) -> Stack:
    """The path of what cannot be recorded, if vmap takes the step.

    Raises:
        UnsupportedRuleError: it does not; or the weight is no plain tensor.
    """
    weight = work.weight
    plain = type(weight) in (Tensor, torch.nn.Parameter) and type(work.grad) is Tensor
    if work.whole is not None or not plain:
        raise UnsupportedRuleError(reason)
    rule = key.with_visible_steps().rule

    def compared() -> None:
        small = _small(rule, weight.shape)
        try:
            off = difference(rule, _by_stack(rule), small, weight.dtype, weight.device)
        except Exception as error:  # vmap has many errors, and a rule may raise its own
            first = str(error).strip().partition("\n")[0]
            said = f"{reason}; nor can torch.func.vmap take the step ({first})"
            raise UnsupportedRuleError(said) from error
        if off is not None:
            said = f"a stack would give other numbers than the rule's own code: {off}"
            raise UnsupportedRuleError(said)

    _once(("stack", *_kind(key, weight.shape, weight.dtype), weight.device), compared)
    return Stack(reason)


def _by_stack(rule: Rule) -> Callable[[Tensor, Tensor, State], None]:
    """A step of one weight as the first of a stack of two."""

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        moved, new = stacked(rule, [Work(weight, grad, state)] * 2, None)[0]
        weight.copy_(moved)
        state.update(new)

    return run


def stacked(rule: Rule, works: list[Work], sums: Any) -> list[tuple[Tensor, State]]:
    """The new weights and states of weights of equal kinds: one step of their stack."""
    weights, grads, states, *_ = zip(*works, strict=True)
    state = {name: torch.stack([own[name] for own in states]) for name in states[0]}

    def step(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        return rule.step(weight, grad, state, sums)

    moved, new = torch.vmap(step)(torch.stack(weights), torch.stack(grads), state)
    return [(moved[i], {n: x[i] for n, x in new.items()}) for i in range(len(works))]


def _warn(reason: str) -> None:
    """Say once in a process why steps are slower."""
    if not _warned:
        _warned.append(reason)
        said = "optimizers step by their rules' own code, which is slow on small weights"
        warnings.warn(f"{said}: {reason}", stacklevel=2)


_warned: list[str] = []
