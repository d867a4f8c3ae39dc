"""Triton kernels that step many weights of a GPU together: printed and launched."""

from spherenorm.compile.gpu._kernels import KernelSource, emit
from spherenorm.compile.gpu._launch import (
    DEVICES,
    Array,
    Launcher,
    launcher,
    refuse_capture,
    upload,
)

__all__ = [
    "DEVICES",
    "Array",
    "KernelSource",
    "Launcher",
    "emit",
    "launcher",
    "refuse_capture",
    "upload",
]
