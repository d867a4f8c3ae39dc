"""The benchmarks run, and their ratios and counts are right; no test reads the times."""

import json
import math
import shutil

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import __main__ as benchmarks
from benchmarks import engine, training
from benchmarks.engine import engine_overhead, large_store
from benchmarks.first import first_steps
from benchmarks.launches import kernel_costs
from benchmarks.measure import time_in_turns
from benchmarks.shapes import SETS
from benchmarks.sharded import sharded_step
from benchmarks.sweep import sweep_throughput
from benchmarks.training import probe_overhead, training_time


@pytest.mark.parametrize(
    # Parameters as published with torchvision's and OpenAI's models.
    ("name", "tensors", "count"),
    [
        ("small-resnet", 58, 269_712),
        ("small-gpt", 41, 791_680),
        ("many-small", 200, 200_000),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("vit-b", 152, 86_567_656),
        ("gpt2-124m", 148, 124_439_808),
    ],
)
def test_parameter_sets(name, tensors, count):
    assert len(SETS[name]()) == tensors
    assert sum(math.prod(shape) for shape in SETS[name]()) == count


@pytest.fixture(autouse=True)
def no_restart(monkeypatch):
    """`fix_malloc` would start the tests again."""
    monkeypatch.setattr(benchmarks, "fix_malloc", lambda name: None)


def test_the_command_writes_its_numbers(tmp_path, monkeypatch):
    monkeypatch.setitem(benchmarks.SETS, "tiny", lambda: [(6, 5), (6,)])
    monkeypatch.setattr(benchmarks, "machine", lambda device: {"bandwidth GB/s": 10.0})
    out = tmp_path / "numbers.json"
    arguments = [
        "--sections",
        "step,scaling",
        "--sets",
        "tiny",
        "--rounds",
        "1",
        "--largest",
        "1e5",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(benchmarks.app, arguments)
    assert result.exit_code == 0, result.output
    numbers = json.loads(out.read_text())
    assert {"AdamP, spherenorm auto", "AdamP, spherenorm rule", "AdamP, released"} <= numbers[
        "step"
    ]["tiny"]["seconds"].keys()
    assert all(seconds > 0 for seconds in numbers["step"]["tiny"]["seconds"].values())
    assert [(row["weights"], row["tensors"]) for row in numbers["scaling"]] == [
        (10**5, 10),
        (10**6, 100),
        (10**6, 500),
        (10**6, 2000),
    ]


@pytest.mark.long
def test_first_steps_and_sweeps():
    numbers = first_steps("resnet18", "cpu", Console())
    assert numbers["cold"]["recompilations"] == 0
    assert numbers["cold"]["first step s"] > 0
    assert numbers["warm"]["extra memory"] < 0.05
    sweep = sweep_throughput("cpu", Console(), points=4, steps=3, single_runs=2)
    assert sweep["ratio"] == sweep["loop s"] / sweep["sweep s"]


def test_probe_overhead(monkeypatch):
    monkeypatch.setattr(training, "MODELS", {"tiny": (lambda: torch.nn.Linear(4, 3), (4,))})
    (row,) = probe_overhead(2, "cpu", Console(), every=2, step_seconds=0.0)
    assert (row["model"], row["weights"], row["batch"]) == ("tiny", 15, 1)
    assert row["over"] == row["probed"] / row["plain"] - 1


def test_training_steps(monkeypatch):
    monkeypatch.setattr(training, "MODELS", {"tiny": (lambda: torch.nn.Linear(4, 3), (4,))})
    rows = training_time(2, "cpu", Console(), step_seconds=0.0)
    assert [row["pair"].split(",")[0] for row in rows] == ["SGDP", "AdamP"]
    assert all(row["more"] == row["ours"] / row["baseline"] - 1 for row in rows)


@pytest.mark.long
def test_sharded_steps(monkeypatch):
    monkeypatch.setitem(SETS, "tiny", lambda: [(6, 5), (1, 4), (6,)])
    times = sharded_step("tiny", 2, Console())
    assert times["sharded"] > 0
    assert times["ratio"] == times["sharded"] / times["whole"]


@pytest.mark.long
def test_the_engine_and_the_commands(monkeypatch):
    numbers = engine_overhead(1, "cpu", Console(), batch=32)
    assert numbers["ratio"] == pytest.approx(numbers["engine ms"] / numbers["bare ms"])
    monkeypatch.setattr(engine, "COMMANDS", {"status": ("status",)})
    assert large_store(Console(), runs=2).keys() == {"status"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "nosuch"], "'nosuch' is not one of"),
        (["--largest", "-5"], "-5 is not between"),
        (["--out", "/nonexistent/x.json"], "cannot be written"),
        (["--out", "."], "cannot be written"),
        (["--device", "tpu"], "'tpu' is not on this machine"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(arguments, message, monkeypatch):
    monkeypatch.setattr(benchmarks, "machine", lambda device: pytest.fail("measured"))
    result = CliRunner().invoke(benchmarks.app, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_actions_take_turns_and_only_their_calls_are_timed():
    now, calls = [0.0], []

    def action(name, seconds):
        def run():
            calls.append(name)
            now[0] += seconds

        return run

    actions = {"a": action("a", 1.0), "b": action("b", 3.0)}
    prepare, clock = action("prepared", 10.0), lambda: now[0]
    times = time_in_turns(actions, 2, calls=2, warm_up=1, prepare=prepare, clock=clock)
    assert times == {"a": [1.0, 1.0], "b": [3.0, 3.0]}
    turns = "".join(name for name in calls if name != "prepared")
    assert sorted([turns[:4], turns[4:8]]) == ["aabb", "bbaa"]
    assert (len(turns), calls.count("prepared")) == (12, 6)


def test_the_cuda_kernel_is_counted_on_a_cpu():
    if not shutil.which("g++"):
        pytest.skip("kernels need a compiler")
    costs = kernel_costs("adamw", [(32, 64), (64,)], weight_decay=0.01)
    assert costs["launches"] == 1
    assert costs["bytes moved"] == 28
    assert 0 < costs["bytes kept"] < 1
    assert costs["new table"] > 0
