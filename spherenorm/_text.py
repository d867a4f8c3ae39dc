"""Tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, of equal numbers, as lines with aligned columns.

    Example:
        >>> print(columns([("name", "view"), ("0.weight", "channel")]))
        name      view
        0.weight  channel
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
