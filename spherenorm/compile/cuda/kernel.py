"""The CUDA kernel: the arguments of its launches, and the two ways to compile and launch it.

On a GPU, NVRTC compiles the source and the driver launches it, both of them as torch brings them.
On a CPU, g++ compiles the same source behind `shim.hpp`; tests step weights by it. All else is the
same code: a launch takes the addresses, sizes and numbers of its weights by value, so that a
captured CUDA graph has its own, and nothing is uploaded.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.code import read_header
from spherenorm.compile.cuda.code import (
    THREADS,
    CudaSource,
    Program,
    annotated_cuda_source,
    arguments_type,
    cuda_source,
    weight_type,
)
from spherenorm.compile.graph import StepGraph
from spherenorm.compile.interface import Array, WeightStep, cached
from spherenorm.compile.kernel import (
    Export,
    cached_file,
    grad_in_order,
    load_function,
    warn_of_cache,
)
from spherenorm.numerics import Scalar, compute_dtype
from spherenorm.record import Unsupported
from spherenorm.support import atomic_write

TYPES = {
    torch.float32: ("float", "float"),
    torch.float64: ("double", "double"),
    torch.bfloat16: ("float", "bfloat16"),
    torch.float16: ("float", "float16"),
}
"""The types in which a kernel computes, and in which it stores weights and gradients."""
CHUNK = 8192
"""Entries that a block takes. Not measured: 3,100 blocks for ResNet-50, eight for each of a large
GPU's processors at a time."""
SMALL_CHUNK = 4
"""Entries that a block takes in a comparison with own code, so that small weights have many."""
VECTORS_PER_THREAD = 2
"""Vectors of entries that a thread takes of a row before a second thread helps it."""
NVRTC_OPTIONS = ("--std=c++17", "--fmad=false")
"""A product is rounded before it is added, as in the rule's own code, unless that is an addcmul."""
LAUNCH = Export("launch", (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p))
"""The function of `shim.hpp`, to which the source adds its arguments."""
SHIM_ERRORS = {1: "no memory for the stacks", 2: "threads of a block wait at different barriers"}


class Launch(Protocol):
    """Launches a compiled kernel."""

    def __call__(self, arguments: Array, n_blocks: int) -> None:
        """Launch blocks on the current stream of the kernel's device.

        Raises:
            Unsupported: it has failed.
        """


class ShimLaunch:
    """Runs a kernel on the CPU.

    Args:
        function: `launch` of the compiled library.

    Attributes:
        seed: decides in which order blocks and threads take turns.
        n_launches: how many there were.
    """

    seed = 0

    def __init__(self, function: Any) -> None:
        self._function, self.n_launches = function, 0
        self._n_bytes = np.zeros(1, dtype=np.int64)

    def __call__(self, arguments: Array, n_blocks: int) -> None:
        """Run the blocks one after another."""
        self.n_launches += 1
        error = self._function(
            arguments.ctypes.data, n_blocks, self.seed, self._n_bytes.ctypes.data
        )
        if error:
            raise Unsupported(f"the CUDA kernel has failed on the CPU: {SHIM_ERRORS[error]}")

    @property
    def n_bytes(self) -> int:
        """Bytes of weights, gradients and states that all launches have read and written."""
        return int(self._n_bytes[0])


