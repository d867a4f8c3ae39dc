"""Choose the path of each kind of weight: stages 1 to 5, with every result cached by its kind."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.batched import BatchedExecutor
from spherenorm.compile.cuda.kernel import SMALL_CHUNK, CudaExecutor, build_cuda_executor
from spherenorm.compile.graph import Extent, StepGraph
from spherenorm.compile.interface import Executor, Path, WeightStep, cached
from spherenorm.compile.kernel import KernelExecutor, build_kernel
from spherenorm.compile.memory import why_not_contiguous, why_not_recordable
from spherenorm.compile.rule_key import RuleKey
from spherenorm.compile.sharded.shards import (
    PLAIN_TENSORS,
    is_distributed,
    regions_of,
    why_not_regions,
)
from spherenorm.compile.trace import trace
from spherenorm.compile.verify import (
    ResultMismatch,
    RunStep,
    find_mismatch,
    require_no_capture,
    small_shape,
    verify_executor,
    verify_storage,
)
from spherenorm.numerics import accumulation_dtype, default_device
from spherenorm.record import Unsupported
from spherenorm.rule import Rule, State

BATCHED_DEVICES = {"cuda"}
"""Types of devices whose weights step batched; sharded weights do so on every device."""


def _cuda_kernel_devices() -> set[str]:
    """Return the types of devices that $SPHERENORM_CUDA_KERNEL chooses.

    Raises:
        ValueError: it has another value than 0, 1 and shim.
    """
    devices: dict[str, set[str]] = {"0": set(), "1": {"cuda"}, "shim": {"cpu"}}
    choice = os.environ.get("SPHERENORM_CUDA_KERNEL") or "0"
    if choice not in devices:
        raise ValueError(f"SPHERENORM_CUDA_KERNEL must be 0, 1 or shim, got {choice!r}")
    return devices[choice]


CUDA_KERNEL_DEVICES = _cuda_kernel_devices()
"""Types of devices whose weights step by the CUDA kernel, if there is one for them: those on a GPU
on request, since no GPU has run it yet; those on a CPU, behind `cuda/shim.hpp`, in tests."""
SIBLING_SHAPES = ((4,), (4, 3))
"""Shapes whose graphs are programs of a rule's CUDA kernel beside that of the weight."""
REDUCTIONS = {"sum", "any"}
"""Operations of nodes that read several entries."""
HALF_PRECISION = (torch.bfloat16, torch.float16)


def choose_path(key: RuleKey, backend: str, step: WeightStep) -> Path:
    """Return the path of a weight under `backend`, "auto" or "compiled".

    A kernel is compiled, and an executor verified, the first time that its kind is asked for.
    """
    try:
        return _recorded_path(key, step)
    except Unsupported as error:
        if backend == "auto":
            return Path("rule", str(error))
        if isinstance(error, ResultMismatch):
            return error_path(key, step, str(error))
        reason = str(error)
    try:
        _check_vmap(key, step, reason)
    except Unsupported as error:
        return error_path(key, step, str(error))
    return Path("stack", reason)


def place_path(key: RuleKey, step: WeightStep, path: Path) -> Path:
    """Return the path of a weight whose own code runs, with the processes that run it."""
    if path.executor is not None or path.name == "error" or step.sharded is None:
        return path
    weight = step.unsharded_weight
    if not is_distributed(weight):
        return replace(path, takes_shard=True)
    declared = [type(rule).__name__ for rule in key.rule.walk() if rule.needs_whole_weight]
    if declared:
        return Path("owner", f"{declared[0]} needs whole weights")
    if step.rows_are_whole and _is_entry_by_entry(key, weight):
        reason = f"{path.reason}; each process steps its entries"
        return Path("rule", reason, takes_shard=True)
    return path if _supports_dtensor(key) else Path("owner", path.reason)


def needs_whole_states(rule: Rule, weight: Any) -> bool:
    """Return whether the states of a sharded weight are made from all of it, and then cut."""
    if not is_distributed(weight) or why_not_regions(weight) is not None:
        return False
    key = RuleKey.of(rule)
    if any(part.needs_whole_weight for part in rule.walk()):
        return True
    return (
        not _supports_dtensor(key)
        and _graph_or_none(key, weight.dtype, tuple(weight.shape)) is None
    )


def _supports_dtensor(key: RuleKey) -> bool:
    """Return whether the rule's own code is written for DTensors, or for sums over weights."""
    rules = [*key.rule.walk()]
    if any(
        rule.needs_whole_weight is None and type(rule).__name__ in key.foreign for rule in rules
    ):
        return False
    return key.rule.needs_global_sums or any(rule.needs_whole_weight is False for rule in rules)


