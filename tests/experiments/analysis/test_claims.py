"""Claims decide as they should, on numbers whose answer is known."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from spherenorm_experiments.comparison import Comparison, Condition
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.verdict import (
    PERFORMANCE_SEEDS,
    Claim,
    Region,
    Statement,
    Verdict,
    adjust_for_multiplicity,
    detectable,
    paired_difference,
)
from spherenorm_paper.findings import outcome
from tests.experiments.fabricated import by_seed, decided, result, scores
from tests.harness import refuses

QUOTED = Statement("paper", "Table 1", "as it says")
NEAR_ONE = [1.0, 1.1, 0.9, 1.05, 0.95]
NEAR_NINE = [9.0, 9.1, 8.9, 9.05, 8.95, 9.0, 9.02, 8.98]
INF = math.inf


@pytest.mark.parametrize(
    ("values", "relation", "more", "verdict"),
    [
        (NEAR_ONE, "> 0.5", {}, "supported"),
        (NEAR_ONE, "< 1.5", {}, "supported"),
        (NEAR_ONE, "> 1.5", {}, "contradicted"),
        (NEAR_ONE, "< 0.5", {}, "contradicted"),
        (NEAR_ONE, "> 1", {}, "inconclusive"),
        (NEAR_ONE, "= 1 ± 0.5", {}, "supported"),
        (NEAR_ONE, "= 3 ± 0.5", {}, "contradicted"),
        ([1.0, 1.0], "> 0.5", {}, "not tested"),  # a verdict needs three seeds
        (NEAR_ONE, "> 0.5", {"is_performance": True}, "not tested"),  # and of a score six
        ({}, "> 0", {}, "not tested"),
        (None, "> 0", {}, "not tested"),
        # A number without randomness is beyond a bound by a margin, or near it.
        (2.95, "= 2.93 ± 0.03", {}, "supported"),
        (0.95, "= 1 ± 0.1", {}, "supported"),
        (1.5, "= 1 ± 0.1", {}, "contradicted"),
        (1.5, "> 1", {"decision_margin": 0.1}, "supported"),
        (1.05, "> 1", {"decision_margin": 0.1}, "inconclusive"),
        (0.5, "> 1", {"decision_margin": 0.1}, "contradicted"),
        # Equal numbers fall to the sign test of so few, unless nothing in them is random.
        ([-14.0] * 5, "< -3", {}, "inconclusive"),
        ([-14.0] * 5, "< -3", {"deterministic": True}, "supported"),
        ([0.0] * 5, "< 1e-6", {"deterministic": True}, "supported"),
        ([2.0] * 5, "< 1", {"deterministic": True}, "contradicted"),
        ([1.0] * 5, "< 1", {"deterministic": True}, "inconclusive"),
        # A run that diverged has a sign and no size; where both did there is no pair.
        ([INF] * 8, "> 0", {}, "supported"),
        ([-INF] * 8, "> 0", {}, "contradicted"),
        ([-INF] * 8, "= 0 ± 1", {}, "contradicted"),
        ([math.nan] * 8, "> 0", {}, "not tested"),
        # Only 1 of 2 + 2 says "larger": a ratio to 0 has a sign, 0 to 0 is no pair.
        ([2.0, 2.0, -0.5, -0.5], "> 1", {"ratio": True}, "inconclusive"),
    ],
)
def test_the_verdict_is(values, relation, more, verdict):
    assert decided(values, relation, **more).verdict == verdict


def test_one_rule_confirms_and_refutes():
    """At the same distance from the bound, on either side, the level is the same."""
    values = [0.3, -0.1, 0.4, 0.2, 0.1, 0.25]
    up, down = decided(values), decided([-x for x in values])
    assert up.p == down.p == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
    assert (up.supported, down.supported) == (True, False)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (partial(Statement, "paper", "Table 1", ""), "wording"),
        (partial(Statement, "paeper", "Table 1", "so"), "paeper"),
        (partial(Claim, "Norm growth", "> 0", len), "Norm growth"),
        (partial(Claim, "growth", ">= 0", len), ">= 0"),
        (partial(Claim, "growth", "= 0", len), "= 0"),
        (partial(decided, 1.0, "> 0", decision_margin=0.0), "decision_margin"),
        (partial(adjust_for_multiplicity, [decided([1.0, 2.0, 3.0])] * 2), "claim"),
    ],
)
def test_a_claim_that_says_two_things_or_none_is_refused(make, named):
    with refuses(named):
        make()


def test_the_text_of_a_claim_is_its_functions():
    def growth(runs):
        """SGDP grows its norm less.

        At equal rates.
        """

    assert Claim("growth", "< 1", growth).text == "SGDP grows its norm less"


def test_an_interval_ends_where_the_number_cannot_be():
    values, limits = [-0.9, -0.2, -0.99, -0.95], (-1.0, 1.0)
    wide, cut = (decided(values, "< 0", **more) for more in ({}, {"limits": limits}))
    assert wide.numbers[0].interval[0] < -1.0
    assert cut.numbers[0].interval == (-1.0, wide.numbers[0].interval[1])
    assert cut.p == wide.p
    assert decided([1.0], "< 0", limits=limits).numbers[0].interval is None


@pytest.mark.parametrize("sign", [1, -1])
def test_a_score_needs_six_seeds_for_and_against(sign):
    gap = [sign * (3 + 0.1 * seed) for seed in range(PERFORMANCE_SEEDS)]
    few = decided(gap[:-1], is_performance=True)
    assert (few.verdict, few.p) == ("not tested", None)
    assert "a verdict needs 6" in few.detail
    verdict = decided(gap, is_performance=True).verdict
    assert verdict == ("supported" if sign > 0 else "contradicted")


def test_a_difference_shown_to_be_small_is_equivalent():
    near = [0.2 if seed % 2 else -0.2 for seed in range(8)]
    assert scores(near, 0.0).verdict == "equivalent"
    assert scores(near, 0.0, margin=0.1).verdict == "inconclusive"
    # Nor are they equivalent to an effect of 0.1, which narrows the margin of one point.
    assert scores(near, 0.0, paper=Cell(0.1)).verdict == "inconclusive"
    assert scores([x + 0.9 for x in near], 0.0).verdict == "supported"


def test_a_claim_of_equivalence_is_decided_by_both_ends():
    values = [0.2, -0.2, 0.1, -0.1, 0.15, -0.1]
    tests = [stats.ttest_1samp(values, end).pvalue for end in (-0.5, 0.5)]
    assert decided(values, "= 0 ± 0.5").p == pytest.approx(max(tests))


def test_diverged_runs_count_by_the_exact_sign_test():
    claim = scores([1.0 + 0.01 * seed for seed in range(6)] + [-INF, -INF], 0.0)
    assert (claim.verdict, claim.seeds, claim.numbers[0].n) == ("inconclusive", 8, 6)
    assert claim.p == stats.binomtest(6, 8).pvalue
    assert "2 diverged" in claim.number_text
    # A tie speaks neither for a claim nor against it.
    assert decided([0.0] * 7 + [-INF]).p == stats.binomtest(0, 1).pvalue


def test_numbers_at_a_limit_are_decided_by_their_signs():
    """Three of eight that stopped at the cap say no more than that they are beyond the bound."""
    capped = [0.4, 1.0, 1.0, 1.0, 0.6, 0.7, 0.8, 0.9]
    claim = decided(capped, "< 0.5", limits=(0.0, 1.0))
    assert (claim.p, claim.supported) == (stats.binomtest(1, 8).pvalue, False)
    free = decided(capped, "< 0.5")
    assert free.p == pytest.approx(stats.ttest_1samp(capped, 0.5).pvalue)
    assert decided([100.0] * 6, "> 99", limits=(0.0, 100.0)).p == 2 / 2**6


def test_a_ratio_and_its_inverse_decide_alike():
    """By the geometric mean: of 1/2 and 2 it is 1, and the arithmetic 1.25."""
    ratio = np.exp(0.8 * np.random.default_rng(5).normal(size=12))
    one = decided(ratio, "> 0.5", ratio=True)
    other = decided(1 / ratio, "< 2", ratio=True)
    assert one.p == pytest.approx(stats.ttest_1samp(np.log(ratio), math.log(0.5)).pvalue)
    assert (one.p, one.supported) == (pytest.approx(other.p), other.supported)
    low, high = one.numbers[0].interval
    assert other.numbers[0].interval == pytest.approx((1 / high, 1 / low))
    assert decided([0.5, 2.0], "> 1", ratio=True).numbers[0].value == pytest.approx(1.0)
    # Its logarithm is 0 at 1, which is no limit of the number.
    limited = decided([1.0, *ratio], "> 0.5", ratio=True, limits=(0.0, INF))
    assert limited.p == decided([1.0, *ratio], "> 0.5", ratio=True).p


def test_ratios_without_a_logarithm_count_by_their_sign_and_have_no_mean():
    some = decided([0.9] * 6 + [INF] * 4 + [math.nan], "< 1", ratio=True)
    assert some.p == pytest.approx(stats.binomtest(6, 10).pvalue)
    assert (some.numbers[0].n, some.seeds) == (6, 10)
    none = decided([-0.5, -0.2, -0.1], "> 1", ratio=True)
    assert none.number_text.startswith("–")
    assert none.p == stats.binomtest(0, 3).pvalue


def test_the_claims_of_a_study_share_one_level():
    """Ten claims at p = 0.02 each are none; one of them would be one."""
    values = [0.9, 0.2, 0.6, 0.1, 1.0, 0.3, 0.5]
    alone = decided(values)
    assert alone.verdict == "supported"
    assert alone.p > 0.005
    many = adjust_for_multiplicity([decided(values, name=f"claim-{i}") for i in range(10)])
    assert {claim.verdict for claim in many} == {"inconclusive"}
    assert many[0].p == pytest.approx(10 * alone.p)
    others = decided({}, name="nothing"), decided(2.0, "= 2 ± 0.1", name="sure")
    assert adjust_for_multiplicity([alone, *others])[0].p == alone.p  # neither is a test


def test_a_size_is_told_by_the_interval():
    """Right in direction, but of a tenth or of three times the paper's size."""
    ours = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98]
    sizes = {1.0: "", 10.0: "smaller than the paper's", 0.3: "larger than the paper's"}
    for effect, found in sizes.items():
        assert decided(ours, paper=Cell(effect)).size == found
        assert decided([-x for x in ours], "< 0", paper=Cell(-effect)).size == found
    assert decided(ours, paper="10.0").size == ""  # a text
    assert decided([-x for x in ours], paper=Cell(1.0)).size == ""  # contradicted


