"""Choose a path for each weight of an optimizer, and keep what was recorded for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from spherenorm.compile.build import BuildError
from spherenorm.compile.check import difference, small_shape
from spherenorm.compile.graph import StepGraph, trace
from spherenorm.compile.guard import Guard, UnsupportedRuleError
from spherenorm.compile.launch import DEVICES, refuse_capture
from spherenorm.compile.paths import (
    Blocks,
    Inductor,
    Kernel,
    Numbers,
    OwnCode,
    Path,
    memory,
    misfit,
    run_kernels,
    take,
)
from spherenorm.rule import Rule, State

__all__ = ["BACKENDS", "BackendError", "Dispatcher", "Group", "Work", "require_backend"]

BACKENDS = ("auto", "rule", "blocks", "compiled")
RECORDS = 32
"""Rules of different keys that are recorded for one optimizer. A rule with a field that changes at
every step would otherwise be recorded anew at every step."""
HELD = 2**28
"""Bytes of results of rules' own code that wait until every weight has its result, so that an error
in one changes nothing."""


class BackendError(RuntimeError):
    """`backend="compiled"` cannot step a weight as its rule does; the message says why."""


def require_backend(backend: str) -> str:
    """The name of a backend.

    Raises:
        ValueError: there is none of that name.
    """
    if backend not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"backend must be one of {known}, got {backend!r}")
    return backend


@dataclass(frozen=True, eq=False)
class Work:
    """One weight to step, with its gradient and state."""

    weight: Tensor
    grad: Tensor
    state: State


@dataclass(frozen=True, eq=False)
class Group:
    """The weights of a param_group, and the rule that steps them."""

    rule: Rule
    backend: str
    works: Sequence[Work]


class Dispatcher:
    """Steps the weights of one optimizer, and keeps the records of its rules."""

    def __init__(self) -> None:
        self._records: dict[Any, Record] = {}
        self._proven: set[Any] = set()
        """Kinds of weights that a rule's own code has stepped without writing into its arguments."""

    def step(self, groups: Sequence[Group]) -> None:
        """Step all weights, or none: what may fail comes before the first one moves.

        Raises:
            BackendError: a group with `backend="compiled"` holds a weight that cannot be stepped so.
            ValueError: a rule writes into what it was given, or returns what does not fit.
        """
        places: set[int] = set()
        plans = [(group, *self._plan(group, places)) for group in groups]
        for results in self._results(plans):
            for work, moved, new in results:
                take(work.weight, work.grad, work.state, moved, new)
        for group, numbers, paths in plans:
            batches: dict[Any, list[Any]] = {}
            for work, path in zip(group.works, paths, strict=True):
                if isinstance(path, Kernel):
                    key = path.program, work.weight.device
                    batches.setdefault(key, []).append((path, work.weight, work.grad, work.state))
                elif isinstance(path, Blocks):
                    path(work.weight, work.grad, work.state, numbers)
            for (program, device), batch in batches.items():
                run_kernels(program, batch, numbers.vector(device))

    def path(self, rule: Rule, backend: str, work: Work) -> Path:
        """The path that a weight would take now, made if it has not been.

        Raises:
            BackendError: as `step`.
        """
        return self._plan(Group(rule, backend, [work]), set())[1][0]

    def _plan(self, group: Group, places: set[int]) -> tuple[Numbers, Sequence[Path]]:
        """The numbers of a group's rule, and the path of each of its weights.

        Args:
            places: where the states of other weights lie, to which those of these are added.
        """
        found = self._record(group)
        if isinstance(found, OwnCode):
            return Numbers(()), [found] * len(group.works)
        guard, record = found
        numbers = Numbers(guard.numbers)
        paths: list[Path] = []
        for work in group.works:
            path: Path
            try:
                choose = record.compiled if group.backend == "compiled" else record.blocks
                path = choose(guard, work)
            except UnsupportedRuleError as error:
                if group.backend == "compiled":
                    raise BackendError(
                        f'backend="compiled" cannot take the step of {guard.names} for a weight of '
                        f"shape {tuple(work.weight.shape)}, {work.weight.dtype}, "
                        f"on {work.weight.device}: {error}"
                    ) from error
                path = OwnCode(str(error))
            # (Blocks step weights that share memory one after another; a kernel steps all at once.)
            weights = (work.weight,) if group.backend == "compiled" else ()
            held = (*weights, *work.state.values())
            here = {x.data_ptr() for x in held if x.numel() and not isinstance(path, OwnCode)}
            if here & places:
                reason = "it, or a state, shares its memory with another weight's"
                if group.backend == "compiled":
                    raise BackendError(f'backend="compiled" cannot step {guard.names}: {reason}')
                path = OwnCode(reason)
            places |= here
            paths.append(path)
        return numbers, paths

    def _record(self, group: Group) -> tuple[Guard, Record] | OwnCode:
        """The record of a group's rule; its own code, with the reason, if it is not recorded."""
        if group.backend == "rule":
            return OwnCode('backend="rule"')
        try:
            guard = Guard.of(group.rule)
        except UnsupportedRuleError as error:
            if group.backend == "compiled":
                raise BackendError(f'backend="compiled" cannot record the rule: {error}') from error
            return OwnCode(str(error))
        if group.backend == "auto" and guard.foreign:
            return OwnCode(f"{guard.foreign[0]} is not the library's own")
        modes = [] if group.backend == "compiled" else _modes()
        if modes:
            return OwnCode(f"{modes[0]} is active")
        if guard.key not in self._records:
            if len(self._records) >= RECORDS:
                if group.backend != "compiled":
                    return OwnCode(f"{RECORDS} other rules were recorded; a field keeps changing")
                del self._records[next(iter(self._records))]
            self._records[guard.key] = Record()
        return guard, self._records[guard.key]

    def _results(
        self, plans: Sequence[tuple[Group, Numbers, Sequence[Path]]]
    ) -> Iterator[list[tuple[Work, Tensor, State]]]:
        """The results of rules' own code and of Inductor's, in order.

        They come at once, unless they take much memory, or a weight lies where an earlier one does,
        whose new value it has to see.
        """
        results: list[tuple[Work, Tensor, State]] = []
        size, places = 0, set[int]()
        for group, numbers, paths in plans:
            kind = _kind(group.rule) if any(isinstance(path, OwnCode) for path in paths) else None
            for work, path in zip(group.works, paths, strict=True):
                if not isinstance(path, OwnCode | Inductor):
                    continue
                if size > HELD or memory(work.weight) in places:
                    yield results
                    results, size, places = [], 0, set()
                if isinstance(path, OwnCode):
                    moved, new = self._own_step(group.rule, kind, work)
                else:
                    moved, new = _by_inductor(path, work, numbers)
                results.append((work, moved, new))
                places.add(memory(work.weight))
                size += moved.nbytes + sum(value.nbytes for value in new.values())
        yield results

    def _own_step(self, rule: Rule, key: Any, work: Work) -> tuple[Tensor, State]:
        """One step by the rule's own code, which may not write into its arguments.

        At the first weight of a kind, what a rule has written is undone.
        """
        given = {"the weight": work.weight, "the gradient": work.grad}
        given |= {f"the state {name!r}": value for name, value in work.state.items()}
        given = {what: x for what, x in given.items() if not x.is_inference()}
        kind = key, work.weight.shape, work.weight.dtype
        backups = {} if kind in self._proven else {what: x.clone() for what, x in given.items()}
        versions = [x._version for x in given.values()]
        written: list[str] = []
        try:
            moved, new = rule.step(work.weight, work.grad, work.state)
        finally:
            for (what, x), version in zip(given.items(), versions, strict=True):
                if x._version != version:
                    written.append(what)
                    if what in backups:
                        x.copy_(backups[what])
        if written:
            names = ", ".join(type(each).__name__ for each in _tree(rule))
            raise ValueError(
                f"{names}: the rule writes into {written[0]}; return new tensors instead"
            )
        self._proven.add(kind)
        return moved, new


