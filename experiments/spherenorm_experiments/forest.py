"""The forest plot: one line per claim, with its interval, the region of truth and the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spherenorm_experiments.pictures import Picture, empty_figure, rounded

GREEN, RED = "#009e73", "#d55e00"
MARKS = {
    "supported": (GREEN, "circle"),
    "contradicted": (RED, "x"),
    "equivalent": ("#0072b2", "square"),
    "inconclusive": ("#999999", "circle-open"),
    "cannot be decided here": ("#cccccc", "circle-open"),
}
"""A color and a symbol for each verdict."""

CAPTION = (
    "Claims. Every line has a scale of its own: the green bar is where the claim "
    "is true, the mark our number with its 95 % interval, the diamond the paper's number. Crosses "
    "are contradicted. The labels are those of the table below."
)

LINE, MARGIN = 17, 90
"""Pixels of a line, and of the axes above and below."""


def forest(claims: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Draw claims, as `Claim.to_json` gives them with a `label`; None if none has a number.

    Lines are centered on the bound of the claim (the middle of a margin), with the side on which it
    is true to the right.
    """
    lines = [line for claim in claims if (line := _line(claim)) is not None]
    if not lines:
        return None
    figure = empty_figure("", "")
    labels = [line["label"] for line in lines]
    bars: dict[str, list[Any]] = {"x": [], "y": []}
    for line in lines:
        bars["x"] += [*line["region"], None]
        bars["y"] += [line["label"], line["label"], None]
    style = {"color": "rgba(0, 158, 115, 0.18)", "width": LINE - 5}
    figure.add_scatter(**bars, mode="lines", line=style, name="true here", hoverinfo="skip")
    for verdict in dict.fromkeys(line["verdict"] for line in lines):
        own = [line for line in lines if line["verdict"] == verdict]
        color, symbol = MARKS[verdict]
        marker = {"size": 7, "color": color, "symbol": symbol}
        ends = {
            "array": rounded(line["high"] - line["value"] for line in own),
            "arrayminus": rounded(line["value"] - line["low"] for line in own),
        }
        style = {"type": "data", "symmetric": False, "color": color, "thickness": 1.5, "width": 3}
        _add_marks(figure, own, "value", verdict, marker, error_x={**style, **ends})
    if theirs := [line for line in lines if line["paper"] is not None]:
        marker = {"symbol": "diamond-open", "size": 9, "color": "#777777"}
        _add_marks(figure, theirs, "paper", "paper", marker)
    places, texts = (-1, 0, 1), ("false", "the claim's bound", "true")
    figure.update_xaxes(range=[-1.08, 1.08], zeroline=True, tickvals=places, ticktext=texts)
    top: dict[str, Any] = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    for place, text in zip(places, texts, strict=True):
        figure.add_annotation(x=place, text=text, **top)  # the same above the first line
    figure.update_layout(margin={"l": 80, "r": 15, "t": 30, "b": 30})
    order = {"categoryorder": "array", "categoryarray": labels[::-1]}
    rows = [-0.6, len(labels) - 0.4]
    figure.update_yaxes(type="category", tickfont={"size": 10}, dtick=1, range=rows, **order)
    return Picture(figure, CAPTION, height=MARGIN + LINE * len(lines), wide=True)


def _add_marks(
    figure: Any, lines: Sequence[Mapping[str, Any]], key: str, name: str, marker: Any, **more: Any
) -> None:
    figure.add_scatter(
        x=rounded(line[key] for line in lines),
        y=[line["label"] for line in lines],
        mode="markers",
        name=name,
        marker=marker,
        text=[line["text"] for line in lines],
        **more,
    )


def _line(claim: Mapping[str, Any]) -> dict[str, Any] | None:
    """A claim on its own scale, from -1 to 1; None without a number or a region."""
    number = claim["numbers"][0] if claim["numbers"] else None
    if number is None or number["value"] is None or claim["region"] is None:
        return None
    low, high = claim["region"]
    ends = [end for end in (low, high) if end is not None]
    center, sign = sum(ends) / len(ends), -1.0 if low is None else 1.0

    def placed(value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else sign * (value - center)

    inner = [placed(number[key]) for key in ("value", "low", "high")]
    value = inner[0] or 0.0
    known = [value if x is None else x for x in inner]
    paper = placed(claim["paper_value"])
    width = abs(ends[0] - center)
    reach = max(map(abs, [*known, width, *([] if paper is None else [paper])])) or 1.0
    return {
        "label": claim["label"],
        "verdict": claim["verdict"],
        "text": f"{claim['text']}: {claim['ours']}",
        "value": value / reach,
        "low": min(known) / reach,
        "high": max(known) / reach,
        "paper": None if paper is None else paper / reach,
        "region": [-width / reach, width / reach] if len(ends) == 2 else [0.0, 1.0],
    }
