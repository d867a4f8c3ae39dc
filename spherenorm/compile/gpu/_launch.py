"""Launch kernels on batches of weights.

A batch is described by tables in device memory: what follows from shapes is made once, pointers and
hyper-parameters are uploaded when they change. No call here waits for the device once a set of
shapes has been stepped. So a step can be captured in a CUDA graph after one ordinary step; its
replays read the pointers of the capture, and hyper-parameters that are tensors on the device at
their present values.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile.gpu._kernels import KernelSource
from spherenorm.compile.gpu._pass import BLOCK, LONG_TILE, TILES
from spherenorm.compile.gpu._words import COLUMNS

DEVICES = {"cuda"}
"""The types of device whose weights they step; tests add "cpu", for Triton's interpreter."""
WARPS = {"advance": 4, "pass": 8}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class LaunchTable:
    """The facts that follow from the shapes of a batch, on its device.

    Attributes:
        shape: see `_words.COLUMNS`.
        of_totals: the same, where each weight has one program, whose results are its totals.
        literals: of each weight.
        items: the work lists of passes over rows and over runs of entries.
        rows: of all weights together.
    """

    shape: Tensor
    of_totals: Tensor
    literals: Tensor
    items: dict[bool, Tensor]
    rows: int


class Launcher:
    """Kernels, loaded.

    Raises:
        ImportError: there is no Triton.
    """

    name = "Triton kernels"

    def __init__(self, kernels: KernelSource) -> None:
        self.kernels = kernels
        self.module = _load(kernels.text)
        self.states = kernels.states
        self.totals = kernels.reductions if len(kernels.flat) > 1 else 0

    def __call__(self, tensors: Array, literals: Array, numbers: Tensor) -> None:
        """Step a batch of weights.

        Args:
            tensors: int64, for each weight the pointers of weight, gradient and states, its rows
                and its columns.
            literals: float64, for each weight.
            numbers: float64, the hyper-parameters; its device is where everything happens.
        """
        for _ in self._launched(tensors, literals, numbers, parts=False):
            pass

    def by_passes(self, tensors: Array, literals: Array, numbers: Tensor) -> Iterator[Tensor]:
        """Step parts of weights; see `_kernels.Kernel`."""
        return self._launched(tensors, literals, numbers, parts=True)

    def _launched(
        self, tensors: Array, literals: Array, numbers: Tensor, parts: bool
    ) -> Iterator[Tensor]:
        """The totals between two passes, of `parts`."""
        kernels, device, count = self.kernels, numbers.device, len(tensors)
        plan = _plan(tensors[:, -2:].tobytes(), literals.tobytes(), device)
        if _is_capturing(device):
            _captured[id(plan)] = plan
        pointers = upload(tensors[:, :-2], device)
        scalars = _workspace(count * kernels.scalars, device)
        saved = _workspace(plan.rows * kernels.saved, device)
        partial = _workspace(max(map(len, plan.items.values())) * kernels.reductions, device)
        totals = _workspace(count * kernels.reductions if parts else 0, device)
        shape, left = plan.shape, partial
        for number, is_flat in enumerate(kernels.flat):
            arguments = pointers, shape, plan.literals, numbers, scalars, left
            self._launch(f"advance{number}", WARPS["advance"], count, *arguments)
            items = plan.items[is_flat]
            if len(items):
                arguments = items, pointers, plan.shape, scalars, saved, partial
                self._launch(f"pass{number}", WARPS["pass"], len(items), *arguments)
            if parts and number + 1 < len(kernels.flat):
                column = COLUMNS.index("flat_first" if is_flat else "tile_first")
                first, sizes = plan.shape.flatten()[column:], (len(COLUMNS), kernels.reductions)
                summed = first, partial, totals, *sizes
                self._launch("totals", WARPS["advance"], len(totals), *summed)
                shape, left = plan.of_totals, totals
                yield totals.view(count, kernels.reductions)

    def _launch(self, name: str, warps: int, programs: int, first: Tensor, *more: Any) -> None:
        with torch.cuda.device(first.get_device()):  # -1, no device, under the interpreter
            kernel = getattr(self.module, name)[(programs,)]
            kernel(first, *more, num_warps=warps, enable_fp_fusion=True)


