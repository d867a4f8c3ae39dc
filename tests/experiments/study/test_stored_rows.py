"""Pages that are made of a file of rows, and one number of them recomputed by scipy alone."""

import json
import shutil

import pandas as pd
import pytest
from commands import STUDY, invoke, run_tiny
from scipy import stats

TASK = "spherenorm_tiny:Tiny"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A comparison's pages, and its rows."""
    root = tmp_path_factory.mktemp("rows")
    words = ("--task", TASK, "--optimizers", "sgd,adamp", "--search", "lr=1e-2:1e-1")
    options = ("--trials", 2, "--seeds", "6", "--epochs", 1, "--jobs", 0, "--out", root / "store")
    ran = invoke("compare", *words, *options)
    assert ran.exit_code == 0, ran.output
    made = invoke("results", "--out", root / "store", "--into", root / "pages", "--rows")
    assert made.exit_code == 0, made.output
    return root / "pages"


def test_the_pages_are_those_of_the_rows(pages):
    written = {path.name: path.read_text() for path in pages.glob("*.md")}
    assert len(written) == 2
    for path in pages.glob("*.md"):
        path.unlink()
    again = invoke("results", "--from", "rows", "--into", pages)
    assert again.exit_code == 0, again.output
    assert {path.name: path.read_text() for path in pages.glob("*.md")} == written


def test_rows_of_other_studies_stay_where_rows_are_written_again(pages, tmp_path):
    into = shutil.copytree(pages, tmp_path / "pages")
    assert run_tiny(tmp_path / "store").exit_code == 0
    made = invoke("results", "--out", tmp_path / "store", "--into", into, "--rows")
    assert made.exit_code == 0, made.output
    before, after = (pd.read_parquet(folder / "rows.parquet") for folder in (pages, into))
    assert [*dict.fromkeys(after.study)] == [*dict.fromkeys(before.study), STUDY]
    pd.testing.assert_frame_equal(after[: len(before)], before)
    assert {path.name for path in pages.glob("compare-*")} < {path.name for path in into.iterdir()}


def test_a_row_names_the_release_and_the_commit_of_the_code(pages):
    frame = pd.read_parquet(pages / "rows.parquet")
    assert len(frame) == 2 * 2 * 6
    assert (frame.release != "").all()
    assert frame.commit.nunique() == 1


def test_a_reader_recomputes_the_difference_from_the_rows(pages):
    """By pandas and scipy alone: each seed takes the trial that is best on validation."""
    frame = pd.read_parquet(pages / "rows.parquet")
    specs, numbers = (frame[name].map(json.loads) for name in ("spec", "summary"))
    runs = pd.DataFrame({
        "arm": frame.arm,
        "seed": specs.map(lambda spec: spec.get("seed", 0)),
        "validation": numbers.map(lambda each: each["validation"]),
        "test": numbers.map(lambda each: each["test"]),
    })  # fmt: skip
    best = runs.loc[runs.groupby(["arm", "seed"]).validation.idxmax()]
    test = best.pivot(index="seed", columns="arm", values="test")
    gaps = test.adamp - test.sgd
    low, high = stats.t.interval(0.95, len(gaps) - 1, gaps.mean(), stats.sem(gaps))
    (page,) = pages.glob("compare-*.md")
    assert f"{gaps.mean():+.3g} [{low:+.3g}, {high:+.3g}]" in page.read_text()


def test_a_missing_file_says_what_writes_it(tmp_path):
    found = invoke("results", "--from", "rows", "--into", tmp_path)
    assert found.exit_code == 2
    assert "results --rows" in found.output + found.stderr
