"""Every study starts, and shows its claims; each statement of the paper has one, or a reason."""

import json
import re

import numpy as np
import pytest
from running import run_study, shown

from spherenorm_experiments.comparison import Comparison, find_study, study_classes
from spherenorm_experiments.execute import resolve
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import Section, write_report
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.store import Store
from spherenorm_experiments.tables import FORMATS
from spherenorm_experiments.task import Task
from spherenorm_experiments.train import Training
from spherenorm_experiments.verdict import VERDICTS, claims_table
from spherenorm_paper.shared import detection
from spherenorm_paper.statements import STATEMENTS, UNCLAIMED, says
from tests.experiments.fabricated import compared, fabricated
from tests.harness.tables import mostly_long

STUDIES, SMALL = sorted(study_classes()), Plan("small")
TOYS = "f1", "f2", "f3"
WORLDS = "t1", "weight-decay", "g1", "h6", "h7", "c1"
OTHERS = sorted({*STUDIES} - {*TOYS})
COMPARED = sorted({*OTHERS} - {*WORLDS})


@pytest.mark.parametrize(
    "name", [n if n in TOYS else pytest.param(n, marks=pytest.mark.long) for n in STUDIES]
)
def test_smoke(name, store):
    few = {} if name in TOYS else {"epochs": 1}
    study, trials, results = run_study(name, store, overrides=few)
    assert len(results) == len({(place, run.name) for place, run in trials}) > 0
    for claim in shown_by(study, results):
        assert claim.verdict in VERDICTS
        if 0 < claim.seeds < 3:  # two seeds decide nothing
            assert claim.verdict in ("inconclusive", "not tested"), claim.claim.text
    for recipe in {item.spec.recipe for item in results}:  # as much as may have ended
        part = results.where(lambda item, recipe=recipe: item.spec.recipe == recipe)
        study.evaluate_claims(part), study.tables(part), study.pictures(part)


@pytest.mark.long
def test_every_other_study_starts(tmp_path):
    """One step of each study on each of its tasks, and of each recipe on each task."""
    begun = set()
    for study in (find_study(name) for name in OTHERS):
        for trial in study.trials(Plan("smoke"), Runs()):
            spec = trial.spec
            new = {(study.name, spec.task), (spec.task, spec.recipe)} - begun
            run = resolve(spec, Store(tmp_path)) if new else None
            if run is not None and isinstance(run.task, Task):
                Training(run, run.task).step(0)
            begun |= new


@pytest.mark.parametrize("name", mostly_long([*WORLDS, *COMPARED], kept=6))
def test_results_are_shown(name):
    """Those of a world, and those of one recipe alone."""
    study = find_study(name)
    results = compared(study, Plan("smoke")) if name in COMPARED else fabricated(name, 1)
    shown_by(study, results)
    recipe = results.items[0].spec.recipe
    part = results.where(lambda item: item.spec.recipe == recipe)
    study.evaluate_claims(part), study.tables(part)


EMBEDDED_ALONE = {
    "c1": r".*(half-precision|prenorm|wide|separates).*",  # networks that are ours
    "h6": r"law\..*|.*heavy-ball.*|.*scaled-rate",  # neither other rates nor squared steps
    "t1": r"growth\.adam\.steps",
}
"""Claims about which the paper's runs say nothing; rows of departures say why."""
USES_PAPER_DATA = [name for name in STUDIES if find_study(name).uses_paper_data]


@pytest.mark.parametrize("name", mostly_long(USES_PAPER_DATA, kept=5))
def test_the_papers_runs_have_a_number_for_what_embedded_runs_decide(name, monkeypatch):
    def drawn(folder, written, names):
        return [[np.full((6, 3), 1e-3), np.full((6, 1), 1e-3)] for _ in names]

    monkeypatch.setattr(detection, "_read_statistics", drawn)
    study = find_study(name)
    embedded = fabricated(name, 1) if name in WORLDS else compared(study, SMALL)
    real = compared(study, Plan("small", real=True))
    have, found = (
        {each.claim.name for each in study.evaluate_claims(runs) if each.has_results}
        for runs in (embedded, real)
    )
    shown_by(study, real)
    lacking = {n for n in have if re.fullmatch(EMBEDDED_ALONE.get(name, "-"), n)}
    assert have - found == lacking


