"""Compile C++ source to a shared library, cached on disk, and load its `step`.

A library enters the cache by a rename, whole. Of processes and threads that ask for the same one at
once, one compiles and the others wait: it holds a lock on a file, which the system gives back when
it dies. Whoever cannot write to the cache compiles for itself alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

FLAGS = (
    "-std=c++14", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC",
)  # fmt: skip
PATIENCE = 120.0
"""Seconds that a compiler may take, and that others wait for the process that runs it."""
POLL = 0.02
"""Seconds between two looks at a lock."""

Step = Callable[..., None]


class BuildError(Exception):
    """There is no C++ compiler, or it did not compile the source; the message is one line."""


def compiler() -> str:
    """The C++ compiler, which Inductor needs too: $CXX, or the first of g++ and clang++.

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


@functools.cache
def _warn_of_cache(folder: Path, why: str) -> None:
    """Warn, once a process, that kernels cannot be kept in `folder`."""
    warnings.warn(
        f"kernels cannot be kept in {folder} ({why}), so each process compiles them anew; "
        "set SPHERENORM_CACHE to a folder that can be written",
        stacklevel=2,
    )


@functools.cache
def load_step(source: str, defines: tuple[str, ...]) -> Step:
    """The exported function `step` of `source`, compiled unless the cache holds it.

    Raises:
        BuildError: there is no compiler, or it failed; what failed is not tried again.
    """
    key = source, (compiler(), *FLAGS, *defines)
    if key in _failed:
        raise BuildError(_failed[key])
    try:
        return _step(*key)
    except BuildError as error:
        _failed[key] = str(error)
        raise


_failed: dict[tuple[str, tuple[str, ...]], str] = {}
"""The message of each build that failed in this process, by source and command."""


def _step(source: str, command: tuple[str, ...]) -> Step:
    parts = [source, *command, _target(command[0])]
    identity = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = cache_folder() / f"{identity}.so"
    try:
        return _from_cache(library, source, command)
    except OSError as error:
        _warn_of_cache(library.parent, error.strerror or str(error))
        return _apart(source, command)


def _from_cache(library: Path, source: str, command: Sequence[str]) -> Step:
    """The step of a library in the cache, which is built if it is missing or does not load.

    Raises:
        BuildError: the compiler failed.
        OSError: the folder cannot be written, or libraries in it cannot be loaded.
    """
    with contextlib.suppress(OSError):
        return _loaded(library)
    library.parent.mkdir(parents=True, exist_ok=True)
    with _locked(library.with_suffix(".lock")):
        with contextlib.suppress(OSError):  # built meanwhile
            return _loaded(library)
        for left in library.parent.glob(f"{library.stem}.*/"):  # by builds that were killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f"{library.stem}.", dir=library.parent) as scratch:
            made = _compiled(source, command, Path(scratch))
            step = _loaded(made)
            made.replace(library)
            return step


def _apart(source: str, command: Sequence[str]) -> Step:
    """The step of a library of this process alone, whose file is gone once it is loaded."""
    with tempfile.TemporaryDirectory(prefix="spherenorm-") as scratch:
        try:
            return _loaded(_compiled(source, command, Path(scratch)))
        except OSError as error:
            raise BuildError(f"the compiled kernel cannot be loaded: {error}") from error


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold the lock, or go on without it when patience has ended, or where there are none.

    The file is removed by its holder. Whoever has waited for a removed one finds the library, or
    builds beside a newcomer: that costs time and nothing else.
    """
    held = FileLock(lock, timeout=PATIENCE)
    with contextlib.suppress(Timeout, OSError, NotImplementedError):
        held.acquire(poll_interval=POLL)
    try:
        yield
    finally:
        if held.is_locked:
            lock.unlink(missing_ok=True)
            held.release()


def _compiled(source: str, command: Sequence[str], folder: Path) -> Path:
    """The library of `source`, in `folder`.

    Raises:
        BuildError: the compiler failed.
    """
    (folder / "step.cpp").write_text(source)
    _output([*command, "step.cpp", "-o", "step.so"], folder)
    made = folder / "step.so"
    if not made.exists():
        raise BuildError(f"{command[0]} has ended without an error and without a library")
    return made


def _loaded(library: Path) -> Step:
    """Its step.

    Raises:
        OSError: it is no library for this machine, or has no step.
    """
    try:
        step = ctypes.CDLL(str(library)).step
    except AttributeError as error:
        raise OSError(str(error)) from error
    pointers, numbers = [ctypes.c_void_p] * 3, [ctypes.c_int] * 2
    step.argtypes = [ctypes.c_int64, *pointers, *numbers, *pointers]
    step.restype = None
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
    """The output of a compiler, which is stopped, with the programs that it runs, if it hangs.

    Raises:
        BuildError: it failed; with the first line that it said.
    """
    name, pipe = command[0], subprocess.PIPE
    options: dict[str, Any] = {"cwd": folder, "errors": "replace", "start_new_session": True}
    try:
        running: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, **options
        )
    except OSError as error:
        raise BuildError(f"{name} cannot be run: {error.strerror}") from error
    with running:
        try:
            out, said = running.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{name} has not ended after {PATIENCE:g} s") from error
        finally:
            if running.returncode is None:
                _stop(running)
    if running.returncode < 0:
        raise BuildError(f"{name} was ended by signal {-running.returncode}")
    if running.returncode:
        raise BuildError(f"{name} refused the kernel: {_first_error(said)}")
    return out


def _stop(running: subprocess.Popen[str]) -> None:
    """Kill a compiler and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(running.pid, signal.SIGKILL)
        else:
            running.kill()


def _first_error(said: str) -> str:
    """The first line that tells of an error, else the first one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), "".join(lines[:1]))
    return first or "it said nothing"
