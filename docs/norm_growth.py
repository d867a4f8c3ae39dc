"""Draws docs/norm-growth.png from the demo's runs, with Chromium: python -m docs.norm_growth [RUNS], after `make demo`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.results import Results
from experiments.store import Store
from experiments.study import Plan, find_study

TITLES = ("Norm of scale-invariant weights", "Effective step size")
WIDTH, HEIGHT = 600, 380


def main(runs: str = "runs") -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("needs chromium or google-chrome on the path")
    study, store, nothing = find_study("t1"), Store(Path(runs)), Results([])
    results = Results.load(store, study.trials(Plan(), nothing))
    if len(results.items) < results.planned:
        raise SystemExit(
            f"{runs} holds {len(results.items)} of {results.planned} runs: python -m experiments run t1 --out {runs}"
        )
    parts: list[str] = []
    for title, picture in zip(TITLES, study.pictures(results), strict=False):
        figure = picture.figure
        figure.update_layout(
            title=title, width=WIDTH, height=HEIGHT, template="plotly_white", margin={"t": 50}
        )
        parts.append(
            figure.to_html(
                full_html=False, include_plotlyjs=not parts, config={"displayModeBar": False}
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        page, image = Path(folder, "page.html"), Path(__file__).with_name("norm-growth.png")
        page.write_text(
            f'<body style="margin: 0; display: flex">{"".join(parts)}</body>', encoding="utf-8"
        )
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
            f"--window-size={2 * WIDTH},{HEIGHT}",
        ]
        subprocess.run(
            [chromium, *options, f"--screenshot={image}", page.as_uri()],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
