"""Figures on a page: groups with one legend, swatches, and everything drawable in one archive."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.offline
from markupsafe import Markup

from spherenorm_experiments.report.pictures import Entry, Picture, finished, is_flat, legend_of

__all__ = ["Group", "Panel", "archive", "grouped", "library", "swatch"]

DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4"}
"""Plotly's dashes as those of SVG, in pixels."""

SHAPES = {
    "circle": "M18.5 7a3.5 3.5 0 1 0 -7 0a3.5 3.5 0 1 0 7 0z",
    "square": "M11.8 3.8h6.4v6.4h-6.4z",
    "diamond": "M15 2.4l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
    "triangle-up": "M15 3l4.3 7.4h-8.6z",
    "triangle-down": "M15 11l4.3 -7.4h-8.6z",
    "x": "M11.4 5l2 -2l1.6 2l1.6 -2l2 2l-2 2l2 2l-2 2l-1.6 -2l-1.6 2l-2 -2l2 -2z",
    "cross": "M13.6 3h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z",
    "hexagon": "M15 2.8l3.8 2.1v4.2l-3.8 2.1l-3.8 -2.1v-4.2z",
}
"""Plotly's symbols in the middle of a swatch of 30 by 14 pixels."""


@dataclass(frozen=True)
class Panel:
    """A picture in a group.

    Attributes:
        id: of its figure on the page.
        picture: figure, caption and size.
        label: for readers who do not see it.
    """

    id: str
    picture: Picture
    label: str


@dataclass(frozen=True)
class Group:
    """Pictures with one legend, which is empty if the figures draw their own."""

    legend: Sequence[Entry]
    panels: Sequence[Panel]

    @property
    def wide(self) -> bool:
        """True if it takes the page's whole width."""
        return len(self.panels) > 1 or self.panels[0].picture.wide


def grouped(pictures: Sequence[Picture], prefix: str) -> list[Group]:
    """The pictures of a section; those that follow one another with the same legend share it.

    Args:
        prefix: of the figures' ids.
    """
    groups: list[Group] = []
    for number, picture in enumerate(finished(pictures), 1):
        figure = picture.figure
        legend = legend_of(figure) if is_flat(figure) else []
        if legend:
            figure.update_layout(showlegend=False)
        panel = Panel(f"{prefix}-{number}", picture, _label(picture))
        if groups and legend and groups[-1].legend == legend:
            groups[-1] = Group(legend, [*groups[-1].panels, panel])
        else:
            groups.append(Group(legend, [panel]))
    return groups


def archive(groups: Sequence[Group]) -> Markup:
    """The figures of a page by id, as compressed JSON in letters; a browser unpacks it."""
    figures: Mapping[str, Any] = {
        panel.id: json.loads(panel.picture.figure.to_json(remove_uids=True))
        for group in groups
        for panel in group.panels
    }
    return _packed(json.dumps(figures, separators=(",", ":"), sort_keys=True))


def library() -> Markup:
    """The drawing library, compressed: 4.8 MB take 2."""
    return _packed(plotly.offline.get_plotlyjs())


def swatch(entry: Entry) -> Markup:
    """A piece of the line with its symbol, as a drawing in the text."""
    parts = []
    if entry.dash:
        dash = DASHES.get(entry.dash, "none")
        width = min(entry.width, 8)
        line = '<path d="M1 7h28" stroke="{}" stroke-width="{}" stroke-dasharray="{}"/>'
        parts.append(Markup(line).format(entry.color, width, dash))
    shape = SHAPES.get(entry.symbol.removesuffix("-open")) if entry.symbol else None
    if shape is not None:
        fill = "var(--card)" if entry.symbol.endswith("-open") else entry.color
        mark = '<path d="{}" fill="{}" stroke="{}" stroke-width="1.4"/>'
        parts.append(Markup(mark).format(shape, fill, entry.color))
    return Markup('<svg width="30" height="14" aria-hidden="true">{}</svg>').format(
        Markup("").join(parts)
    )


def _label(picture: Picture) -> str:
    layout = picture.figure.layout
    shown = (trace.name for trace in picture.figure.data if trace.name)
    names = ", ".join(dict.fromkeys(shown))
    axes = [layout.yaxis.title.text, layout.xaxis.title.text]
    of = " against ".join(filter(None, axes))
    return ". ".join(filter(None, [f"Figure: {of}" if of else "Figure", names]))


def _packed(text: str) -> Markup:
    # Without a time in the header, the same page has the same bytes.
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())
