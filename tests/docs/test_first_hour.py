"""The first hour on a GPU runs without one, says what holds, and fails where something does not."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import first_hour
from spherenorm.compile import BATCHED_DEVICES, CUDA_KERNEL_DEVICES
from tests.compile.faults import plant_fault


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One recipe on three weights."""
    monkeypatch.setattr(first_hour, "DRY_RECIPES", ("adamw",))
    monkeypatch.setattr(first_hour, "SHAPES", ((6, 5), (4, 3, 3, 3), (12,)))


def run(*arguments):
    return CliRunner().invoke(first_hour.app, ["--dry", *arguments])


def test_a_dry_run_prints_a_table_and_writes_its_figures(tmp_path):
    out = tmp_path / "figures.json"
    sections = "numbers,layouts,waits,capture,devices,switches,tests"
    result = run("--only", sections, "--out", str(out))
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert [*figures["seconds"]] == sections.split(",")
    verdicts = {(c["section"], c["name"]): c["verdict"] for c in figures["checks"]}
    assert {
        name: verdict for (section, name), verdict in verdicts.items() if section == "numbers"
    } == {str(dtype): "ok" for dtype in first_hour.TOLERANCE}
    assert verdicts["devices", "CPU beside the device"] == "ok"
    assert verdicts["capture", "capture"] == "skip"
    assert "numbers" in result.output
    assert "cpu" not in BATCHED_DEVICES


@pytest.mark.long
def test_the_other_sections_of_a_dry_run_hold():
    result = run("--only", "training,benchmarks,speed,kernel")
    assert result.exit_code == 0, result.output
    assert "ok   kernel/torch.float16" in result.output
    assert "cpu" not in CUDA_KERNEL_DEVICES


def test_a_fault_is_a_failed_check(monkeypatch):
    """Though the executor's own verification does not see it."""
    plant_fault(monkeypatch, "lerp", "batched")
    monkeypatch.setattr("spherenorm.compile.paths._verify", lambda *arguments: None)
    result = run("--only", "numbers")
    assert result.exit_code == 1
    assert "FAIL numbers/torch.float64: " in result.output


def test_an_error_of_a_section_is_a_failed_check_and_time_is_kept(monkeypatch):
    def broken(report):
        raise RuntimeError("broken on purpose")

    monkeypatch.setitem(first_hour.SECTIONS, "waits", (1, broken))
    monkeypatch.setitem(first_hour.SECTIONS, "numbers", (0, first_hour.check_numbers))
    report = first_hour.Report("cpu", ["adamw"], dry=True)
    first_hour.run_sections(report, ["waits", "numbers"])
    broken_section, *late = report.checks
    assert broken_section.holds is False
    assert "broken on purpose" in broken_section.figures["error"]
    assert {check.verdict for check in late} == {"skip"}


def test_the_sections_take_less_than_ten_minutes():
    assert sum(seconds for seconds, _ in first_hour.SECTIONS.values()) <= 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry", "--only", "nosuch"], "'nosuch' is not one of"),
        (["--device", "cpu"], "'cpu' is no GPU of this machine"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    result = CliRunner().invoke(first_hour.app, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_the_difference_of_tensors_is_relative_and_an_infinity_is_one():
    one, inf = torch.ones(3), torch.tensor([1.0, float("inf"), float("nan")])
    assert first_hour.largest_difference([2 * one], [one]) == 1.0
    assert first_hour.largest_difference([inf], [inf]) == 0.0
    assert first_hour.largest_difference([one], [inf]) == float("inf")
