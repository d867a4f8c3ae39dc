"""What a terminal shows: tables that fit it, and lines where there is no bar."""

import itertools
import time

import pytest
from rich.console import Console
from rich.progress import Progress

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
    assert 'Not shown: "paper score", "chosen by seeds".' in " ".join(narrow.split())


def test_what_a_user_has_named_is_printed_as_it_is(capsys):
    """rich would make a picture of ":Boom:", and a color of "[red]"."""
    options.say_error("task:Boom:: [red]")
    options.say("task:Boom:")
    captured = capsys.readouterr()
    assert (captured.err, captured.out) == ("error: task:Boom:: [red]\n", "task:Boom:\n")


def test_output_that_is_no_terminal_says_how_far_the_runs_are(monkeypatch, capfd):
    monkeypatch.setattr(run_commands, "SILENCE_S", 0.05)
    monkeypatch.setattr(run_commands, "POLL_S", 0.01)
    with run_commands._show_progress(False) as progress:
        progress(12, None, None)
        time.sleep(0.3)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert {line.rpartition(", ")[0] for line in lines} == {
        "0 of 12 runs, starting workers and first runs"
    }
    with run_commands._show_progress(True):  # a document is the only answer
        time.sleep(0.1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "elapsed", "words"),
    [
        (0, 40.0, "starting workers and first runs"),
        (3, 40.0, ""),  # not yet a tenth
        (9, 30.0, "2 min left"),
        (18, 31.0, "31 s left"),
        (6, 3600.0, "300 min left"),
        (36, 62.0, ""),
    ],
)
def test_the_time_left_is_that_of_the_pace_since_the_start(done, elapsed, words):
    now = itertools.chain([0.0], itertools.repeat(elapsed))
    bar = Progress(get_time=lambda: next(now), disable=True)
    bar.add_task("", total=36)
    task = bar.tasks[0]
    task.completed = done
    assert run_commands._time_left(task) == words


@pytest.mark.parametrize("width", range(40, 90))
def test_no_cell_is_wrapped(width, monkeypatch):
    columns = ("arm", "score", "minus baseline", "chosen by seeds", "norm, last / first", "seeds")
    cells = ("adamp", "97.18 ± 0.37", "+0.32 [-0.02, +0.66]", "0.1 ×3, 0.3 ×3 (edge)", "1.1", "6")
    text = shown(Table("Scores", columns, [cells]), width, monkeypatch)
    (row,) = (line for line in text.splitlines() if "adamp" in line)
    assert "97.18 ± 0.37" in row
    assert ("[-0.02, +0.66]" in text) == ("+0.32 [-0.02, +0.66]" in row)
    assert ("(edge)" in text) == ("0.1 ×3, 0.3 ×3 (edge)" in row)
