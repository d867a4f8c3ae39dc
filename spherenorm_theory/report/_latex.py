"""The report as LaTeX."""

from __future__ import annotations

from spherenorm_theory.report._rows import Row, by_section

__all__ = ["escape", "to_latex"]

WORDS = {
    "\\": "textbackslash",
    "~": "textasciitilde",
    "^": "textasciicircum",
    "<": "textless",
    ">": "textgreater",
    "|": "textbar",
}
ESCAPES = {
    **{character: f"\\{word}{{}}" for character, word in WORDS.items()},
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "∞": r"$\infty$",
}


def to_latex(rows: list[Row]) -> str:
    """The rows as a standalone LaTeX document."""
    lines = [
        "\\documentclass{article}",
        "\\usepackage{amsmath,longtable}",
        "\\begin{document}",
        "\\section*{Laws and their status}",
    ]
    for section, own in by_section(rows).items():
        lines += [f"\\subsection*{{{escape(section)}}}"]
        lines += [f"\\begin{{equation*}}\n{r.latex}\n\\end{{equation*}}" for r in own if r.latex]
        lines += ["\\begin{longtable}{p{0.2\\textwidth}p{0.38\\textwidth}p{0.34\\textwidth}}"]
        lines += [_line(row) for row in own]
        lines += ["\\end{longtable}"]
    return "\n".join([*lines, "\\end{document}", ""])


def _line(row: Row) -> str:
    name, formula, status = map(escape, (row.name, row.formula, row.status))
    return f"{name} & \\texttt{{{formula}}} & {status} \\\\"


def escape(text: str) -> str:
    """Plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)