class DriverLaunch:
    """Launches a kernel on a GPU.

    Args:
        cubin: of the kernel.
        device: its GPU.
    """

    def __init__(self, cubin: bytes, device: torch.device) -> None:
        self._device, self._driver = device, load_library("libcuda.so.1")
        self._function, module = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):  # whose context takes the module
            self._call("cuModuleLoadData", ctypes.byref(module), cubin)
            self._call("cuModuleGetFunction", ctypes.byref(self._function), module, b"step_weights")

    def __call__(self, arguments: Array, n_blocks: int) -> None:
        """Launch the blocks; the driver copies the arguments before it returns."""
        stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
        parameters = (ctypes.c_void_p * 1)(arguments.ctypes.data)
        grid, block, shared_bytes = (n_blocks, 1, 1), (THREADS, 1, 1), 0
        with torch.cuda.device(self._device):
            self._call(
                *("cuLaunchKernel", self._function, *grid, *block, shared_bytes),
                *(stream, parameters, None),
            )

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            Unsupported: the driver refuses.
        """
        error = getattr(self._driver, name)(*arguments)
        if error:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(error, ctypes.byref(text))
            raise Unsupported(f"{name}: {(text.value or b'unknown error').decode()}")


@dataclass(frozen=True)
class CudaKernel:
    """A compiled kernel; those of one source, type and device are equal.

    Attributes:
        source: of all programs.
        types: compiler flags that choose the types.
        device: on which it runs.
        launch: runs blocks of it on the device.
    """

    source: CudaSource
    types: tuple[str, ...]
    device: torch.device
    launch: Launch = field(compare=False, repr=False)

    def __hash__(self) -> int:
        """Hash the text, of which all else follows."""
        return hash((self.source.text, self.types, self.device))


def build_cuda_executor(
    graph: StepGraph, siblings: Sequence[StepGraph], dtype: torch.dtype, device: torch.device
) -> CudaExecutor:
    """Print and compile the kernel of a rule.

    Args:
        graph: of the weight's step.
        siblings: graphs of the same rule for other weights, whose steps share the launches. One
            that has no kernel is left out.
        dtype: of the weights.
        device: of the weights; on a CPU the shim runs the kernel.

    Raises:
        Unsupported: the graph has no kernel; or there is no compiler, or it refuses the source.
    """
    if dtype not in TYPES:
        raise Unsupported(f"CUDA kernels take no {dtype}")
    _cached_source([graph])  # may refuse it
    graphs: list[StepGraph] = []
    for candidate in (*siblings, graph):
        if candidate.structure in (other.structure for other in graphs):
            continue
        with contextlib.suppress(Unsupported):
            _cached_source([candidate])
            graphs.append(candidate)
    index = [other.structure for other in graphs].index(graph.structure)
    source = _cached_source(graphs)
    compute_type, storage_type = TYPES[dtype]
    types = f"-DREAL={compute_type}", f"-DSTORED={storage_type}"
    launch = cached(
        ("CUDA kernel", source.text, types, device), lambda: _compile(source.text, types, device)
    )
    literals = np.array(graph.literals, dtype=np.float64)
    kernel = CudaKernel(source, types, device, launch)
    return CudaExecutor(kernel, index, literals, graph, 16 // compute_dtype(dtype).itemsize)


def _cached_source(graphs: Sequence[StepGraph]) -> CudaSource:
    structures = tuple(graph.structure for graph in graphs)
    return cached(("CUDA source", structures), lambda: cuda_source(graphs))


def _compile(source: str, types: tuple[str, ...], device: torch.device) -> Launch:
    """Compile a kernel, unless the disk cache holds it.

    Raises:
        Unsupported: there is no compiler, or it refuses the source.
    """
    if device.type == "cpu":
        defines = ("-O1", "-U_FORTIFY_SOURCE", *types)  # which refuses jumps between stacks
        return ShimLaunch(load_function(read_header("cuda/shim.hpp") + source, defines, LAUNCH))
    if not torch.cuda.is_available() or torch.version.cuda is None:
        raise Unsupported(f"torch has no CUDA for {device}")
    major, minor = torch.cuda.get_device_capability(device)
    options = (f"--gpu-architecture=sm_{major}{minor}", *NVRTC_OPTIONS, *types)
    path = cached_file(".cubin", source, *options, torch.version.cuda)
    try:
        cubin = path.read_bytes()
    except OSError:
        library = f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}"
        cubin = compile_cubin(source, options, library)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, cubin)
        except OSError as error:
            warn_of_cache(path.parent, error.strerror or str(error))
    return DriverLaunch(cubin, device)


def compile_cubin(source: str, options: Sequence[str], library: str) -> bytes:
    """Compile CUDA for a GPU.

    Args:
        source: of the kernel.
        options: of NVRTC.
        library: the name of NVRTC's shared library.

    Raises:
        Unsupported: there is no NVRTC, or it refuses the source.
    """
    nvrtc = load_library(library)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    encoded = [option.encode() for option in options]
    flags = (ctypes.c_char_p * len(encoded))(*encoded)

    def call(name: str, *arguments: Any) -> None:
        error = getattr(nvrtc, name)(*arguments)
        if error:
            raise Unsupported(f"{name} has failed with the code {error}{log()}")

    def log() -> str:
        if nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)):
            return ""
        text = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, text)
        lines = text.value.decode(errors="replace").splitlines()
        return "".join(f": {line}" for line in lines if "error" in line)[:300]

    text = source.encode()
    call("nvrtcCreateProgram", ctypes.byref(program), text, b"step.cu", 0, None, None)
    try:
        call("nvrtcCompileProgram", program, len(encoded), flags)
        call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        call("nvrtcGetCUBIN", program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw


def load_library(name: str) -> Any:
    """Load a shared library that torch has loaded, lies beside torch, or is the system's.

    Raises:
        Unsupported: there is none.
    """
    beside_torch = Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}")
    for candidate in (name, *map(str, sorted(beside_torch))):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(candidate)
    raise Unsupported(f"{name} cannot be loaded")


@dataclass(frozen=True)
class Tiling:
    """The division of a weight among blocks; the fields are those of `Weight` in `kernel.hpp`.

    Attributes:
        rows, cols: of the weight.
        chunks: its blocks.
        rows_of_chunk: rows that a block takes.
        pieces: blocks that share a row; 1 if none does.
        team: threads that take a row.
    """

    rows: int
    cols: int
    chunks: int
    rows_of_chunk: int
    pieces: int
    team: int


@lru_cache(maxsize=4096)
def tile(rows: int, cols: int, chunk: int, vector: int) -> Tiling:
    """Divide a weight.

    Args:
        rows, cols: of the weight.
        chunk: the largest number of entries of a block, unless a block takes one row of them.
        vector: entries that a thread takes at once.
    """
    pieces = max(1, -(-cols // chunk))
    if pieces > 1:
        return Tiling(rows, cols, max(1, rows * pieces), 1, pieces, THREADS)
    rows_of_chunk = max(1, chunk // max(cols, 1))
    n_threads = -(-cols // (VECTORS_PER_THREAD * vector))
    team = min(THREADS, 1 << max(0, n_threads - 1).bit_length())
    return Tiling(rows, cols, max(1, -(-rows // rows_of_chunk)), rows_of_chunk, 1, team)


@dataclass(frozen=True, eq=False)
class CudaExecutor:
    """A kernel, and the program and literals of weights of one shape.

    Attributes:
        kernel: of the rule.
        program_index: of the graph's program.
        literals: of the graph.
        graph: of the step.
        vector: entries that a thread takes at once.
        chunk: entries that a block takes; None for `CHUNK`.
    """

    kernel: CudaKernel
    program_index: int
    literals: Array
    graph: StepGraph
    vector: int
    chunk: int | None = None
    name = "CUDA kernel"
    max_batch_entries = None
    reuses_batches = True

    @property
    def batch_key(self) -> Hashable:
        """The kernel."""
        return self.kernel

    @property
    def program(self) -> Hashable:
        """The source, which does not name the types, and the program in it."""
        return self.kernel.source.text, self.program_index

    @property
    def structure(self) -> Program:
        """The program, as the host knows it."""
        return self.kernel.source.programs[self.program_index]

    @cached_property
    def literal_bytes(self) -> bytes:
        """The literals as a key; weights of equal ones share them in the arguments."""
        return self.literals.tobytes()

    @property
    def block_entries(self) -> int:
        """Entries that a block takes, unless it takes one row of more."""
        return self.chunk or CHUNK

    @property
    def code(self) -> str:
        """The CUDA source of the program, without the parts that no recipe changes."""
        return annotated_cuda_source(self.graph)

    def bind(self, weights: Sequence[WeightStep], executors: Sequence[Any]) -> CudaBatch:
        """Make the arguments of all launches."""
        return CudaBatch(self.kernel, weights, executors)

    def tiling(self, weight: Tensor) -> Tiling:
        """Divide a weight among blocks."""
        rows = weight.shape[0] if weight.ndim > 1 and not self.structure.is_flat else 1
        cols = weight.numel() // rows if rows else 0
        return tile(rows, cols, self.block_entries, self.vector)


class CudaBatch:
    """Weights that step in the same launches.

    Args:
        kernel: of all of them.
        weights: none of their tensors is held.
        executors: of the weights.

    Attributes:
        tables: of so many weights as the arguments of a launch have room for.
    """

    def __init__(
        self, kernel: CudaKernel, weights: Sequence[WeightStep], executors: Sequence[CudaExecutor]
    ) -> None:
        self.kernel = kernel
        self._states = [executor.structure.states for executor in executors]
        tilings = [e.tiling(w.weight) for e, w in zip(executors, weights, strict=True)]
        self.tables = [
            _Table(kernel, start, executors[start:end], tilings[start:end])
            for start, end in _ranges_that_fit(executors, kernel.source.sizes)
        ]

    @property
    def n_launches(self) -> int:
        """The number of launches of a step."""
        return sum(len(table.launches) for table in self.tables)

    @property
    def memory_bytes(self) -> int:
        """Bytes that are kept on the device beside weights and states."""
        return sum(table.memory.nbytes for table in self.tables)

    def run(self, weights: Sequence[WeightStep], scalars: Sequence[Scalar]) -> None:
        """Step the weights in place.

        Args:
            weights: as they are now.
            scalars: the hyper-parameters. A tensor on a GPU is not read by the host.
        """
        grads = [grad_in_order(step) for step in weights]
        rows = [
            [step.weight.data_ptr(), grad.data_ptr(), *(step.state[k].data_ptr() for k in states)]
            for step, grad, states in zip(weights, grads, self._states, strict=True)
        ]
        width = self.kernel.source.sizes["MAX_POINTERS"]
        pointers = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
        device = self.kernel.device
        on_device = [
            x.to(device, torch.float64) if isinstance(x, Tensor) and not x.is_cpu else None
            for x in scalars
        ]
        addresses = [0 if x is None else x.data_ptr() for x in on_device]
        numbers = [
            float(x) if address == 0 else 0.0 for x, address in zip(scalars, addresses, strict=True)
        ]
        for table in self.tables:
            table.run(pointers, numbers, addresses)
        # Autograd has not seen the write; it must notice if a graph still needs the old weight.
        torch.autograd.graph.increment_version([step.weight for step in weights])


class _Table:
    """The arguments of the launches that step some weights.

    Args:
        kernel: to launch.
        start: the index of the first weight in the batch.
        executors: of the weights.
        tilings: of the weights.

    Attributes:
        memory: what launches leave for later ones: sums of chunks and rows, and scalars.
        launches: (arguments, blocks, indices of their weights) of each launch.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        start: int,
        executors: Sequence[CudaExecutor],
        tilings: Sequence[Tiling],
    ) -> None:
        self._kernel = kernel
        sizes = kernel.source.sizes
        literals: dict[bytes, int] = {}
        n_literals, n_numbers = 0, 0
        arguments = np.zeros((), arguments_type(sizes))
        rows = []
        for executor, tiling in zip(executors, tilings, strict=True):
            content = executor.literal_bytes
            if content not in literals:
                literals[content] = n_literals
                n_literals += len(executor.literals)
                arguments["literal"][literals[content] : n_literals] = executor.literals
            rows.append(
                (
                    *(tiling.rows, tiling.cols, n_numbers, 0),
                    *(tiling.chunks, tiling.rows_of_chunk, tiling.pieces, tiling.team),
                    *(executor.program_index, literals[content], 0, 0),
                )
            )
            n_numbers += executor.structure.memory_of(tiling.rows, tiling.pieces, tiling.chunks)
        weights = np.array(rows, dtype=weight_type(sizes))
        self.memory = torch.zeros(n_numbers, dtype=torch.float64, device=kernel.device)
        arguments["chunk"] = executors[0].block_entries
        arguments["memory"] = self.memory.data_ptr()
        self.launches = [
            self._launch(arguments, weights, members, pass_, loop, start)
            for pass_, loop, members in _launches_of(executors, tilings)
        ]

    @staticmethod
    def _launch(
        arguments: Array, weights: Array, members: list[int], pass_: int, loop: int, start: int
    ) -> tuple[Array, int, Array]:
        arguments, weights = arguments.copy(), weights[members]
        n_blocks = weights["chunks"].cumsum()
        weights["first_block"] = n_blocks - weights["chunks"]
        arguments["pass"], arguments["loop"], arguments["count"] = pass_, loop, len(members)
        arguments["weight"][: len(members)] = weights
        return arguments, int(n_blocks[-1]), start + np.array(members)

    def run(self, pointers: Array, numbers: Sequence[float], addresses: Sequence[int]) -> None:
        """Launch all passes.

        Args:
            pointers: of the tensors of each weight of the batch.
            numbers: hyper-parameters.
            addresses: of those hyper-parameters that are on the device; else 0.
        """
        for arguments, n_blocks, members in self.launches:
            arguments["weight"]["pointer"][: len(members)] = pointers[members]
            arguments["H"][: len(numbers)] = numbers
            arguments["H_address"][: len(addresses)] = addresses
            self._kernel.launch(arguments, n_blocks)


