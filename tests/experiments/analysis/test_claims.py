"""Claims decide as they should, on numbers whose answer is known."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from spherenorm_experiments.claims import MARGIN, Region, Statement
from spherenorm_experiments.decisions import PERFORMANCE_SEEDS, adjusted
from spherenorm_experiments.paper.findings import outcome
from spherenorm_experiments.samples import Sample, advantage
from spherenorm_experiments.stats import detectable
from spherenorm_experiments.tables import Cell, difference
from tests.experiments.fabricated import decided, scores

QUOTED = Statement("paper", "Table 1", "as it says")


def by_seed(values):
    return dict(enumerate(values))


def test_a_mean_beyond_the_bound_holds_below_it_does_not_and_near_it_decides_nothing():
    values = by_seed([1.0, 1.1, 0.9, 1.05, 0.95])
    verdicts = [decided(values, r, b).verdict for r, b in ((">", 0.5), ("<", 1.5))]
    assert verdicts == ["holds"] * 2
    verdicts = [decided(values, r, b).verdict for r, b in ((">", 1.5), ("<", 0.5))]
    assert verdicts == ["does not hold"] * 2
    assert decided(values, ">", 1.0).verdict == "inconclusive"


def test_one_rule_confirms_and_refutes():
    """At the same distance from the bound, on either side, the level is the same."""
    values = [0.3, -0.1, 0.4, 0.2, 0.1, 0.25]
    up = decided(by_seed(values), ">", 0.0)
    down = decided(by_seed([-x for x in values]), ">", 0.0)
    assert up.p == down.p == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue)
    assert (up.supported, down.supported) == (True, False)


def test_only_statements_of_the_paper_are_reproduced():
    values = by_seed([1.0, 1.1, 0.9])
    assert decided(values, ">", 0.5, cites=QUOTED).verdict == "reproduced"
    assert decided(values, ">", 1.5, cites=QUOTED).verdict == "not reproduced"
    assert decided(values, ">", 0.5, cites=Statement("identity", "Lemma 2.2")).verdict == "holds"
    with pytest.raises(ValueError, match="needs its place and its wording"):
        Statement("paper", "Table 1", "")
    with pytest.raises(ValueError, match=r"kind must be one of .* got 'paeper'"):
        Statement("paeper", "Table 1", "so")


def test_an_interval_ends_where_the_number_cannot_be():
    values, limits = by_seed([-0.9, -0.2, -0.99, -0.95]), (-1.0, 1.0)
    wide, cut = (decided(values, "<", 0.0, **more) for more in ({}, {"limits": limits}))
    assert wide.numbers[0].interval[0] < -1.0
    assert cut.numbers[0].interval == (-1.0, wide.numbers[0].interval[1])
    assert cut.p == wide.p
    assert decided({0: 1.0}, "<", 0.0, limits=limits).numbers[0].interval is None


def test_two_seeds_decide_nothing_and_none_says_so():
    two = decided(by_seed([1.0, 1.0]), ">", 0.5)
    assert (two.verdict, two.detail) == ("inconclusive", "2 seeds; a verdict needs 3")
    empty = decided({}, ">", 0.5)
    assert (empty.verdict, empty.ours, empty.seeds) == ("inconclusive", "no results", 0)


def test_pairs_are_by_seed():
    base = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0}
    better = {seed: value + 1 + 0.01 * seed for seed, value in base.items() if seed != 3}
    claim = decided(better, ">", base, unit="pp")
    assert claim.verdict == "holds"
    assert claim.seeds == 3
    assert claim.ours.startswith("+1.01 [")
    larger = {seed: (1.1 + 0.001 * seed) * value for seed, value in base.items()}
    assert decided(base, "<", larger, how="ratio").verdict == "holds"


@pytest.mark.parametrize("sign", [1, -1])
def test_performance_needs_six_seeds_for_and_against(sign):
    base = {seed: 90.0 + seed for seed in range(PERFORMANCE_SEEDS)}
    other = {seed: value + sign * (3 + 0.1 * seed) for seed, value in base.items()}
    few = range(PERFORMANCE_SEEDS - 1)
    claim = scores({s: other[s] for s in few}, {s: base[s] for s in few}, cites=QUOTED)
    assert claim.performance
    assert (claim.verdict, claim.p) == ("inconclusive", None)
    assert "a verdict needs 6" in claim.detail
    decided = scores(other, base, cites=QUOTED).verdict
    assert decided == ("reproduced" if sign > 0 else "not reproduced")


def test_scores_are_performance_wherever_they_stand():
    scores = Sample(by_seed([1.0, 1.1, 0.9]), performance=True)
    assert decided(scores, ">", 0.5).verdict == "inconclusive"
    assert decided(scores.map(math.log), ">", {}).performance
    assert decided(scores, ">", by_seed([0.0] * 3)).verdict == "inconclusive"


def test_a_difference_shown_to_be_small_is_equivalent():
    base = dict.fromkeys(range(8), 97.0)
    near = {seed: 97.0 + (0.2 if seed % 2 else -0.2) for seed in range(8)}
    assert scores(near, base, cites=QUOTED).verdict == "equivalent"
    assert scores(near, base, cites=QUOTED, margin=0.1).verdict == "inconclusive"
    # Nor are they equivalent to an effect of 0.1, which narrows the margin of one point.
    assert scores(near, base, cites=QUOTED, paper=Cell(0.1)).verdict == "inconclusive"
    far = {seed: value + 0.9 for seed, value in near.items()}
    assert scores(far, base, cites=QUOTED).verdict == "reproduced"
    assert f"within ±{MARGIN:g} pp" in scores(near, base).detail


def test_a_claim_of_equivalence_is_decided_by_both_ends():
    values = [0.2, -0.2, 0.1, -0.1, 0.15, -0.1]
    claim = decided(by_seed(values), "=", 0.0, margin=0.5)
    tests = [stats.ttest_1samp(values, end).pvalue for end in (-0.5, 0.5)]
    assert (claim.verdict, claim.p) == ("holds", pytest.approx(max(tests)))
    far = decided(by_seed([x + 2 for x in values]), "=", 0.0, margin=0.5)
    assert (far.verdict, far.supported) == ("does not hold", False)
    with pytest.raises(ValueError, match="needs a positive margin"):
        decided(by_seed(values), "=", 0.0)


def test_diverged_runs_count_against_their_optimizer():
    """By the exact sign test, in which a run that diverged is worse than any other."""
    base = Sample(dict.fromkeys(range(8), 90.0))
    ahead = {seed: 91.0 + 0.01 * seed for seed in range(8)}
    assert scores(ahead, base, cites=QUOTED).verdict == "reproduced"
    two_lost = Sample({s: ahead[s] for s in range(6)}, diverged=frozenset({6, 7}))
    claim = scores(two_lost, base, cites=QUOTED)
    assert (claim.verdict, claim.seeds) == ("inconclusive", 8)
    assert claim.p == stats.binomtest(6, 8).pvalue
    all_lost = Sample({}, diverged=frozenset(range(8)))
    assert scores(all_lost, base, cites=QUOTED).verdict == "not reproduced"
    assert scores(base, all_lost, cites=QUOTED).verdict == "reproduced"
    assert scores(all_lost, all_lost, cites=QUOTED).verdict == "inconclusive"
    assert "2 diverged" in claim.ours
    grew = decided(Sample(by_seed([1.0] * 5), frozenset({5})), ">", 0.5)
    assert grew.p == stats.binomtest(5, 6).pvalue


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_none_is_that_of_a_run_that_diverged(number):
    """As the logarithm or the ratio in a user's derived side."""
    base = Sample(dict.fromkeys(range(8), 90.0))
    derived = base.map(lambda score: score + 1)
    lost = Sample({**derived, 3: number})
    assert (sorted(lost.diverged), 3 in lost) == ([3], False)
    plain = scores({**derived, 3: number}, base)
    assert (plain.seeds, plain.p) == (8, stats.binomtest(7, 8).pvalue)


