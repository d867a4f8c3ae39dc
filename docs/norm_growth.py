"""Draw docs/norm-growth.png, the picture of the README, from the runs of `make demo`.

    python -m docs.norm_growth          # from the committed runs, docs/norm-growth.parquet
    python -m docs.norm_growth runs     # from a store; the committed runs are then those of it

The study is experiments/studies/norm_growth.py. The picture shows the norm of the convolutions, and
how much farther SGDP turns them than SGD does, epoch by epoch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.plan import read_requests
from spherenorm_experiments.report import Section, sections
from spherenorm_experiments.results import read_rows, write_rows
from spherenorm_experiments.store import Store

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "studies" / "norm_growth.py"
IMAGE = Path(__file__).with_name("norm-growth.png")
ROWS = IMAGE.with_suffix(".parquet")
"""The committed runs: settings and scores of each, and its norms and effective steps by epoch."""


def read_section(rows: Path = ROWS) -> Section:
    """Return the study with its committed runs."""
    (section,) = read_rows(rows)
    return section


def commit_runs(store: Path) -> None:
    """Write the runs of a store's study as the committed ones."""
    study = find_study(str(STUDY))
    write_rows(sections(Store(store), read_requests(Store(store))[0], {study.name}), ROWS)


def draw(section: Section, image: Path) -> None:
    """Draw the norms at the left, and the ratio of the effective steps at the right."""
    from matplotlib.figure import Figure

    gray, blue = "#6e7781", "#0969da"
    figure = Figure(figsize=(9, 3.1), dpi=130, facecolor="white", layout="constrained")
    norm, ratio = figure.subplots(1, 2)
    curves = read_curves(section)
    steps = curves["SGD"][0, :, 0]
    for name, color in (("SGD", gray), ("SGDP", blue)):
        norms = np.median(curves[name][:, :, 1], axis=0)
        norm.plot(steps, norms, color=color, linewidth=2)
        norm.annotate(f" {name}", (steps[-1], norms[-1]), color=color, va="center")
    norm.set(title="Norm of a channel's weights", xlabel="step", ylim=(0, None))
    ratios = curves["SGDP"][:, :, 2] / curves["SGD"][:, :, 2]
    ratio.plot(steps, np.median(ratios, axis=0), color=blue, linewidth=2)
    ratio.fill_between(steps, ratios.min(0), ratios.max(0), color=blue, alpha=0.15, linewidth=0)
    ratio.axhline(1, color=gray, linewidth=1)
    ratio.set(title="Effective step: SGDP / SGD", xlabel="step", ylim=(0, None))
    for axes in (norm, ratio):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, 1.12 * steps[-1] if axes is norm else steps[-1])
    figure.savefig(image, metadata={"Runs": digest(section)})


def read_curves(section: Section) -> dict[str, np.ndarray]:
    """Return step, norm and effective step by epoch for each optimizer: (seeds, epochs, 3)."""
    recorded = "norms and effective steps by epoch"
    return {
        name: np.array([
            run.recorded_numbers[recorded] for run in section.results if run.place.arm == name
        ])
        for name in ("SGD", "SGDP")
    }  # fmt: skip


def digest(section: Section) -> str:
    """Return a hash of the curves, which the picture carries as its text "Runs"."""
    curves = read_curves(section)
    return hashlib.sha256(
        json.dumps({name: x.tolist() for name, x in curves.items()}).encode()
    ).hexdigest()


def main() -> None:
    """Take the runs of a store if one is given, and draw the committed ones."""
    if len(sys.argv) > 1:
        commit_runs(Path(sys.argv[1]))
    section = read_section()
    draw(section, IMAGE)
    for sentence in section.summary:
        print(sentence)


if __name__ == "__main__":
    main()
