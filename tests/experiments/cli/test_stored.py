"""`resume`, `status` and `report`: the commands about a store that is there."""

import html
import importlib
import json
import linecache
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
from commands import STUDY, arms_of, claims_of, invoke, run_tiny
from running import folder_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import CorruptFileWarning, Store
from spherenorm_experiments.report.page import sections
from spherenorm_experiments.study import Plan, Request, read_requests


def test_status_tells_a_running_process_from_a_dead_one(tmp_path):
    for name in ("a", "b"):
        folder_of(tiny_spec(seed=ord(name)), tmp_path).write_status("running")
    with folder_of(tiny_spec(seed=ord("a")), tmp_path).lock():
        assert json.loads(invoke("status", "--out", tmp_path, "--json").output)["runs"] == {
            "running": 1,
            "killed": 1,
        }


@pytest.mark.parametrize("command", ["resume", "status", "report"])
def test_a_file_is_no_store(tmp_path, command):
    (tmp_path / "file").write_text("")
    result = invoke(command, "--out", tmp_path / "file")
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)


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
            "from spherenorm import chain, rules as r\n"
            f"def mine(lr=0.1): return chain(r.HeavyBall({momentum}), r.StepSize(lr))"
        )
        sys.modules.pop("spherenorm_edited", None)
        linecache.clearcache()
        importlib.invalidate_caches()

    write(0.5)
    run_tiny(tmp_path, "--optimizers", "spherenorm_edited:mine", "--seeds", "0:3")
    write(0.25)  # of another length: Python may take an edit within one second for the same file
    run_tiny(tmp_path, "--optimizers", "sgd,spherenorm_edited:mine", "--seeds", "0:2")
    both = sections(Store(tmp_path), read_requests(Store(tmp_path))[0])[0].results
    own = both.arm("spherenorm_edited:mine")
    assert len(own) == 2
    assert len({item.folder.config()["rule"] for item in own}) == 1
    assert "0.25" in own.items[0].folder.config()["rule"]


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
    Request([STUDY], Plan("smoke", seeds=(5,))).save(Store(tmp_path / "out"))
    assert invoke("status", "--out", tmp_path / "out").exit_code == 0
    resumed = invoke("resume", "--out", tmp_path / "out", "--jobs", 1)
    assert resumed.exit_code == 1
    assert (
        "cannot go on here: recipe 'spherenorm_away:early': there is no module 'spherenorm_away'"
        in resumed.output
    )
    assert "3 runs now" in resumed.output
    assert invoke("report", "--out", tmp_path / "out").exit_code == 0
    assert "spherenorm_away:early" in arms_of(tmp_path / "out")


def test_resume_goes_through_all_requests(tmp_path):
    run_tiny(tmp_path, "--optimizers", "spherenorm_tiny:raising", "--seeds", "1")
    for tier in ("smale", "smoke"):  # as another version might have written it, and a good one
        Request(
            [STUDY],
            SimpleNamespace(to_json=lambda tier=tier: {**Plan("smoke").to_json(), "tier": tier}),
        ).save(Store(tmp_path))
    result = invoke("resume", "--out", tmp_path, "--jobs", 1, "--json")
    assert result.exit_code == 1
    wrong = "not of this version (no tier is named 'smale'; did you mean small or smoke?)"
    assert f"{wrong}; repeat its `run` command" in result.stderr
    told = json.loads(result.stdout)
    assert told["studies"] == {"tiny": 6}
    (error,) = told["failed"].values()
    assert error.startswith("RuntimeError: this recipe gave up (spherenorm_tiny.py, line ")


def test_a_lost_request_is_named_until_it_is_repeated(ran):
    (path,) = (ran / "plans").iterdir()
    path.write_text("{")
    for command in ("resume", "report", "status"):
        with warnings.catch_warnings(record=True):
            result = invoke(command, "--out", ran)
        assert "repeat its `run` command" in result.output
        assert result.exit_code == {"resume": 1, "report": 2, "status": 0}[command]
    assert "0 runs now" in run_tiny(ran).output
    for command in ("resume", "report", "status"):
        result = invoke(command, "--out", ran)
        assert result.exit_code == 0
        assert "is lost" not in result.output


def tree(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_commands_that_only_read_change_nothing_in_a_damaged_store(tmp_path):
    out, page = tmp_path / "out", tmp_path / "page"
    run_tiny(out)
    run_tiny(out, "--optimizers", "sgd", "--seeds", "1")
    folders = sorted(out.glob("runs/*"))
    names = ("summary.json", "metrics.jsonl", "config.json", "status.json", "origin.json")
    for folder, name in zip(folders, names, strict=False):
        (folder / name).write_text('{"half')
    (folders[5] / "lock").unlink()
    folder_of(tiny_spec(seed=9), out).write_status("running")  # of a process that was killed
    min(out.glob("plans/*"), key=lambda path: path.stat().st_size).write_text("{")
    before = tree(out)
    commands = (
        ("report", "--file", page),
        ("results", "--into", tmp_path / "pages"),
        ("export",),
        ("status",),
    )
    for name, *more in (*commands, *(("show", folder.name) for folder in folders)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = invoke(name, *more, "--out", out)
        assert result.exit_code in (0, 1), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert tree(out) == before
        if name in ("report", "results", "export"):
            assert "repeat its `run` command" in result.output
            told = [str(w.message) for w in said if w.category is CorruptFileWarning]
            assert any("summary.json" in x for x in told)
    assert "6 results in 1 studies" in invoke("resume", "--out", out, "--jobs", 1).output
    for folder, name in zip(folders, names[:4], strict=False):
        assert (folder / name).read_text() != '{"half'  # an origin decides nothing


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


def test_a_page_that_cannot_be_written_where_the_command_says_is_the_commands_fault(ran):
    (ran / "file").write_text("")
    result = invoke("report", "--out", ran, "--file", ran / "file" / "page.html")
    assert result.exit_code == 2
    assert (result.output.startswith("error: cannot write "), len(result.output.splitlines())) == (
        True,
        1,
    )
