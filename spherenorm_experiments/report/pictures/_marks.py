"""Marks: symbols that tell lines apart without their colors, legends as data, and shared axes.

A study draws its pictures one by one; these functions make them alike. A name has the same symbol
in all pictures of a study, and pictures with the same axes have the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from spherenorm_experiments.report.pictures._figures import Picture

__all__ = ["SYMBOLS", "Entry", "finished", "is_flat", "legend_of"]

SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "x", "triangle-down"),
    *("circle-open", "square-open", "diamond-open", "triangle-up-open", "cross", "hexagon"),
)
MARKS, SIZE = 8, 7
"""The marks on a line, so that it can be followed, and their size in pixels."""

MARGIN = 0.04
"""The share of a shared axis that is free at each end."""


@dataclass(frozen=True)
class Entry:
    """A line of a legend.

    Attributes:
        name: of the traces that it stands for.
        color: of line and symbol.
        dash: the line's, one of plotly's names; empty without a line.
        width: of the line, in pixels.
        symbol: one of `SYMBOLS`, or another of plotly's; empty without one.
    """

    name: str
    color: str
    dash: str
    width: float
    symbol: str


def finished(pictures: Sequence[Picture]) -> list[Picture]:
    """The pictures of a study with marks on their lines, and shared axes; the figures are copies.

    >>> from spherenorm_experiments.report.pictures import lines
    >>> series = {"a": ([0, 1, 2], [1, 2, 3]), "b": ([0, 1, 2], [3, 2, 1])}
    >>> (made,) = finished([lines(series, "step", "norm", "", {"a": "#000", "b": "#000"})])
    >>> [trace.marker.symbol for trace in made.figure.data]
    ['circle', 'square']
    """
    symbols: dict[str, str] = {}
    made = []
    for picture in pictures:
        figure = go.Figure(picture.figure)
        for trace in figure.data if is_flat(figure) else ():
            _mark(trace, symbols)
        made.append(Picture(figure, picture.caption, picture.height, picture.wide))
    _share_axes([picture.figure for picture in made if is_flat(picture.figure)])
    return made


def is_flat(figure: go.Figure) -> bool:
    """True for a figure in the plane that stands still: its legend can be drawn apart from it."""
    plain = all(trace.type == "scatter" for trace in figure.data)
    return plain and not figure.frames and not figure.layout.sliders


def legend_of(figure: go.Figure) -> list[Entry]:
    """The lines of a figure's legend, each name once."""
    found: dict[str, Entry] = {}
    for trace in figure.data:
        if trace.name and trace.showlegend is not False:
            found.setdefault(trace.name, _entry(trace))
    return list(found.values())


def _mark(trace: Any, symbols: dict[str, str]) -> None:
    """Give a trace the symbol of its name; references, which are thin, and bars stay bare.

    A symbol of the study's own stays.
    """
    if not trace.name or trace.showlegend is False or trace.marker.symbol is not None:
        return
    width = trace.line.width
    if (width is not None and not 1 < width < 8) or trace.x is None or not len(trace.x):
        return
    symbol = symbols.setdefault(trace.name, SYMBOLS[len(symbols) % len(SYMBOLS)])
    trace.marker.symbol = symbol
    if trace.mode in (None, "lines"):
        trace.mode = "lines+markers"
        trace.marker.size, trace.marker.maxdisplayed = SIZE, MARKS
    if trace.marker.color is None:
        trace.marker.color = trace.line.color


def _entry(trace: Any) -> Entry:
    mode = trace.mode or "lines"
    color = trace.line.color or trace.marker.color
    return Entry(
        trace.name,
        color if isinstance(color, str) else "#777777",
        (trace.line.dash or "solid") if "lines" in mode else "",
        trace.line.width or 2,
        str(trace.marker.symbol or "circle") if "markers" in mode else "",
    )


def _share_axes(figures: Iterable[go.Figure]) -> None:
    """Give figures with the same two axes the same ranges."""
    groups: dict[tuple[Any, ...], list[go.Figure]] = {}
    for figure in figures:
        layout = figure.layout
        titles = layout.xaxis.title.text, layout.yaxis.title.text
        kinds = layout.xaxis.type, layout.yaxis.type
        if all(titles) and layout.xaxis.range is None and layout.yaxis.scaleanchor is None:
            groups.setdefault((titles, kinds), []).append(figure)
    for (_, kinds), group in groups.items():
        for name, kind in zip("xy", kinds, strict=True):
            spans = [_extent(figure, name, kind == "log") for figure in group]
            known = [end for span in spans if span is not None for end in span]
            if len(group) > 1 and known:
                free = MARGIN * (max(known) - min(known) or 1.0)
                shared = {f"{name}axis": {"range": [min(known) - free, max(known) + free]}}
                for figure in group:
                    figure.update_layout(shared)


def _extent(figure: go.Figure, name: str, log: bool) -> tuple[float, float] | None:
    """The lowest and the highest number on an axis, in decades if it is logarithmic."""
    found = [
        np.array([value for value in trace[name] if value is not None], dtype=float)
        for trace in figure.data
        if trace[name] is not None and trace.yaxis in (None, "y")
    ]
    values = np.concatenate(found) if found else np.array([])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return None
    ends = np.log10([values.min(), values.max()]) if log else (values.min(), values.max())
    return float(ends[0]), float(ends[1])
