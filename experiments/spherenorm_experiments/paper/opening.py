"""The opening of a page: the mechanism, of the measured runs of all studies, and the lead study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spherenorm_experiments.extra.mechanism import (
    answer_table,
    growth_picture,
    measured,
    norms_table,
    scores_picture,
    scores_table,
)
from spherenorm_experiments.pictures import Picture, drawn
from spherenorm_experiments.sections import LEADS, Section
from spherenorm_experiments.tables import Table


class Opening(NamedTuple):
    """The question that leads, and the mechanism, before the statements and the claims.

    Attributes:
        question: the title of the lead study; "" without its runs.
        tables: its first table, and the answer of the mechanism.
        pictures: the lead study's, then those of the mechanism.
        details: the tables behind the pictures.
    """

    question: str
    tables: list[Table]
    pictures: list[Picture]
    details: list[Table]


def opening(sections: Sequence[Section]) -> Opening:
    """The opening of these sections, as far as they have runs for it."""
    leads = [section for section in sections if section.study.name in LEADS and section.results][:1]
    frame = measured(item for section in sections for item in section.results)
    found = [] if frame.empty else [answer_table(frame), scores_table(frame), norms_table(frame)]
    shown = [] if frame.empty else [scores_picture(frame), growth_picture(frame)]
    tables = [table for lead in leads for table in lead.study.tables(lead.results)[:1]]
    pictures = [picture for lead in leads for picture in lead.study.pictures(lead.results)]
    return Opening(
        leads[0].study.title() if leads else "",
        [table for table in (*tables, *found[:1]) if table.rows],
        drawn([*pictures, *shown]),
        [table for table in found[1:] if table.rows],
    )