def test_a_run_that_diverged_counts_for_a_claim_that_puts_it_behind():
    """“SGD needs more steps” is no less true if SGD does not arrive at all."""
    lost, steps = Sample({}, frozenset(range(8))), Sample(by_seed([9.0] * 8))
    slower = {"how": "ratio", "behind": "left"}
    assert decided(lost, ">", steps, **slower).verdict == "holds"
    assert decided(steps, ">", lost, **slower).verdict == "does not hold"


def test_seeds_that_only_one_of_two_arms_has_ended_count_for_nothing():
    """The baseline's runs that diverged came first, and ours on their seeds are still to come."""
    ours = Sample(dict.fromkeys(range(2), 1.0))
    baseline = Sample(dict.fromkeys(range(2), 2.0), diverged=frozenset(range(2, 16)))
    claim = scores(ours, baseline, cites=QUOTED)
    assert (claim.verdict, claim.seeds, claim.supported) == ("inconclusive", 2, False)
    assert scores(baseline, ours, cites=QUOTED).seeds == 2
    assert advantage(baseline, ours).diverged == frozenset()


def test_ties_speak_neither_for_a_claim_nor_against_it():
    """Two optimizers that stay at chance on seven seeds are alike; one lost run shows nothing."""
    ours = Sample(dict.fromkeys(range(7), 10.0), diverged=frozenset({7}))
    claim = scores(ours, dict.fromkeys(range(8), 10.0), cites=QUOTED)
    assert (claim.verdict, claim.p) == ("inconclusive", stats.binomtest(0, 1).pvalue)


