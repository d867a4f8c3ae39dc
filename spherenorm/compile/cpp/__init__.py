"""One fused C++ kernel for a CPU: printed, compiled, cached on disk and loaded."""

from spherenorm.compile.cpp.build import BuildError, kernels_built
from spherenorm.compile.cpp.kernel import CppKernel, kernel

__all__ = ["BuildError", "CppKernel", "kernel", "kernels_built"]
