"""The commands about a store that is there: `resume status report export show gc`."""

import html
import importlib
import json
import re
import sys

from commands import STUDY, arms_of, claims_of, invoke, run_tiny
from running import folder_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.execute import execute, resolve
from spherenorm_experiments.plan import Plan, Request
from spherenorm_experiments.store import Store


def test_status_tells_a_running_process_from_a_dead_one(tmp_path):
    for name in ("a", "b"):
        folder_of(tiny_spec(seed=ord(name)), tmp_path).write_status("running")
    with folder_of(tiny_spec(seed=ord("a")), tmp_path).lock():
        assert json.loads(invoke("status", "--out", tmp_path, "--json").output)["runs"] == {
            "running": 1,
            "killed": 1,
        }


def test_each_setting_has_its_own_section_and_the_defaults_come_first(ran):
    run_tiny(ran, "--set", "lr=0.3", "--seeds", "1")
    assert [x["study"] for x in claims_of(ran)] == ["tiny (smoke)", "tiny (smoke, lr=0.3)"]
    headings = re.findall(r"<small>(.*?)</small>", (ran / "report.html").read_text())
    assert ["lr=0.3" in heading for heading in headings] == [False, True]
    assert arms_of(ran, "tiny-2") == ["SGD", "SGDP", "longer"]


def test_resume_and_report_do_without_a_recipe_that_is_not_here(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "spherenorm_away.py").write_text(
        "from spherenorm_tiny import careful as early\n"
    )
    with monkeypatch.context() as there:
        there.syspath_prepend(tmp_path / "there")
        away = run_tiny(tmp_path / "out", "--seeds", "1", study="spherenorm_tiny:AwayStudy")
        assert away.exit_code == 0
    sys.modules.pop("spherenorm_away")
    importlib.invalidate_caches()
    Request([STUDY], Plan("smoke", seeds=(5,))).save(Store(tmp_path / "out"))
    assert invoke("status", "--out", tmp_path / "out").exit_code == 0
    resumed = invoke("resume", "--out", tmp_path / "out", "--jobs", 0)
    assert resumed.exit_code == 1
    assert "there is no module 'spherenorm_away'" in resumed.output
    assert "3 runs now" in resumed.output  # those of the other request
    assert invoke("report", "--out", tmp_path / "out").exit_code == 0
    assert "spherenorm_away:early" in arms_of(tmp_path / "out")


def test_a_study_that_raises_leaves_the_others_their_sections(tmp_path):
    broken = ("spherenorm_tiny:RaisesInTables", "spherenorm_tiny:RaisesInPart")
    ran = invoke("run", *broken, STUDY, "--tier", "smoke", "--jobs", 0, "--out", tmp_path)
    assert (ran.exit_code, "no table today" in ran.output) == (1, True)
    reported = invoke("report", "--out", tmp_path)
    assert reported.exit_code == 1
    page = html.unescape((tmp_path / "report.html").read_text())
    for said in ("no table today", "no such claim", "no picture today"):
        assert said in reported.stderr
        assert said in page
    assert arms_of(tmp_path) == arms_of(tmp_path, "raises-in-part") == ["SGD", "SGDP", "longer"]


def stray(root, **spec):
    """A finished run that no request asks for."""
    run = resolve(tiny_spec(**spec), Store(root))
    execute(run)
    return run.folder


def test_show_has_what_the_store_has(tmp_path):
    folder = stray(tmp_path)
    shown = json.loads(invoke("show", folder.name, "--out", tmp_path).stdout)
    assert (shown["state"], shown["run"]) == ("finished", folder.name)
    assert shown["summary"]["test"] == folder.summary()["test"]
    assert shown["settings"]["hyper_parameters"]["lr"] == 0.1
    by_hash = invoke("show", folder.name.split("-")[-2][:9], "--out", tmp_path)
    assert json.loads(by_hash.stdout) == shown