@pytest.mark.parametrize("pair", [0, 1])
def test_an_arm_that_diverged_is_like_no_other(pair):
    arms = Sample({}, frozenset(range(8))), Sample(by_seed([9.0] * 8))
    claim = decided(arms[pair], "=", arms[1 - pair], margin=1.0)
    assert claim.verdict == "does not hold"


def test_a_ratio_and_its_inverse_decide_alike():
    """By the geometric mean: of 1/2 and 2 it is 1, and the arithmetic 1.25."""
    random = np.random.default_rng(5)
    a, b = (by_seed(np.exp(0.8 * random.normal(size=12)).tolist()) for _ in range(2))
    one = decided(a, ">", b, how="ratio", bound=0.5)
    other = decided(b, "<", a, how="ratio", bound=2.0)
    logs = [math.log(a[seed] / b[seed]) for seed in a]
    assert one.p == pytest.approx(stats.ttest_1samp(logs, math.log(0.5)).pvalue)
    assert (one.p, one.supported) == (pytest.approx(other.p), other.supported)
    low, high = one.numbers[0].interval
    assert other.numbers[0].interval == pytest.approx((1 / high, 1 / low))
    alike = {"how": "ratio"}
    assert decided({0: 0.5, 1: 2.0}, ">", {0: 1.0, 1: 1.0}, **alike).numbers[0].value == 1.0
    negative = decided({0: -0.5, 1: 2.0}, ">", {0: 1.0, 1: 1.0}, **alike)
    assert negative.numbers[0].value == 0.75  # which has no logarithm


def test_a_ratio_to_0_counts_by_its_sign():
    """Steps to a target: on four seeds b is there at once, and a is not."""
    a, b = by_seed([0.9] * 6 + [5.0] * 4 + [0.0]), by_seed([1.0] * 6 + [0.0] * 4 + [0.0])
    below, above = (decided(a, way, b, how="ratio") for way in "<>")
    assert below.verdict == above.verdict == "inconclusive"
    assert below.p == above.p == pytest.approx(stats.binomtest(6, 10).pvalue)
    assert below.supported
    assert not above.supported
    assert below.detail == "a ratio to 0 on 4 more"
    assert (below.numbers[0].n, below.numbers[0].diverged, below.seeds) == (6, 0, 10)
    alike = decided(a, "=", b, how="ratio", margin=0.5)
    assert alike.p == pytest.approx(stats.binomtest(6, 10).pvalue)


def test_the_claims_of_a_study_share_one_level():
    """Ten claims at p = 0.02 each are none; one of them would be one; primary ones weigh more."""
    values = [0.9, 0.2, 0.6, 0.1, 1.0, 0.3, 0.5]
    alone = decided(by_seed(values), ">", 0.0)
    assert alone.verdict == "holds"
    assert alone.p > 0.005
    many = adjusted([decided(by_seed(values), ">", 0.0, name=f"claim-{i}") for i in range(10)])
    assert {claim.verdict for claim in many} == {"inconclusive"}
    assert many[0].p == pytest.approx(1.25 * 10 * alone.p)  # 1.25: a fifth is for later looks
    primary = decided(by_seed(values), ">", 0.0, primary=True, name="primary")
    assert adjusted([primary, alone])[0].p == pytest.approx(1.25 * alone.p * 5 / 4)
    nothing = decided({}, ">", 0.0, name="nothing")
    sure = decided(2.0, "=", 2.0, tolerance=0.1, name="sure")
    assert adjusted([alone, nothing, sure])[0].p == 1.25 * alone.p  # neither is a test


def test_close_and_exact():
    assert decided(2.95, "=", 2.93, tolerance=0.01, cites=QUOTED).verdict == "reproduced"
    assert decided(3.2, "=", 2.93, tolerance=0.01, cites=QUOTED).verdict == "not reproduced"
    assert "+9.2 %" in decided(3.2, "=", 2.93, tolerance=0.01).ours
    assert decided(math.nan, "=", 2.93, tolerance=0.01).verdict == "does not hold"
    verdicts = [decided(x, ">", 1.0, margin=0.5).verdict for x in (1.6, 1.4, 0.6, 0.4)]
    assert verdicts == ["holds", "inconclusive", "inconclusive", "does not hold"]
    assert decided(math.nan, ">", 1.0, margin=0.5).verdict == "inconclusive"
    verdicts = [decided(x, "=", 1.0, margin=0.1).verdict for x in (0.5, 0.95, 1.0, 1.05, 1.5)]
    assert verdicts == ["does not hold", *["holds"] * 3, "does not hold"]
    assert decided(1.05, "=", 1.0, margin=0.1).ours == "1.05 (allowed ±0.1)"
    with pytest.raises(ValueError, match="needs a positive margin"):
        decided(1.0, ">", 0.0, margin=0.0)


