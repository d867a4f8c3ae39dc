"""The command line: what it prints, what it exits with, and that it can be interrupted."""

import html
import importlib
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from spherenorm_tiny import tiny_spec
from typer.testing import CliRunner

from experiments.cli import app, parse_seeds, parse_settings
from experiments.engine import Engine
from experiments.report import sections
from experiments.requests import Request, read_requests
from experiments.results import Results
from experiments.store import Store
from experiments.study import Plan, find_study

ROOT = Path(__file__).parents[2]
STUDY = "spherenorm_tiny:TinyStudy"


def invoke(*arguments):
    return CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": "220", "NO_COLOR": "1"}
    )


def run_tiny(out, *more):
    return invoke("run", STUDY, "--tier", "smoke", "--jobs", 1, "--out", out, *more)


def test_run_status_report_resume(tmp_path):
    first = run_tiny(tmp_path)
    assert first.exit_code == 0, first.output
    assert "6 runs now, 6 results in 1 studies; 0 diverged, 0 failed" in first.output
    assert "2/2 runs" in first.output  # the second round
    again = run_tiny(tmp_path)
    assert "0 runs now" in again.output
    assert json.loads(invoke("status", "--out", tmp_path, "--json").output) == {
        "runs": {"finished": 6},
        "problems": [],
    }
    resumed = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert resumed.exit_code == 0
    assert "0 runs now" in resumed.output
    written = invoke("report", "--out", tmp_path)
    assert written.exit_code == 0
    assert "tiny (smoke): SGDP's norm is smaller" in written.output
    claims = json.loads(invoke("report", "--out", tmp_path, "--json").output)["claims"]
    assert claims[0]["outcome"] == "inconclusive"  # two seeds


def test_dry_run_runs_nothing_and_knows_what_is_there(tmp_path):
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (4, 0, 4)
    assert not (tmp_path / "runs").exists()
    run_tiny(tmp_path)
    rows = json.loads(run_tiny(tmp_path, "--dry-run", "--json").output)
    assert (rows[0]["runs"], rows[0]["cached"], rows[0]["to run"]) == (6, 6, 0)


def test_dry_run_counts_shared_runs_once(tmp_path):
    rows = json.loads(
        invoke(
            "run", "c1", "detector", "--tier", "smoke", "--dry-run", "--json", "--out", tmp_path
        ).output
    )
    c1, detector, total = rows
    assert (c1["study"], detector["study"], total["study"]) == (
        "c1",
        "detector",
        "total, shared runs once",
    )
    assert total["runs"] == c1["runs"] + detector["runs"] - 3  # the watched networks
    assert total["to run"] == total["runs"]
    assert c1["steps"] < total["steps"] < c1["steps"] + detector["steps"]


def test_short_runs_do_not_tell_how_long_long_ones_take(tmp_path):
    engine = Engine([], Plan("smoke"), Store(tmp_path))

    def ended(spec, seconds):
        engine.store.folder(spec).write_config(spec.config)
        engine.store.folder(spec).write_status("finished", seconds=seconds)

    long = tiny_spec(epochs=40)
    guess = engine.estimate([long])[long.id]
    ended(tiny_spec(epochs=1), 400.0)
    ended(replace(tiny_spec(epochs=40, seed=1), batch_size=8), 400.0)
    assert engine.estimate([long])[long.id] == guess
    ended(tiny_spec(epochs=20), 30.0)
    assert engine.estimate([long])[long.id] == pytest.approx(60.0)


def test_status_tells_a_running_process_from_a_dead_one(tmp_path):
    for name in ("a", "b"):
        Store(tmp_path).folder(tiny_spec(seed=ord(name))).write_status("running")
    with Store(tmp_path).folder(tiny_spec(seed=ord("a"))).lock():
        assert json.loads(invoke("status", "--out", tmp_path, "--json").output)["runs"] == {
            "running": 1,
            "killed": 1,
        }


