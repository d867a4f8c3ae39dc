"""The table of docs/zoo.md, from the code.

python -m docs.site.zoo        # write it anew
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from docs.site.docstring import cell, escaped, summary
from spherenorm import zoo

PAGE = Path(__file__).parent.parent / "zoo.md"
TABLE = re.compile(r"(?<=<!-- the table -->\n).*(?=<!-- its end -->)", re.DOTALL)
_SOURCE = re.compile(r"^Source: (.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{5})")


def table() -> str:
    """Name, one line and source of each recipe, in the order of the alphabet."""
    rows = ["| recipe | | source |\n|---|---|---|\n"]
    for name in zoo.__all__:
        recipe = getattr(zoo, name)
        if inspect.isfunction(recipe):
            rows.append(f"| `{name}` | {cell(summary(recipe))} | {_source(recipe)} |\n")
    return "".join(rows)


def _source(recipe: object) -> str:
    found = _SOURCE.search(inspect.getdoc(recipe) or "")
    text = escaped(" ".join(found[1].split()).rstrip(".")) if found else ""
    return cell(_ARXIV.sub(r"[\1](https://arxiv.org/abs/\1)", text))


def written(page: str) -> str:
    """The page with the table as it is now."""
    return TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
