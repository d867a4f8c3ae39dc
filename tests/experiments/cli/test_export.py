"""`export`: tables and claims on the standard output."""

import csv

import pytest
from commands import STUDY, invoke, run_tiny

from experiments.engine import Store


def test_the_numbers_of_a_table_are_those_of_the_store(tmp_path):
    run_tiny(tmp_path)
    result = invoke("export", STUDY, "--format", "csv", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    title, head, *rows = result.output.partition("\n\n")[0].splitlines()
    assert title == "# tiny (smoke): Norms"
    table = {row["arm"]: row for row in csv.DictReader([head, *rows])}
    assert list(table) == ["SGD", "SGDP", "longer"]
    summaries = [folder.summary() for folder in Store(tmp_path).folders()]
    last = {summary["norm_last"] for summary in summaries}
    for row in table.values():
        assert row["norm: seeds"] == "2"
        assert min(last) <= float(row["norm"]) <= max(last)
    assert "# tiny (smoke): Claims" in result.output


@pytest.mark.parametrize(
    ("form", "line"),
    [("latex", r"arm & norm & paper norm \\"), ("markdown", "| arm | norm | paper norm |")],
)
def test_other_formats(tmp_path, form, line):
    run_tiny(tmp_path)
    assert line in invoke("export", "--format", form, "--out", tmp_path).output.splitlines()


def test_a_wrong_format_and_a_store_without_the_study_are_one_line(tmp_path):
    wrong = invoke("export", "--format", "cvs", "--out", tmp_path)
    assert (wrong.exit_code, len(wrong.output.splitlines())) == (2, 1)
    assert "no format is named 'cvs'; did you mean csv?" in wrong.output
    run_tiny(tmp_path)
    absent = invoke("export", "t1", "--out", tmp_path)
    assert (absent.exit_code, len(absent.output.splitlines())) == (2, 1)
    assert "holds no such study" in absent.output


def test_a_study_that_raises_is_named_and_leaves_the_others(tmp_path):
    broken = "spherenorm_tiny:RaisesInTables"
    invoke("run", broken, STUDY, "--tier", "smoke", "--jobs", 1, "--out", tmp_path)
    result = invoke("export", "--out", tmp_path)
    assert result.exit_code == 1
    assert "error: raises-in-tables (smoke): RuntimeError: no table today" in result.stderr
    assert "# tiny (smoke): Norms" in result.stdout