def test_list():
    names = json.loads(invoke("list", "--json").output)
    assert {"t1", "f3", "detector"} <= names["studies"].keys()
    assert {"digits", "rosenbrock", "tagging"} <= names["tasks"].keys()
    assert "adamp" in invoke("list").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "norm-grwth"), "did you mean norm-growth"),
        (("run", "nowhere:Study"), "nowhere"),
        (("run", STUDY, "--optimizers", "sgpd"), "no recipe is named 'sgpd'; did you mean sgd"),
        (("run", STUDY, "--optimizers", "nowhere:f"), "no module 'nowhere'"),
        (("run", STUDY, "--seeds", "many"), "give a count (3), a range (0:10) or a list (1,4,7)"),
        (("run", STUDY, "--seeds", "5:2"), "give a count"),
        (("run", STUDY, "--tier", "smal"), "no tier is named 'smal'; did you mean small"),
        (("run", STUDY, "--device", "abacus"), "'abacus' cannot be used"),
        (("run", STUDY, "--backend", "lokal"), "did you mean local"),
        (("run", STUDY, "--set", "momentum=1.5"), "momentum"),
        (
            ("run", STUDY, "--set", "momentun=0.5"),
            "no run has a setting 'momentun'; did you mean momentum",
        ),
        (("run", STUDY, "--set", "momentum"), "give key=value"),
        (("run", STUDY, "--set", "epochs=many"), "epochs must be an integer"),
        (
            ("run", STUDY, "--set", "scale=x"),
            "scale=\"x\" is no value for task 'spherenorm_tiny:Tiny'; one is 1.0",
        ),
        (("run", "t1", "--tier", "smoke", "--set", "width=-3"), "task 'digits' with width=-3: "),
        (
            ("run", "t1", "--tier", "smoke", "--set", "width=1.5"),
            "width=1.5 is no value for task 'digits'; one is 16",
        ),
        (
            ("run", "equilibrium", "--tier", "smoke", "--set", "width=-3"),
            "task 'mlp' with width=-3: ",
        ),
        (("run", "h7", "--tier", "smoke", "--set", "baseline=sgpd"), "no recipe is named 'sgpd'"),
        (
            ("run", STUDY, "--set", "nesterov=maybe"),
            "nesterov=\"maybe\" is no value for recipe 'sgd'; one is false",
        ),
        (("run", STUDY, "--set", "lr=fast"), 'lr="fast" is no value for recipe'),
        (
            ("run", STUDY, "--optimizers", "adam", "--set", "betas=0.9"),
            "betas=0.9 is no value for recipe 'adam'; one is [0.9, 0.999]",
        ),
        (
            ("run", STUDY, "--optimizers", "spherenorm_tiny:picky", "--set", "size=3"),
            "recipe 'spherenorm_tiny:picky' with ",
        ),
        (
            ("run", STUDY, "--optimizers", "spherenorm_tiny:picky", "--set", "size=3"),
            "KeyError: 'no size 3'",
        ),
        (
            ("run", STUDY, "--optimizers", "spherenorm_broken:mine"),
            "recipe 'spherenorm_broken:mine': ZeroDivisionError: division by zero",
        ),
        (("run", STUDY, "--seeds", "9" * 23), "--seeds '99999999999999999999999': give"),
        (("run", STUDY, "--seeds", "1," + "9" * 23), "give a count"),
        (("run", STUDY, "--seeds", "0:123456789012"), "at most 10000"),
        (("run", STUDY, "--jobs", "0"), "error: --jobs 0: give 1 or more"),
        (("run", STUDY, "--epochs", "0"), "epochs must be an integer of at least 1, got 0"),
        (("resume", "--jobs", "-1"), "error: --jobs -1: give 1 or more"),
        (("report",), "`python -m experiments run` comes first"),
        (("resume",), "there is no store at"),
        (("status",), "there is no store at"),
    ],
)
def test_a_wrong_command_says_what_would_be_right_and_runs_nothing(tmp_path, arguments, message):
    result = invoke(*arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert len(result.output.splitlines()) == 1, "one line"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["resume", "status", "report"])
def test_a_file_is_no_store(tmp_path, command):
    (tmp_path / "file").write_text("")
    result = invoke(command, "--out", tmp_path / "file")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)


def claims_of(out):
    return json.loads(invoke("report", "--out", out, "--json").output)["claims"]


def arms_of(out, section="tiny"):
    body = re.search(
        rf'<section id="{section}">.*?</section>', (out / "report.html").read_text(), re.DOTALL
    ).group()
    return re.findall(r"<tr><td[^>]*>(.*?)</td>", re.sub("</?span[^>]*>", "", body))


def test_a_recipe_of_ones_own_joins_what_ran_before(tmp_path):
    run_tiny(tmp_path)
    result = run_tiny(tmp_path, "--optimizers", "sgd,spherenorm_tiny:careful", "--seeds", "0:3")
    assert result.exit_code == 0, result.output
    claims = claims_of(tmp_path)
    own = "spherenorm_tiny:careful as SGDP"
    assert arms_of(tmp_path) == [
        "SGD",
        "SGDP",
        "longer",
        own,
        own,
    ]  # in the study's table, and beside the arm whose place it takes
    assert "smoke tier, seeds 0–2" in (tmp_path / "report.html").read_text()
    assert [(claim["study"], claim["seeds"]) for claim in claims] == [("tiny (smoke)", 2)]


