"""Figures F.1 to F.6."""

import numpy as np
from running import run_study

from spherenorm_experiments.analysis import grid_of


def test_each_figure_of_appendix_f_has_norm_and_step(store):
    study, _, results = run_study("weight-decay", store)
    pictures = study.pictures(results)
    for figure in ("F.1", "F.2", "F.3", "F.4", "F.5", "F.6"):
        shown = [p.caption for p in pictures if p.caption.startswith(f"Figure {figure}")]
        assert [caption.rpartition(": ")[2] for caption in shown] == [
            "norm.",
            "effective step size.",
        ]
    lines = {trace.name: trace for trace in pictures[0].figure.data if trace.name}
    first = lines["SGD, step, wd × 0"]
    grid = grid_of(results, results.arm("SGD, step").arms[0])
    rates = [index for index, point in enumerate(grid.points) if not point["weight_decay"]]
    ends = [grid.curve("norm", index)[1][:, -1].mean() for index in rates]
    assert np.isclose(first.y[-1], ends, rtol=1e-4).any()
