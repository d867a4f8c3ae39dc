"""`data check`, and `--data`: folders are checked before anything runs."""

import pytest
from commands import invoke

from spherenorm_experiments.paper.shared import layout as layout_module
from spherenorm_experiments.paper.shared.layout import FOLDER, Layout


@pytest.fixture
def pair(monkeypatch):
    """One layout, of two files, in place of the real ones."""
    layout = Layout("pair", "A Pair", "pair/\n  a.txt\n  b.txt", ("a.txt", "b.txt"),
                    {"lines": (2, _lines)}, "a test")  # fmt: skip
    monkeypatch.setattr(layout_module, "layouts", lambda: {"pair": layout})
    return layout


def command(*arguments):
    result = invoke(*arguments)
    return result.exit_code, result.output


def _lines(folder):
    return sum(len(path.read_text().splitlines()) for path in folder.iterdir())


def test_check_compares_counts_and_names_what_is_missing(pair, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    folder = tmp_path / "pair"
    folder.mkdir()
    (folder / "a.txt").write_text("x\n")
    code, text = command("data", "check", "--data", tmp_path)
    assert code == 1
    assert "lacks b.txt; expected\npair/" in text
    (folder / "b.txt").write_text("y\nz\n")
    code, text = command("data", "check", "pair", "--data", tmp_path)
    assert code == 1
    assert "lines: 3 (expected: 2) differs" in text
    (folder / "b.txt").write_text("y\n")
    assert command("data", "check", "pair", "--data", tmp_path)[0] == 0


def test_wrong_names_and_folders_are_usage_errors(pair, tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, "")
    assert "there is no such folder" in command("data", "check", "--data", tmp_path / "no")[1]
    assert "no data set is named 'pear'" in command("data", "check", "pear", "--data", tmp_path)[1]
