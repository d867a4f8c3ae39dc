"""Commands with what users bring along: spaces, prints, `sys.exit`, files that cannot be read."""

import json
from pathlib import Path

from commands import STUDY, invoke, run_tiny


def test_spaces_between_optimizers_do_not_matter(tmp_path):
    rows = run_tiny(tmp_path, "--optimizers", "sgd, sgdp", "--dry-run", "--json")
    assert rows.exit_code == 0, rows.output
    assert json.loads(rows.stdout)[0]["runs"] == 4


def test_what_a_recipe_prints_is_not_in_the_json(tmp_path):
    optimizers = ("--optimizers", "spherenorm_tiny:printing", "--seeds", "1", "--json")
    for more in (("--dry-run",), ()):
        result = run_tiny(tmp_path, *optimizers, *more)
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)
        assert "lr is 0.1" in result.stderr


def test_a_module_that_exits_is_one_error(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "spherenorm_exits.py").write_text("raise SystemExit(5)\n")
    result = run_tiny(tmp_path / "out", "--optimizers", "spherenorm_exits:mine")
    assert result.exit_code == 2
    assert "recipe 'spherenorm_exits:mine': SystemExit: 5 (spherenorm_exits.py" in result.output


def test_a_file_that_cannot_be_read_is_one_error(tmp_path, monkeypatch):
    run_tiny(tmp_path, "--optimizers", "sgd", "--seeds", "1")
    original = Path.read_bytes

    def refused(path):
        if path.name == "status.json":
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    result = invoke("status", "--out", tmp_path)
    assert result.exit_code == 3
    assert "cannot read" in result.output
    assert len(result.output.splitlines()) == 1


def test_the_time_limit_is_an_option(tmp_path):
    result = invoke("run", STUDY, "--time-limit", "0", "--out", tmp_path)
    assert result.exit_code == 2
    assert "time_limit must be positive seconds, got 0" in result.output
