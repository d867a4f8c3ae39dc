"""One fused C++ kernel for a CPU: printed, compiled, cached on disk and loaded."""

from spherenorm.compile.cpp._build import BuildError, cache_folder, compiler, load_step
from spherenorm.compile.cpp._kernel import CppKernel, kernel

__all__ = ["BuildError", "CppKernel", "cache_folder", "compiler", "kernel", "load_step"]
