"""Run the scripts in notebooks/ and write them as notebooks with their outputs.

python -m docs.site.notebooks [FOLDER]        # FOLDER/*.ipynb, by default build/notebooks
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))
PACKAGES = (ROOT, ROOT / "theory", ROOT / "experiments")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
PICTURE, TEXT = "image/svg+xml", "text/plain"


def run(path: Path) -> Any:
    """Run a script in percent format as a notebook, in a temporary folder.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raises.
    """
    notebook = jupytext.read(path)
    prepended = {"PYTHONPATH": PACKAGES, "PATH": [Path(sys.executable).parent]}
    env = {
        name: os.pathsep.join([*map(str, paths), os.environ.get(name, "")])
        for name, paths in prepended.items()
    }
    # A kernel sets FORCE_COLOR but has no terminal, so commands must not draw progress bars.
    env = {**os.environ, **env, "OMP_NUM_THREADS": "1", "TTY_COMPATIBLE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            kernel_name=KERNEL["name"],
            resources={"metadata": {"path": folder}},
        ).execute(env=env, stderr=subprocess.DEVNULL)
    notebook.metadata = {"kernelspec": KERNEL}
    for cell in notebook.cells:
        cell.metadata = {}
    return notebook


def pages(path: Path) -> dict[str, str]:
    """Return the notebook of a script, and its page in Markdown, by file name."""
    notebook = run(path)
    link = f"[As a notebook]({path.stem}.ipynb), of `notebooks/{path.name}`."
    head, *cells = (part for cell in notebook.cells for part in _markdown(cell))
    text = "\n\n".join([head, link, *cells]) + "\n"
    return {
        f"notebooks/{path.stem}.ipynb": nbformat.writes(notebook) + "\n",
        f"notebooks/{path.stem}.md": text,
    }


def _markdown(cell: Any) -> Iterator[str]:
    """Yield a cell and its outputs as Markdown."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        data = output.get("data", {})
        if PICTURE in data:
            svg = data[PICTURE][data[PICTURE].index("<svg") :]
            yield f'```{{raw}} html\n<div class="output">{svg}</div>\n```'
        elif text := output.get("text", data.get(TEXT, "")).rstrip():
            yield f"```{{code-block}} text\n:class: output\n\n{text}\n```"


def main(folder: str = "build/notebooks") -> None:
    for path in SCRIPTS:
        for name, text in pages(path).items():
            if name.endswith(".ipynb"):
                target = Path(folder, Path(name).name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")
                print(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
