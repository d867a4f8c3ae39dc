"""The page marks results of other code, and those that decide nothing."""

import json
import sys
from dataclasses import replace

from commands import invoke, run_tiny

from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page import sections
from spherenorm_experiments.study import read_requests


def test_results_of_edited_code_are_marked(tmp_path, monkeypatch):
    run_tiny(tmp_path, "--optimizers", "sgd,spherenorm_tiny:careful", "--seeds", "1")
    requests = read_requests(Store(tmp_path))[0]
    (now,) = sections(Store(tmp_path), requests)
    assert now.notes == []
    # An edit: its default decides another rule.
    tiny = sys.modules["spherenorm_tiny"]
    usual = tiny.careful

    def careful(lr=0.1, momentum=0.9, delta=0.2):
        return usual(lr, momentum, delta)

    monkeypatch.setattr(tiny, "careful", careful)
    (later,) = sections(Store(tmp_path), requests)
    marked = {note.rpartition(": ")[2] for note in later.notes}
    assert marked == {arm.label for arm in later.results.arms if "careful" in arm.label}
    assert replace(later, older=()).notes == []
    for command in ("report", "export"):
        assert "of other code than is here: " in invoke(command, "--out", tmp_path).stderr
    told = json.loads(invoke("report", "--out", tmp_path, "--json").stdout)["notes"]
    assert told == [f"{later.label}: {note}" for note in later.notes]


def test_a_smoke_run_decides_nothing(tmp_path):
    assert invoke("run", "f1", "--tier", "smoke", "--out", tmp_path).exit_code == 0
    (section,) = sections(Store(tmp_path), read_requests(Store(tmp_path))[0])
    decided = section.study.decided(section.results)
    assert {each.verdict for each in decided} - {"inconclusive"}  # the same runs, in a larger tier
    shown = json.loads(invoke("report", "--out", tmp_path, "--json").stdout)
    verdicts = {claim["verdict"] for claim in shown["claims"]}
    assert verdicts == {"inconclusive"}
    for mine, theirs in zip(section.decisions, decided, strict=True):
        assert mine.numbers == theirs.numbers
        assert mine.detail.startswith("the smoke tier decides nothing")
