"""The paths of one rule for each kind of weight, each compared once with the rule's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm._steps import init_apart
from spherenorm.compile._backends import BackendError, Work
from spherenorm.compile._check import difference, small_shape
from spherenorm.compile._graph import StepGraph
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._inductor import Inductor
from spherenorm.compile._kernels import Specialization
from spherenorm.compile._lower import lower
from spherenorm.compile._memory import misfit
from spherenorm.compile._shards import PLAIN
from spherenorm.compile.cpp import BuildError
from spherenorm.compile.gpu import refuse_capture
from spherenorm.core import Rule, State

NOT_BUILT = (BuildError, ImportError)
"""The errors of kernels that more software on this machine would make possible."""


MOST_GRAPHS = 4096
_GRAPHS: dict[Any, StepGraph] = {}
"""The steps of the library's own rules by key, shape and dtype, for all optimizers of a process."""


@dataclass(frozen=True)
class OwnCode:
    """The rule's own code, operation by operation.

    Attributes:
        passing: the reason may be gone at the next step, and other processes may not have it.
    """

    reason: str
    passing: bool = False
    name: str = "rule"


class MisfitError(UnsupportedRuleError):
    """The tensors of a weight are not as its kernel takes them; at another step they may be."""


Path = OwnCode | Specialization | Inductor | BackendError
"""One way to step a weight, with its `name` and the `reason` for which it is taken; or the error
that there is none."""


class Paths:
    """The recorded steps of rules that differ in their numbers only."""

    def __init__(self) -> None:
        self._graphs: dict[Any, StepGraph | UnsupportedRuleError] = {}
        self._made: dict[Any, Specialization | Inductor | UnsupportedRuleError] = {}
        self._differences: dict[Any, str | None] = {}
        """The difference of each path from the rule's own code; None if there is none."""

    def kernel(self, guard: Guard, work: Work, again: bool = False) -> Specialization:
        """The kernel of a weight.

        Args:
            guard: of the rule.
            work: the weight.
            again: try again to build what could not be built before.

        Raises:
            UnsupportedRuleError: there is none.
        """
        weight = (work.whole or work).weight  # all processes compare kernels of the same shapes
        shape, dtype, device = weight.shape, weight.dtype, weight.device
        reason = misfit(work, self._graph(guard, shape, dtype).states)
        if reason is not None:
            raise MisfitError(reason)

        def make(shape: tuple[int, ...]) -> Specialization:
            graph = self._graph(guard, shape, dtype)
            return Specialization.of(graph, len(guard.numbers), dtype, device)

        key = shape, dtype, device
        if again and could_be_built(self._made.get(key)):
            del self._made[key]
        found: Specialization = self._checked(key, make, guard, weight)
        return found

    def compiled(self, guard: Guard, work: Work) -> Specialization | Inductor:
        """The kernel of a weight, or Inductor's step where no kernel can be made.

        Raises:
            UnsupportedRuleError: neither is possible.
        """
        try:
            return self.kernel(guard, work, again=True)
        except UnsupportedRuleError as error:
            if could_be_built(error):
                raise
            reason = str(error)
        weight = work.weight
        if work.whole is not None or type(weight) not in PLAIN:
            raise UnsupportedRuleError(reason)
        _refuse_other_state(work, init_apart(guard.rule, weight))

        def make(shape: tuple[int, ...]) -> Inductor:
            return Inductor(guard, reason, weight.device, weight.ndim)

        # Its code is for all shapes of one pattern.
        key = "Inductor", small_shape(tuple(weight.shape)), weight.dtype, weight.device
        found: Inductor = self._checked(key, make, guard, weight)
        return found

    def _graph(self, guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
        key = shape, dtype
        if key not in self._graphs:
            try:
                self._graphs[key] = self._recorded(guard, shape, dtype)
            except UnsupportedRuleError as error:
                self._graphs[key] = error
        graph: StepGraph = _or_raised(self._graphs[key])
        return graph

    def _recorded(self, guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
        if guard.foreign:  # which may read what is not in the key
            return lower(guard, shape, dtype)
        key = guard.key, shape, dtype, torch.get_default_dtype(), torch.get_default_device()
        if key not in _GRAPHS:
            if len(_GRAPHS) >= MOST_GRAPHS:
                _GRAPHS.clear()
            _GRAPHS[key] = lower(guard, shape, dtype)
        return _GRAPHS[key]

    def _checked(
        self,
        key: Any,
        make: Callable[[tuple[int, ...]], Any],
        guard: Guard,
        weight: Tensor,
    ) -> Any:
        """The path of a weight, made at the first call, and compared with the rule's own code.

        Raises:
            UnsupportedRuleError: it cannot be made, or would give other numbers.
        """
        if key not in self._made:
            refuse_capture(weight.device)
            try:
                path = make(tuple(weight.shape))
                if path.identity not in self._differences:
                    self._differences[path.identity] = _compared(path, make, guard, weight)
                off = self._differences[path.identity]
                self._made[key] = path
                if off is not None:
                    self._made[key] = UnsupportedRuleError(
                        f"{path.name} would give other numbers than the rule's own code: {off}"
                    )
            except UnsupportedRuleError as error:
                self._made[key] = error
            except NOT_BUILT as error:
                said = str(error) if isinstance(error, BuildError) else NO_TRITON
                self._made[key] = refused = UnsupportedRuleError(said)
                refused.__cause__ = error
        return _or_raised(self._made[key])


NO_TRITON = "Triton, which makes kernels for a GPU, is missing: pip install triton"


def could_be_built(error: object) -> bool:
    """True of an error that more software on this machine would mend."""
    return isinstance(error, BaseException) and isinstance(error.__cause__, NOT_BUILT)


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

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        probe(weight, grad, state, visible.numbers)

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


def _fitting(rule: Rule, small: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`small` if the rule's views fit it, else the weight's own shape."""
    weight = torch.empty(small, device="meta")
    try:
        with torch.device("meta"):
            rule.step(weight, weight, rule.init(weight))
    except ValueError:
        return shape
    except Exception:  # of a rule that needs more than a shape; the comparison asks it again
        return small
    return small


def _refuse_other_state(work: Work, states: Mapping[str, Tensor]) -> None:
    """Refuse a state of another kind: Inductor would compile for it, compared with nothing."""
    for name, made in states.items():
        value = work.state[name]
        if (value.shape, value.dtype) != (made.shape, made.dtype):
            held = f"{value.dtype} of shape {tuple(value.shape)}"
            raise UnsupportedRuleError(f"the state {name!r} is {held}, unlike what init returns")


def _or_raised(found: Any) -> Any:
    """Raise a refusal that was kept; return anything else."""
    if isinstance(found, UnsupportedRuleError):
        raise UnsupportedRuleError(*found.args) from found.__cause__ or found
    return found
