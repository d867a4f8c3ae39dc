"""`export`: tables and claims on the standard output."""

import csv

import pytest
from commands import STUDY, invoke

from spherenorm_experiments.engine import Store


def test_the_numbers_of_a_table_are_those_of_the_store(ran):
    result = invoke("export", STUDY, "--format", "csv", "--out", ran)
    assert result.exit_code == 0, result.output
    title, head, *rows = result.output.partition("\n\n")[0].splitlines()
    assert title == "# tiny (smoke): Norms"
    table = {row["arm"]: row for row in csv.DictReader([head, *rows])}
    assert list(table) == ["SGD", "SGDP", "longer"]
    summaries = [folder.summary() for folder in Store(ran).folders()]
    last = {summary["norm_last"] for summary in summaries}
    for row in table.values():
        assert row["norm: seeds"] == "2"
        assert min(last) <= float(row["norm"]) <= max(last)
    assert "# tiny (smoke): Claims" in result.output


@pytest.mark.parametrize(("wrong", "named"), [(("--format", "cvs"), "csv"), (("t1",), "no such")])
def test_a_wrong_format_and_a_store_without_the_study_are_one_line(ran, wrong, named):
    result = invoke("export", *wrong, "--out", ran)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert named in result.output
