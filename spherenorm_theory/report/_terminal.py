"""The report as tables in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import TextWrapper

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spherenorm_theory.report._rows import Row, by_section

__all__ = ["to_tables"]


def to_tables(rows: list[Row]) -> Iterator[Table]:
    """One table per section."""
    for section, own in by_section(rows).items():
        table = Table(title=escape(section), title_justify="left", show_lines=True)
        table.add_column("statement", ratio=2)
        table.add_column("formula", ratio=4)
        table.add_column("status", ratio=5)
        for row in own:
            status = _Cell(row.status, "green" if row.good else "red")
            table.add_row(_Cell(row.name), _Cell(row.formula), status)
        yield table


class _Wrapper(TextWrapper):
    """Breaks lines at spaces, and formulas after an operator or a bracket, but not within names."""

    wordsep_re = re.compile(r"(\s+)|(?<=[*/(:])(?=[^\s*/])")


@dataclass(frozen=True)
class _Cell:
    """Text that is no markup, broken where a formula may be."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(_Wrapper(options.max_width).wrap(self.text)), self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        words = _Wrapper(1, break_long_words=False).wrap(self.text)
        return Measurement(max(map(len, words), default=0), len(self.text))
