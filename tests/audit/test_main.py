"""`spherenorm audit module:factory`."""

import json
import os
import subprocess
import sys

import pytest

from spherenorm.cli import audit

FACTORIES = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    return model, 10 * torch.randn(16, 6)  # so that no eps matters

def with_a_loss():
    return *small(), lambda y: y.square().mean()

def keywords():
    class Model(nn.Sequential):
        def forward(self, *, x):
            return {"y": super().forward(x)}
    return Model(*small()[0]), {"x": torch.randn(16, 6)}

def wrong():
    return small()[0]

def raising():
    raise RuntimeError("no data")

def of_another_shape():
    return small()[0], torch.randn(16, 7)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder that has the factories; gives exit code, output and errors."""
    (tmp_path / "own_models.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda *arguments: (audit(arguments), *capsys.readouterr())
    sys.modules.pop("own_models", None)


def test_the_module_runs_and_does_not_import_the_compiler(tmp_path):
    """That import takes ten times as long as a small audit."""
    (tmp_path / "own_models.py").write_text(FACTORIES)
    command = [sys.executable, "-X", "importtime", "-m", "spherenorm", "audit", "own_models:small"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert not result.returncode, result.stderr
    assert "0.weight  5 x 6  invariant      channel" in result.stdout
    assert "52.6 % of 57 parameters scale-invariant" in result.stdout
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "torch.optim" in imported
    assert "torch._dynamo" not in imported


@pytest.mark.parametrize("name", ["with_a_loss", "keywords"])
def test_json(run, name):
    code, output, _ = run(f"own_models:{name}", "--json", "--view", "layer")
    result = json.loads(output)
    assert code == 0
    assert [finding["view"] for finding in result["findings"]] == ["layer", None]
    assert result["invariant_share"] == 30 / 57


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("own_models:wrong",), ["own_models:wrong", "(model, batch)", "Sequential"]),
        (("own_models:smal",), ["smal", "small"]),
        (("nowhere:model",), ["nowhere"]),
        (("own_models:small", "--view", "chanel"), ["chanel"]),
        (("own_models",), ["own_models", "module:function"]),
        (("own_models:raising",), ["own_models:raising", "no data", "own_models.py, line"]),
        (("own_models:of_another_shape",), ["own_models:of_another_shape", "mat1"]),
    ],
)
def test_wrong_requests(run, arguments, named):
    code, output, errors = run(*arguments)
    assert code == 2
    assert all(word in errors for word in named), errors
    assert len(errors.splitlines()) == 1
    assert not output
