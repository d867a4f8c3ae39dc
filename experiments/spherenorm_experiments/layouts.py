"""Layouts: where a data set's files lie on disk.

    DIR/imagenet/train/n01440764/n01440764_10026.JPEG

`--data DIR` names one folder that holds a folder for each data set.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from spherenorm_experiments.lookup import load_registered, registered
from spherenorm_experiments.task import FOLDER

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The official layout of a data set.

    Attributes:
        name: of its folder, such as "imagenet".
        title: such as "ImageNet-1k".
        tree: the expected tree, as an error shows it.
        paths: files and folders that must be there, relative to the data set's folder; of "a or b"
            one of the two.
        source: where the data set comes from.
    """

    name: str
    title: str
    tree: str
    paths: tuple[str, ...]
    source: str

    def error(self, folder: Path, wrong: str) -> ValueError:
        """An error about the folder, with the expected tree."""
        return ValueError(f"{self.title}: {folder} {wrong}; expected\n{self.tree.strip()}")

    def require(self, folder: Path) -> Path:
        """The folder, if it has all paths.

        Raises:
            ValueError: one is missing; the message shows the expected tree.
        """
        for path in self.paths:
            if not any((folder / either).exists() for either in path.split(" or ")):
                raise self.error(folder, f"lacks {path}")
        return folder

    def folder(self) -> Path:
        """The data set's folder in that of all data sets, which `--data` names; see `require`."""
        return self.require(data_folder(self.title) / self.name)

    def reader(self, read_folder: Callable[Concatenate[Path, P], T]) -> Callable[P, T]:
        """The function without its first argument, which is the data set's folder, if complete.

        A process reads the same of a folder once.
        """
        once = functools.lru_cache(maxsize=8)(read_folder)

        @functools.wraps(read_folder)
        def read_registered(*args: P.args, **options: P.kwargs) -> T:
            return once(self.folder(), *args, **options)  # type: ignore[arg-type]

        return read_registered


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
    """Return every registered layout, by name."""
    return {name: load_registered("LAYOUTS", name) for name in registered("LAYOUTS")}
