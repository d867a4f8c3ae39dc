"""Faults that are planted in a copy of the code, each of which a test must notice.

A table of a room is a text file. A section names a folder or file of the code, and tests of all its
faults; a fault has a name, tests of its own, and edits: lines that the code has once, and those in
place of them.

    == experiments/spherenorm_experiments/engine | tests/experiments/engine
    * validation on the test set | test_scores.py
    - _scores(self.training, self.run.splits.validation)
    + _scores(self.training, self.run.splits.test)

A test is a folder below the root, the name of a file, or that of a function: a fault survives that
its code and its tests move to other files of their rooms.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """Edits of the code, and the tests that should notice them.

    Attributes:
        place: the folder or file of the code.
        edits: (text that it has once, text in place of it).
        wanted: the tests, as the table names them.
    """

    name: str
    place: str
    edits: tuple[tuple[str, str], ...]
    wanted: tuple[str, ...]

    @property
    def tests(self):
        """The tests as pytest takes them."""
        return [found for name in self.wanted for found in _find_tests(name)]

    def plant(self, root):
        """Edit the code below a root.

        Raises:
            ValueError: a text that is there never, or more than once.
        """
        for old, new in self.edits:
            texts = {path: path.read_text() for path in _files(root / self.place)}
            count = sum(text.count(old) for text in texts.values())
            if count != 1 or old == new:
                raise ValueError(f"{self.name}: {self.place} has {old!r} {count} times")
            for path, text in texts.items():
                path.write_text(text.replace(old, new))


def read_faults():
    """The faults of all tables."""
    return [fault for path in sorted(Path(__file__).parent.glob("*.txt")) for fault in _read(path)]


def _read(path):
    place, common = "", ""
    for section in path.read_text().split("\n== ")[1:]:
        head, *faults = section.split("\n* ")
        place, _, common = head.strip().partition(" | ")
        for fault in faults:
            title, *lines = fault.rstrip("\n").split("\n")
            name, _, own = title.partition(" | ")
            wanted = (x.strip() for x in f"{own},{common}".split(","))
            yield Fault(name, place, tuple(_edits(lines)), tuple(filter(None, wanted)))


def _edits(lines):
    """A text of lines with "-" and one of those with "+" behind it, until the lines end."""
    while lines:
        sides = []
        for mark in "-+":
            side = []
            while lines and lines[0][:1] == mark:
                side.append(lines.pop(0)[2:])
            sides.append("\n".join(side))
        yield tuple(sides)


def _files(place):
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _find_tests(name):
    if (ROOT / name).is_dir():
        return [name]
    if name.endswith(".py"):
        found = [file for file in _test_files() if file.endswith(f"/{name}")]
    else:
        found = [
            f"{file}::{name}" for file, text in _test_files().items() if f"def {name}(" in text
        ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} tests are named {name!r}")
    return found


@functools.cache
def _test_files():
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
