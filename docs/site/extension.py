"""The Sphinx extension of the site: it writes the gallery and the reference from the code.

    make docs        # build/docs/index.html

Pages are written into docs/generated before Sphinx reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docs.site import gallery, mathematics, reference

HERE = Path(__file__).parent.parent


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", lambda app: write(HERE / "generated"))
    app.connect("source-read", _with_studies)
    mathematics.register(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _with_studies(app: Any, name: str, source: list[str]) -> None:
    """The pages of studies lie below the results, which are Markdown for any reader."""
    if name == "results/index":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def write(folder: Path) -> None:
    """Write all generated pages.

    Raises:
        reference.UndocumentedError: a public name has no docstring.
    """
    pages = {**reference.pages(), **gallery.pages()}
    for old in folder.rglob("*.md"):
        if old.relative_to(folder).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:  # (else Sphinx need not read it again)
            path.write_text(text)
