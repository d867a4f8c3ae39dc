"""Searches of toys: the paper's start chooses the point, the starts at its side are scored."""

import math
from dataclasses import replace

import numpy as np

from spherenorm_experiments.analysis import Arm, Result, Results
from spherenorm_experiments.analysis._grid import Choice, Grid, grid_of
from spherenorm_experiments.core import Spec, rows_of
from tests.experiments.fabricated import Made

RATES = [0.1, 0.1, 0.3, 0.3, 1.0, 1.0]
DECAYS = [0.0, 1.0] * 3
ARM = Arm("x", "sgdw")
TOY = ("cosine", "sgdw", {"lr": RATES, "weight_decay": DECAYS, "momentum": 0.9})
GAPS = [[6, 1, 2], [7, 1, 2], [9, 1, 2], [5, 9, 9], [8, 1, None], [9, 1, 2]]


def grid(gaps=GAPS, lists=TOY, seeds=(0, 1, 2)):
    """Of numbers by point and seed."""
    specs = rows_of(Spec(*lists, seeds=seeds))
    numbers = [x for row in gaps for x in row]
    rows = [(spec, {"diverged_at": None, "gap": x}) for spec, x in zip(specs, numbers, strict=True)]
    return Grid([Result("", spec, {}, summary, None, arm=ARM) for spec, summary in rows], 0)


def test_the_papers_start_chooses_and_the_others_are_scored():
    own = grid()
    assert own.tuned("gap", min) == Choice(3, 0.3, False)
    assert own.tuned("gap") == Choice(2, 0.3, False)
    assert own.tuned("gap", min, (0.0, 0.1)) == Choice(3 - 3, 0.1, False)
    assert dict(own.sample("gap", 3)) == {1: 9.0, 2: 9.0}


def test_a_seed_without_a_number_has_diverged():
    own = grid().sample("gap", 4)
    assert (dict(own), own.diverged) == ({1: 1.0}, {2})
    lost = grid([[None, 1, 1]] * 6)
    # so that a claim about it is lost, not empty
    assert lost.tuned("gap", min) == Choice(0, 0.1, lost=True)
    assert str(lost.tuned("gap", min).cell) == "none"
    assert Grid().tuned("gap").index is None
    assert math.isnan(Grid().tuned("gap").rate)


def test_an_arm_that_diverged_at_all_points_stays():
    items = [replace(item, summary={**item.summary, "diverged_at": 5})
             for item in grid([[None] * 3] * 6).items]  # fmt: skip
    own = grid_of(Results(items), ARM, 0)
    assert own.sample("gap", own.tuned("gap", min).index).diverged == {1, 2}


def test_a_curve_of_a_run_that_trained_with_others_is_read_by_step():
    spec = Spec("network", "sgdw", {"lr": 0.1})
    items = []
    for seed, scale in enumerate((1.0, 3.0)):
        summary = {"diverged_at": None, "every": 7}
        kept = {"norm": scale * np.arange(5)}
        own = replace(spec, seed=seed)
        items.append(Made("family/made", own, {}, summary, None, arm=ARM, kept=kept))
    assert items[1].curve("norm") == {0: 0.0, 7: 3.0, 14: 6.0, 21: 9.0, 28: 12.0}
    assert items[1].curve("loss") == {}
    steps, values = Results(items).curves("norm")
    assert steps.tolist() == [0, 7, 14, 21, 28]
    assert values.tolist() == [[0, 1, 2, 3, 4], [0, 3, 6, 9, 12]]
