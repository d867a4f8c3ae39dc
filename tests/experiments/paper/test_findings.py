"""Outcomes of the paper's statements: what each of them may rest on."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import Section
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.verdict import Claim, Decision, adjust_for_multiplicity, evaluate_claim
from spherenorm_paper import thirteen
from spherenorm_paper.findings import RULE, Finding, Outcome, findings, findings_table
from spherenorm_paper.statements import STATEMENTS, UNIVERSAL
from tests.experiments.fabricated import compared, result

SEEDS = range(1, 9)


def claim_of(study, name):
    return next(claim for claim in find_study(study).claims if claim.name == name)


def cited_by(statement):
    claims = (
        claim for name in ("t5", "weight-decay", "h6", "f4") for claim in find_study(name).claims
    )
    return [claim.name for claim in claims if claim.cites == STATEMENTS[statement]]


def test_the_page_defines_every_outcome():
    assert all(f"*{str(each).capitalize()}*" in RULE.replace("\n", " ") for each in Outcome)


def test_a_statement_names_a_few_claims_and_counts_many():
    statement, (good, bad) = STATEMENTS["t6.outperforms"], ("supported", "contradicted")

    def row(*verdicts):
        claims = [{"label": f"{study}.{k}", "study": study, "verdict": verdict}
                  for k, (study, verdict) in enumerate(verdicts)]  # fmt: skip
        (cells,) = findings_table([Finding("", statement, "holds in part", claims, "why not")]).rows
        return [str(cell) for cell in cells]

    assert row() == [str(statement), "holds in part", "why not"]
    assert row(("t6", good), ("t1", bad))[2] == "t6.0: supported; t1.1: contradicted"
    many = row(("t6", bad), ("t1", "not tested"), ("t6", good), ("t1", good), ("t6", bad))
    assert many[2] == "t6: 1 supported, 2 contradicted; t1: 1 supported, 1 not tested"


@pytest.fixture
def world():
    """The findings about all benchmarks by name, given the verdict of each claim."""

    def made(verdict):
        sections = []
        for name in ("d1", "t6"):
            study = find_study(name)
            section = Section(study, Plan("small"), compared(study, Plan("small")))
            decisions = [
                replace(each, p=1e-9, supported=verdict(each.claim.name))
                for each in study.evaluate_claims(section.results)
            ]  # fmt: skip
            decisions = [  # no embedded pictures are failures of other networks
                Decision(each.claim) if "imagenet-a" in each.claim.name else each
                for each in decisions
            ]
            object.__setattr__(section, "decisions", decisions)
            sections.append(section)
        return {each.name: each for each in findings(sections)}

    return made


def test_gains_on_some_benchmarks_are_not_uniform(world):
    """With eleven benchmarks that never ran, and with one loss."""
    assert world(lambda name: True)["abstract.uniform"].outcome == "inconclusive"
    assert world(lambda name: "stripes" not in name)["abstract.uniform"].outcome == "holds in part"
    assert world(lambda name: False)["abstract.uniform"].outcome == "does not hold"


def test_a_statement_about_all_needs_all(world):
    """Table 6's four data sets; ImageNet-A, which has no embedded pictures, leaves D.1 open."""
    found = world(lambda name: True)
    assert found["t6.outperforms"].outcome == "holds"
    assert found["d1.outperforms"].outcome == "inconclusive"


def test_a_statement_whose_claims_have_no_runs_is_not_tested():
    """Those of CutMix could not be decided by any tier but the full one, which alone has them."""
    study = find_study("t2")
    item = result(Place("ResNet-18", "SGD"), 700, Spec("classification", "sgd", {"lr": 0.1}))
    section = Section(study, Plan("evidence"), Runs([item]))
    found = {each.name: each for each in findings([section])}
    assert found["t2.cutmix"].outcome == "not tested"


def test_a_study_under_two_settings_counts_once_among_the_benchmarks():
    study, plan = find_study("t6"), Plan("small")
    sections = [Section(study, each, compared(study, plan)) for each in (Plan("evidence"), plan)]
    assert thirteen.first_of_each(sections) == sections[:1]
    said = thirteen.thirteen_table(sections).about
    assert said.endswith(thirteen.thirteen_table(sections[:1]).about.partition(" In the mean ")[2])


def test_two_things_in_one_sentence_need_both():
    """Norms and performances; SGD and AdamW; three rows of a table."""
    both = {"t1.sensitive", "f.high-score", "g.lower", "f4.table", "d3.table", "t1.score"}
    assert both <= UNIVERSAL
    assert {*cited_by("f4.table")} == {f"{name}.score.adamp.adam" for name in (
        "linf-8-255", "l2-1-2", "linf-16-255")}  # fmt: skip


def test_no_number_supports_two_readings_of_table_5():
    """AdamP's gain without weight normalization is what the text calls none, and no other claim."""
    assert cited_by("t5.plain") == ["plain.as-adamw"]
    (higher,) = (c for c in find_study("t5").claims if c.name == "plain.score.adamp.adamw")
    assert higher.cites.kind == "ours"
    assert claim_of("t5", "plain.as-adamw").region.high == pytest.approx(0.12)


def test_no_improvement_supports_that_there_is_none():
    claim = claim_of("weight-decay", "high-decay.adamw.score")
    alike = pd.Series(np.linspace(-0.2, 0.2, 12))
    (found,) = adjust_for_multiplicity(
        [evaluate_claim(replace(claim, statistic=lambda runs: alike), Runs())]
    )
    assert found.verdict == "supported"


