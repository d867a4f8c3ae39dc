"""The committed results: each number of their pages follows from the committed rows."""

from pathlib import Path

import pandas as pd
import pytest

from spherenorm_experiments.results import FILE, read_rows, results_pages

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "experiments" / "results"
MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def frame():
    return pd.read_parquet(RESULTS / FILE)


def test_the_committed_pages_are_those_of_the_rows(monkeypatch):
    monkeypatch.chdir(ROOT)  # a study of a file is found by its path
    pages = results_pages(read_rows(RESULTS / FILE))
    assert {path.name: path.read_text() for path in RESULTS.glob("*.md")} == pages


def test_nothing_is_committed_beside_pages_and_rows():
    names = {path.name for path in RESULTS.iterdir() if path.suffix != ".md"}
    assert names == {FILE}
    assert (RESULTS / FILE).stat().st_size <= MAX_BYTES


def test_a_row_names_the_release_and_a_commit_without_edits(frame):
    assert (frame.release != "").all()
    assert frame.commit.str.fullmatch("[0-9a-f]{40}").all()


def test_each_run_stands_once_in_its_arm(frame):
    assert not frame.duplicated(["study", "plan", "condition", "arm", "run"]).any()
