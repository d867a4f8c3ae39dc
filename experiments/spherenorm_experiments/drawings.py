"""Drawings: the figures of studies as SVG and PDF at the width of a paper, by a headless Chrome."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.offline

from spherenorm_experiments.pictures import Picture, finished
from spherenorm_experiments.store import write_file

DRAWINGS = ("svg", "pdf")

CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Names of the program on the PATH; the variable CHROME, if it is set, has its file."""

PIXELS_PER_INCH = 96

INK, GRID = "#222222", "#dddddd"

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--virtual-time-budget=60000"),
)
"""Without a sandbox, since a container has none to give: the pages are our own. The last ones
draw the spheres without a graphics card."""

SECONDS = 120

PAGE = """<!doctype html><meta charset="utf-8"><body>
<script>{library}</script>
<script>
"use strict";
const figures = {figures};
(async () => {{
  for (const [i, figure] of figures.entries()) {{
    const text = await Plotly.toImage(figure, {{ format: "svg", ...figure.size }});
    const out = document.createElement("pre");
    out.textContent = `figure-${{i}} ${{btoa(decodeURIComponent(text.slice(19)).replace(
      /[^]/gu, c => c.codePointAt(0) > 127 ? `&#${{c.codePointAt(0)}};` : c))}} end`;
    document.body.append(out);
  }}
}})();
</script>"""
"""`Plotly.toImage` gives "data:image/svg+xml," and the percent-encoded drawing. Letters beyond
ASCII become references, so that the base64 of it is the drawing's."""


def write_drawings(
    pictures: Sequence[Picture], form: str, width: float, folder: Path, name: str
) -> list[Path]:
    """Write the pictures of a section to `<folder>/<name>-<number>.<form>`, as vectors.

    Only surfaces in space are made of pixels.

    Args:
        form: one of `DRAWINGS`.
        width: in inches.

    Raises:
        ValueError: there is no Chrome, or it does not draw.
        StoreError: a file cannot be written.
    """
    if not pictures:
        return []
    chrome = require_chrome(f"the format {form}")
    figures = [_on_paper(picture, width) for picture in finished(pictures)]
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "figures.html"
        library = plotly.offline.get_plotlyjs().replace("</script", "<\\/script")
        content = json.dumps(figures).replace("<", "\\u003c")
        page.write_text(PAGE.format(library=library, figures=content), encoding="utf-8")
        drawn = dict(
            re.findall(r"figure-(\d+) ([A-Za-z0-9+/=]+) end", _run(chrome, page, "--dump-dom"))
        )
        if len(drawn) != len(figures):
            raise ValueError(f"{chrome} has drawn {len(drawn)} of {len(figures)} figures")
        drawings = [base64.b64decode(drawn[str(i)]) for i in range(len(figures))]
        if form == "pdf":
            sizes = (figure["size"] for figure in figures)
            drawings = [_printed(chrome, page, *each) for each in zip(drawings, sizes, strict=True)]
    paths = [folder / f"{name}-{number}.{form}" for number, _ in enumerate(drawings, 1)]
    for path, drawing in zip(paths, drawings, strict=True):
        write_file(path, drawing)
    return paths


def _on_paper(picture: Picture, width: float) -> dict[str, Any]:
    """A figure as JSON content, black on white, its legend below it."""
    figure = go.Figure(picture.figure)
    axes = {"gridcolor": GRID, "linecolor": INK, "zerolinecolor": GRID, "automargin": True}
    figure.update_layout(
        template=None,
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"color": INK, "size": 12, "family": "sans-serif"},
    )
    figure.update_xaxes(**axes)
    figure.update_yaxes(**axes)
    size = {"width": round(width * PIXELS_PER_INCH), "height": picture.height}
    content = json.loads(figure.to_json(remove_uids=True))
    return {"data": content["data"], "layout": content["layout"], "size": size}


def _printed(chrome: str, page: Path, drawing: bytes, size: dict[str, int]) -> bytes:
    """An SVG drawing as a PDF of its size."""
    target = page.with_suffix(".pdf")
    style = (
        f"@page {{ size: {size['width']}px {size['height']}px; margin: 0 }} "
        "body { margin: 0 } svg { display: block }"
    )
    text = drawing.decode()
    page.write_text(f'<!doctype html><meta charset="utf-8"><style>{style}</style>{text}')
    _run(chrome, page, "--no-pdf-header-footer", f"--print-to-pdf={target}")
    return target.read_bytes()


def _run(chrome: str, page: Path, *flags: str) -> str:
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [chrome, *FLAGS, profile, *flags, page.as_uri()]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(f"{chrome} does not draw: {error}") from error
    return ended.stdout.decode()


def require_chrome(purpose: str) -> str:
    """The file of the program that draws.

    Args:
        purpose: the feature that needs it; the error begins with it.

    Raises:
        ValueError: there is none.
    """
    named = os.environ.get("CHROME", "")
    chrome = shutil.which(named) if named else next(filter(None, map(shutil.which, CHROMES)), None)
    if chrome is None:
        lack = f"CHROME={named} is no program" if named else f"none of {', '.join(CHROMES)} is here"
        raise ValueError(f"{purpose} needs Chrome or Chromium: {lack}; set CHROME to its file")
    return chrome
