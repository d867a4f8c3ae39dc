"""Choose how recorded steps run."""

import pytest

from spherenorm.compile import HORIZONTAL

EXECUTORS = {"kernel": "C++ kernel", "horizontal": "horizontal"}
"""With the names that `explain` has for them."""


@pytest.fixture
def choose():
    """A function that chooses one of `EXECUTORS` for plain weights on a CPU."""

    def chosen(executor):
        if executor == "horizontal":  # as on a GPU
            HORIZONTAL.add("cpu")

    yield chosen
    HORIZONTAL.discard("cpu")
