"""Time, memory and facts of the machine."""

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
"""Settings of malloc, as environment variables (glibc)."""


CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "process": time.process_time,
}
"""Clocks in seconds; that of the process leaves out what other processes take."""


def fix_malloc(name: str) -> None:
    """Start the program again under these settings of malloc, unless it runs under them already.

    Optimizers that make temporaries are several times slower where malloc gives memory back and
    fetches it again.

    Args:
        name: of the settings, in `MALLOC`; no others are kept.
    """
    found = _malloc()
    if found != MALLOC[name]:
        kept = {key: value for key, value in os.environ.items() if key not in found}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**kept, **MALLOC[name]})


def _malloc() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("MALLOC_") or name in ("LD_PRELOAD", "GLIBC_TUNABLES")
    }


def machine(device: str) -> dict[str, Any]:
    """The facts of the machine on which the numbers depend."""
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
        "malloc": _malloc() or "default",
        "bandwidth GB/s": round(bandwidth(device), 1),
    }


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: str,
    prepare: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median seconds of each function; see `time_in_turns`.

    Args:
        functions: by name.
        rounds: how many are timed.
        device: to wait for.
        prepare: runs before each function, untimed.
        clock: in seconds; `time.process_time` leaves out what other processes take.
    """
    timer = synchronized(device, clock)
    times = time_in_turns(functions, rounds, prepare=prepare, clock=timer)
    return {name: statistics.median(each) for name, each in times.items()}


def time_in_turns(
    actions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    calls: int = 1,
    warm_up: int = 2,
    prepare: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The seconds of a call of each action, in each round.

    A round runs all actions, the next one in the reverse order, so that other work of the machine
    slows all alike: compare medians, or the ratios within rounds.

    Args:
        actions: by name.
        rounds: that count.
        calls: of an action in a round, timed as one.
        warm_up: rounds before, which do not count: for states, kernels and caches.
        prepare: runs before each action of a round, untimed.
        clock: in seconds; `time.process_time` leaves out what other processes take.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(-warm_up, rounds):
        turn = list(actions.items())
        for name, action in turn if number % 2 else reversed(turn):
            prepare()
            begin = clock()
            for _ in range(calls):
                action()
            if number >= 0:
                found[name].append((clock() - begin) / calls)
    return found


def synchronized(device: str, clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that waits for the device."""

    def read() -> float:
        _synchronize(device)
        return clock()

    return read


def bandwidth(device: str, held: int = 2**30) -> float:
    """GB/s of reading and writing `held` bytes in place, as an optimizer does.

    Caches may hold a part of them.
    """
    x, y = (torch.ones(held // 8, device=device) for _ in range(2))
    median = interleaved({"add": lambda: x.add_(y)}, 9, device)["add"]
    return 3 * x.numel() * x.element_size() / median / 1e9


def peak_memory_of(function: Callable[[], Any], device: str) -> int:
    """Bytes that `function` takes at its peak beyond those taken before it.

    It is measured on Linux with glibc, and on CUDA.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        function()
        return torch.cuda.max_memory_allocated(device) - before
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = _status("VmRSS")
    function()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
