"""`spherenorm theory`, as a newcomer uses it, and the forms of its reports."""

import pytest
from rich.console import Console
from typer.testing import CliRunner

from spherenorm_theory.cli import app
from spherenorm_theory.report import Job, Row, paper_jobs, recipe_jobs, to_latex, to_markdown


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


def report(monkeypatch, *rows):
    """The report of the command on rows in place of the paper's."""
    jobs = [Job("s", "j", lambda: list(rows))]
    monkeypatch.setattr("spherenorm_theory.cli.paper_jobs", lambda: jobs)
    return invoke()


OWN = """from spherenorm import chain, rules as r
def mine(lr=0.1, momentum=0.9):
    return chain(r.StepSize(lr), r.HeavyBall(momentum), r.RadialProjection("channel"))
def clipped(lr=0.1, momentum=0.9, weight_decay=0.01, nu=1.0):
    momenta = r.UnitClip(nu), r.HeavyBall(momentum)
    return chain(*momenta, r.DecoupledDecay(weight_decay), r.StepSize(lr))
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal in which no cell is wrapped."""
    monkeypatch.setattr("spherenorm_theory.cli.console", Console(width=1000))


def test_a_recipe_and_its_files(tmp_path):
    tex, md = tmp_path / "laws.tex", tmp_path / "laws.md"
    result = invoke("sgdw", "--set", "dampening=0", "--latex", str(tex), "--markdown", str(md))
    assert result.exit_code == 0, result.output
    for text in ("sgdw", "proved by induction", "checked on runs", "equilibrium: |w|^4"):
        assert text in result.output
    assert r"\begin{aligned}" in tex.read_text()
    assert "| law | `" in md.read_text()


def test_recipes_of_ones_own(tmp_path, monkeypatch):
    """A law that does not apply says so; the other rows are there."""
    (tmp_path / "my_recipes.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    for name, texts in (
        ("mine", ["gone: the step is orthogonal to the weight", "not applicable"]),
        (
            "clipped",
            [
                *("not checked: my_recipes:clipped: the step does not", "proved by induction"),
                "UnitClip has the view channel, the weight layer",
            ],
        ),
    ):
        result = invoke(f"my_recipes:{name}")
        assert result.exit_code == 0, result.output
        assert all(text in result.output for text in texts), result.output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("-1e-3", "-0.001"),
        ("true", "True"),
        ("None", "None"),
        ("unit", "'unit'"),
        ("[0.9, beta2]", "(0.9, 'beta2')"),
        ("channel,layer", "('channel', 'layer')"),
    ],
)
def test_settings(text, shown):
    """Each is refused, by the value that was read."""
    result = invoke("sgd", "--set", f"lr={text}")
    assert result.exit_code == 2
    assert shown in result.stderr


def test_a_tuple_of_numbers():
    result = invoke("adam", "--set", "betas=(0.9, beta2)", "--set", "weight_decay=0")
    assert result.exit_code == 0, result.output
    assert "sqrt(beta2*v" in result.output
    assert "(9/10)^t" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sgpd"], "did you mean sgd"),
        (["sgd", "--set", "momentum"], "--set takes NAME=VALUE"),
        (["sgdp", "--set", "delta=[/x]"], "got '[/x]'"),
        (["adam", "--set", "betas=0.9"], "betas takes 2 numbers"),
        (["--set", "lr=0.1"], "--set holds a hyper-parameter of a recipe"),
        (
            ["sgdp", "--latex", "/nonexistent/x.tex"],
            "cannot write /nonexistent/x.tex: there is no folder /nonexistent",
        ),
        (["sgdp", "--markdown", "/"], "cannot write /: it is a folder"),
        (["nowhere:recipe"], "no module 'nowhere'"),
    ],
)
def test_mistakes(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert len(result.stderr.splitlines()) == 1


def test_a_failed_row_fails_the_command(monkeypatch):
    assert report(monkeypatch, Row("s", "n", "f", "FAILS", good=False)).exit_code == 1


def test_a_job_that_raises_is_a_row(monkeypatch):
    def fails():
        raise ArithmeticError("one\ntwo")

    jobs = [Job("s", "before", lambda: [Row("s", "one", "f", "fine")]), Job("s", "bad", fails)]
    monkeypatch.setattr("spherenorm_theory.cli.paper_jobs", lambda: jobs)
    result = invoke()
    assert result.exit_code == 1
    assert "fine" in result.stdout
    assert "FAILED: ArithmeticError: one two" in result.stdout


def test_markup_is_text(monkeypatch):
    result = report(monkeypatch, Row("[s]", "[n]", "[f]", "[/t]"))
    assert all(text in result.stdout for text in ("[s]", "[n]", "[f]", "[/t]")), result.output


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
