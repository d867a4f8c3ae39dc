"""Layouts: where a data set's files lie on disk, and how many items it has (Table E.1).

    DIR/imagenet/train/n01440764/n01440764_10026.JPEG

`--data DIR` names one folder that holds a folder for each data set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spherenorm_experiments.core import FOLDER, named, places


@dataclass(frozen=True)
class Layout:
    """The official layout of a data set.

    Attributes:
        name: of its folder, such as "imagenet".
        title: such as "ImageNet-1k".
        tree: the expected tree, as an error shows it.
        paths: files and folders that must be there, relative to the data set's folder; of "a or b"
            one of the two.
        statistics: the numbers of Table E.1, or of the data set's own description, by name.
        count: reads the same numbers off a complete folder.
        source: where the data set comes from.
    """

    name: str
    title: str
    tree: str
    paths: tuple[str, ...]
    statistics: Mapping[str, int] = field(hash=False)
    count: Callable[[Path], Mapping[str, int]]
    source: str

    def require(self, folder: Path) -> None:
        """Check that all paths are there.

        Raises:
            ValueError: one is missing; the message shows the expected tree.
        """
        for path in self.paths:
            if not any((folder / either).exists() for either in path.split(" or ")):
                raise self.error(folder, f"lacks {path}")

    def error(self, folder: Path, wrong: str) -> ValueError:
        """An error about the folder, with the expected tree."""
        return ValueError(f"{self.title}: {folder} {wrong}; expected\n{self.tree.strip()}")

    def folder(self) -> Path:
        """The data set's folder in the folder of all data sets.

        Raises:
            ValueError: no such folder was given, or it has another layout.
        """
        found = data_folder(self.title) / self.name
        self.require(found)
        return found


def use_folder(folder: Path) -> None:
    """Take the data sets from this folder, here and in processes that start from now on.

    Raises:
        ValueError: there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"--data {str(folder)!r}: there is no such folder")
    os.environ[FOLDER] = str(folder.resolve())


def data_folder(wanted: str = "this task") -> Path:
    """The folder of all data sets.

    Args:
        wanted: the data set for which it is needed; errors name it.

    Raises:
        ValueError: none was given.
    """
    if FOLDER not in os.environ:
        raise ValueError(f"{wanted} lies on disk: give its folder by --data DIR (or {FOLDER}=DIR)")
    return Path(os.environ[FOLDER])


def layouts() -> dict[str, Layout]:
    """Every layout of the folders, by name."""
    return {name: named("LAYOUTS", name) for name in places("LAYOUTS")}


def checked(layout: Layout, folder: Path) -> dict[str, tuple[int, int | None]]:
    """The expected numbers, each beside the one that is found.

    Args:
        folder: the data set's.

    Returns:
        For each name the number that is expected, and the one that is there; None if it cannot be
        counted.

    Raises:
        ValueError: the folder has another layout.
    """
    layout.require(folder)
    found = layout.count(folder)
    return {name: (count, found.get(name)) for name, count in layout.statistics.items()}
