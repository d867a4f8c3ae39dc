"""Tables: numbers with the way to show them. They are never read back from the text.

Means that a reader may compare are made column by column, over the same seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

Number = float | Decimal


@dataclass(frozen=True)
class Cell:
    """A number, or a text, in a table or a claim.

        >>> str(Cell(97.9167, ".2f", spread=0.4811, n=5, diverged=1))
        '97.92 ± 0.48 (1 diverged)'
        >>> str(Cell(97.1834, ".4g", spread=0.3692))
        '97.18 ± 0.37'
        >>> str(Cell(0.5125, "+.3g", interval=(0.4, 0.625), unit="pp"))
        '+0.512 [+0.4, +0.625] pp'

    Attributes:
        value: the number, or a text; None where there is none.
        format: a format specification, of the number, its spread and its interval.
        spread: the standard deviation over seeds.
        interval: a lower and an upper end.
        n: how many seeds the number rests on; 0 where nothing is random.
        diverged: how many other runs diverged.
        lost_word: says what befell these, if they did not diverge.
        prefix: before the number, such as "×" of a ratio.
        unit: after it.
        missing: shown in place of a number that is not there.
        counted: the number of seeds is shown too, since others in the column have another.
    """

    value: Number | str | None
    format: str = ""
    spread: float | None = None
    interval: tuple[float, float] | None = None
    n: int = 0
    diverged: int = 0
    lost_word: str = "diverged"
    prefix: str = ""
    unit: str = ""
    missing: str = "–"
    counted: bool = False

    @property
    def number(self) -> Number | None:
        """The value, if it is a number; None for a text, nan or nothing."""
        if isinstance(self.value, str) or self.value is None or math.isnan(self.value):
            return None
        return self.value

    @property
    def is_known(self) -> bool:
        """False if there is neither a value nor an interval."""
        return isinstance(self.value, str) or self.number is not None or self.interval is not None

    @property
    def is_mean(self) -> bool:
        """True for a number that rests on seeds."""
        return self.number is not None and self.n > 0

    @property
    def _format_of_mean(self) -> str:
        """The format of a number and its spread: two digits of the spread, and as many decimals.

        A format with decimals of its own stays, and so does one that shows an exponent: of a
        spread of 1e-16 nobody reads the decimals.
        """
        spread, general = self.spread or math.nan, _GENERAL.fullmatch(self.format)
        if general is None or not 0 < spread < math.inf:
            return self.format
        if any("e" in format(x, self.format) for x in (self.number, spread) if x is not None):
            return self.format
        place = int(f"{spread:.1e}".partition("e")[2])  # of the first digit, once rounded
        return f"{general[1]}.{max(0, 1 - place)}f"

    def to_json(self) -> dict[str, Any]:
        number, (low, high) = self.number, self.interval or (None, None)
        value = None if number is None else float(number)
        numbers = {"value": value, "low": low, "high": high}
        return {**numbers, "n": self.n, "unit": self.unit, "prefix": self.prefix}

    def __str__(self) -> str:
        parts = []
        if isinstance(self.value, str):
            parts.append(self.value)
        elif self.number is not None:
            parts.append(format(self.number, self._format_of_mean))
        if self.spread is not None and not math.isnan(self.spread):
            parts.append(f"± {self.spread:{self._format_of_mean.lstrip('+')}}")
        if self.interval is not None:
            low, high = (format(end, self.format) for end in self.interval)
            parts.append(f"[{low}, {high}]")
        words = [self.prefix, *parts, self.unit] if parts else [self.missing]
        words.append(f"({self.diverged} {self.lost_word})" if self.diverged else "")
        words.append(f"(n = {self.n})" if self.counted else "")
        return " ".join(filter(None, words))


Content = Cell | str | Decimal | None
"""A cell of a table, or a text or a number of the paper's that becomes one."""

Row = Sequence[Content]


@dataclass(frozen=True)
class Column:
    """A heading.

    Attributes:
        heading: its text, without the word "paper".
        paper: True if the column holds the paper's numbers.
    """

    heading: str
    paper: bool = False

    def __str__(self) -> str:
        return f"paper {self.heading}" if self.paper else self.heading


