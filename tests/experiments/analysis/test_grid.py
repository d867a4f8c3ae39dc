"""Sweeps read as tables: which seeds count, which rate tuning chooses, and what an edge is."""

import math
from dataclasses import replace

import numpy as np
from running import shown

from spherenorm_experiments.analysis import Arm, Result, Results, Sample
from spherenorm_experiments.analysis._grid import Choice, Grid, grid_of
from spherenorm_experiments.core import Spec, rows_of
from spherenorm_experiments.engine import Row
from spherenorm_experiments.paper.norms import t1

RATES = [0.1, 0.1, 0.3, 0.3, 1.0, 1.0]
DECAYS = [0.0, 1.0] * 3
ARM = Arm("x", "sgdw")


NETWORK = ("network", "sgdw", {"lr": RATES, "weight_decay": DECAYS, "momentum": 0.9})


def grid(validation, lists=NETWORK, seeds=(3, 4, 10_000), key="validation", tuning=None):
    """Of numbers by point and seed."""
    specs = rows_of(Spec(*lists, seeds=seeds))
    numbers = [x for row in validation for x in row]
    rows = [(spec, {"diverged_at": None, key: x}) for spec, x in zip(specs, numbers, strict=True)]
    return Grid([Result(ARM, spec, summary, None) for spec, summary in rows], tuning)


SCORES = [[1, 2, 60], [1, 2, 70], [1, 2, 90], [99, 99, 50], [1, None, 80], [1, 2, 95]]


def test_tuning_reads_its_own_seeds_and_the_runs_theirs():
    own = grid(SCORES)
    assert own.tuned(weight_decay=0.0) == Choice(2, 0.3, False)
    assert own.tuned(weight_decay=1.0) == Choice(5, 1.0, True)  # no larger rate was tried
    assert own.tuned(rates=(0.0, 0.5)) == Choice(2, 0.3, True)
    assert dict(own.sample("validation", 2)) == {3: 1.0, 4: 2.0}
    assert own.sample("validation", 2).performance


def test_a_seed_without_a_number_has_diverged():
    own = grid(SCORES).sample("validation", 4)
    assert (dict(own), own.diverged) == ({3: 1.0}, {4})
    lost = grid([[1, 1, None]] * 6)
    assert lost.tuned() == Choice(0, 0.1, lost=True)  # so that a claim about it is lost, not empty
    assert str(lost.tuned().cell) == "none"
    assert Grid().tuned().index is None
    assert math.isnan(Grid().tuned().rate)


def test_rates_that_may_be_chosen_are_named():
    own = grid(SCORES)
    assert own.tuned(among=(0.1, 1.0), weight_decay=0.0) == Choice(4, 1.0, True)
    assert own.tuned(among=(0.1,)) == Choice(1, 0.1, False)


def test_a_curve_is_read_by_seed_and_one_that_ends_has_diverged():
    spec, curves = Spec("network", "sgdw", {"lr": 0.1}), np.ones((3, 5)) * np.arange(5)
    curves[0, 3:] = np.nan
    items = []
    for seed, curve in zip((3, 4, 10_000), curves, strict=True):
        row = Row("made", replace(spec, seed=seed), {}, {"diverged_at": None, "every": 7}, None)
        vars(row)["arrays"] = {"norm": curve}
        items.append(Result.of(ARM, row))
    own = Grid(items)
    last = own.sample_of_curve(lambda steps, values: steps[-1] + values[-1], "norm", 0)
    assert (dict(last), last.diverged) == ({4: 32.0}, {3})
    assert not Grid().sample_of_curve(lambda steps, values: 0.0, "norm", None)


def test_a_point_counts_once_its_tuning_has_ended():
    own = grid([[1.0, 2.0]] * 6, seeds=(3, 4))
    assert own.tuned().index is None
    assert dict(own.sample("validation", 0)) == {3: 1.0, 4: 2.0}


def test_an_arm_that_diverged_at_all_points_stays():
    items = [replace(item, summary={**item.summary, "diverged_at": 5})
             for item in grid([[None] * 3] * 6).items]  # fmt: skip
    own = grid_of(Results(items), ARM)
    assert own.sample("validation", own.tuned().index).diverged == {3, 4}


def test_a_point_is_found_by_what_the_recipe_has():
    own = grid(SCORES)
    assert own.at(lr=0.3, weight_decay=1.0, wd_ratio=0.1) == 3  # which it does not have
    assert own.at(lr=0.2) is None
    assert Grid().at(lr=0.3) is None
    assert not Grid().sample("test", None)


def test_starts_at_the_side_are_runs_and_the_papers_is_for_tuning():
    gaps = [[5.0, 1.0, 2.0], [3.0, 8.0, None], [4.0, 1.0, 1.0]]
    lists = ("cosine", "sgd", {"lr": [0.1, 0.2, 0.3], "momentum": 0.9})
    own = grid(gaps, lists, (0, 1, 2), "final_gap", tuning=0)
    assert own.tuned("final_gap", min).index == 1
    sample = own.sample("final_gap", 1, performance=True)
    assert (dict(sample), sample.diverged) == ({1: 8.0}, {2})


def test_a_rate_at_which_a_seed_diverged_keeps_its_row(monkeypatch):
    """No mean is over the seeds on which the arm fared well, and the divergence is shown."""
    whole, broken = Sample({0: 1.2, 1: 1.4}), Sample({0: 1.2}, frozenset({1}))
    rates = {0.1: whole, 1.0: broken, 2.0: Sample({})}
    monkeypatch.setattr(t1, "ratios_of", lambda *_: rates)
    (table,) = t1._at_every_rate(Results([]))
    own = shown(table)
    assert [row[1] for row in own] == ["0.1", "1"] * len(t1.PAIRS)
    assert own[1][2:] == ["– (1 diverged)"] * 2
