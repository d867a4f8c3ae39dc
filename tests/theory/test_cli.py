"""`spherenorm theory`, as a newcomer uses it, and the forms of its reports."""

import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

import spherenorm as sn
from spherenorm import find_recipe
from spherenorm_theory.cli import app
from spherenorm_theory.report import Row, Section, equilibrium_rows, recipe_report, to_latex


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


def report(monkeypatch, *rows):
    """The report of the command on rows in place of the paper's."""
    monkeypatch.setattr("spherenorm_theory.report.paper_report", lambda: [Section("[s]", rows)])
    return invoke()


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr("spherenorm_theory.cli.console", Console(width=80))


def test_a_recipe_and_its_file(tmp_path):
    tex = tmp_path / "laws.tex"
    result = invoke("sgdw", "--set", "dampening=0.0", "--latex", str(tex))
    assert result.exit_code == 0, result.output
    for text in ("Proposition (sgdw)", "by induction", "checked on runs", "Equilibrium (sgdw)"):
        assert text in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if "wrote" not in line)
    assert r"\begin{proposition}[sgdw]" in tex.read_text()


@pytest.mark.parametrize("name", ["sgdw", "adamw"])
def test_the_run_is_that_of_the_settings(name):
    """A weight decay settles the norm where the settings have none."""
    values = {"momentum": 0.8} if name == "sgdw" else {"betas": (0.8, 0.95)}
    _, row = equilibrium_rows(find_recipe(name), {"lr": 0.03, **values})
    assert "lr=0.03" in row.content
    assert all(f"{n}={x}" in row.content for n, x in values.items())
    assert row.status.startswith("checked on runs"), row
    assert row.good
    _, slow = equilibrium_rows(find_recipe(name), {"weight_decay": 1e-4})
    assert "not checked" in slow.status


@pytest.mark.parametrize("name", ["sgdp", pytest.param("adamp", marks=pytest.mark.long)])
def test_a_decay_of_0_by_default_is_chosen_for_the_run(name):
    _, row = equilibrium_rows(find_recipe(name), {})
    assert row.status.startswith("checked on runs"), row
    assert "weight_decay" in row.content


def test_two_recipes_side_by_side():
    result = invoke("adamw", "muon")
    assert result.exit_code == 0, result.output
    for text in ("ADAMW", "MUON", "decay", "turn", "muon turns as adamw does at lr=0.001"):
        assert text in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.long
def test_what_is_not_derived_is_not_called_none():
    result = invoke("sgdw", "polargrad")
    assert result.exit_code == 0, result.output
    assert "turn            0.001026 rad a step at           not derived" in result.output
    assert "of polargrad no equilibrium turn is derived" in " ".join(result.output.split())


def test_the_papers_statements_are_one_page(tmp_path):
    tex = tmp_path / "paper.tex"
    result = invoke("paper", "--latex", str(tex))
    assert result.exit_code == 0, result.output
    names = [f"Statement ({name}" for name in ("Eq. 4", "Lemma 2.1", "Lemma 2.2", "Prop. 3.1")]
    for text in (*names, "Holds as printed.", "Two inequalities of its printed proof do not."):
        assert text in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if "wrote" not in line)
    assert r"\begin{statement}[Lemma 2.2, Section 2.4]" in tex.read_text()
    assert "name one" in invoke("paper", "--set", "lr=0.1").stderr


def test_a_report_ends_with_a_number_for_practice():
    *_, row = recipe_report("sgdw").rows
    assert row.name == "In practice"
    assert "rad" in row.status
    assert "per step, at lr=" in row.status


OWN_RECIPES = """from spherenorm import chain, rules as r
def clipped(lr=0.1, momentum=0.9, weight_decay=0.01, nu=1.0):
    momenta = r.UnitClip(nu), r.HeavyBall(momentum)
    return chain(*momenta, r.DecoupledDecay(weight_decay), r.StepSize(lr))
"""


def test_a_recipe_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_recipes.py").write_text(OWN_RECIPES)
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("my_recipes:clipped")
    assert result.exit_code == 0, result.output
    assert "holds for bn and head. Does not apply to ln" in " ".join(result.output.split())
    assert "; c2 is" in " ".join(result.output.split())
    assert "measured; off by 0." in result.output


@pytest.mark.parametrize(
    ("text", "printed_value"),
    [("true", "True"), ("None", "None"), ("unit", "'unit'"), ("-1e-3", "-0.001")],
)
def test_settings(text, printed_value):
    """Each is refused, by the value that was read."""
    result = invoke("sgd", "--set", f"lr={text}")
    assert result.exit_code == 2
    assert printed_value in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sgpd"], "error: no recipe is named 'sgpd'; did you mean sgd"),
        (["sgd", "sgpd"], "error: no recipe is named 'sgpd'; did you mean sgd"),
        (["sgd", "--set", "momentum"], "--set takes NAME=VALUE"),
        (["sgdp", "--set", "delta=[/x]"], "got '[/x]'"),
        (["adam", "--set", "betas=0.9"], "betas takes 2 numbers"),
        (["--set", "lr=0.1"], "--set holds a hyper-parameter of a recipe"),
        (["muonsphere"], "units interact: FixedSpectralNorm"),
        (["sgdp", "--latex", "/nonexistent/x.tex"], "cannot write /nonexistent/x.tex"),
        (["sgdp", "--latex", "/"], "cannot write /: give a file"),
        (["nowhere:recipe"], "no module 'nowhere'"),
    ],
)
def test_mistakes(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not result.stdout
    assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_stops_is_no_error():
    command = f"{sys.executable} -m spherenorm theory sgdg | head -3; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_failed_row_fails_the_command(monkeypatch):
    assert report(monkeypatch, Row("n", "f", "FAILS", good=False)).exit_code == 1


def of_matrices(lr=0.1):
    class Flat(sn.Rule):
        def update(self, update, state):
            if update.weight.ndim > 2:
                raise ArithmeticError("one\ntwo")
            return update, state

    return sn.chain(Flat(), sn.rules.StepSize(lr))


def test_a_run_that_raises_is_a_row():
    network, convolutions, toy = [*recipe_report(of_matrices).rows][1:4]
    assert network.good
    assert toy.good
    assert not convolutions.good
    assert convolutions.status == "Failed: ArithmeticError: one two"


def test_markup_is_text_and_reports_escape(monkeypatch):
    result = report(monkeypatch, Row("[n]", "[f]", "[/t]"))
    assert all(text in result.stdout for text in ("[s]", "[n]", "[f]", "[/t]")), result.output
    rows = [Section("a_b", [Row("n", "|w|^2", "100 % & _")])]
    assert r"a\_b" in to_latex(rows)
    assert r"100 \% \& \_" in to_latex(rows)
    assert "\\begin{verbatim}\n|w|^2\n\\end{verbatim}" in to_latex(rows)
