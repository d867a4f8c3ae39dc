"""Studies by name: those of the folders of the paper, a user's `module:Class`, and comparisons."""

from __future__ import annotations

import inspect

from spherenorm.support import did_you_mean, look_up
from spherenorm_experiments.core import named, places, users_code
from spherenorm_experiments.study._comparing import COMMAND, Comparing
from spherenorm_experiments.study._comparison import Comparison
from spherenorm_experiments.study._study import Study

__all__ = ["find_study", "name_of", "study_classes"]


def study_classes() -> dict[str, type[Study]]:
    """Every study of the folders, by name."""
    return {name: named("STUDIES", name) for name in places("STUDIES")}


def find_study(name: str) -> Study:
    """The study called `name`, in upper or lower case, `module:Class`, or the text of a comparison.

    Raises:
        ValueError: there is none.
    """
    if name.startswith(f"{COMMAND} "):
        return Comparison(Comparing.from_text(name))
    if ":" in name:
        with users_code("study", name):
            cls: type[Study] = look_up("study", name, "class", inspect.isclass)
        if not issubclass(cls, Study):
            raise ValueError(f"{name!r} is no study")
        return cls()
    known = places("STUDIES")
    if name.lower() not in known:
        raise ValueError(f"no study is named {name!r}; {did_you_mean(name.lower(), known)}")
    return named("STUDIES", name.lower())()  # type: ignore[no-any-return]


def name_of(study: Study) -> str:
    """The name that finds the study again: its own for one of ours, `module:Class` for another."""
    if isinstance(study, Comparison):
        return str(study.request)
    cls = type(study)
    place = f"{cls.__module__}:{cls.__name__}"
    return cls.name if place in places("STUDIES").values() else place
