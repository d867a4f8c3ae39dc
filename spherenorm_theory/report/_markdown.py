"""The report as Markdown."""

from __future__ import annotations

import re

from spherenorm_theory.report._rows import Row, by_section

__all__ = ["to_markdown"]


def to_markdown(rows: list[Row]) -> str:
    """The rows as Markdown tables, one per section."""
    lines = ["# Laws and their status", ""]
    for section, own in by_section(rows).items():
        lines += [f"## {_escape(section)}", "", "| statement | formula | status |", "|---|---|---|"]
        lines += [f"| {_escape(r.name)} | {_code(r.formula)} | {_escape(r.status)} |" for r in own]
        lines += ["", *(f"$$\n{r.latex}\n$$\n" for r in own if r.latex)]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Text without marks of Markdown, for a cell of a table too."""
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _code(formula: str) -> str:
    """A formula as code, in which only the border of a cell needs an escape."""
    return f"`{formula}`".replace("|", "\\|") if formula else ""
