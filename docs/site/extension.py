"""The Sphinx extension of the site: it writes gallery, notebooks and reference from the code.

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

HERE = Path(__file__).parent.parent
RESULTS = HERE.parent / "experiments" / "results"
START = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
"""Of processes: those that fork have all imports."""


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", lambda app: write(HERE / "generated"))
    app.connect("source-read", _show_results)
    mathematics.register(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _show_results(app: Any, name: str, source: list[str]) -> None:
    """Links to the results lead to their copy; their index, Markdown for any reader, has a tree."""
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
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context(START)) as pool:
        made = pool.map(notebooks.pages, notebooks.SCRIPTS)
        pages |= gallery.pages(pool) | front.pages()
        for each in made:
            pages |= each
    for old in folder.rglob("*.*"):
        if old.relative_to(folder).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path, content = folder / name, text.encode() if isinstance(text, str) else text
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:  # else Sphinx reads it again
            path.write_bytes(content)
