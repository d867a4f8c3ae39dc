"""One fused C++ kernel for a CPU: printed, compiled, cached on disk and loaded."""

from spherenorm.compile.cpp._build import BuildError, cache_folder, compiler, load_step, threads
from spherenorm.compile.cpp._kernel import KernelSource, emit

__all__ = ["BuildError", "KernelSource", "cache_folder", "compiler", "emit", "load_step", "threads"]
