"""The report on the paper."""

from spherenorm_theory.report import paper_jobs


def test_the_paper_has_every_statement():
    names = {job.name for job in paper_jobs()}
    assert {
        "equation_4",
        "lemma_2_1",
        "lemma_2_2",
        "corollary_2_3",
        "equation_14",
        "proposition_3_1",
        "false positives",
    } <= names
