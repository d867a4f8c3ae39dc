"""Compile C++ source to a shared library, cached on disk, and load its `step`.

A library enters the cache by a rename, whole. Processes that ask for the same one at once each
compile it, and the last rename stays. Whoever cannot write to the cache compiles for itself alone.
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
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

OPENMP = () if sys.platform == "darwin" else ("-fopenmp",)
"""Flags for several threads. Apple's compiler has no OpenMP, so a kernel has one thread there."""
FLAGS = (
    "-std=c++14", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", *OPENMP, "-shared", "-fPIC",
)  # fmt: skip
PATIENCE = 120.0
"""Seconds that a compiler may take."""

Step = Callable[..., int]


class BuildError(Exception):
    """There is no C++ compiler, or it did not compile the source; the message is one line."""


def compiler() -> str:
    """The C++ compiler: $CXX, or the first of g++ and clang++.

    Raises:
        BuildError: there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        found = shutil.which(name)
        if found:
            return found
    raise BuildError("no C++ compiler: set CXX, or install g++ (Debian: apt-get install g++)")


def cache_folder() -> Path:
    """The folder of kernels: $SPHERENORM_CACHE, else `spherenorm` in the user's cache folder."""
    if chosen := os.environ.get("SPHERENORM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spherenorm"


_forked = threading.Event()
"""Set in a forked process, whose copy of OpenMP waits forever for threads that the parent had."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked.set)


def threads() -> int:
    """The threads of a kernel: torch's, but one in a forked process."""
    return 1 if _forked.is_set() else torch.get_num_threads()


def load_step(source: str, defines: tuple[str, ...]) -> Step:
    """The exported function `step` of `source`, compiled unless the cache holds it.

    Raises:
        BuildError: there is no compiler, or it failed; what failed is not tried again.
    """
    key = source, (compiler(), *FLAGS, *defines)
    if key not in _made:
        try:
            _made[key] = _step(*key)
        except BuildError as error:
            _made[key] = str(error)
    found = _made[key]
    if isinstance(found, str):
        raise BuildError(found)
    return found


_made: dict[tuple[str, tuple[str, ...]], Step | str] = {}
"""The steps of this process by source and command; the message of each build that failed."""


def kernels_built() -> int:
    """The number of kernels that this process has compiled or loaded."""
    return sum(not isinstance(step, str) for step in _made.values())


def _step(source: str, command: tuple[str, ...]) -> Step:
    parts = [source, *command, _target(command[0])]
    identity = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = cache_folder() / f"{identity}.so"
    with contextlib.suppress(OSError):
        return _loaded(library)
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        return _built(source, command, library.parent, library)
    except OSError as error:
        _warn_of_cache(library.parent, error.strerror or str(error))
    try:
        return _built(source, command, None, None)
    except OSError as error:
        raise BuildError(f"the compiled kernel cannot be loaded: {error}") from error


def _built(source: str, command: Sequence[str], parent: Path | None, kept: Path | None) -> Step:
    """The step of a library that is compiled in a folder within `parent`, and kept as `kept`."""
    with tempfile.TemporaryDirectory(prefix="spherenorm-", dir=parent) as scratch:
        folder = Path(scratch)
        (folder / "step.cpp").write_text(source, encoding="utf-8")
        _output([*command, "step.cpp", "-o", "step.so"], folder)
        made = folder / "step.so"
        if not made.exists():
            raise BuildError(f"{command[0]} has ended without an error and without a library")
        step = _loaded(made)
        if kept is not None:
            made.replace(kept)
        return step


@functools.cache
def _warn_of_cache(folder: Path, why: str) -> None:
    """Warn, once a process, that kernels cannot be kept in `folder`."""
    warnings.warn(
        f"kernels cannot be kept in {folder} ({why}), so each process compiles them anew; "
        "set SPHERENORM_CACHE to a folder that can be written",
        stacklevel=2,
    )


def _loaded(library: Path) -> Step:
    """Its step.

    Raises:
        OSError: it is no library for this machine, or has no step.
    """
    try:
        step = ctypes.CDLL(str(library)).step
    except AttributeError as error:
        raise OSError(str(error)) from error
    step.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int]
    step.restype = ctypes.c_int
    return step


@functools.cache
def _target(compiler: str) -> str:
    """The macros that the compiler predefines under `FLAGS`.

    They tell its version and, on every architecture, the instructions that -march=native stands
    for: machines of different processors that share a cache must not share kernels.

    Raises:
        BuildError: the compiler failed.
    """
    return _output([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull], None)


def _output(command: Sequence[str], folder: Path | None) -> str:
    """The output of a compiler, which is stopped if it hangs.

    Raises:
        BuildError: it failed; with the first line that it said.
    """
    name = command[0]
    try:
        ended = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{name} has not ended after {PATIENCE:g} s") from error
    except OSError as error:
        raise BuildError(f"{name} cannot be run: {error.strerror}") from error
    if ended.returncode < 0:
        raise BuildError(f"{name} was ended by signal {-ended.returncode}")
    if ended.returncode:
        raise BuildError(f"{name} refused the kernel: {_first_error(ended.stderr)}")
    return ended.stdout


def _first_error(said: str) -> str:
    """The first line that tells of an error, else the first one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), "".join(lines[:1]))
    return first or "it said nothing"
