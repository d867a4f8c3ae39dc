"""The paper's statements: each is claimed in its own words, or has a reason why not."""

import re

import pytest

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.core import places
from spherenorm_experiments.paper.statements import STATEMENTS, UNCLAIMED, says
from spherenorm_experiments.study import Plan, TunedComparison, find_study, study_classes

EVERY = {name: find_study(name).claims for name in study_classes()}
OURS = {name for name, place in places("STUDIES").items() if ".extra." in place}
ACROSS = ("abstract.uniform", "h2.most")
"""Claimed of all benchmarks together, by the page."""
CLAIMS = [claim for claims in EVERY.values() for claim in claims]


def test_every_statement_has_a_claim_or_a_reason():
    cited = {claim.cites for claim in CLAIMS} | {says(name) for name in ACROSS}
    without = {name for name, statement in STATEMENTS.items() if statement not in cited}
    assert without == set(UNCLAIMED)
    assert all(len(reason) > 20 for reason in UNCLAIMED.values())


def test_every_statement_has_one_subject():
    subjects = [statement.topic for statement in STATEMENTS.values()]
    assert all(subjects)
    assert 5 <= len(set(subjects)) <= 8


def test_claims_about_scores_say_what_they_could_find():
    """Of every row with a paper's effect the spread is known beforehand."""
    for study in (find_study(name) for name in study_classes()):
        for decision in study.evaluated(Results([])):
            claim = decision.claim
            if isinstance(study, TunedComparison) and claim.primary and claim.effect:
                assert claim.spread > 0, f"{study.name}.{claim.name}"


def test_a_claim_of_the_paper_names_a_section_a_table_or_a_figure():
    found = [claim.cites for claim in CLAIMS if claim.cites.kind == "paper"]
    assert len(found) > 60
    for statement in found:
        assert re.search(r"Abstract|(Section|Appendix|Table|Figure|Equation) \w", statement.place)
        assert statement in STATEMENTS.values()
    with pytest.raises(ValueError, match=r"no statement is named 'b\.fail'; did you mean b\.fails"):
        says("b.fail")


def test_what_was_fitted_counts_apart():
    fitted = {says(name) for name in ("b.norm.9", "3.2.gdm-norm")}
    assert {claim.cites for claim in CLAIMS if claim.cites.kind == "calibrated"} == fitted


def test_identities_and_claims_of_ours_are_not_the_papers():
    assert {claim.cites.kind for claim in EVERY["f2"]} == {"identity"}
    for name in OURS - {"matched-step"}:  # which has an identity, too
        assert {claim.cites.kind for claim in EVERY[name]} == {"ours"}


@pytest.mark.parametrize("name", EVERY)
def test_claims_have_names_of_their_own(name):
    names = [claim.name for claim in EVERY[name]]
    assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize("name", EVERY)
def test_claims_about_scores_and_times_are_performance(name):
    for decision in find_study(name).evaluated(Results([])):
        text = decision.claim.text
        if re.search(r"\bscores?\b|accurac|more time|\bsteps of\b|correlation", text):
            assert decision.performance, text


@pytest.mark.parametrize("name", sorted({*EVERY} - {"f2"} - OURS))
def test_a_study_of_the_paper_says_where_its_settings_differ(name):
    (settings,) = (t for t in find_study(name).every_table(Results([])) if t.title == "Settings")
    assert [column.heading for column in settings.columns[1:3]] == ["the paper's", "ours"]
    assert len(settings.rows) >= 3


def test_no_two_studies_of_the_network_share_a_seed():
    """So that no run is counted twice."""
    seen = {}
    for name in study_classes():
        study = find_study(name)
        for trial in study.trials(Plan("small"), Results([])):
            if trial.spec.task == "network":
                assert len(trial.spec.seeds) >= 6
                assert all(seen.setdefault(seed, name) == name for seed in trial.spec.seeds)


def test_every_arm_of_a_comparison_is_tuned_over_as_many_rates():
    for name in study_classes():
        trials = find_study(name).trials(Plan("small"), Results([]))
        counts = {
            len(set(trial.spec.points["lr"])) for trial in trials if trial.spec.task == "network"
        }
        assert len(counts) <= 1, name
