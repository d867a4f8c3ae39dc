"""Choose how recorded steps run."""

import pytest

from spherenorm.compile import HORIZONTAL

EXECUTORS = {"kernel": "C++ kernel", "walk": "walk", "horizontal": "horizontal"}
"""With the names that `explain` has for them."""


@pytest.fixture
def choose(monkeypatch):
    """A function that chooses one of `EXECUTORS` for plain weights on a CPU."""

    def chosen(executor):
        if executor == "walk":  # there is no compiler
            monkeypatch.setenv("PATH", "")
            monkeypatch.delenv("CXX", raising=False)
        if executor == "horizontal":  # as on a GPU
            HORIZONTAL.add("cpu")

    yield chosen
    HORIZONTAL.discard("cpu")
