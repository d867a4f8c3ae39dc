"""Laws as text and LaTeX: of recipes, of two side by side, and the paper's statements.

| report | names |
|---|---|
| one recipe; the paper | `recipe_report`, `paper_report` |
| two recipes side by side; growth in words | `comparison_report`, `describe_growth` |
| the forms | `to_text`, `to_latex` |
"""

from spherenorm_theory.report.comparison import comparison_report, describe_growth
from spherenorm_theory.report.recipe import paper_report, recipe_report
from spherenorm_theory.report.rows import Row, Section, to_latex, to_text

__all__ = [
    "Row",
    "Section",
    "comparison_report",
    "describe_growth",
    "paper_report",
    "recipe_report",
    "to_latex",
    "to_text",
]