def test_what_so_many_seeds_can_detect_stands_beside_an_inconclusive_number():
    values = [0.5, -0.4, 0.3, -0.2, 0.6, -0.5]
    claim = decided(values, unit="pp")
    found = detectable(float(np.std(values, ddof=1)), 6)
    assert (claim.verdict, claim.detectable) == ("inconclusive", pytest.approx(found))
    assert f"6 seeds detect {found:.2g} pp" in claim.evidence
    assert "detect" not in decided(NEAR_NINE).evidence


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ([], "not tested"),
        (["not tested"], "not tested"),
        (["inconclusive"], "inconclusive"),
        (["supported"] * 2, "holds"),
        (["supported", "inconclusive"], "holds"),
        (["supported", "not tested", "not tested"], "holds"),
        (["supported", "inconclusive", "inconclusive"], "inconclusive"),
        (["contradicted", "inconclusive", "inconclusive"], "does not hold"),
        (["equivalent", "not tested"], "does not hold"),
        (["supported", "contradicted"], "holds in part"),
    ],
)
def test_a_statement_has_one_outcome(verdicts, found):
    named = [Verdict(verdict) for verdict in verdicts]
    assert outcome(named) == found
    assert outcome(named[::-1]) == found


def test_a_statement_of_every_case_needs_each_of_them():
    held = Verdict.SUPPORTED
    assert outcome([held, held], every=True) == "holds"
    for missing in (Verdict.INCONCLUSIVE, Verdict.NOT_TESTED):
        assert outcome([held, held, missing], every=True) == "inconclusive"


