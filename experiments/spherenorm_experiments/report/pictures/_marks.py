"""Marks: symbols that tell lines apart without their colors, and shared axes.

A study draws its pictures one by one; these functions give them one look. A name has one symbol
in all pictures of a study, and pictures with the same axes have the same ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from spherenorm_experiments.report.pictures._figures import Picture

SYMBOLS = (
    *("circle", "square", "diamond", "triangle-up", "x", "triangle-down"),
    *("circle-open", "square-open", "diamond-open", "triangle-up-open", "cross", "hexagon"),
)
MARKS, SIZE = 8, 7
"""The marks on a line, so that it can be followed, and their size in pixels."""

MARGIN = 0.04
"""The share of a shared axis that is free at each end."""


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
        for trace in figure.data if _is_flat(figure) else ():
            _mark(trace, symbols)
        made.append(Picture(figure, picture.caption, picture.height, picture.wide))
    _share_axes([picture.figure for picture in made if _is_flat(picture.figure)])
    return made


def _is_flat(figure: go.Figure) -> bool:
    """True for a figure in the plane."""
    return all(trace.type == "scatter" for trace in figure.data)


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


def _share_axes(figures: Iterable[go.Figure]) -> None:
    """Give figures with the same two axes the same ranges."""
    groups: dict[tuple[Any, ...], list[go.Figure]] = {}
    for figure in figures:
        layout = figure.layout
        titles = layout.xaxis.title.text, layout.yaxis.title.text
        kinds = layout.xaxis.type, layout.yaxis.type
        if all(titles) and layout.xaxis.range is None and layout.yaxis.scaleanchor is None:
            groups.setdefault((titles, kinds), []).append(figure)
    alike = [(kinds, group) for (_, kinds), group in groups.items() if len(group) > 1]
    for kinds, group in alike:
        for name, kind in zip("xy", kinds, strict=True):
            values = np.concatenate([_numbers(figure, name, kind == "log") for figure in group])
            if not len(values):
                continue
            low, high = values.min(), values.max()
            free = MARGIN * (high - low or 1.0)
            for figure in group:
                figure.update_layout({f"{name}axis": {"range": [low - free, high + free]}})


def _numbers(figure: go.Figure, name: str, log: bool) -> np.ndarray:
    """The numbers on an axis, in decades if it is logarithmic."""
    parts = [
        np.array([value for value in trace[name] if value is not None], dtype=float)
        for trace in figure.data
        if trace[name] is not None and trace.yaxis in (None, "y")
    ]
    values: np.ndarray = np.concatenate([*parts, []])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    return np.log10(values) if log else values
