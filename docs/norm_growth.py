"""Draw docs/norm-growth.png from the runs of the demo, with Chromium.

After `make demo`: python -m docs.norm_growth [RUNS].
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from spherenorm_experiments.plan import read_requests
from spherenorm_experiments.report import sections
from spherenorm_experiments.store import Store

TITLES = ("Norm of scale-invariant weights", "Effective step size")
WIDTH, HEIGHT = 600, 380


def main(runs: str = "runs") -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("needs chromium or google-chrome on the path")
    store = Store(runs)
    sections_of_t1 = sections(store, read_requests(store)[0], {"t1"})
    if not sections_of_t1:
        raise SystemExit(f"{runs} holds no t1: spherenorm run t1 --out {runs}")
    study, results = sections_of_t1[0].study, sections_of_t1[0].results
    parts: list[str] = []
    for title, picture in zip(TITLES, study.pictures(results), strict=False):
        figure = picture.figure
        style = {"template": "plotly_white", "margin": {"t": 50}}
        figure.update_layout(title=title, width=WIDTH, height=HEIGHT, **style)
        config = {"displayModeBar": False}
        parts.append(figure.to_html(full_html=False, include_plotlyjs=not parts, config=config))
    _take_screenshot(chromium, "".join(parts), Path(__file__).with_name("norm-growth.png"))


def _take_screenshot(chromium: str, body: str, image: Path) -> None:
    """Write a picture of HTML in a headless browser."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        page.write_text(f'<body style="margin: 0; display: flex">{body}</body>', encoding="utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
            f"--window-size={2 * WIDTH},{HEIGHT}",
        ]
        command = [chromium, *options, f"--screenshot={image}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
