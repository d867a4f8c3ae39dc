"""The recorded and compiled steps of one rule, each compared once with the rule's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from spherenorm._rule import Rule, State
from spherenorm._tree import init_apart
from spherenorm.compile._backends import Work
from spherenorm.compile._check import difference, small_shape
from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._lower import lower
from spherenorm.compile._memory import misfit
from spherenorm.compile._numbers import Numbers
from spherenorm.compile._paths import Blocks, Inductor, Path, Specialization
from spherenorm.compile.cpp import BuildError
from spherenorm.compile.gpu import DEVICES, refuse_capture

__all__ = ["CompiledRule"]


class CompiledRule:
    """The paths of one rule, its numbers aside, for each kind of weight."""

    def __init__(self) -> None:
        self._graphs: dict[Any, StepGraph | UnsupportedRuleError] = {}
        self._paths: dict[Any, Blocks | Specialization | Inductor | UnsupportedRuleError] = {}
        self._states: dict[Any, Mapping[str, Any]] = {}
        self._differences: dict[Any, str | None] = {}
        """The difference of each path from the rule's own code; None if there is none."""

    def blocks(self, guard: Guard, work: Work) -> Path:
        """The blocked step of a weight.

        Raises:
            UnsupportedRuleError: only the rule's own code can step it.
        """
        weight = work.weight
        if weight.device.type != "cpu":
            raise UnsupportedRuleError(f"blocks are for a CPU, the weight is on {weight.device}")
        if not weight.numel():
            raise UnsupportedRuleError("the weight is empty")
        graph = self._graph(guard, tuple(weight.shape), weight.dtype)
        _refuse_misfit(work, graph)

        def make(shape: tuple[int, ...]) -> Blocks:
            return Blocks.of(guard, self._graph(guard, shape, weight.dtype), weight.dtype)

        return self._made("blocks", make, guard, weight)

    def compiled(self, guard: Guard, work: Work) -> Path:
        """The kernel of a weight, or Inductor's step where no kernel can be printed.

        Raises:
            UnsupportedRuleError: neither is possible.
        """
        weight = work.weight
        if type(weight) not in (Tensor, torch.nn.Parameter):
            raise UnsupportedRuleError(f"the weight is a {type(weight).__name__}, no plain tensor")

        def specialize(shape: tuple[int, ...]) -> Specialization:
            graph = self._graph(guard, shape, weight.dtype)
            return Specialization.of(guard, graph, weight.dtype, weight.device.type)

        try:
            if weight.device.type not in {"cpu", *DEVICES}:
                raise UnsupportedRuleError(f"no kernels are generated for {weight.device.type}")
            _refuse_misfit(work, self._graph(guard, tuple(weight.shape), weight.dtype))
            return self._made("kernel", specialize, guard, weight)
        except UnsupportedRuleError as error:
            if isinstance(error.__cause__, BuildError):
                raise
            reason = str(error)
        _refuse_other_state(work, self._states_of(guard, weight))

        def make_inductor(shape: tuple[int, ...]) -> Inductor:
            return Inductor(guard, reason, weight.device, weight.ndim)

        return self._made("Inductor", make_inductor, guard, weight)

    def _states_of(self, guard: Guard, weight: Tensor) -> Mapping[str, Any]:
        """The shape and dtype of each state, as `init` makes it."""
        key = tuple(weight.shape), weight.dtype
        if key not in self._states:
            fresh = init_apart(guard.rule, weight)
            self._states[key] = {name: (x.shape, x.dtype) for name, x in fresh.items()}
        return self._states[key]

    def _graph(self, guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
        key = shape, dtype
        if key not in self._graphs:
            try:
                self._graphs[key] = lower(guard, shape, dtype)
            except UnsupportedRuleError as error:
                self._graphs[key] = error
        graph: StepGraph = _or_raised(self._graphs[key])
        return graph

    def _made(
        self,
        kind: str,
        make: Callable[[tuple[int, ...]], Any],
        guard: Guard,
        weight: Tensor,
    ) -> Path:
        """The path for the weight's shape, once it has been compared with the rule's own code."""
        shape = tuple(weight.shape)
        # Inductor's code is for all shapes of one pattern.
        pattern = small_shape(shape) if kind == "Inductor" else shape
        key = kind, pattern, weight.dtype, weight.device
        if key not in self._paths:
            try:
                self._paths[key] = self._checked(make, guard, weight)
            except UnsupportedRuleError as error:
                self._paths[key] = error
            except BuildError as error:
                raise UnsupportedRuleError(str(error)) from error
        path: Path = _or_raised(self._paths[key])
        return path

    def _checked(self, make: Callable[[tuple[int, ...]], Any], guard: Guard, weight: Tensor) -> Any:
        """A new path, compared with the rule's own code.

        Raises:
            UnsupportedRuleError: it would give other numbers.
        """
        refuse_capture(weight.device)
        path = make(tuple(weight.shape))
        if path.identity not in self._differences:
            self._differences[path.identity] = _compared(path, make, guard, weight)
        off = self._differences[path.identity]
        if off is not None:
            raise UnsupportedRuleError(
                f"{path.name} would give other numbers than the rule's own code: {off}"
            )
        return path


def _compared(
    path: Any, make: Callable[[tuple[int, ...]], Any], guard: Guard, weight: Tensor
) -> str | None:
    """The difference of a path from the rule's own code on small weights, in words.

    Raises:
        UnsupportedRuleError: torch.compile cannot take the step.
    """
    shape = tuple(weight.shape)
    small = _fitting(guard.rule, small_shape(shape), shape)
    probe = path if isinstance(path, Inductor) else make(small)
    if probe.identity != path.identity:
        probe, small = path, shape
    visible = guard.with_visible_steps()
    numbers = Numbers(visible.numbers)

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        probe(weight, grad, state, numbers)

    try:
        negative = isinstance(path, Inductor)  # which takes weights in any memory
        return difference(visible.rule, run, small, weight.dtype, weight.device, negative)
    except Exception as error:
        if not isinstance(path, Inductor):
            raise
        # Dynamo has dozens of errors, and a rule may raise its own.
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedRuleError(
            f"{path.reason}; nor can torch.compile take the step ({first})"
        ) from error


def _refuse_misfit(work: Work, graph: StepGraph) -> None:
    reason = misfit(work.weight, work.grad, work.state, graph.states)
    if reason is not None:
        raise UnsupportedRuleError(reason)


def _refuse_other_state(work: Work, states: Mapping[str, Any]) -> None:
    """Refuse a state of another kind: Inductor would compile for it, compared with nothing."""
    for name, kind in states.items():
        value = work.state[name]
        if (value.shape, value.dtype) != kind:
            held = f"{value.dtype} of shape {tuple(value.shape)}"
            raise UnsupportedRuleError(f"the state {name!r} is {held}, unlike what init returns")


def _or_raised(found: Any) -> Any:
    """Raise a refusal that was kept; return anything else."""
    if isinstance(found, UnsupportedRuleError):
        raise UnsupportedRuleError(*found.args) from found
    return found


def _fitting(rule: Rule, small: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`small` if the rule's views fit it, else the weight's own shape."""
    try:
        rule.init(torch.empty(small, device="meta"))
    except ValueError:
        return shape
    return small