def test_what_is_ours_or_by_construction_does_not_test_the_paper():
    assert cited_by("f.best") == []
    assert STATEMENTS["3.eq11"].kind == "identity"
    assert len(cited_by("f4.gap")) == 4  # "in all settings": each by itself


def descents(method, recipe, peaks, gaps, decays=(None,)):
    """Descents at rates 0.1 and 10, with the largest norm and the final gap of each."""
    place = Place("1000 steps, scale 0.0001", method)
    return [
        result(place, seed, Spec("rosenbrock", recipe, point, seed=seed),
               max_norm=peaks[i], final_gap=gaps[rate], last_norm=1.0, steps_to_1=10.0)
        for rate in gaps
        for i, decay in enumerate(decays)
        for point in [{"lr": rate, **({} if decay is None else {"weight_decay": decay})}]
        for seed in (0, *SEEDS)
    ]  # fmt: skip


def test_the_grassmann_optimizers_are_compared_at_the_papers_rates():
    """SGDG is behind at 0.1, where the paper has it, and ahead at a rate of 10."""
    runs = Runs([
        *descents("GDP", "sgdp", [1.1], {0.1: 0.6, 10.0: 0.5}),
        *descents("SGDG", "sgdg", [1.0], {0.1: 4.0, 10.0: 1e-6}),
        *descents("SGDG, no clip", "sgdg", [1.0], {0.1: 0.7, 10.0: 1e-6}),
    ])  # fmt: skip
    found = {each.claim.name: each.verdict for each in find_study("f3").decide_claims(runs)}
    assert found["closer.gdp.sgdg"] == "supported"
    assert found["equally-close.sgdg-no-clip.gdp"] == "supported"


@pytest.mark.parametrize(("gap", "verdict"), [(1e-6, "supported"), (0.7, "supported"),
                                              (1.5, "contradicted")])  # fmt: skip
def test_a_grassmann_optimizer_that_ends_closer_is_no_contradiction(gap, verdict):
    runs = Runs([
        *descents("GDP", "sgdp", [1.1], {0.1: 0.6}),
        *descents("SGDG, no clip", "sgdg", [1.0], {0.1: gap}),
    ])  # fmt: skip
    found = {each.claim.name: each.verdict for each in find_study("f3").decide_claims(runs)}
    assert found["equally-close.sgdg-no-clip.gdp"] == verdict
    assert "g.quickly" in UNIVERSAL  # it speaks of both


def test_every_decay_counts_where_the_paper_speaks_of_all_settings():
    """SGDP grows less and moves further without decay, and not at the reference."""
    runs = Runs([
        result(Place("SGD, step", f"{name}, wd × {decay}"), seed,
               Spec("network", name.lower(), {"lr": 0.1}, seed=seed), validation=1.0, test=1.0,
               norm_start=1.0, norm_first_epoch=1.0, path=path + seed / 100,
               norm_last=last + seed / 100)
        for name, decay, last, path in [
            ("SGD", 0, 3.0, 1.0), ("SGDP", 0, 1.5, 2.0), ("SGD", 0.1, 2.0, 1.0),
            ("SGDP", 0.1, 1.5, 2.0), ("SGD", 1, 1.0, 2.0), ("SGDP", 1, 1.4, 1.0)]
        for seed in range(8)
    ])  # fmt: skip
    found = {
        each.claim.name: each.verdict for each in find_study("weight-decay").decide_claims(runs)
    }
    assert found["growth.sgdp.step"] == "supported"
    assert found["growth.sgdp.step.decay"] == found["path.sgdp.step"] == "contradicted"


def test_a_case_without_results_is_listed_with_those_that_have_some(world):
    found = world(lambda name: True)["d1.outperforms"]
    listed = {each["label"]: each["verdict"] for each in found.claims}
    assert listed.pop("d1.stripes-rho-0.5.imagenet-a-accuracy.adamp.adam") == "not tested"
    assert {*listed.values()} == {"supported"}


def test_numbers_of_a_table_are_no_quotation():
    assert str(STATEMENTS["h6.sgd"]).startswith("Table H.6: SGD, norm at the last epoch: 7.60")
    assert str(STATEMENTS["b.fails"]).endswith("“the momentum gradient method fails to optimize”")


def test_weight_decay_does_not_preclude_the_surge():
    """At any decay; also if the search would choose one that makes the norm collapse."""
    peaks = [3.2, 2.2, 200.0]
    gdm = descents("GDM + WD", "sgd", peaks, {0.1: 0.3}, decays=(1e-4, 0.05, 0.2))
    gdp = descents("GDP", "sgdp", [1.1], {0.1: 0.6})
    found = {each.claim.name: each for each in find_study("f3").decide_claims(Runs([*gdm, *gdp]))}
    surge = found["surge.gdm-wd"]
    assert surge.verdict == "supported"
    assert surge.numbers[0].number == pytest.approx(2.0)
    assert "2.20 (wd 0.05)" in surge.detail
    assert "the rate 0.1" in surge.claim.text


def test_the_papers_cosines_are_tested_not_only_quoted():
    names = [c.name for c in find_study("c1").claims if c.cites == STATEMENTS["c.cosines"]]
    assert {"cosines.variant", "cosines.invariant"} < {*names}


def test_a_benchmark_without_runs_is_a_case_without_a_result(monkeypatch):
    study = find_study("d1")
    decision = Decision(Claim("score", "> 0", lambda _: None, "a score"))
    section = Section(study, Plan(), Runs())
    line = thirteen.Line(section, study.conditions[0], study.comparisons[0][1], decision)
    monkeypatch.setattr(thirteen, "lines_of", lambda sections: iter([line]))
    found = thirteen.of_every_benchmark([])
    assert len(found) == len(thirteen.THIRTEEN)
