"""Write the table of laws in docs/theory.md, derived from each recipe in about a minute.

python -m docs.site.laws
"""

from __future__ import annotations

import re
from pathlib import Path

from docs.site.docstring import cell, escaped
from spherenorm import find_recipe, recipes, zoo
from spherenorm_theory import TraceError, norm_growth
from spherenorm_theory.printing import show
from spherenorm_theory.report import describe_growth

PAGE = Path(__file__).parent.parent / "theory.md"
TABLE = re.compile(r"(?<=<!-- the laws -->\n).*(?=<!-- their end -->)", re.DOTALL)
NAMES = sorted({*recipes.__all__, *zoo.__all__} - {"rules"})


def row(name: str) -> str:
    """Return a row with the decay and growth of a recipe's law, or the reason why it has none."""
    try:
        law = norm_growth(find_recipe(name))
    except TraceError as error:
        reason = " ".join(str(error).split()).removeprefix(f"{name}: ")
        return f"| `{name}` | no law | {cell(escaped(reason))} |\n"
    decay = "0" if law.sets_norm else show(law.kappa)
    return f"| `{name}` | {cell(escaped(decay))} | {cell(escaped(describe_growth(law)))} |\n"


def with_table(page: str) -> str:
    """Return a page with its table replaced by the current one."""
    rows = ["| recipe | decay | growth |\n|---|---|---|\n", *map(row, NAMES)]
    return TABLE.sub(lambda _: "".join(rows), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
