"""The C++ kernel on a CPU: compile a source, cache the library on disk, load and call its `step`.

A library enters the cache by a rename, whole. Processes that want the same one at once each compile
it, and the last rename stays. A process that cannot write to the cache compiles for itself alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.code import annotated_source, kernel_source
from spherenorm.compile.graph import StepGraph
from spherenorm.compile.interface import Array, Executor, WeightStep, cached, count_cached
from spherenorm.numerics import Scalar
from spherenorm.record import Unsupported

OPENMP = () if sys.platform == "darwin" else ("-fopenmp",)
"""Flags for several threads. Apple's compiler has no OpenMP, so a kernel has one thread there."""
FLAGS = (
    "-std=c++14", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", *OPENMP, "-shared", "-fPIC",
)  # fmt: skip
COMPILE_TIMEOUT_S = 120.0
TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bfloat16"),
}
"""The types in which a kernel computes, and in which it stores weights and gradients."""
GRAD_COLUMN = 1
"""The column of gradients' pointers in a batch's table."""

Function = Callable[..., int]
"""A function of a compiled library, which returns 0 if all went well."""


class Export(NamedTuple):
    """A function that a library exports.

    Attributes:
        name: in the library.
        argument_types: of ctypes.
    """

    name: str
    argument_types: tuple[Any, ...]


STEP = Export("step", (ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int))


@dataclass(frozen=True)
class CppKernel:
    """A compiled kernel; those of one source are equal.

    Attributes:
        source: exports `step(count, tensors, literals, scalars, threads)`.
        defines: compiler flags that choose the types.
        states: the states whose pointers follow those of weight and gradient.
        step: the library's function.
    """

    source: str
    defines: tuple[str, ...]
    states: tuple[str, ...]
    step: Function = field(compare=False, repr=False)

    def __call__(self, tensors: Array, literals: Array, scalars: Array) -> None:
        """Step many weights in place.

        Args:
            tensors: int64; for each weight the pointers of weight, gradient and `states`, its
                number of rows and its number of columns.
            literals: float64; for each weight those of its graph.
            scalars: float64; the hyper-parameters.

        Raises:
            MemoryError: for scratch; nothing is written then.
        """
        pointers = [array.ctypes.data for array in (tensors, literals, scalars)]
        if self.step(len(tensors), *pointers, threads()):
            raise MemoryError(f"no memory for the scratch of a step of {len(tensors)} weights")


def build_kernel(graph: StepGraph, dtype: torch.dtype) -> CppKernel:
    """Print and compile the kernel of a graph.

    Raises:
        Unsupported: no kernel stores the dtype, or has words for the graph; or there is no
            compiler, or it refuses the kernel.

    Warns:
        UserWarning: of the first reason in a process for which steps are slower.
    """
    if dtype not in TYPES:
        raise Unsupported(f"C++ kernels take no {dtype}")
    source, states = kernel_source(graph)
    compute_type, storage_type = TYPES[dtype]
    defines = (f"-DREAL={compute_type}", f"-DSTORED={storage_type}")
    try:
        step = load_function(source, defines, STEP)
    except Unsupported as error:
        _warn_of_slow_steps(str(error))
        raise
    return CppKernel(source, defines, states, step)


@dataclass(frozen=True, eq=False)
class KernelExecutor:
    """A kernel, and the literals of weights of one shape.

    Attributes:
        kernel: of the graph.
        literals: of the graph.
        graph: of the step.
    """

    kernel: CppKernel
    literals: Array
    graph: StepGraph
    name = "C++ kernel"
    max_batch_entries = None
    reuses_batches = False

    @property
    def batch_key(self) -> Hashable:
        """The kernel."""
        return self.kernel

    @property
    def program(self) -> Hashable:
        """The source, which does not name the types."""
        return self.kernel.source

    @property
    def code(self) -> str:
        """The C++ source of the kernel, without the parts that no recipe changes."""
        return annotated_source(self.graph)

    def bind(self, weights: Sequence[WeightStep], executors: Sequence[Executor]) -> KernelBatch:
        """Make the table of weights."""
        literals = np.stack([executor.literals for executor in executors])
        return KernelBatch(self.kernel, literals, weights)


class KernelBatch:
    """The weights that a kernel steps, as the rows of its table.

    Args:
        kernel: takes the table.
        literals: a row for each weight.
        weights: their memory stays where it is, but for the gradients'.
    """

    def __init__(self, kernel: CppKernel, literals: Array, weights: Sequence[WeightStep]) -> None:
        self.kernel, self.literals = kernel, literals
        self.table = np.array([self._table_row(w) for w in weights], dtype=np.int64)
        self.needs_relayout = [
            i for i, w in enumerate(weights) if w.grad.stride() != w.weight.stride()
        ]
        """Weights whose gradients have to be copied into the weight's order in memory."""

    def _table_row(self, step: WeightStep) -> tuple[int, ...]:
        weight = step.weight
        rows = weight.shape[0] if weight.ndim > 1 else 1
        cols = weight.numel() // rows if rows else 0
        pointers = [step.state[name].data_ptr() for name in self.kernel.states]
        return weight.data_ptr(), step.grad.data_ptr(), *pointers, rows, cols

    def set_grads(self, pointers: Sequence[int]) -> None:
        """Set the addresses of the gradients of all weights."""
        self.table[:, GRAD_COLUMN] = pointers

    def run(self, weights: Sequence[WeightStep], scalars: Sequence[Scalar]) -> None:
        """Step the weights in place; the gradients are where the table has them.

        Args:
            weights: as they are now.
            scalars: the hyper-parameters.

        Raises:
            MemoryError: for scratch; before anything is written.
        """
        relayouted = [grad_in_order(weights[i]) for i in self.needs_relayout]
        for i, grad in zip(self.needs_relayout, relayouted, strict=True):
            self.table[i, GRAD_COLUMN] = grad.data_ptr()
        self.kernel(self.table, self.literals, np.array([float(x) for x in scalars]))
        # Autograd has not seen the write; it must notice if a graph still needs the old weight.
        torch.autograd.graph.increment_version([w.weight for w in weights])


