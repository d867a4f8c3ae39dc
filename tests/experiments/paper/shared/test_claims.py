"""Geometry at equal rates: the optimizer, not its tuning, is what differs."""

import math

import pytest

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.core import Spec
from spherenorm_experiments.paper.shared.claims import ratio_at_equal_rates
from spherenorm_experiments.study import Condition, Contender, arm_of
from tests.experiments.fabricated import result

ON = [Condition(label, "digits") for label in ("a", "b")]
PAIR = Contender("Adam"), Contender("AdamP")


def run(condition, contender, rate, seed, path, lost=False):
    arm = arm_of(condition, contender)
    spec = Spec("digits", arm.recipe, {"lr": rate}, seed=seed, probes=("norms",))
    return result(
        arm, seed, spec, total_effective_step=path, **({"diverged_at": 3} if lost else {})
    )


def ratios(items, on=ON):
    return ratio_at_equal_rates(Results(items), on, PAIR, "total_effective_step")


def test_only_rates_that_both_have_are_compared_and_conditions_weigh_alike():
    """Tuned to 0.1 and 0.2 the second would be 8 times as far; at 0.1 it is twice."""
    adam, adamp = PAIR
    items = [
        run(ON[0], adam, 0.1, 0, 1.0), run(ON[0], adamp, 0.1, 0, 2.0),
        run(ON[0], adamp, 0.2, 0, 8.0),
        *(run(ON[1], adam, rate, 0, 1.0) for rate in (0.1, 0.2, 0.4)),
        *(run(ON[1], adamp, rate, 0, 8.0) for rate in (0.1, 0.2, 0.4)),
    ]  # fmt: skip
    assert ratios(items) == {0: pytest.approx(math.sqrt(2 * 8))}
    assert ratios(items[:3], ON[:1]) == {0: pytest.approx(2.0)}
    assert ratios(items[:1]) is None
    assert ratios([items[0], items[2]]) is None


def test_a_run_that_diverged_counts_against_the_projected_one_alone():
    adam, adamp = PAIR
    both = [run(ON[0], each, 0.1, seed, 1.0) for each in PAIR for seed in (0, 1)]
    ours = [run(ON[0], adam, 0.2, 1, 1.0), run(ON[0], adamp, 0.2, 1, None, lost=True)]
    found = ratios([*both, *ours])
    assert (dict(found), found.diverged) == ({0: 1.0}, {1})
    theirs = [run(ON[0], adam, 0.2, 1, None, lost=True), run(ON[0], adamp, 0.2, 1, 1.0)]
    found = ratios([*both, *theirs])
    assert (dict(found), found.diverged) == ({0: 1.0, 1: 1.0}, frozenset())