def test_each_setting_has_its_own_section_and_the_defaults_come_first(tmp_path):
    run_tiny(tmp_path, "--set", "lr=0.3", "--optimizers", "sgdp")
    run_tiny(tmp_path)
    run_tiny(tmp_path, "--set", "lr=0.3", "--optimizers", "sgd", "--set", "schedule=step")
    assert [claim["study"] for claim in claims_of(tmp_path)] == [
        "tiny (smoke)"
    ]  # the others lack an arm that it needs
    page = (tmp_path / "report.html").read_text()
    headings = re.findall(r"<small>(.*?)</small>", page)
    seeds = "smoke tier, seeds 0–1"
    assert headings == [seeds, f"{seeds}, lr=0.3", f"{seeds}, lr=0.3, schedule=step"]
    assert arms_of(tmp_path, "tiny-2") == ["SGDP"]
    assert arms_of(tmp_path, "tiny-3") == ["SGD"]
    run_tiny(tmp_path, "--set", "lr=0.3", "--optimizers", "sgd")
    assert [claim["study"] for claim in claims_of(tmp_path)] == [
        "tiny (smoke)",
        "tiny (smoke, lr=0.3)",
    ]
    assert arms_of(tmp_path, "tiny-2") == ["SGDP", "SGD"]


def test_an_arm_is_never_a_mixture(tmp_path, monkeypatch):
    module = tmp_path / "spherenorm_edited.py"
    monkeypatch.syspath_prepend(tmp_path)

    def write(momentum):
        module.write_text(
            f"from spherenorm import chain, rules as r\ndef mine(lr=0.1): return chain(r.HeavyBall({momentum}), r.StepSize(lr))"
        )
        sys.modules.pop("spherenorm_edited", None)
        linecache.clearcache()
        importlib.invalidate_caches()

    write(0.5)
    run_tiny(tmp_path, "--optimizers", "spherenorm_edited:mine", "--seeds", "0:3")
    write(0.25)  # of another length: Python may take an edit within one second for the same file
    run_tiny(tmp_path, "--optimizers", "sgd,spherenorm_edited:mine", "--seeds", "0:2")
    both = sections(Store(tmp_path), read_requests(Store(tmp_path))[0])[0].results
    own = both.arm("spherenorm_edited:mine as SGD")
    assert len(own) == 2
    assert len({item.folder.config()["rule"] for item in own}) == 1
    assert "0.25" in own.items[0].folder.config()["rule"]


def test_arms_that_are_one_run_are_one_arm(tmp_path):
    study = find_study("t1")
    plan = Plan("smoke", optimizers=("spherenorm_tiny:careful",))
    trials = plan.apply(study.trials(plan, Results([])))
    assert len({trial.spec.id for trial in trials}) == len(trials) == 1
    own = Plan("smoke", settings={"weight_decay": 0.0})
    assert (
        len({trial.arm for trial in own.apply(study.trials(own, Results([])))}) == 14
    )  # the study's own arms keep their names


def test_resume_and_report_do_without_a_recipe_that_is_not_here(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "spherenorm_away.py").write_text(
        "from spherenorm_tiny import careful as early\n"
    )
    with monkeypatch.context() as there:
        there.syspath_prepend(tmp_path / "there")
        assert (
            run_tiny(
                tmp_path / "out", "--optimizers", "spherenorm_away:early", "--seeds", "1"
            ).exit_code
            == 0
        )
    sys.modules.pop("spherenorm_away")
    importlib.invalidate_caches()
    later = Engine([find_study(STUDY)], Plan("smoke", seeds=(5,)), Store(tmp_path / "out"))
    Request([STUDY], later.plan).save(later.store)
    assert invoke("status", "--out", tmp_path / "out").exit_code == 0
    resumed = invoke("resume", "--out", tmp_path / "out", "--jobs", 1)
    assert resumed.exit_code == 1
    assert (
        "cannot go on here: recipe 'spherenorm_away:early': there is no module 'spherenorm_away'"
        in resumed.output
    )
    assert "3 runs now" in resumed.output
    assert invoke("report", "--out", tmp_path / "out").exit_code == 0
    assert "spherenorm_away:early as SGDP" in arms_of(tmp_path / "out")