def _workspace(size: int, device: torch.device) -> Tensor:
    """Memory of one step: steps on several streams, and captured ones, must not share it."""
    return torch.empty(size, dtype=torch.float64, device=device)


@functools.cache
def launcher(kernels: KernelSource) -> Launcher:
    """The one launcher of the kernels: weights that share them are stepped together."""
    return Launcher(kernels)


def upload(values: Array, device: torch.device) -> Tensor:
    """A copy of int64 or float64 `values` on the device, for the present stream; never write to it.

    Recent uploads are kept. Pinned memory is torch's to reuse, which it does when the copy is over.
    """
    if _is_capturing(device):
        return _launched(values, device).view(values.shape)
    stream = torch.cuda.current_stream(device).stream_id if device.type == "cuda" else 0
    return _uploaded(values.tobytes(), values.dtype.str, device, stream).view(values.shape)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _launched(values: Array, device: torch.device) -> Tensor:
    """A copy that a CUDA graph keeps: a replay reads host memory anew, but not launch arguments."""
    copy = torch.zeros(
        values.size, dtype=torch.int64 if values.dtype == np.int64 else torch.float64, device=device
    )
    if values.size:
        torch._foreach_add_(list(copy.unbind()), values.ravel().tolist())
    return copy


@functools.lru_cache(maxsize=256)
def _uploaded(data: bytes, dtype: str, device: torch.device, stream: int) -> Tensor:
    values = torch.from_numpy(np.frombuffer(bytearray(data), dtype=dtype))
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def refuse_capture(device: torch.device) -> None:
    """Raise RuntimeError while a CUDA graph is captured: what comes next waits for the device."""
    if _is_capturing(device):
        said = "these weights are new here; step them once before capturing a CUDA graph"
        raise RuntimeError(said)


_captured: dict[int, LaunchTable] = {}
"""The plans that CUDA graphs read: torch does not tell when the last of these graphs is gone."""


@functools.lru_cache(maxsize=256)
def _plan(shapes: bytes, literals: bytes, device: torch.device) -> LaunchTable:
    """The plan of a batch; `shapes` are int64, rows and columns of each weight.

    Those of recent sets of shapes are kept. It waits for the device, as a first step does anyway.
    """
    refuse_capture(device)
    rows, cols = np.frombuffer(shapes, dtype=np.int64).reshape(-1, 2).T
    per_tile = np.select(
        [cols <= width for _, width in TILES], [height for height, _ in TILES], LONG_TILE[0]
    )
    flat = _tiling(rows * cols, np.full_like(rows, BLOCK))
    tiles = _tiling(np.where(cols > 0, rows, 0), per_tile)
    columns = [rows, cols, np.cumsum(rows) - rows, *flat[1:], *tiles[1:]]

    def there(values: Array) -> Tensor:
        return torch.from_numpy(values).to(device)

    one = np.arange(len(rows)), np.ones_like(rows)
    return LaunchTable(
        there(np.stack(columns, axis=1)),
        there(np.stack([*columns[:3], *one, *one], axis=1)),
        there(np.frombuffer(bytearray(literals), dtype=np.float64)),
        {True: there(flat[0]), False: there(tiles[0])},
        int(rows.sum()),
    )


def _tiling(length: Array, per_program: Array) -> tuple[Array, Array, Array]:
    """The index of each program's weight; each weight's first program, and their number."""
    count = -(-length // per_program)
    items = np.repeat(np.arange(len(count), dtype=np.int32), count)
    return items, np.cumsum(count) - count, count


@functools.cache
def _load(source: str) -> ModuleType:
    """A module of generated kernels. Triton reads their source again, by the name of its file."""
    name = f"spherenorm.compile.kernels_{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    file = f"<{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    module = ModuleType(name)
    exec(compile(source, file, "exec"), vars(module))
    return module
