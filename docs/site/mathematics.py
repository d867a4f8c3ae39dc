"""Write formulas as MathML, which browsers show without a script and offline."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

_ALIGNED = re.compile(r"\\(begin|end)\{aligned\}")


def register(app: Any) -> None:
    """Let Sphinx's HTML builders write math as MathML."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"


def _inline(writer: Any, node: Any) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: Any) -> None:
    lines = (convert(line, display="block") for line in _lines(node.astext()))
    writer.body.append(f'<div class="math">{"".join(lines)}</div>')
    raise nodes.SkipNode


def _lines(latex: str) -> list[str]:
    """Split an `aligned` block into lines, because latex2mathml cannot align them."""
    inner = _ALIGNED.sub("", latex)
    return [line.replace("&", "").strip() for line in inner.split("\\\\") if line.strip()]
