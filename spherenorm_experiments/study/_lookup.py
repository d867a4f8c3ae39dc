"""Studies by name: those of the folders of the paper, a user's `module:Class`, and comparisons."""

from __future__ import annotations

from typing import Any

from spherenorm.support import did_you_mean, look_up
from spherenorm_experiments.core import named, places, users_code
from spherenorm_experiments.study._comparing import COMMAND, Comparing, comparison_of
from spherenorm_experiments.study._comparison import TunedComparison
from spherenorm_experiments.study._study import Study

__all__ = ["find_study", "name_of", "study_classes"]


def study_classes() -> dict[str, type[Study] | Study]:
    """Every study of the folders, by name: a class, or an instance of one."""
    return {name: named("STUDIES", name) for name in places("STUDIES")}


def find_study(name: str) -> Study:
    """The study called `name`, in upper or lower case.

    Args:
        name: of one of ours; `module:name` of a user's class or instance; a comparison's text.

    Raises:
        ValueError: there is none.
    """
    if name.startswith(f"{COMMAND} "):
        return comparison_of(Comparing.from_text(name))
    if ":" in name:
        with users_code("study", name):
            study = _made(look_up("study", name, "study", _is_study))
    else:
        known = places("STUDIES")
        if name.lower() not in known:
            raise ValueError(f"no study is named {name!r}; {did_you_mean(name.lower(), known)}")
        study = _made(named("STUDIES", name.lower()))
    study.found_as = name if ":" in name else study.name
    return study


def _made(found: Any) -> Study:
    study: Study = found() if isinstance(found, type) else found
    return study


def _is_study(value: Any) -> bool:
    return isinstance(value, Study) or (isinstance(value, type) and issubclass(value, Study))


def name_of(study: Study) -> str:
    """The name that finds the study again: its own for one of ours, `module:Class` for another."""
    if study.found_as or isinstance(study, TunedComparison):
        return study.found_as or study.name
    cls = type(study)
    place = f"{cls.__module__}:{cls.__name__}"
    return study.name if place in places("STUDIES").values() else place