def test_a_region_is_open_and_knows_its_ends():
    assert Region(low=0.0).holds(1e-6)
    assert not Region(low=0.0).holds(1e-12)
    assert Region(-1.0, 1.0).ends == [-1.0, 1.0]


def test_a_comparison_that_grew_says_so_and_pays_nothing():
    """What counts is the seeds that both arms had; three are too few for a look."""
    values = np.random.default_rng(0).normal(1, 0.4, size=12)
    grown = scores(values, np.zeros(12), seed_counts=(3, 6, 6, 9, 12))
    assert "n was raised from 6 to 9 to 12; p is not adjusted for it" in grown.detail
    p = stats.ttest_1samp(values, 0.0).pvalue
    assert adjust_for_multiplicity([grown])[0].p == pytest.approx(p, rel=1e-9)
    assert "raised" not in scores(values, np.zeros(12), seed_counts=(3, 12)).detail


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-9, 1e-14])
def test_a_comparison_does_not_depend_on_the_unit_of_the_scores(unit):
    """Metres or nanometres: intervals and verdicts are those of the numbers, none is rounding.

    Nor on scores that it does not compare: of another point, or of another condition.
    """
    base = np.array([0.52, 0.55, 0.47, 0.51, 0.58, 0.49])
    for gap, verdict in (
        ([0.11, 0.12, 0.1, 0.13, 0.09, 0.12], "supported"),
        ([0.11, -0.12, 0.1, -0.13, 0.09, 0.02], "inconclusive"),
        ([0.0] * 6, "equivalent"),
    ):
        sides = {"sgd": by_seed(unit * base), "sgdp": by_seed(unit * (base + gap))}
        runs = Runs(
            result(Place(label, arm), seed, Spec("digits", arm, {"lr": rate}, seed=seed),
                   test=number, validation=number)
            for arm, of in sides.items() for seed, score in of.items()
            for label, rate, number in (("", 0.1, score), ("", 9.0, -5.0), ("other", 0.1, 50.0))
        )  # fmt: skip
        on = [Condition(label, "digits", unit="", margin=1e-3 * unit) for label in ("", "other")]
        study = Comparison("x", arms=[*sides], tune={"lr": [0.1]}, conditions=on)
        claim, _ = study.evaluate_claims(runs)
        known = stats.ttest_1samp(gap, 0.0)
        expected = [unit * x for x in (np.mean(gap), *known.confidence_interval(0.95))]
        assert claim.verdict == verdict
        if any(gap):  # else Student's test has no number
            assert claim.p == pytest.approx(known.pvalue, rel=1e-9)
            for cell in (claim.numbers[0], paired_difference(sides["sgdp"], sides["sgd"])):
                shown = [cell.value, *cell.interval]
                assert shown == pytest.approx(expected, rel=1e-9, abs=1e-12 * unit)
