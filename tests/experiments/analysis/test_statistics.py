"""Statistics against scipy and their definitions; tests on recorded statistics."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from spherenorm import Update, metrics
from spherenorm import rules as r
from spherenorm_experiments.runs import align_seeds, mean_over
from spherenorm_experiments.verdict import (
    LEVEL,
    PERFORMANCE_SEEDS,
    POWER,
    detectable,
    holm,
    interval,
    sign_test,
    t_test,
)
from spherenorm_paper.shared.detection import WeightStatistic, single_step
from tests.experiments.analysis.coverage import (
    SCORES,
    SEEDS,
    coverage,
    false_verdicts,
    null_verdicts,
)


def test_the_interval_and_the_test_are_scipys():
    values = np.random.default_rng(3).normal(size=12)
    expected = stats.ttest_1samp(values, 0.1)
    ends = expected.confidence_interval(0.95)
    assert interval(values) == pytest.approx((ends.low, ends.high))
    assert t_test(values, 0.1) == pytest.approx(expected.pvalue)
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert [t_test([2.0] * 6, bound) for bound in (1.0, 2.0)] == [sign_test(6, 0), 1.0]
    assert all(math.isnan(x) for x in interval([2.0]))
    assert t_test([2.0], 0.0) == 1.0


@pytest.mark.parametrize("name", SCORES)
def test_the_interval_covers_as_often_as_it_says(name):
    repeats = 2000  # the command takes 20,000
    chance = 3 * (0.95 * 0.05 / repeats) ** 0.5  # three standard errors of the share
    for seeds in SEEDS:
        assert 0.93 - chance <= coverage(name, seeds, repeats) <= 0.97 + chance, seeds


def test_studies_without_a_difference_seldom_have_a_verdict():
    assert false_verdicts("binomial", PERFORMANCE_SEEDS, 300) <= 0.05


def test_an_optimizer_compared_with_itself_seldom_has_a_verdict():
    wrong, told = null_verdicts(40)  # the command takes 10,000
    assert wrong <= 0.05
    assert told <= wrong


def test_the_detectable_effect_is_found_as_often_as_it_says():
    """By Student's test of so many values with that mean."""
    random, count = np.random.default_rng(0), 8
    values = random.normal(detectable(3.0, count), 3.0, size=(2000, count))
    found = (stats.ttest_1samp(values, 0.0, axis=1).pvalue < LEVEL).mean()
    assert found == pytest.approx(POWER, abs=0.04)
    assert detectable(3.0, 1) == math.inf


def test_the_sign_test_is_exact():
    assert sign_test(6, 0) == sign_test(0, 6) == 2 / 2**6
    assert sign_test(5, 1) == pytest.approx(2 * (6 + 1) / 2**6)
    assert sign_test(0, 0) == 1.0


def test_holms_procedure():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_several_series_are_taken_over_the_seeds_that_all_have():
    a, b, empty = pd.Series({0: 1.0, 1: 2.0}), pd.Series({0: 4.0, 1: 1.0, 2: 5.0}), pd.Series()
    assert align_seeds([a, b]).to_dict() == {0: {0: 1.0, 1: 2.0}, 1: {0: 4.0, 1: 1.0}}
    assert mean_over([a, b, empty]).dropna().to_dict() == {0: 2.5, 1: 1.5}
    assert mean_over([a, b * math.inf])[1] == math.inf  # one of them diverged
    assert mean_over([empty]).empty


def recorded(rows, size, steps, scale):
    """A weight, its gradients, and the statistics that a run would have recorded of them."""
    weight = torch.randn(rows, size, dtype=torch.float64)
    free = torch.randn(steps, rows, size, dtype=torch.float64)
    unit = weight / weight.norm(dim=1, keepdim=True)
    grads = free - (1 - scale) * (free * unit).sum(2, keepdim=True) * unit
    grads[torch.rand(steps, rows) < 0.5] = 0

    def statistic(grad, view):
        n = size if view == "channel" else rows * size
        return (metrics.cosine(weight, grad, view).abs() * math.sqrt(n)).tolist()

    channels, layer = (
        np.array([statistic(grad, view) for grad in grads]) for view in ("channel", "layer")
    )
    return weight, grads, WeightStatistic("w", None, channels, layer)


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("scale", [0.003, 0.03, 0.2])
def test_recorded_statistics_decide_as_the_rule_does(rows, scale):
    weight, grads, statistic = recorded(rows, 30, 60, scale)
    rule = r.ScaleInvarianceTest()
    updates = [rule.update(Update(weight, grad, grad), rule.init(weight))[0] for grad in grads]
    verdicts = [any(bool(flag.any()) for flag in update.invariance.flags) for update in updates]
    assert single_step(statistic, 0.1).tolist() == verdicts