def shown_by(study, results):
    """The claims of a study about its results, which its tables and pictures show without a gap."""
    claims, tables = study.decide_claims(results), study.tables(results)
    pictures = study.pictures(results)
    assert any(claim.has_results for claim in claims)
    assert tables or pictures
    ours_alone = study.name in ("f2", "weight-decay")
    assert ours_alone or any(column.paper for table in tables for column in table.columns)
    for table in tables:
        assert table.rows
        assert not any(cell == "nan" for row in shown(table) for cell in row), table
        for row in table.rows:  # a mean over seeds says how far they are apart
            assert all(c.n < 2 or c.spread is not None or c.interval for c in row), table.title
    for export in FORMATS.values():
        lines = [export(table).splitlines() for table in (*tables, claims_table(claims))]
        assert all(len(text) > 1 for text in lines)
    for picture in pictures:
        assert picture.figure.data, picture.caption
        json.loads(picture.figure.to_json())
    return claims


@pytest.mark.parametrize("name", mostly_long(STUDIES, kept=9))
def test_a_study_without_results_says_so(name):
    study = find_study(name)
    assert all(claim.verdict == "not tested" for claim in study.evaluate_claims(Runs()))
    study.tables(Runs())
    study.pictures(Runs())


@pytest.mark.parametrize("name", ["f1", "f2"])
def test_sweeps_of_which_all_points_diverge_are_shown(name, tmp_path):
    study, _, results = run_study(name, Store(tmp_path), overrides={"lr": 1e300})
    assert any(item.diverged for item in results)
    page = write_report([Section(study, Plan("smoke"), results)], tmp_path / "page.html")
    assert not page.problems
    assert "diverged" in (tmp_path / "page.html").read_text().partition("</header>")[2]


EVERY = {name: find_study(name).claims for name in study_classes()}
ACROSS = ("abstract.uniform", "h2.most")
"""Claimed of all benchmarks together, by the page."""
CLAIMS = [claim for claims in EVERY.values() for claim in claims]


def test_every_statement_has_a_claim_or_a_reason():
    cited = {claim.cites for claim in CLAIMS} | {says(name) for name in ACROSS}
    without = {name for name, statement in STATEMENTS.items() if statement not in cited}
    assert without == set(UNCLAIMED)
    assert all(len(reason) > 20 for reason in UNCLAIMED.values())


@pytest.mark.long
def test_claims_about_scores_say_what_they_could_find():
    """Of every row with a paper's effect the spread is known beforehand."""
    for study in (find_study(name) for name in study_classes()):
        for decision in study.evaluate_claims(Runs()):
            claim = decision.claim
            if isinstance(study, Comparison) and claim.primary and claim.effect:
                assert claim.spread > 0, f"{study.name}.{claim.name}"


def test_a_claim_of_the_paper_names_a_section_a_table_or_a_figure():
    found = [claim.cites for claim in CLAIMS if claim.cites.kind == "paper"]
    assert len(found) > 60
    for statement in found:
        assert re.search(r"Abstract|(Section|Appendix|Table|Figure|Equation) \w", statement.place)
        assert statement in STATEMENTS.values()
    with pytest.raises(ValueError, match=r"no statement is named 'b\.fail'; did you mean b\.fails"):
        says("b.fail")


def test_identities_are_not_the_papers():
    assert {claim.cites.kind for claim in EVERY["f2"]} == {"identity"}


@pytest.mark.parametrize("name", EVERY)
def test_claims_about_scores_and_times_are_performance(name):
    for decision in find_study(name).evaluate_claims(Runs()):
        text = decision.claim.text
        if re.search(r"\bscores?\b|accurac|more time|\bsteps of\b|correlation", text):
            assert decision.claim.is_performance, text


@pytest.mark.parametrize("name", sorted({*EVERY} - {"f2"}))
def test_a_study_of_the_paper_says_where_its_settings_differ(name):
    (settings,) = (t for t in find_study(name).all_tables(Runs()) if t.title == "Settings")
    assert [column.heading for column in settings.columns[1:3]] == ["the paper's", "ours"]
    assert len(settings.rows) >= 3


def test_studies_of_the_network_share_no_seed_and_tune_every_arm_over_as_many_rates():
    """So that no run is counted twice."""
    seen = {}
    for name in study_classes():
        rates = {}
        for place, spec in ((t.place, t.spec) for t in find_study(name).trials(SMALL, Runs())):
            if spec.task == "network":
                assert seen.setdefault(spec.seed, name) == name
                rates.setdefault(place, set()).add(spec.hyper_parameters["lr"])
        assert len(set(map(len, rates.values()))) <= 1, name
