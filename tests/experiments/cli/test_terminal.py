"""What a terminal shows: tables that fit it, and lines where there is no bar."""

import time

from rich.console import Console

from spherenorm_experiments.cli import options, run_commands
from spherenorm_experiments.tables import Cell, Column, Table


def shown(table, width, monkeypatch):
    console = Console(width=width, no_color=True)
    monkeypatch.setattr(options, "console", console)
    with console.capture() as capture:
        console.print(options.as_text(table, table.title))
    return capture.get()


def test_a_table_leaves_out_what_does_not_fit_and_names_it(monkeypatch):
    columns = ("arm", "score", Column("score", paper=True), "difference", "chosen by seeds")
    row = ("SGD, wd 1e-6", Cell(97.1, ".1f"), "67.94", "+0.2 [-0.1, +0.5]", "0.1 ×3, 0.3 ×3")
    table = Table("Scores", columns, [row])
    whole = shown(table, 100, monkeypatch)
    assert all(text in whole for text in (*map(str, row), "paper score"))
    assert "Not shown" not in whole
    narrow = shown(table, 50, monkeypatch)
    assert max(map(len, narrow.splitlines())) <= 50
    assert "SGD, wd 1e-6  97.1  +0.2 [-0.1, +0.5]" in " ".join(narrow.split(" ")).replace(
        "   ", "  "
    )
    assert "Not shown: paper score, chosen by seeds." in " ".join(narrow.split())


def test_output_that_is_no_terminal_says_how_far_the_runs_are(monkeypatch, capfd):
    monkeypatch.setattr(run_commands, "SILENCE_S", 0.05)
    monkeypatch.setattr(run_commands, "POLL_S", 0.01)
    with run_commands._show_progress(False) as progress:
        progress(12, None, None)
        time.sleep(0.3)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert {line.rpartition(", ")[0] for line in lines} == {"0 of 12 runs"}
    with run_commands._show_progress(True):  # a document is the only answer
        time.sleep(0.1)
    assert capfd.readouterr().err == ""