def _graph_or_none(key: RuleKey, dtype: torch.dtype, shape: tuple[int, ...]) -> StepGraph | None:
    """Return the graph of a step; None if there is none."""
    if key.unsupported_because is not None:
        return None
    try:
        return _get_graph(key, shape, dtype)
    except Unsupported:
        return None


def _is_entry_by_entry(key: RuleKey, weight: Any) -> bool:
    """Return whether each process can step its entries alone, whatever the others hold."""
    graph = _graph_or_none(key, weight.dtype, tuple(weight.shape))
    if graph is None or any(node.op in REDUCTIONS for node in graph.nodes):
        return False
    if any(node.extent is Extent.ROW for node in graph.nodes):
        return False
    # A factor such as sqrt(m / n) depends on the shape, which is another one in each process.
    for region in set(regions_of(weight)):
        if not region.numel:
            continue
        local_graph = _graph_or_none(key, weight.dtype, region.lengths)
        if local_graph is None or local_graph.structure != graph.structure:
            return False
        if local_graph.literals != graph.literals:
            return False
    return True


def error_path(key: RuleKey, step: WeightStep, reason: str) -> Path:
    """Return the path of a weight that `backend="compiled"` cannot step."""
    weight = step.unsharded_weight
    return Path(
        "error",
        f'backend="compiled" cannot take the step of {key.names} for a weight of shape '
        f"{tuple(weight.shape)}, {weight.dtype}, on {weight.device}: {reason}; "
        'backend="auto" steps it by the rule\'s own code',
    )


@dataclass(frozen=True)
class _ExecutorKey:
    """The part of an executor's kind that is neither rule nor shape.

    Attributes:
        dtype, device: of the weight.
        executor: the name of the class of executors that steps it.
        compiler: the environment that decides which compiler makes the kernel.
    """

    dtype: torch.dtype
    device: torch.device
    executor: str
    compiler: tuple[str | None, str | None]


def _recorded_path(key: RuleKey, step: WeightStep) -> Path:
    """Return the path of a weight's recorded step.

    Raises:
        Unsupported: there is no executor, or it would give other numbers.
    """
    weight = step.unsharded_weight  # all processes take the path of the full shape
    shape, device = tuple(weight.shape), weight.device
    if device.type not in {"cpu", *BATCHED_DEVICES}:
        raise Unsupported(f"no executor is made for {device.type}")
    graph = _get_graph(key, shape, weight.dtype)
    reason = why_not_recordable(step, graph.states)
    if reason is not None:
        raise Unsupported(reason)
    batched = step.sharded is not None or device.type in BATCHED_DEVICES
    why_no_cuda_kernel = ""
    if step.sharded is None and device.type in CUDA_KERNEL_DEVICES:
        try:
            _require_contiguous(step)
            return _verified_path(key, step, CudaExecutor.name, "all weights of its kind at once")
        except Unsupported as error:
            why_no_cuda_kernel = f"; no CUDA kernel: {error}"
    if batched and accumulation_dtype(device) is not torch.float64:
        raise Unsupported(f"{device} does not compute in float64, as sums are added up")
    if batched:
        how = f"all weights of its kind at once{why_no_cuda_kernel}"
        return _verified_path(key, step, BatchedExecutor.name, how)
    _require_contiguous(step)
    how = f"one kernel for all of its kind{why_no_cuda_kernel}"
    return _verified_path(key, step, KernelExecutor.name, how)


def _require_contiguous(step: WeightStep) -> None:
    """Require that a kernel can walk over the memory of a weight.

    Raises:
        Unsupported: it cannot.
    """
    reason = why_not_contiguous(step)
    if reason is not None:
        raise Unsupported(reason)


def _verified_path(key: RuleKey, step: WeightStep, executor_name: str, how: str) -> Path:
    """Return the path of an executor, which is made and compared with own code if it is new.

    Raises:
        Unsupported: there is no executor, or it would give other numbers.
    """
    weight = step.unsharded_weight
    shape, compiler = tuple(weight.shape), (os.environ.get("CXX"), os.environ.get("PATH"))
    kind = _ExecutorKey(weight.dtype, weight.device, executor_name, compiler)
    executor = _get_executor(key, shape, kind)
    cached(
        ("verified", key.structure, kind, executor.batch_key, executor.program),
        lambda: _print_and_verify(executor, key, shape, kind),
    )
    return Path(executor.name, f"recorded; {how}", executor)


