import pytest

from spherenorm.compile import _paths as paths


@pytest.fixture
def traced(monkeypatch):
    """The shape of each trace that is made."""
    shapes, original = [], paths.lower

    def counted(guard, shape, dtype):
        shapes.append(shape)
        return original(guard, shape, dtype)

    monkeypatch.setattr(paths, "lower", counted)
    monkeypatch.setattr(paths, "_GRAPHS", {})
    return shapes
