"""A Sphinx extension that writes the gallery, notebooks and reference from the code.

    make docs        # build/docs/index.html

Pages are written into docs/generated before Sphinx reads them, with a copy of the results, which
Sphinx would not read outside of docs.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from docs.site import front, gallery, mathematics, notebooks, reference

DOCS = Path(__file__).parent.parent
RESULTS = DOCS.parent / "experiments" / "results"
START_METHOD = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
"""Forked processes need not import everything again."""


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", lambda app: write(DOCS / "generated"))
    app.connect("source-read", _show_results)
    mathematics.register(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _show_results(app: Any, name: str, source: list[str]) -> None:
    """Point links to results to their copy, and add a table of contents to their index."""
    source[0] = source[0].replace("](../experiments/results/", "](generated/results/")
    if name == "generated/results/index":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def write(folder: Path) -> None:
    """Write all generated pages.

    Raises:
        reference.UndocumentedError: a public name has no docstring.
    """
    pages: dict[str, str | bytes] = {
        f"results/{path.name}": path.read_bytes() for path in RESULTS.iterdir()
    }
    pages |= reference.pages()
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context(START_METHOD)) as pool:
        notebook_pages = pool.map(notebooks.pages, notebooks.SCRIPTS)
        pages |= gallery.pages(pool) | front.pages()
        for pages_of_notebook in notebook_pages:
            pages |= pages_of_notebook
    for path in folder.rglob("*.*"):
        if path.relative_to(folder).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path, content = folder / name, text.encode() if isinstance(text, str) else text
        path.parent.mkdir(parents=True, exist_ok=True)
        if (
            not path.exists() or path.read_bytes() != content
        ):  # Sphinx reads files again that have a new date
            path.write_bytes(content)