class Record:
    """The paths of one rule, its numbers aside, for each kind of weight."""

    def __init__(self) -> None:
        self._graphs: dict[Any, StepGraph | UnsupportedRuleError] = {}
        self._paths: dict[Any, Blocks | Kernel | Inductor | UnsupportedRuleError] = {}
        self._differences: dict[Any, str | None] = {}
        """For each thing that steps weights, how it differs from the rule's own code; None if not."""

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
        """The kernel of a weight, or what Inductor compiles where the generators have no word.

        Raises:
            UnsupportedRuleError: neither can.
        """
        weight = work.weight
        if type(weight) not in (Tensor, torch.nn.Parameter):
            raise UnsupportedRuleError(f"the weight is a {type(weight).__name__}, no plain tensor")

        def make_kernel(shape: tuple[int, ...]) -> Kernel:
            graph = self._graph(guard, shape, weight.dtype)
            return Kernel.of(guard, graph, weight.dtype, weight.device.type)

        try:
            if weight.device.type not in {"cpu", *DEVICES}:
                raise UnsupportedRuleError(f"no kernels are generated for {weight.device.type}")
            _refuse_misfit(work, self._graph(guard, tuple(weight.shape), weight.dtype))
            return self._made("kernel", make_kernel, guard, weight)
        except UnsupportedRuleError as error:
            if isinstance(error.__cause__, BuildError):
                raise
            reason = str(error)

        def make_inductor(shape: tuple[int, ...]) -> Inductor:
            return Inductor(guard, reason, weight.device, weight.ndim)

        return self._made("Inductor", make_inductor, guard, weight)

    def _graph(self, guard: Guard, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
        key = shape, dtype
        if key not in self._graphs:
            try:
                self._graphs[key] = trace(guard, shape, dtype)
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
        shape, dtype, device = tuple(weight.shape), weight.dtype, weight.device
        refuse_capture(device)
        path = make(shape)
        if path.identity not in self._differences:
            small = _legal(guard.rule, small_shape(shape), shape)
            probe = path if isinstance(path, Inductor) else make(small)
            if probe.identity != path.identity:
                probe, small = path, shape
            visible = guard.with_visible_steps()
            numbers = Numbers(visible.numbers)
            run = lambda w, g, s: probe(w, g, s, numbers)  # noqa: E731
            try:
                off = difference(visible.rule, run, small, dtype, device)
            except Exception as error:
                if not isinstance(path, Inductor):
                    raise
                # Dynamo has dozens of errors, and a rule may raise its own.
                first = str(error).strip().partition("\n")[0]
                raise UnsupportedRuleError(
                    f"{path.reason}; nor can torch.compile take the step ({first})"
                ) from error
            self._differences[path.identity] = off
        off = self._differences[path.identity]
        if off is not None:
            raise UnsupportedRuleError(
                f"{path.name} would give other numbers than the rule's own code: {off}"
            )
        return path


def _by_inductor(path: Inductor, work: Work, numbers: Numbers) -> tuple[Tensor, State]:
    try:
        return path.result(work.weight, work.grad, work.state, numbers)
    except Exception as error:
        # A shape that Dynamo compiles anew may show it what it cannot take.
        first = str(error).strip().partition("\n")[0]
        shape = tuple(work.weight.shape)
        raise BackendError(
            f'backend="compiled" cannot take the step for a weight of shape {shape}: {first}'
        ) from error


def _refuse_misfit(work: Work, graph: StepGraph) -> None:
    reason = misfit(work.weight, work.grad, work.state, graph.states)
    if reason is not None:
        raise UnsupportedRuleError(reason)


def _or_raised(found: Any) -> Any:
    """A refusal is kept as it was found, and raised again."""
    if isinstance(found, UnsupportedRuleError):
        raise UnsupportedRuleError(*found.args) from found
    return found


def _legal(rule: Rule, small: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`small` if the rule's views fit it, else the weight's own shape."""
    try:
        rule.init(torch.empty(small, device="meta"))
    except ValueError:
        return shape
    return small


def _kind(rule: Rule) -> Any:
    """A key that tells apart rules of other settings: one may write into its arguments."""
    try:
        return Guard.of(rule).key
    except UnsupportedRuleError:
        return tuple(type(each) for each in _tree(rule))


def _tree(rule: Rule) -> Iterator[Rule]:
    yield rule
    for child in rule.children():
        yield from _tree(child)


def _modes() -> list[str]:
    """The modes that change what torch's functions do; a default device is none of these."""
    stack = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]  # type: ignore
    return [type(mode).__name__ for mode in stack if not isinstance(mode, DeviceContext)]