def test_a_size_is_judged_by_the_interval():
    """Right in direction, but of a tenth or of three times the paper's size, is not reproduced."""
    base = dict.fromkeys(range(8), 0.0)
    ours = by_seed([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02, 0.98])
    below = {seed: -x for seed, x in ours.items()}
    sizes = {1.0: "reproduced", 10.0: "smaller than the paper's", 0.3: "larger than the paper's"}
    for effect, found in sizes.items():
        claim = decided(ours, ">", base, cites=QUOTED, paper=Cell(effect))
        assert claim.verdict == found
        mirrored = decided(below, "<", base, cites=QUOTED, paper=Cell(-effect))
        assert mirrored.verdict == found
    assert decided(ours, ">", base, cites=QUOTED, paper="10.0").verdict == "reproduced"  # a text
    assert decided(below, ">", base, cites=QUOTED, paper=Cell(1.0)).verdict == "not reproduced"


def test_what_so_many_seeds_cannot_find_is_marked_whatever_they_found():
    base = dict.fromkeys(range(8), 0.0)
    ours = by_seed([9.0, 9.1, 8.9, 9.05, 8.95, 9.0, 9.02, 8.98])
    claim = partial(decided, ours, ">", base, cites=QUOTED, spread=4.0)
    least = detectable(4.0, 8)
    marked, tested = claim(paper=Cell(0.32 * least)), claim(paper=Cell(0.34 * least), name="b")
    assert marked.verdict == "cannot be decided here"
    assert tested.verdict == "larger than the paper's"
    assert (marked.expected, marked.detectable) == (least, pytest.approx(tested.detectable))
    # It takes no part in the family, and costs the others nothing.
    assert adjusted([marked, tested])[1].p == adjusted([tested])[0].p
    assert claim().verdict == "reproduced"  # no effect, no mark


def test_numbers_at_a_limit_are_decided_by_their_signs():
    """Three of eight that stopped at the cap say no more than that they are beyond the bound."""
    capped = by_seed([0.4, 1.0, 1.0, 1.0, 0.6, 0.7, 0.8, 0.9])
    claim = decided(capped, "<", 0.5, limits=(0.0, 1.0))
    assert claim.p == stats.binomtest(1, 8).pvalue
    assert not claim.supported
    free = decided(capped, "<", 0.5)
    assert free.p == pytest.approx(stats.ttest_1samp(list(capped.values()), 0.5).pvalue)
    whole = decided(by_seed([100.0] * 6), ">", 99.0, limits=(0.0, 100.0))
    assert whole.p == 2 / 2**6


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ([], "not tested"),
        (["inconclusive"], "open"),
        (["reproduced", "larger than the paper's"], "supported"),
        (["reproduced", "inconclusive"], "supported"),
        (["reproduced", "inconclusive", "inconclusive"], "open"),
        (["reproduced", "cannot be decided here", "cannot be decided here"], "supported"),
        (["cannot be decided here"] * 2, "cannot be decided here"),
        (["not reproduced", "inconclusive", "inconclusive"], "contradicted"),
        (["equivalent", "cannot be decided here"], "contradicted"),
        (["smaller than the paper's", "not reproduced"], "mixed"),
    ],
)
def test_a_statement_has_one_outcome(verdicts, found):
    assert outcome("paper", verdicts) == found
    assert outcome("paper", verdicts[::-1]) == found


def test_what_is_true_by_construction_is_no_support_but_may_fail():
    assert outcome("identity", ["holds"]) == outcome("calibrated", ["holds"])
    assert outcome("identity", ["holds"]) == "true by construction"
    assert outcome("identity", ["holds", "does not hold"]) == "mixed"


def test_a_name_is_checked_and_is_a_claim_s_own():
    with pytest.raises(ValueError, match=r"name must be like .* got 'Norm growth'"):
        decided(1.0, ">", 0.0, margin=0.5, name="Norm growth")
    twice = [decided(by_seed([1.0, 2.0, 3.0]), ">", 0.0)] * 2
    with pytest.raises(ValueError, match="two claims have the name 'claim'"):
        adjusted(twice)


