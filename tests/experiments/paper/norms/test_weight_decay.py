"""Figures F.1 to F.6."""

import numpy as np
from running import run_study


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
    item = results.arm("SGD, step").items[0]
    rates = [point for point, wd in enumerate(item.spec.points["weight_decay"]) if wd == 0]
    ends = [item.arrays["norm"][-1, point, :2].mean() for point in rates]
    assert np.isclose(first.y[-1], ends, rtol=1e-4).any()
