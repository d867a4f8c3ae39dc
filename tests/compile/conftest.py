"""Choose how recorded steps run."""

import pytest

from spherenorm.compile import BATCHED_DEVICES, CUDA_KERNEL_DEVICES

EXECUTORS = {"kernel": "C++ kernel", "batched": "batched", "shim": "CUDA kernel"}
"""With the names that `explain` has for them."""
EACH_EXECUTOR = [
    pytest.param(name, marks=[pytest.mark.long] * (name == "shim")) for name in EXECUTORS
]
"""For a test that compiles a kernel for each recipe; test_cuda_kernel.py has some of each."""


@pytest.fixture
def choose():
    """A function that chooses one of `EXECUTORS` for plain weights on a CPU."""

    def chosen(executor):
        if executor == "batched":  # as on a GPU
            BATCHED_DEVICES.add("cpu")
        if executor == "shim":  # the kernel of a GPU, compiled for a CPU
            CUDA_KERNEL_DEVICES.add("cpu")

    yield chosen
    BATCHED_DEVICES.discard("cpu")
    CUDA_KERNEL_DEVICES.discard("cpu")
