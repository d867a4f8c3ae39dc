"""Wrong commands: each says in one line what would be right, ends with code 2, and runs nothing."""

import sys

import pytest
from commands import STUDY, invoke

PICKY = "spherenorm_tiny:picky"


def comparing(more="", *, task="spherenorm_tiny:Tiny", optimizers="sgd,adamp", search="lr=1e-2:1"):
    return f"compare --task {task} --optimizers {optimizers} --search {search} {more}"


ROWS = [
    ("run weight-deca", "weight-decay"),
    (f"run {STUDY} --seeds many", "0:10"),
    (f"run {STUDY} --seeds 0:123456789012", "at most 10000"),
    (f"run {STUDY} --tier smal", "did you mean small"),
    (f"run {STUDY} --device abacus", "abacus"),
    (f"run {STUDY} --backend lokal", "did you mean local"),
    (f"run {STUDY} --time-limit 0", "time_limit"),
    (f"run {STUDY} --epochs 0", "epochs"),
    (f"run {STUDY} --set momentun=0.5", "did you mean momentum"),
    (f"run {STUDY} --set momentum", "key=value"),
    (f"run {STUDY} --set momentum=1.5", "momentum"),
    ("run t1 --tier smoke --set width=1.5", "width=1.5"),
    ("run f1 --data .", "f1"),
    ("run spherenorm_tiny:RaisesInTrials --tier smoke", "nothing to run"),
    (comparing(task="nope"), "nope"),
    (comparing(task="cosine"), "cosine"),
    (comparing(optimizers="sgd"), "two or more"),
    (comparing(optimizers="sgd,adamp,sgd"), "'sgd' is there twice"),
    (comparing(optimizers="sgd,adampp"), "did you mean adamp"),
    (comparing(optimizers="sgd,nowhere:f"), "nowhere"),
    (comparing(optimizers="sgd,spherenorm_broken:mine"), "ZeroDivisionError"),
    (comparing(f"--set {PICKY}:size=3", optimizers=f"sgd,{PICKY}"), "no size 3"),
    (comparing(search="lr=0:1"), "lr=0:1"),
    (comparing(search="momentum=0.1:0.9"), "momentum"),
    (comparing(search="sgd:lr=1:2"), "no range for 'adamp'"),
    (comparing("--trials 0"), "trials: "),
    (comparing("--baseline adam"), "--baseline 'adam'"),
    (comparing("--margin -1"), "margin: "),
    (comparing("--set lr=0.1"), "--search tunes it"),
    (comparing("--set adam:eps=1"), "'adam' is none of --optimizers"),
    ("report", "`spherenorm run` comes first"),
    *((command, "there is no store at") for command in ("resume", "status", "export")),
]


def refused(command, out):
    """The line that a wrong command prints."""
    result = invoke(*command.split(), "--out", out)
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
    return result.output


@pytest.mark.parametrize(("command", "named"), ROWS)
def test_a_wrong_command_says_what_would_be_right_and_runs_nothing(tmp_path, command, named):
    assert named in refused(command, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("show nothing", "nothing"),
        ("show sp", "runs begin with 'sp'"),
        ("export --format cvs", "csv"),
        ("export t1", "no such"),
    ],
)
def test_so_does_one_that_asks_for_what_a_store_does_not_have(ran, command, named):
    assert named in refused(command, ran)


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("submitit", "slurm", f"run {STUDY} --backend slurm"),
        ("submitit", "slurm", "resume --backend slurm"),
        ("torch.utils.tensorboard", "tensorboard", f"run {STUDY} --tensorboard"),
    ],
)
def test_so_does_one_that_needs_an_extra(tmp_path, monkeypatch, module, extra, command):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    (tmp_path / "runs").mkdir()
    assert f"pip install 'spherenorm[{extra}]'" in refused(command, tmp_path)
    assert not list((tmp_path / "runs").iterdir())
