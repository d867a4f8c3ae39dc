"""Missing optional packages."""

import sys

import pytest
from commands import STUDY, invoke


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("submitit", "slurm", ("run", STUDY, "--backend", "slurm")),
        ("submitit", "slurm", ("resume", "--backend", "slurm")),
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
    assert f"pip install 'spherenorm[{extra}]'" in result.output
    assert not list((tmp_path / "runs").iterdir())
