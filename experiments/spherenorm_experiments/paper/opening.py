"""The opening of a page: the question of the study that leads, with its table and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.sections import LEADS, Section
from spherenorm_experiments.tables import Table


class Opening(NamedTuple):
    """The question that leads, before the statements and the claims.

    Attributes:
        question: the title of the study; "" without its runs.
        tables: its first table.
        pictures: of the study.
    """

    question: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


def opening(sections: Sequence[Section]) -> Opening:
    """The opening of these sections; empty without a study that leads."""
    for section in sections:
        study, runs = section.study, section.results
        if study.name in LEADS and len(runs):
            return Opening(study.title(), study.tables(runs)[:1], study.pictures(runs))
    return Opening()
