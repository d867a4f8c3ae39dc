"""Pictures of searches, against their definitions."""

import itertools

import numpy as np
import pytest

from spherenorm_experiments.analysis import Arm
from spherenorm_experiments.report.pictures import best_scores


def test_best_of_k_is_the_mean_over_all_choices_of_k_trials():
    scores = [3.0, 1.0, 4.0, 1.5, 5.0]
    drawn = best_scores({Arm("SGD", "sgd"): scores}, "score", "").figure.data[0].y
    for k in range(1, 6):
        exact = np.mean([max(chosen) for chosen in itertools.combinations(scores, k)])
        assert drawn[k - 1] == pytest.approx(exact, rel=1e-4)
