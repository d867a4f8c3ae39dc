import csv
import json

import pytest
import torch
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.runner import train
from experiments.studies import norm_growth


def invoke(*arguments):
    return CliRunner().invoke(app, ["run", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_a_run_records_geometry():
    sgd, sgdp, sgdg = (train(name, norm_growth.OPTIMIZERS[name], seed=0, epochs=1) for name in ("sgd", "sgdp", "sgdg"))
    assert sgd.norm[0] == sgdp.norm[0]  # paired: the same initial weights
    assert len(sgd.norm) == len(sgd.effective_step) + 1 == sgd.steps_per_epoch + 1
    assert sgd.norm[-1] - sgd.norm[0] > 5 * (sgdp.norm[-1] - sgdp.norm[0]) > 0
    assert sgdg.norm == pytest.approx([1] * len(sgdg.norm), abs=1e-6)
    assert train("sgd", norm_growth.OPTIMIZERS["sgd"], seed=0, epochs=1) == sgd


def test_a_diverged_run_is_a_result(tmp_path):
    run = train("sgd", {"lr": 1e30}, seed=0, epochs=1)
    assert run.diverged_at is not None
    assert len(run.effective_step) == run.diverged_at


def test_the_command_writes_table_picture_and_numbers(tmp_path):
    result = invoke("norm-growth", "--optimizers", "sgd,spherenorm.recipes:sgdp", "--seeds", "1", "--epochs", "1", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "spherenorm.recipes:sgdp" in result.output
    folder = tmp_path / "norm-growth"
    assert {path.name for path in folder.iterdir()} == {"norm-growth.json", "norm-growth.csv", "norm-growth.png"}
    summaries = json.loads((folder / "norm-growth.json").read_text())
    rows = list(csv.DictReader((folder / "norm-growth.csv").open()))
    assert [s["optimizer"] for s in summaries] == ["sgd", "spherenorm.recipes:sgdp"]
    last = [float(row["norm"]) for row in rows if row["optimizer"] == "sgd"][-1]
    assert last == summaries[0]["norm_last"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norm-grwth"], "did you mean norm-growth"),
        (["norm-growth", "--optimizers", "sgpd"], "did you mean sgd"),
        (["norm-growth", "--optimizers", "nowhere:f"], "no module 'nowhere'"),
        (["norm-growth", "--seeds", "many"], "give a count (3), a range (0:10) or a list (1,4,7)"),
        (["norm-growth", "--epochs", "0"], "--epochs"),
        (["norm-growth", "--device", "abacus"], "'abacus' cannot be used"),
    ],
)
def test_bad_arguments(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_list():
    result = invoke("--list")
    assert result.exit_code == 0
    assert "norm-growth" in result.output
    assert "adamp(lr, betas" in result.output


def test_training_does_not_depend_on_the_callers_random_state():
    torch.manual_seed(5)
    first = train("adamp", {"lr": 0.01}, seed=3, epochs=1)
    torch.manual_seed(6)
    assert train("adamp", {"lr": 0.01}, seed=3, epochs=1) == first
