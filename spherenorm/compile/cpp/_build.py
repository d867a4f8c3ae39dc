"""Compile C++ source to a shared library, cached on disk, and load its `step`."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["BuildError", "cache_folder", "compiler", "load_step"]

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fopenmp", "-shared", "-fPIC",
)  # fmt: skip


class BuildError(Exception):
    """There is no C++ compiler, or it refused the source."""


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
    chosen = os.environ.get("SPHERENORM_CACHE")
    return (
        Path(chosen)
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spherenorm"
    )


@functools.cache
def load_step(source: str, defines: tuple[str, ...]) -> Callable[..., None]:
    """The exported function `step` of `source`, compiled unless the cache holds it.

    Raises:
        BuildError: no compiler, or its message.
    """
    command = [compiler(), *FLAGS, *defines]
    identity = hashlib.sha256("\0".join([source, *command, _machine()]).encode()).hexdigest()[:32]
    folder = cache_folder()
    library = folder / f"{identity}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            written, made = Path(scratch) / "step.cpp", Path(scratch) / "step.so"
            written.write_text(source)
            result = subprocess.run(
                [*command, str(written), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
            )
            if result.returncode:
                raise BuildError(f"{command[0]} refused the kernel:\n{result.stderr[:2000]}")
            made.replace(library)
    function = ctypes.CDLL(str(library)).step
    function.argtypes = [
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    function.restype = None
    return function


@functools.cache
def _machine() -> str:
    """The meaning of -march=native here: machines that share a cache must not share kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return (
        next((line for line in lines if line.startswith("flags")), "")
        + platform.machine()
        + compiler()
    )
