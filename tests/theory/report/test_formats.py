"""Markdown and LaTeX."""

from spherenorm_theory.report import Row, to_latex, to_markdown


def test_reports_escape():
    rows = [Row("a_b", "n", "|w|^2", "100 % & _")]
    assert r"a\_b" in to_latex(rows)
    assert r"100 \% \& \_" in to_latex(rows)
    assert r"`\|w\|^2`" in to_markdown(rows)
    assert r"| equilibrium: \|w\|^4 |  | a\*b, \<i> |" in to_markdown(
        [Row("s", "equilibrium: |w|^4", "", "a*b, <i>")]
    )
