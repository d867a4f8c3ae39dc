"""Pictures of searches, against their definitions."""

import itertools
import math

import numpy as np
import pytest

from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.report.pictures import best_scores, profile


def test_best_of_k_is_the_mean_over_all_choices_of_k_trials():
    scores = [3.0, 1.0, 4.0, 1.5, 5.0]
    drawn = best_scores({Arm("SGD", "sgd"): scores}, "score", "").figure.data[0].y
    for k in range(1, 6):
        exact = np.mean([max(chosen) for chosen in itertools.combinations(scores, k)])
        assert drawn[k - 1] == pytest.approx(exact, rel=1e-4)


def test_a_performance_profile_counts_the_problems_solved_within_a_factor():
    figure = profile(
        {"sgd": [10.0, 20.0, math.inf, math.inf], "adam": [20.0, 10.0, 5.0, math.inf]}, ""
    ).figure
    share = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figure.data}
    assert share["sgd"][1.0] == 0.25  # fastest on the first problem
    assert share["sgd"][2.0] == 0.5
    assert share["adam"][1.0] == 0.5
    assert max(share["adam"].values()) == 0.75  # nobody solves the last
