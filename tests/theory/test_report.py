"""The reports, and their forms."""

from spherenorm_theory.report import Row, paper_jobs, recipe_jobs, to_latex, to_markdown


def test_reports_escape():
    rows = [Row("a_b", "n", "|w|^2", "100 % & _")]
    assert r"a\_b" in to_latex(rows)
    assert r"100 \% \& \_" in to_latex(rows)
    assert r"`\|w\|^2`" in to_markdown(rows)
    assert r"| equilibrium: \|w\|^4 |  | a\*b, \<i> |" in to_markdown(
        [Row("s", "equilibrium: |w|^4", "", "a*b, <i>")]
    )


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


def test_given_numbers_print_as_they_were_given():
    rows = recipe_jobs("sgdp", momentum=0.9)[0].run()
    assert (
        r"| law | `\|w'\|^2 = \|s\|^2 + \|w\|^2*(1 - 10*lr*wd_ratio*weight_decay)^2` |"
        in to_markdown(rows)
    )
    assert r"\left(1 - 10 \eta \rho \lambda\right)^{2}" in to_latex(rows)