def grad_in_order(step: WeightStep) -> Tensor:
    """Return the gradient of a weight, copied unless it lies in memory as the weight does."""
    if step.grad.stride() == step.weight.stride():
        return step.grad
    return torch.empty_like(step.weight).copy_(step.grad)


def find_compiler() -> str:
    """Return the path of the C++ compiler: $CXX, or the first of g++ and clang++.

    Raises:
        Unsupported: there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        path = shutil.which(name)
        if path:
            return path
    raise Unsupported("no C++ compiler: set CXX, or install g++ (Debian: apt-get install g++)")


def cache_folder() -> Path:
    """Return the folder of kernels: $SPHERENORM_CACHE, else in the user's cache folder."""
    chosen = os.environ.get("SPHERENORM_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spherenorm"


_forked = threading.Event()
"""Set in a forked process, whose copy of OpenMP waits forever for threads that the parent had."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.set)


def threads() -> int:
    """Return the number of threads of a kernel: torch's, but one in a forked process."""
    return 1 if _forked.is_set() else torch.get_num_threads()


def load_function(source: str, defines: tuple[str, ...], export: Export) -> Function:
    """Return an exported function of `source`, compiled unless the disk cache holds it.

    Raises:
        Unsupported: there is no compiler, or it failed; what failed is not tried again.
    """
    command = (find_compiler(), *FLAGS, *defines)
    return cached(("kernel", source, command), lambda: _load_or_build(source, command, export))


def kernels_built() -> int:
    """Count the kernels that this process has compiled or loaded."""
    return count_cached("kernel")


def _load_or_build(source: str, command: tuple[str, ...], export: Export) -> Function:
    library = cached_file(".so", source, *command, _target_macros(command[0]))
    with contextlib.suppress(OSError):
        return _load(library, export)
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        return _build(source, command, export, library.parent, library)
    except OSError as error:
        warn_of_cache(library.parent, error.strerror or str(error))
    try:
        return _build(source, command, export, None, None)
    except OSError as error:
        raise Unsupported(f"the compiled kernel cannot be loaded: {error}") from error


def cached_file(suffix: str, *identity: str) -> Path:
    """Return the path of what is compiled from the strings of `identity`."""
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    return cache_folder() / f"{digest}{suffix}"


def _build(
    source: str,
    command: Sequence[str],
    export: Export,
    parent: Path | None,
    destination: Path | None,
) -> Function:
    """Compile in a temporary folder within `parent`, load, and keep the library if asked to."""
    with tempfile.TemporaryDirectory(prefix="spherenorm-", dir=parent) as scratch:
        folder = Path(scratch)
        (folder / "step.cpp").write_text(source, encoding="utf-8")
        _run_compiler([*command, "step.cpp", "-o", "step.so"], folder)
        library = folder / "step.so"
        if not library.exists():
            raise Unsupported(f"{command[0]} has ended without an error and without a library")
        function = _load(library, export)
        if destination is not None:
            library.replace(destination)
        return function


def _warn_of_slow_steps(reason: str) -> None:
    """Warn, once in a process, that steps are slower."""
    if not _has_warned.is_set():
        _has_warned.set()
        warnings.warn(
            "optimizers step by their rules' own code, which is slow on small weights: " + reason,
            stacklevel=2,
        )


_has_warned = threading.Event()


@functools.cache
def warn_of_cache(folder: Path, reason: str) -> None:
    """Warn, once in a process, that kernels cannot be kept in `folder`."""
    warnings.warn(
        f"kernels cannot be kept in {folder} ({reason}), so each process compiles them anew; "
        "set SPHERENORM_CACHE to a folder that can be written",
        stacklevel=2,
    )


def _load(library: Path, export: Export) -> Function:
    """Load a library and return a function of it.

    Raises:
        OSError: it is no library for this machine, or has no such function.
    """
    try:
        function = getattr(ctypes.CDLL(str(library)), export.name)
    except AttributeError as error:
        raise OSError(str(error)) from error
    function.argtypes = export.argument_types
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@functools.cache
def _target_macros(compiler: str) -> str:
    """Return the macros that the compiler predefines under `FLAGS`.

    They tell its version and, on every architecture, the instructions that -march=native stands
    for: machines of different processors that share a cache must not share kernels.

    Raises:
        Unsupported: the compiler failed.
    """
    return _run_compiler([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull], None)


def _run_compiler(command: Sequence[str], folder: Path | None) -> str:
    """Run a compiler and return its output; one that hangs is stopped.

    Raises:
        Unsupported: it failed; with the first line of its errors.
    """
    name = command[0]
    try:
        process = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=COMPILE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unsupported(f"{name} has not ended after {COMPILE_TIMEOUT_S:g} s") from error
    except OSError as error:
        raise Unsupported(f"{name} cannot be run: {error.strerror}") from error
    if process.returncode < 0:
        raise Unsupported(f"{name} was ended by signal {-process.returncode}")
    if process.returncode:
        raise Unsupported(f"{name} refused the kernel: {_first_error(process.stderr)}")
    return process.stdout


def _first_error(text: str) -> str:
    """Return the first line that tells of an error, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    return next((line for line in lines if "error" in line), lines[0])
