"""`export`: tables and claims on the standard output."""

import csv
import errno
import re
import shutil
from xml.etree import ElementTree

import pytest
from commands import STUDY, invoke
from pyarrow import parquet

from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page._drawings import CHROMES


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


@pytest.mark.parametrize(
    ("form", "line"),
    [("latex", r"arm & norm & paper norm \\"), ("markdown", "| arm | norm | paper norm |")],
)
def test_other_formats(ran, form, line):
    assert line in invoke("export", "--format", form, "--out", ran).output.splitlines()


def test_a_reader_that_closes_the_pipe_is_no_error_of_the_study(ran, monkeypatch):
    """As `export | head` does."""

    def closed(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("spherenorm_experiments.cli._report.print", closed, raising=False)
    assert "error" not in invoke("export", "--out", ran).output


def test_a_wrong_format_and_a_store_without_the_study_are_one_line(ran):
    wrong = invoke("export", "--format", "cvs", "--out", ran)
    assert (wrong.exit_code, len(wrong.output.splitlines())) == (2, 1)
    assert "no format is named 'cvs'; did you mean csv?" in wrong.output
    absent = invoke("export", "t1", "--out", ran)
    assert (absent.exit_code, len(absent.output.splitlines())) == (2, 1)
    assert "holds no such study" in absent.output


def test_parquet_has_the_numbers_of_csv(ran):
    into = ran / "tables"
    result = invoke("export", "--format", "parquet", "--out", ran, "--into", into)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in into.iterdir()) == [
        "tiny-smoke-1-Norms.parquet",
        "tiny-smoke-2-Claims.parquet",
    ]
    table = parquet.read_table(into / "tiny-smoke-1-Norms.parquet").to_pydict()
    text = invoke("export", "--format", "csv", "--out", ran).stdout.partition("\n\n")[0]
    head, *rows = csv.reader(text.splitlines()[1:])
    assert list(table) == head
    assert [str(value) for value in table["norm"]] == [row[head.index("norm")] for row in rows]


@pytest.mark.skipif(not any(map(shutil.which, CHROMES)), reason="no Chrome here")
@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_pictures_are_vectors_as_wide_as_asked(ran, form):
    asked = ("export", "--format", form, "--out", ran, "--width", 3)
    assert invoke(*asked).exit_code == 0
    (path,) = (ran / "exports").iterdir()
    assert path.name == f"tiny-smoke-1.{form}"
    if form == "pdf":
        assert path.read_bytes().startswith(b"%PDF")
        (box,) = re.findall(rb"/MediaBox ?\[([^]]*)\]", path.read_bytes())
        assert float(box.split()[2]) == pytest.approx(3 * 72, abs=0.1)  # points
        return
    drawing = ElementTree.fromstring(path.read_text())
    assert float(drawing.get("width")) == 3 * 96
    texts = "".join(drawing.itertext())
    assert all(word in texts for word in ("SGDP", "norm", "step"))


def test_a_picture_needs_a_browser_and_says_so(ran, monkeypatch):
    monkeypatch.setenv("CHROME", "/nowhere/chrome")
    result = invoke("export", "--format", "svg", "--out", ran)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert "--format svg needs Chrome or Chromium: CHROME=/nowhere/chrome" in result.output
    assert not (ran / "exports").exists()
