"""Choose how recorded steps run."""

import pytest

from spherenorm.compile import FLAT

EXECUTORS = ("kernel", "lists", "flat")


@pytest.fixture
def choose(monkeypatch):
    """A function that takes "kernel", or the horizontal executor on "lists" or on a "flat" vector.

    Without a compiler no kernel is made; flat vectors are those of a GPU.
    """

    def chosen(executor):
        if executor != "kernel":
            monkeypatch.setenv("PATH", "")
            monkeypatch.delenv("CXX", raising=False)
        if executor == "flat":
            FLAT.add("cpu")

    yield chosen
    FLAT.discard("cpu")