def test_resume_goes_through_all_requests(tmp_path):
    run_tiny(tmp_path, "--optimizers", "spherenorm_tiny:raising", "--seeds", "1")
    for tier in ("smale", "smoke"):  # as another version might have written it, and a good one
        Request(
            [STUDY],
            SimpleNamespace(to_json=lambda tier=tier: {**Plan("smoke").to_json(), "tier": tier}),
        ).save(Store(tmp_path))
    result = invoke("resume", "--out", tmp_path, "--jobs", 1, "--json")
    assert result.exit_code == 1
    assert (
        "not of this version (no tier is named 'smale'; did you mean small or smoke?); repeat its `run` command"
        in result.stderr
    )
    told = json.loads(result.stdout)
    assert told["studies"] == {"tiny": 6}
    assert list(told["failed"].values()) == ["RuntimeError: this recipe gave up"]


def test_a_lost_request_is_named_until_it_is_repeated(tmp_path):
    run_tiny(tmp_path)
    (path,) = (tmp_path / "plans").iterdir()
    path.write_text("{")
    for command in ("resume", "report", "status"):
        with warnings.catch_warnings(record=True):
            result = invoke(command, "--out", tmp_path)
        assert "repeat its `run` command" in result.output
        assert result.exit_code == {"resume": 1, "report": 2, "status": 0}[command]
    assert "0 runs now" in run_tiny(tmp_path).output
    for command in ("resume", "report", "status"):
        result = invoke(command, "--out", tmp_path)
        assert result.exit_code == 0
        assert "is lost" not in result.output


@pytest.mark.parametrize("name", ["status.json", "config.json"])
def test_a_run_whose_papers_are_lost_gets_them_again(tmp_path, name):
    run_tiny(tmp_path)
    before = [folder.config() for folder in Store(tmp_path).folders()]
    for path in tmp_path.glob(f"runs/*/{name}"):
        path.unlink()
    assert "0 runs now, 6 results" in run_tiny(tmp_path).output
    assert json.loads(invoke("status", "--out", tmp_path, "--json").output)["runs"] == {
        "finished": 6
    }
    assert [folder.config() for folder in Store(tmp_path).folders()] == before