def test_a_region_is_open_and_knows_its_ends():
    assert Region(low=0.0).holds(1e-6)
    assert not Region(low=0.0).holds(1e-12)
    assert Region(-1.0, 1.0).ends == [-1.0, 1.0]
    rounded = decided({0: 0.1 + 0.2, 1: 2.0, 2: 3.0}, "<", {0: 0.3, 1: 2.0, 2: 3.0})
    assert rounded.verdict == "inconclusive"  # a difference of rounding is none


def test_a_comparison_that_grew_says_so_and_pays_for_each_look():
    """The looks are those at seeds that both arms had; three are too few for one."""
    random = np.random.default_rng(0)
    a, b = (random.normal(mean, 0.3, size=12) for mean in (0, 1))

    def seen(values, *counts):
        return Sample(by_seed(values), looks=tuple(frozenset(range(count)) for count in counts))

    grown = scores(seen(b, 3, 6, 6, 6, 9, 12), seen(a, 3, 6, 6, 12, 12, 12))
    assert "grown from 6 to 9 to 12 seeds, so that p counts 30-fold" in grown.detail
    p = stats.ttest_rel(b, a).pvalue
    assert adjusted([grown])[0].p == pytest.approx(30 * p, rel=1e-9)
    once = scores(seen(b, 3, 12), seen(a, 3, 12))
    assert "grown" not in once.detail
    assert adjusted([once])[0].p == pytest.approx(1.25 * p)


def test_a_ratio_of_one_is_not_at_its_limit_of_zero():
    """Its logarithm is: limits are of the number, not of the numbers that are tested."""
    base = by_seed([1.0, 1.1, 0.9, 1.05, 0.95, 1.02])
    ours = {seed: value * (1.0, 1.2, 1.3, 1.25, 1.22, 1.28)[seed] for seed, value in base.items()}
    limited = decided(ours, ">", base, how="ratio", limits=(0.0, math.inf))
    assert limited.p == decided(ours, ">", base, how="ratio").p


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-9, 1e-14])
def test_a_comparison_does_not_depend_on_the_unit_of_the_scores(unit):
    """Metres or nanometres: intervals and verdicts are those of the numbers, none is rounding."""
    base = [0.52, 0.55, 0.47, 0.51, 0.58, 0.49]
    for gap, verdict in (
        ([0.11, 0.12, 0.1, 0.13, 0.09, 0.12], "holds"),
        ([0.11, -0.12, 0.1, -0.13, 0.09, 0.02], "inconclusive"),
        ([0.0] * 6, "equivalent"),
    ):
        ours, theirs = (
            by_seed([unit * x for x in xs])
            for xs in ([x + y for x, y in zip(base, gap, strict=True)], base)
        )
        claim = scores(ours, theirs, margin=1e-3 * unit)
        known = stats.ttest_1samp(gap, 0.0)
        expected = [unit * x for x in (np.mean(gap), *known.confidence_interval(0.95))]
        assert claim.verdict == verdict
        if any(gap):  # else Student's test has no number
            assert claim.p == pytest.approx(known.pvalue, rel=1e-9)
            for cell in (claim.numbers[0], difference(ours, theirs)):
                shown = [cell.value, *cell.interval]
                assert shown == pytest.approx(expected, rel=1e-9, abs=1e-12 * unit)


def test_looking_at_6_8_and_up_to_24_seeds_keeps_the_promise():
    """Of worlds without a difference at most 5 % ever have a verdict; unpaid looks have more."""
    random, sizes, worlds = np.random.default_rng(0), range(6, 25, 2), 400
    looks = [frozenset(range(size)) for size in sizes]
    base, ever = dict.fromkeys(range(24), 0.0), {"paid": 0, "unpaid": 0}
    for _ in range(worlds):
        values = random.normal(size=24).tolist()
        for kind in ever:
            for number, size in enumerate(sizes, 1):
                kept = tuple(looks[:number]) if kind == "paid" else ()
                ours = Sample(by_seed(values[:size]), looks=kept)
                (claim,) = adjusted([scores(ours, base, margin=1e-3)])
                if claim.verdict != "inconclusive":
                    ever[kind] += 1
                    break
    assert ever["unpaid"] > 0.1 * worlds
    assert ever["paid"] <= 0.05 * worlds


def test_a_claim_without_its_other_side_has_no_results():
    decision = decided({0: 1.0, 1: 2.0, 2: 3.0}, ">", None)
    assert (decision.has_results, decision.verdict) == (False, "inconclusive")