Heading = Column | str
"""A column, or the heading of one of ours."""


def paper_columns(*headings: str) -> list[Column]:
    """Columns of the paper's numbers."""
    return [Column(heading, paper=True) for heading in headings]


class Table:
    """A table: numbers of ours beside the paper's.

    Attributes:
        title: above it.
        columns: the headings; a text becomes a column of ours.
        rows: the cells; a text or a number of the paper's becomes a cell that shows it as it is.
        note: facts that a reader needs.

    Raises:
        ValueError: a row has another length than the columns.
    """

    def __init__(
        self, title: str, columns: Sequence[Heading], rows: Sequence[Row], note: str = ""
    ) -> None:
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"{title}: {len(row)} cells in a row of {len(columns)} columns")
        self.title, self.note = title, note
        self.columns = [
            heading if isinstance(heading, Column) else Column(heading) for heading in columns
        ]
        cells = [[c if isinstance(c, Cell) else Cell(c, missing="") for c in row] for row in rows]
        counted = [_counted(column) for column in zip(*cells, strict=True)]
        self.rows = [list(row) for row in zip(*counted, strict=True)]

    @property
    def about(self) -> str:
        """The note, and the number of seeds if all numbers rest on as many."""
        counts = {cell.n for row in self.rows for cell in row if cell.is_mean}
        same = [f"n = {n} seed{'' if n == 1 else 's'}." for n in counts] if len(counts) == 1 else []
        return " ".join(filter(None, [self.note, *same]))

    @property
    def prose(self) -> bool:
        """True if every cell is a text: a page then breaks its lines as those of a paragraph."""
        return all(isinstance(cell.value, str) for row in self.rows for cell in row)

    @property
    def is_text(self) -> list[bool]:
        """True for each column with words in it, which are aligned at the left.

        >>> Table("Runs", ("arm", "lr", "score"), [("SGD", "0.1 ×3", Cell(97.1))]).is_text
        [True, False, False]
        """
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in self.columns)
        return [
            any(isinstance(c.value, str) and _WORD.search(c.value) is not None for c in cells)
            for cells in columns
        ]

    @property
    def texts(self) -> pd.DataFrame:
        """The cells as they are shown."""
        rows = [[str(cell) for cell in row] for row in self.rows]
        return pd.DataFrame(rows, columns=[str(column) for column in self.columns])

    @property
    def numbers(self) -> pd.DataFrame:
        """The numbers in full, and beside them the aspects that any has, such as "score: low".

        A column with a text in it holds texts. A heading that is there twice has its number behind
        it.
        """
        columns: dict[str, list[Any]] = {}
        for number, column in enumerate(self.columns):
            cells, name = [row[number] for row in self.rows], str(column)
            name = f"{name} ({number + 1})" if name in columns else name
            values = [cell.value if isinstance(cell.value, str) else cell.number for cell in cells]
            texts = any(isinstance(value, str) for value in values)
            columns[name] = [str(x) if texts and x is not None else x for x in values]
            for aspect, aspect_of in ASPECTS.items():
                if any(aspect_of(cell) is not None for cell in cells):
                    columns[f"{name}: {aspect}"] = [aspect_of(cell) for cell in cells]
        return pd.DataFrame(columns, dtype=object)


def _counted(column: Sequence[Cell]) -> Sequence[Cell]:
    """The cells of a column; each says its number of seeds if they are not the same for all."""
    if len({cell.n for cell in column if cell.is_mean}) < 2:
        return column
    return [replace(cell, counted=cell.is_mean) for cell in column]


def format_cells(values: Sequence[pd.Series], form: str) -> list[Cell]:
    """The means of several arms over the seeds that all of them have ended, with their spread.

    An arm that diverged on one of these seeds has no mean: it would be over other seeds, those on
    which the arm fared well. Arms without any result do not narrow the others.

        >>> first, second, third = format_cells(
        ...     [pd.Series([1.0, 2.0, 9.0]), pd.Series([3.0, 5.0]), pd.Series(dtype=float)], "g"
        ... )
        >>> str(first), first.n, str(second), str(third)
        ('1.50 ± 0.71', 2, '4.0 ± 1.4', '–')
    """
    seed_sets = [seeds for seeds in (set(series.dropna().index) for series in values) if seeds]
    shared = set.intersection(*seed_sets) if seed_sets else set()
    return [mean_of(series[series.index.isin(shared)], form) for series in values]


