"""Laws as text and LaTeX: of recipes, of two side by side, and the paper's statements.

| report | names |
|---|---|
| one recipe; the paper | `recipe_jobs`, `paper_jobs` |
| two recipes side by side; growth in words | `comparison_jobs`, `describe_growth` |
| the forms | `to_text`, `to_latex` |
"""

from spherenorm_theory.report.comparison import comparison_jobs, describe_growth
from spherenorm_theory.report.recipe import paper_jobs, recipe_jobs
from spherenorm_theory.report.rows import Job, Row, to_latex, to_text

__all__ = [
    "Job",
    "Row",
    "comparison_jobs",
    "describe_growth",
    "paper_jobs",
    "recipe_jobs",
    "to_latex",
    "to_text",
]
