"""The report of the command: jobs make rows, and rows become tables, Markdown or LaTeX."""

from spherenorm_theory.report._formats import (
    Job,
    Row,
    law_to_latex,
    to_latex,
    to_markdown,
    to_tables,
)
from spherenorm_theory.report._paper import paper_jobs
from spherenorm_theory.report._recipe import recipe_jobs

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
