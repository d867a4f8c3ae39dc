"""`Fault`: an edit of the code, and the tests that should notice it."""

from typing import NamedTuple

__all__ = ["CORE", "ENGINE", "Fault", "fault"]

CORE, ENGINE = "spherenorm_experiments/core/", "spherenorm_experiments/engine/"


class Fault(NamedTuple):
    """An edit of the code, and the tests that should notice it.

    Attributes:
        name: the fault in words.
        edits: (file, text that it has once, text in place of it).
        where: files of tests below `tests/experiments`, some with `::name`.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    where: tuple[str, ...]

    @property
    def tests(self):
        """The tests as pytest takes them."""
        parts = [name.partition("::") for name in self.where]
        return [f"tests/experiments/{file}.py{colons}{test}" for file, colons, test in parts]


def fault(name, file, old, new, *where):
    """A fault of one edit."""
    return Fault(name, ((file, old, new),), where)
