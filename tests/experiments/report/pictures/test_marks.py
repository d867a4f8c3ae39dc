"""Figures: arms that are told apart, shared axes, and the best of so many trials."""

import itertools

import numpy as np
import pytest

from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.report.pictures import (
    best_scores,
    finished,
    lines,
)


def line(y, name="a", title="norm", log=False):
    return lines({name: (range(len(y)), y)}, "step", title, "", {name: "#0072b2"}, log_y=log)


def test_figures_with_the_same_axes_have_the_same_ranges():
    low, high, other = finished([line([1, 2]), line([5, 9]), line([1, 2], title="loss")])
    assert low.figure.layout.yaxis.range == high.figure.layout.yaxis.range
    assert low.figure.layout.yaxis.range[0] < 1
    assert low.figure.layout.yaxis.range[1] > 9
    assert other.figure.layout.yaxis.range is None
    a, _ = finished([line([1, 10], log=True), line([100, 0, 1000], log=True)])
    assert a.figure.layout.yaxis.range == pytest.approx((-0.12, 3.12))


def test_best_of_k_is_the_mean_over_all_choices_of_k_trials():
    scores = [3.0, 1.0, 4.0, 1.5, 5.0]
    drawn = best_scores({Arm("SGD", "sgd"): scores}, "score", "").figure.data[0].y
    for k in range(1, 6):
        exact = np.mean([max(chosen) for chosen in itertools.combinations(scores, k)])
        assert drawn[k - 1] == pytest.approx(exact, rel=1e-4)