def _launches_of(
    executors: Sequence[CudaExecutor], tilings: Sequence[Tiling]
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the pass, the loop and the weights of each launch.

    The first loop's launch runs all loops of whole rows. Rows in pieces take a launch for each.
    """
    n_loops = [
        executor.structure.n_loops if tiling.pieces > 1 else (1,) * len(executor.structure.n_loops)
        for executor, tiling in zip(executors, tilings, strict=True)
    ]
    for pass_ in range(max(map(len, n_loops))):
        of_pass = [loops[pass_] if pass_ < len(loops) else 0 for loops in n_loops]
        for loop in range(max(of_pass)):
            yield pass_, loop, [i for i, n in enumerate(of_pass) if n > loop]


def _ranges_that_fit(
    executors: Sequence[CudaExecutor], sizes: dict[str, int]
) -> Iterator[tuple[int, int]]:
    """Yield the first weight of each table, and the first one beyond it."""
    start, n_literals, literals = 0, 0, set[bytes]()
    for i, executor in enumerate(executors):
        content = executor.literal_bytes
        added = 0 if content in literals else len(executor.literals)
        is_full = i - start == sizes["MAX_WEIGHTS"]
        if is_full or n_literals + added > sizes["MAX_LITERALS"]:
            yield start, i
            start, n_literals, literals = i, 0, set()
            added = len(executor.literals)
        literals.add(content)
        n_literals += added
    yield start, len(executors)
