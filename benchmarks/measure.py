"""Measure time, memory and bandwidth, and describe the machine."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

MALLOC: dict[str, dict[str, str]] = {
    "default": {},
    "resident": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**62),
        "MALLOC_TOP_PAD_": str(2**26),
    },
}
"""Settings of glibc's malloc, as environment variables."""

CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,
}
"""Clocks in seconds; the process clock does not count the time of other processes."""


def fix_malloc(name: str) -> None:
    """Restart the program under some settings of malloc, unless they are in force.

    Optimizers that allocate temporaries are several times slower if malloc returns freed memory to
    the system.

    Args:
        name: the name of the settings in `MALLOC`; all other settings of malloc are dropped.
    """
    settings = _malloc_settings()
    if settings != MALLOC[name]:
        environment = {key: value for key, value in os.environ.items() if key not in settings}
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**environment, **MALLOC[name]})


def _malloc_settings() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("MALLOC_") or name in ("LD_PRELOAD", "GLIBC_TUNABLES")
    }


def machine(device: str) -> dict[str, Any]:
    """Describe what the numbers depend on: processor, threads, versions, bandwidth."""
    try:
        cpu = next(
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
    except (OSError, StopIteration):
        cpu = platform.processor()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "load when started": round(os.getloadavg()[0], 2),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "malloc": _malloc_settings() or "default",
        "bandwidth GB/s": round(bandwidth(device), 1),
    }


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: str,
    prepare: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each function, timed in turns; see `time_in_turns`.

    Args:
        functions: the functions by name.
        rounds: the number of timed rounds.
        device: the device that the clock waits for.
        prepare: a function that runs before each timed one.
        clock: returns seconds; `time.process_time` does not count other processes.
    """
    times = time_in_turns(functions, rounds, prepare=prepare, clock=synchronized(device, clock))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def time_in_turns(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    calls: int = 1,
    warm_up: int = 2,
    prepare: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds per call of each action, in each round.

    A round runs all actions, and the next round runs them in the reverse order, so that other work
    of the machine slows all of them alike: compare medians, or ratios within rounds.

    Args:
        actions: the actions by name.
        rounds: the number of timed rounds.
        calls: the number of calls of an action in a round, which are timed together.
        warm_up: untimed rounds before, in which states, kernels and caches are made.
        prepare: a function that runs before each action of a round, untimed.
        clock: returns seconds; `time.process_time` does not count other processes.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for round_number in range(-warm_up, rounds):
        in_order = list(actions.items())
        for name, action in in_order if round_number % 2 else reversed(in_order):
            prepare()
            begin = clock()
            for _ in range(calls):
                action()
            if round_number >= 0:
                times[name].append((clock() - begin) / calls)
    return times


def synchronized(device: str, clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that waits until the device has finished."""

    def wait_and_read() -> float:
        _synchronize(device)
        return clock()

    return wait_and_read


def bandwidth(device: str, n_bytes: int = 2**30) -> float:
    """Measure GB/s of reading and writing tensors in place, as an optimizer does.

    Args:
        device: a torch device.
        n_bytes: the size of all tensors, of which caches may hold a part.
    """
    x, y = (torch.ones(n_bytes // 8, device=device) for _ in range(2))
    median = interleaved({"add": lambda: x.add_(y)}, 9, device)["add"]
    return 3 * x.numel() * x.element_size() / median / 1e9


def peak_memory_of(function: Callable[[], Any], device: str) -> int:
    """Return the bytes that `function` allocates at its peak, on Linux with glibc or on CUDA."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    ctypes.CDLL(None).malloc_trim(0)  # else freed memory is reused, and is not counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _process_bytes("VmRSS")
    function()
    return max(0, _process_bytes("VmHWM") - before)


def _process_bytes(field: str) -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
