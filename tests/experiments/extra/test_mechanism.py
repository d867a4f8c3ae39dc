"""Norms, laws and effective steps of stored runs, and their link to scores."""

import numpy as np
import pandas as pd
import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.analysis import Arm, Results, interval
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import execute
from spherenorm_experiments.extra.mechanism import (
    answer_table,
    grow,
    growth_picture,
    measured,
    norms_table,
    scores_picture,
    scores_table,
)

EPOCHS = 20


def ended(specs, root):
    """The results of these specs."""
    runs = [run_of(spec, root) for spec in specs]
    for run in runs:
        execute(run)
    return Results.load([(Arm(run.spec.recipe, run.spec.recipe), run) for run in runs])


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    """Two optimizers at two rates with two seeds, and a run without measurements."""
    root = tmp_path_factory.mktemp("store")
    specs = [Spec("cosine", "sgd", {"lr": 0.1}, epochs=3)]
    for recipe in ("sgd", "sgdp"):
        for lr in (0.1, 0.3):
            for seed in (0, 1):
                values = {"lr": lr, "momentum": 0.9, "weight_decay": 0.01}
                specs.append(tiny_spec(recipe, seed, EPOCHS, **values))
    return measured(ended(specs, root))


def test_the_law_gives_the_growth_of_runs_that_it_has_not_seen(frame):
    """The law is of a unit, and holds nearly for the root mean squares of eight."""
    assert len(frame) == 8
    by_law, of_steps = (frame[f"growth_{each}"].to_numpy() for each in ("by_law", "of_steps"))
    growth, is_projected = frame["growth"].to_numpy(), (frame["recipe"] == "sgdp").to_numpy()
    np.testing.assert_allclose(growth, by_law, rtol=0.06)
    np.testing.assert_allclose(by_law[is_projected], of_steps[is_projected], rtol=1e-9)
    # momentum makes the growth of a norm larger than that of its steps
    assert (growth[~is_projected] - 1 > 1.5 * (of_steps[~is_projected] - 1)).all()


def test_by_hand_a_projected_step_grows_the_norm_by_its_turn():
    turns = [0.3, 0.2, 0.1]
    norms = 2.0 / np.cumprod([1.0, *np.cos(turns)])
    spec = Spec("digits", "sgdp", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0})
    assert grow(spec, norms, np.array(turns), 3) == pytest.approx((norms[-1] / 2,) * 2, rel=1e-12)


def test_the_table_has_a_row_for_each_point_and_no_law_where_there_is_none(frame):
    frame = frame.assign(growth_by_law=frame["growth_by_law"].where(frame["recipe"] == "sgdp"))
    rows = norms_table(frame).rows
    assert [str(row[1]) for row in rows].count("sgd") == len(rows) / 2 == 2
    assert {str(row[5]) for row in rows if str(row[1]) == "sgd"} == {"no law"}
    assert all(row[4].n == 2 for row in rows)
    names = [trace.name for trace in growth_picture(frame).figure.data]
    assert names == ["sgd", "sgdp", "equal"]


def test_runs_of_other_settings_are_no_more_seeds_of_one_point(tmp_path):
    """Another length of training or weight decay is another condition."""
    specs = []
    for recipe in ("adam", "adamp"):
        for epochs, decay in ((1, 0.0), (3, 0.0), (1, 0.3)):
            values = {"lr": 0.03} | ({"weight_decay": decay} if decay else {})
            for seed in (0, 1):
                specs.append(tiny_spec(recipe, seed, epochs, **values))
    frame = measured(ended(specs, tmp_path))
    rows = norms_table(frame).rows
    assert [row[3].n for row in rows] == [2] * 6
    for row in rows:
        epochs, decay = (float(str(row[0]).partition(f"{x}=")[2].partition(",")[0])
                         for x in ("epochs", "weight_decay"))  # fmt: skip
        runs = frame[(frame["optimizer"] == str(row[1])) & (frame["epochs"] == epochs)]
        runs = runs[runs["weight_decay"].fillna(0.0) == decay]
        assert float(row[4].value) == pytest.approx(runs["growth"].mean())


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


def test_the_answer_has_an_interval_over_conditions():
    parts = [made(lambda step, _, k=k: np.log(step) + k * step).assign(condition=str(k))
             for k in range(3)]  # fmt: skip
    (first, *_) = answer_table(pd.concat(parts)).rows
    values = [float(answer_table(part).rows[0][1].value) for part in parts]
    assert first[1].value == pytest.approx(np.mean(values))
    assert first[1].interval == pytest.approx(interval(values))


def test_one_rate_of_an_optimizer_tells_nothing_about_steps():
    assert not scores_table(made(lambda step, _: step).query("lr == 0.01")).rows
