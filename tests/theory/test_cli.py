"""`python -m theory`, as a newcomer uses it."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from theory.__main__ import app
from theory.report import Job, Row, paper, to_latex, to_markdown

runner = CliRunner()


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no cell is wrapped."""
    monkeypatch.setattr("theory.__main__.console", Console(width=1000))


def test_a_recipe_and_its_files(tmp_path):
    tex, md = tmp_path / "laws.tex", tmp_path / "laws.md"
    result = runner.invoke(app, ["sgdw", "--set", "dampening=0", "--latex", str(tex), "--markdown", str(md)])
    assert result.exit_code == 0, result.output
    for text in ("sgdw", "proved by induction", "checked to", "equilibrium: |w|^4"):
        assert text in result.output
    assert r"\begin{aligned}" in tex.read_text()
    assert "| law | `" in md.read_text()


def test_a_recipe_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_recipes.py").write_text(
        "from spherenorm import chain\n"
        "from spherenorm import rules as r\n"
        "def mine(lr=0.1, momentum=0.9):\n"
        "    return chain(r.StepSize(lr), r.HeavyBall(momentum), r.RadialProjection('channel'))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["my_recipes:mine"])
    assert result.exit_code == 0, result.output
    assert "gone: the step is orthogonal to the weight" in result.output
    assert "not applicable" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sgpd"], "did you mean sgd"),
        (["sgd", "--set", "momentum"], "--set takes NAME=VALUE"),
        (["sgd", "--set", "rate=1"], "no hyper-parameter 'rate'"),
        (["nowhere:recipe"], "no module 'nowhere'"),
    ],
)
def test_mistakes(arguments, message):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_the_paper_has_every_statement():
    names = {job.name for job in paper()}
    assert {"equation_4", "lemma_2_1", "lemma_2_2", "corollary_2_3", "equation_14", "proposition_3_1", "false positives"} <= names


def test_a_failed_row_fails_the_command(monkeypatch):
    monkeypatch.setattr("theory.__main__.paper", lambda: [Job("bad", lambda: [Row("s", "n", "f", "FAILS", good=False)])])
    assert runner.invoke(app, []).exit_code == 1


def test_reports_escape():
    rows = [Row("a_b", "n", "|w|^2", "100 % & _")]
    assert r"a\_b" in to_latex(rows)
    assert r"100 \% \& \_" in to_latex(rows)
    assert r"\|w\|^2" in to_markdown(rows)
