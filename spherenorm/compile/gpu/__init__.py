"""Triton kernels that step many weights of a GPU together: printed and launched."""

from spherenorm.compile.gpu._kernels import emit
from spherenorm.compile.gpu._launch import DEVICES, Array, launcher, refuse_capture, upload

__all__ = ["DEVICES", "Array", "emit", "launcher", "refuse_capture", "upload"]
