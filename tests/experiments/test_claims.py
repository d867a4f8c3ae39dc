"""What a claim decides, on numbers whose answer is known; and the search and the pictures that feed on scores."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from experiments.claims import (
    PERFORMANCE_SEEDS,
    close,
    holds,
    interval,
    paired,
    performance,
    sample,
)
from experiments.plots import best_of_k, profile
from experiments.search import points


def by_seed(values):
    return dict(enumerate(values))


def test_an_interval_above_the_bound_reproduces_below_it_refutes_across_it_decides_nothing():
    values = by_seed([1.0, 1.1, 0.9, 1.05, 0.95])
    assert sample("", values, ">", 0.5, source="").outcome == "reproduced"
    assert sample("", values, ">", 1.5, source="").outcome == "not reproduced"
    assert sample("", values, ">", 1.0, source="").outcome == "inconclusive"
    assert sample("", values, "<", 1.5, source="").outcome == "reproduced"
    assert sample("", values, "<", 0.5, source="").outcome == "not reproduced"


def test_two_seeds_decide_nothing_and_none_says_so():
    assert sample("", by_seed([1.0, 1.0]), ">", 0.5, source="").outcome == "inconclusive"
    empty = sample("", {}, ">", 0.5, source="")
    assert (empty.outcome, empty.ours, empty.seeds) == ("inconclusive", "no results", 0)


def test_pairs_are_by_seed():
    base = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}
    better = {seed: value + 1 + 0.01 * seed for seed, value in base.items() if seed != 3}
    claim = paired("", better, base, ">", source="", unit="pp")
    assert claim.outcome == "reproduced"
    assert claim.seeds == 3
    assert "1 seeds without a finished pair" in claim.detail
    assert claim.ours.startswith("+1.01 [")
    assert paired("", base, better, "<", how="ratio", source="").outcome == "reproduced"


def test_few_seeds_never_confirm_a_better_score_but_may_refute_it():
    few, many = range(5), range(PERFORMANCE_SEEDS)
    base = {seed: 90.0 + seed for seed in many}
    up = {seed: 95.0 + 1.1 * seed for seed in many}
    claim = performance("", {s: up[s] for s in few}, {s: base[s] for s in few}, source="")
    assert (claim.outcome, claim.kind) == ("inconclusive", "performance")
    assert "5 seeds" in claim.detail
    assert performance("", up, base, source="").outcome == "reproduced"
    assert (
        performance("", {s: base[s] for s in few}, {s: up[s] for s in few}, source="").outcome
        == "not reproduced"
    )
    tie = performance("", {s: base[s] for s in few}, {s: base[s] for s in few}, source="")
    assert tie.outcome == "inconclusive"
    rounded = paired("", {0: 0.1 + 0.2, 1: 2.0, 2: 3.0}, {0: 0.3, 1: 1.0, 2: 2.0}, "<", source="")
    assert 0.1 + 0.2 > 0.3
    assert rounded.outcome == "inconclusive"  # from 0 up, not from above 0


def test_the_interval_is_scipys_and_covers_the_mean_as_often_as_it_says():
    values = np.random.default_rng(3).normal(size=12)
    expected = bootstrap(
        (values,), np.mean, method="BCa", rng=np.random.default_rng(0), n_resamples=2000
    ).confidence_interval
    assert interval(values) == (expected.low, expected.high)
    covered = 0
    for seed in range(100):
        low, high = interval(np.random.default_rng(seed).normal(size=20))
        covered += low <= 0 <= high
    assert 85 <= covered <= 99
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert all(math.isnan(x) for x in interval([2.0]))


def test_close_and_holds():
    assert close("", 2.95, 2.93, 0.01, source="").outcome == "reproduced"
    assert close("", 3.2, 2.93, 0.01, source="").outcome == "not reproduced"
    assert "+9.2 %" in close("", 3.2, 2.93, 0.01, source="").ours
    assert close("", math.nan, 2.93, 0.01, source="").outcome == "not reproduced"
    assert holds("", False, "", source="").outcome == "not reproduced"


def test_best_of_k_is_the_mean_over_all_choices_of_k_trials():
    scores = [3.0, 1.0, 4.0, 1.5, 5.0]
    drawn = best_of_k({"sgd": scores}, "score", "").figure.data[0].y
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


def test_search_points_fill_the_ranges_evenly_and_are_the_same_each_time():
    space = {"lr": (1e-3, 1e-1), "rest": (1e-2, 1.0)}
    halton = points(space, 16)
    assert halton == points(space, 16)
    assert halton[:8] == points(space, 8)  # a larger budget adds to a smaller one
    for name, (low, high) in space.items():
        shares = [math.log(point[name] / low) / math.log(high / low) for point in halton]
        assert all(0 < share < 1 for share in shares)
        assert all(
            sum(i / 4 <= share < (i + 1) / 4 for share in shares) in (3, 4, 5) for i in range(4)
        )
    assert [point["lr"] for point in points({"lr": (1e-3, 1e-1)}, 3, "grid")] == pytest.approx(
        [1e-3, 1e-2, 1e-1]
    )
    assert len(points(space, 9, "grid")) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"lr": (0.1, 0.01)}, 3), "range of lr must be positive and rising"),
        (({"lr": (0.01, 0.1), "rest": (0.1, 1.0)}, 5, "grid"), "does not fill 2 dimensions"),
        (({"lr": (0.01, 0.1)}, 5, "haltn"), "did you mean halton"),
    ],
)
def test_wrong_searches_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        points(*arguments)


def test_optuna_learns_from_what_it_is_told():
    pytest.importorskip("optuna")
    space = {"lr": (1e-4, 1.0)}
    told = [(point, -abs(math.log10(point["lr"]) + 2)) for point in points(space, 12)]
    proposed = points(space, 4, "optuna", told)
    assert proposed == points(space, 4, "optuna", told)
    assert np.mean([abs(math.log10(point["lr"]) + 2) for point in proposed]) < np.mean(
        [-score for _, score in told]
    )
