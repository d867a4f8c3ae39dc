"""Norms, laws and effective steps of stored runs, and their link to scores."""

import numpy as np
import pandas as pd
import pytest

from spherenorm_experiments.core import Spec
from spherenorm_experiments.extra.mechanism import (
    answer_table,
    grow,
    scores_picture,
    scores_table,
)


def test_by_hand_a_projected_step_grows_the_norm_by_its_turn():
    turns = [0.3, 0.2, 0.1]
    norms = 2.0 / np.cumprod([1.0, *np.cos(turns)])
    spec = Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0})
    assert grow(spec, norms, np.array(turns), 3) == pytest.approx((norms[-1] / 2,) * 2, rel=1e-12)


def made(score):
    """Two optimizers of which the second takes twice the step at an equal rate."""
    rows = [
        {"condition": "c", "optimizer": name, "lr": lr, "seed": seed, "step_last": lr * factor,
         "test": score(lr * factor, name) + seed}
        for name, factor in (("adam", 1.0), ("adamp", 2.0))
        for lr in (0.01, 0.02, 0.04, 0.08)
        for seed in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("score", "at_rate", "at_step"),
    [
        (lambda step, _: 10 * np.log(step), 10 * np.log(2), 0.0),  # the step alone decides
        (lambda step, name: np.log(step) + 5 * (name == "adamp"), np.log(2) + 5, 5.0),
    ],
)
def test_a_gain_that_is_a_matter_of_the_step_is_gone_at_an_equal_step(score, at_rate, at_step):
    frame = made(score)
    (row,) = scores_table(frame).rows
    assert [float(cell.value) for cell in row[-2:]] == pytest.approx([at_rate, at_step], abs=1e-9)
    assert min(float(row[3].value), float(row[4].value)) > 0.98  # ranks within an optimizer
    scattered = scores_picture(frame).figure.data
    assert sum(len(trace.x) for trace in scattered) == len(frame) / 4  # seeds


def test_one_curve_of_the_step_explains_all_where_the_step_alone_decides():
    """And not where the optimizer decides: by hand, of scores without any other difference."""
    follows = answer_table(made(lambda step, _: 10 * np.log(step))).rows
    assert float(follows[0][1].value) == pytest.approx(1.0)
    assert float(follows[1][1].value) < 0.95
    own = answer_table(made(lambda _, name: 5.0 * (name == "adamp"))).rows
    assert float(own[1][1].value) == pytest.approx(0.0, abs=1e-9)  # both have every rate
    assert float(own[2][1].value) == pytest.approx(float(own[0][1].value))
