"""The report of `python -m theory`: jobs make rows, and rows become tables, Markdown or LaTeX."""

from theory.report._latex import to_latex
from theory.report._law import law_to_latex
from theory.report._markdown import to_markdown
from theory.report._paper import paper_jobs
from theory.report._recipe import recipe_jobs
from theory.report._rows import Job, Row
from theory.report._terminal import to_tables

__all__ = [
    "Job",
    "Row",
    "law_to_latex",
    "paper_jobs",
    "recipe_jobs",
    "to_latex",
    "to_markdown",
    "to_tables",
]