def mean_of(series: pd.Series, form: str) -> Cell:
    """Return the mean over seeds, with its spread and their number; none if one of them diverged.

    >>> str(mean_of(pd.Series([1.0, 2.0]), ".2f"))
    '1.50 ± 0.71'
    """
    values = series.astype(float).dropna()
    diverged = int((~np.isfinite(values)).sum())
    if diverged or values.empty:
        return Cell(None, form, diverged=diverged)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Cell(float(values.mean()), form, spread=spread, n=len(values))


_NUMBER = re.compile(r"-?[0-9.]+")
_GENERAL = re.compile(r"(\+?)(?:\.\d+)?g")
_WORD = re.compile(r"[A-Za-z]{2}")


def parse_table(text: str) -> list[dict[str, Any]]:
    """Return the rows of a table that is written as text, with columns two or more spaces apart.

    A number of the paper's keeps its digits, and its spread stands behind it. True, False and None
    are these; a `-` is a missing number.

        >>> rows = parse_table('''
        ...     row     wide   AdamW       AdamP
        ...     plain   False  23.38±0.05  23.26
        ... ''')
        >>> rows[0]["row"], rows[0]["wide"], str(rows[0]["AdamW"]), str(rows[0]["AdamP"])
        ('plain', False, '23.38 ± 0.05', '23.26')
    """
    head, *lines = (re.split(r"  +", line.strip()) for line in text.strip().splitlines())
    return [
        {name: _parse_cell(cell) for name, cell in zip(head, line, strict=True)} for line in lines
    ]


def parse_cells(numbers: str) -> list[Cell]:
    """Return the paper's numbers, with the digits that it prints.

    >>> [str(cell) for cell in parse_cells("1.35 4.30")]
    ['1.35', '4.30']
    """
    return [_parse_cell(number) for number in numbers.split()]


def _parse_cell(text: str) -> Any:
    if text in ("True", "False", "None", "-"):
        return {"True": True, "False": False}.get(text)
    number, _, spread = text.partition("±")
    if not _NUMBER.fullmatch(number):
        return text
    digits = len(number.partition(".")[2])
    return Cell(Decimal(number), f".{digits}f", spread=float(spread) if spread else None)


def subtract_printed(cell: Cell, other: Cell) -> Cell:
    """Return the paper's difference of two of its numbers, with the digits that it prints.

    >>> str(subtract_printed(Cell(Decimal("23.38")), Cell(Decimal("22.77"))))
    '+0.61'
    """
    return Cell(Decimal(str(cell.value)) - Decimal(str(other.value)), "+")


def negative(cell: Cell) -> Cell:
    """Return minus a number of the paper's, where less is better."""
    return replace(cell, value=-Decimal(str(cell.value)))


ASPECTS: dict[str, Callable[[Cell], Any]] = {
    "spread": lambda cell: cell.spread,
    "low": lambda cell: cell.interval and cell.interval[0],
    "high": lambda cell: cell.interval and cell.interval[1],
    "seeds": lambda cell: cell.n or None,
    "diverged": lambda cell: cell.diverged or None,
}
"""The numbers of a cell beside its own, by the name that their column has behind the heading."""


def to_csv(table: Table) -> str:
    """Return the table as CSV, numbers in full precision."""
    return str(table.numbers.to_csv(index=False, lineterminator="\n"))


def to_latex(table: Table) -> str:
    """The table as a LaTeX `tabular` with the rules of `booktabs`, numbers as they are shown."""
    return f"% {table.title}\n{table.texts.to_latex(index=False, escape=True)}"


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, numbers as they are shown."""
    texts = table.texts.replace(r"\|", r"\\|", regex=True)
    rule = ["---" if is_text else "---:" for is_text in [True, *table.is_text[1:]]]
    lines = [texts.columns.str.replace("|", r"\|"), rule, *texts.to_numpy()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


FORMATS = {"csv": to_csv, "latex": to_latex, "markdown": to_markdown}
