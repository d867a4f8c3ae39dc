"""Choose how recorded steps run."""

import pytest

from spherenorm.compile import BATCHED_DEVICES

EXECUTORS = {"kernel": "C++ kernel", "batched": "batched"}
"""With the names that `explain` has for them."""


@pytest.fixture
def choose():
    """A function that chooses one of `EXECUTORS` for plain weights on a CPU."""

    def chosen(executor):
        if executor == "batched":  # as on a GPU
            BATCHED_DEVICES.add("cpu")

    yield chosen
    BATCHED_DEVICES.discard("cpu")