def test_failed_runs_are_named_and_the_others_finish(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:raising")
    assert result.exit_code == 1
    assert "RuntimeError: this recipe gave up" in result.output
    status = json.loads(invoke("status", "--out", tmp_path, "--json").output)
    assert status["runs"]["failed"] == 2
    assert status["runs"]["finished"] >= 2
    assert "this recipe gave up" in status["problems"][0]["error"]


def test_a_study_that_raises_leaves_the_others_their_sections(tmp_path):
    broken = ("spherenorm_tiny:RaisesInTables", "spherenorm_tiny:RaisesInPart")
    ran = invoke("run", *broken, STUDY, "--tier", "smoke", "--jobs", 1, "--out", tmp_path)
    assert ran.exit_code == 1
    assert "error: raises-in-tables: no tables: RuntimeError: no table today" in ran.output
    assert "tiny: Norms" in ran.output
    reported = invoke("report", "--out", tmp_path)
    assert reported.exit_code == 1
    told = [
        "raises-in-tables (smoke): no tables: RuntimeError: no table today",
        "raises-in-part (smoke): no claims: KeyError: 'no such claim'",
        "raises-in-part (smoke): no pictures: no picture today",
    ]
    assert all(f"error: {line}" in reported.stderr for line in told)
    page = html.unescape((tmp_path / "report.html").read_text())
    assert all(f'<p class="problem">{line.partition(": ")[2]}</p>' in page for line in told)
    assert arms_of(tmp_path) == ["SGD", "SGDP", "longer"]
    assert arms_of(tmp_path, "raises-in-part") == ["SGD", "SGDP", "longer"]
    assert invoke("report", STUDY, "--out", tmp_path).exit_code == 0


def test_a_study_that_does_not_say_what_to_run_is_one_error(tmp_path):
    message = "error: study 'spherenorm_tiny:RaisesInTrials' does not say what to run: KeyError: 'nothing to run'"
    for more in ((), ("--dry-run",)):
        at_once = invoke(
            "run", "spherenorm_tiny:RaisesInTrials", "--tier", "smoke", "--out", tmp_path, *more
        )
        assert (at_once.exit_code, at_once.output.splitlines()) == (2, [message])
    later = invoke(
        "run",
        "spherenorm_tiny:RaisesInTrials",
        "--tier",
        "smoke",
        "--set",
        "known=4",
        "--jobs",
        1,
        "--out",
        tmp_path,
    )
    assert later.exit_code == 1
    assert message in later.output
    assert "Traceback" not in later.output
    assert invoke("status", "--out", tmp_path).output.startswith("4 finished")


def test_a_diverged_run_is_a_result_and_shown(tmp_path):
    result = run_tiny(tmp_path, "--optimizers", "sgdp,spherenorm_tiny:exploding")
    assert result.exit_code == 0
    assert re.search("[24] diverged, 0 failed", result.output)
    invoke("report", "--out", tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert re.search(
        r"[24] of them diverged\s+\(spherenorm_tiny:exploding as SGDP?, seed 0: step", page
    )


def test_a_store_that_cannot_be_written_has_its_own_code(tmp_path):
    (tmp_path / "file").write_text("")
    result = run_tiny(tmp_path / "file")
    assert result.exit_code == 3
    assert "cannot write" in result.output


def test_a_page_that_cannot_be_written_where_the_command_says_is_the_commands_fault(tmp_path):
    run_tiny(tmp_path)
    (tmp_path / "file").write_text("")
    result = invoke("report", "--out", tmp_path, "--file", tmp_path / "file" / "page.html")
    assert result.exit_code == 2
    assert (result.output.startswith("error: cannot write "), len(result.output.splitlines())) == (
        True,
        1,
    )


def test_parse():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("2:5") == (2, 3, 4)
    assert parse_seeds("1,4,1") == (1, 4)
    assert parse_settings(
        ["lr=0.1", "nesterov=true", "betas=[0.9, 0.99]", "schedule=step", "nu=null"]
    ) == {
        "lr": 0.1,
        "nesterov": True,
        "betas": [0.9, 0.99],
        "schedule": "step",
        "nu": None,
    }


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_ctrl_c_while_it_still_imports_is_one_line(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", STUDY, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "interrupted, nothing ran\n")


@pytest.mark.parametrize(
    ("jobs", "how"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)]
)
def test_interrupted_it_exits_130_and_resumes(tmp_path, jobs, how):
    command = [
        sys.executable,
        "-m",
        "experiments",
        "run",
        STUDY,
        "--tier",
        "smoke",
        "--out",
        str(tmp_path),
        "--jobs",
        jobs,
    ]
    process = subprocess.Popen(
        [*command, "--set", "delay=0.15"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "runs").glob("*/status.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: to the whole group
    else:
        process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.startswith("interrupted; go on with: python -m experiments resume")
    assert len(stderr.splitlines()) == 1
    folders = list(Store(tmp_path).folders())
    assert any(folder.summary() is None for folder in folders)
    result = invoke("resume", "--out", tmp_path, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "6 results" in result.output


def test_two_commands_on_one_store_run_everything_once(tmp_path):
    command = [
        sys.executable,
        "-m",
        "experiments",
        "run",
        STUDY,
        "--tier",
        "small",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
        "--json",
    ]
    both = [
        subprocess.Popen(
            [*command, "--set", "delay=0.01"], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(json.loads(output)["studies"] == {"tiny": 9} for output in outputs)
    starts = [folder.status()["pid"] for folder in Store(tmp_path).folders()]
    assert len(starts) == 9
    assert not list(tmp_path.rglob("*.corrupt-*"))


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("ray", "ray", ("run", STUDY, "--backend", "ray")),
        ("submitit", "slurm", ("run", STUDY, "--backend", "slurm")),
        ("submitit", "slurm", ("resume", "--backend", "slurm")),
        ("optuna", "tune", ("run", "g1", "--set", "search=optuna")),
        ("torch.utils.tensorboard", "tensorboard", ("run", STUDY, "--tensorboard")),
    ],
)
def test_a_missing_extra_is_named_before_anything_runs(
    tmp_path, monkeypatch, module, extra, arguments
):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    (tmp_path / "runs").mkdir()
    result = invoke(*arguments, "--out", tmp_path)
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    assert f"needs the extra {extra} (" in result.output
    assert f"pip install -e '.[{extra}]'" in result.output
    assert not list((tmp_path / "runs").iterdir())


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    result = run_tiny(tmp_path, "--tensorboard")
    assert result.exit_code == 0, result.output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next((tmp_path / "tensorboard").iterdir())
    events = EventAccumulator(str(folder))
    events.Reload()
    metrics = Store(tmp_path).root / "runs" / folder.name / "metrics.jsonl"
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
