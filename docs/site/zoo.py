"""Write the table of recipes in docs/zoo.md.

python -m docs.site.zoo
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
    """Return a table of recipes in alphabetical order, with summaries and sources."""
    rows = ["| recipe | | source |\n|---|---|---|\n"]
    for name in zoo.__all__:
        recipe = getattr(zoo, name)
        if inspect.isfunction(recipe):
            rows.append(f"| `{name}` | {cell(summary(recipe))} | {_source(recipe)} |\n")
    return "".join(rows)


def _source(recipe: object) -> str:
    source = _SOURCE.search(inspect.getdoc(recipe) or "")
    text = escaped(" ".join(source[1].split()).rstrip(".")) if source else ""
    return cell(_ARXIV.sub(r"[\1](https://arxiv.org/abs/\1)", text))


def with_table(page: str) -> str:
    """Return a page with its table replaced by the current one."""
    return TABLE.sub(lambda _: table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