def _get_graph(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> StepGraph:
    return cached(
        ("graph", *_cache_key(key, shape, dtype)),
        lambda: trace(key, shape, dtype),
    )


def _cache_key(key: RuleKey, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    defaults = torch.get_default_dtype(), default_device()
    return key.structure, shape, dtype, defaults


def _get_executor(key: RuleKey, shape: tuple[int, ...], kind: _ExecutorKey) -> Executor:
    return cached(
        ("executor", *_cache_key(key, shape, kind.dtype), kind),
        lambda: _build_executor(key, shape, kind),
    )


def _build_executor(key: RuleKey, shape: tuple[int, ...], kind: _ExecutorKey) -> Executor:
    """Make the executor of a graph.

    Raises:
        Unsupported: there is no kernel.
    """
    graph = _get_graph(key, shape, kind.dtype)
    literals = np.array(graph.literals, dtype=np.float64)
    if kind.executor == BatchedExecutor.name:
        return BatchedExecutor(graph, literals)
    if kind.executor == CudaExecutor.name:
        require_no_capture(kind.device)
        siblings = [_graph_or_none(key, kind.dtype, sibling) for sibling in SIBLING_SHAPES]
        graphs = [sibling for sibling in siblings if sibling is not None]
        return build_cuda_executor(graph, graphs, kind.dtype, kind.device)
    return KernelExecutor(build_kernel(graph, kind.dtype), literals, graph)


def _print_and_verify(
    executor: Executor, key: RuleKey, shape: tuple[int, ...], kind: _ExecutorKey
) -> None:
    """Verify an executor; before that, print its code if the environment asks for it."""
    if os.environ.get("SPHERENORM_PRINT_CODE", "0") != "0":
        sys.stderr.write(f"// {executor.name} of {key.names} for {kind.dtype}\n{executor.code}\n")
    _verify(executor, key, shape, kind)


def _verify(executor: Executor, key: RuleKey, shape: tuple[int, ...], kind: _ExecutorKey) -> None:
    """Compare an executor with the rule's own code, at a small shape if that has the same kernel.

    Raises:
        ResultMismatch: the numbers differ.
    """
    small = small_shape(key.rule, shape)
    small_executor = _build_executor(key, small, kind)
    if small_executor.program == executor.program:
        executor, shape = small_executor, small
    verify_executor(executor, key, shape, kind.dtype, kind.device)
    if isinstance(executor, CudaExecutor):  # whose blocks share a weight, and a row
        in_pieces = replace(executor, chunk=SMALL_CHUNK)
        verify_executor(in_pieces, key, shape, kind.dtype, kind.device)
    if kind.dtype not in HALF_PRECISION:
        return
    # In half precision rounding hides small faults, which the same program shows on float32.
    twin = _build_executor(key, shape, replace(kind, dtype=torch.float32))
    if twin.program == executor.program:
        verify_executor(twin, key, shape, torch.float32, kind.device)
        verify_storage(executor, twin, key, shape, kind.dtype, kind.device)


def _check_vmap(key: RuleKey, step: WeightStep, reason: str) -> None:
    """Require that vmap takes the step of a weight that cannot be recorded, because of `reason`.

    Raises:
        Unsupported: it does not; or the weight is no plain tensor.
    """
    weight = step.weight
    is_plain = type(weight) in PLAIN_TENSORS and type(step.grad) is Tensor
    if step.sharded is not None or not is_plain:
        raise Unsupported(reason)
    shape = tuple(weight.shape)
    rule = key.with_visible_steps().rule

    def verify() -> None:
        small = small_shape(rule, shape)
        try:
            mismatch = find_mismatch(
                rule, _make_stack_runner(rule), small, weight.dtype, weight.device
            )
        except Exception as error:  # vmap has many errors, and a rule may raise its own
            first_line = str(error).strip().partition("\n")[0]
            raise Unsupported(
                f"{reason}; nor can torch.func.vmap take the step ({first_line})"
            ) from error
        if mismatch is not None:
            raise Unsupported(
                f"a stack would give other numbers than the rule's own code: {mismatch}"
            )

    cached(("stack", *_cache_key(key, shape, weight.dtype), weight.device), verify)


def _make_stack_runner(rule: Rule) -> RunStep:
    """Step one weight as the first of a stack of two."""

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        new_weight, new_state = step_stack(rule, [WeightStep(weight, grad, state)] * 2, None)[0]
        weight.copy_(new_weight)
        state.update(new_state)

    return run


def step_stack(
    rule: Rule, weights: list[WeightStep], global_sums: Any
) -> list[tuple[Tensor, State]]:
    """Return the new weights and states of weights of one kind, by one step of their stack."""
    states = [w.state for w in weights]
    stacked_state = {name: torch.stack([s[name] for s in states]) for name in states[0]}
    stacked_weight = torch.stack([w.weight for w in weights])
    stacked_grad = torch.stack([w.grad for w in weights])

    def step(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        return rule.step(weight, grad, state, global_sums)

    new_weight, new_state = torch.vmap(step)(stacked_weight, stacked_grad, stacked_state)
    return [
        (new_weight[i], {name: x[i] for name, x in new_state.items()}) for i in range(len(weights))
    ]
