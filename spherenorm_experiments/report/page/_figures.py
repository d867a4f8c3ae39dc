"""Figures on a page: what a browser draws, in one compressed archive with the drawing library."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import plotly.offline
from markupsafe import Markup

from spherenorm_experiments.report.pictures import Picture, finished


@dataclass(frozen=True)
class Panel:
    """A picture on a page.

    Attributes:
        id: of its figure.
        label: for readers who do not see it.
    """

    id: str
    picture: Picture

    @property
    def label(self) -> str:
        figure = self.picture.figure
        names = dict.fromkeys(trace.name for trace in figure.data if trace.name)
        axes = figure.layout.yaxis.title.text, figure.layout.xaxis.title.text
        of = " against ".join(filter(None, axes))
        return ". ".join(filter(None, [f"Figure: {of}" if of else "Figure", ", ".join(names)]))


def panels(pictures: Sequence[Picture], prefix: str) -> list[Panel]:
    """The pictures of a section.

    Args:
        prefix: of the figures' ids.
    """
    return [
        Panel(f"{prefix}-{number}", picture) for number, picture in enumerate(finished(pictures), 1)
    ]


def archive(panels: Iterable[Panel]) -> Markup:
    """The figures of a page by id, as compressed JSON in letters; a browser unpacks it."""
    figures = {
        panel.id: json.loads(panel.picture.figure.to_json(remove_uids=True)) for panel in panels
    }
    return _packed(json.dumps(figures, separators=(",", ":"), sort_keys=True))


def library() -> Markup:
    """The drawing library, compressed: 4.8 MB take 2."""
    return _packed(plotly.offline.get_plotlyjs())


def _packed(text: str) -> Markup:
    # Without a time in the header, the same page has the same bytes.
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())
