"""Every file of examples/ runs at a tiny size, is short and imports public names only."""

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from spherenorm import registry

FOLDER = Path(__file__).parents[2] / "examples"
IN_TWO_PROCESSES = ("fsdp2.py",)
TINY = {"lightning_cli/main.py": ("fit", "--config", "config.yaml", "--trainer.max_epochs", "1")}
"""Arguments of examples that do not have `--tiny`."""
OPTIONAL_PACKAGES = {
    "hf_finetune.py": ("transformers", "accelerate"),
    "lightning_cli/main.py": ("lightning", "jsonargparse"),
}
OUTPUT = {
    "compose.py": "<w_t, s_t> = 0",
    "cifar_resnet.py": "97% of the parameters are scale-invariant",
    "gpt_bytes.py": "averaged ones:",
    "recompute_results.py": "the page has the same interval: True",
    "fsdp2.py": "goes on with the same bits",
    "hf_finetune.py": "muon: accuracy",
    "lightning_cli/main.py": "'accuracy':",
    "track3.py": "lines of plain torch",
}
EXAMPLES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))


def test_the_examples_are_those_of_the_table():
    assert set(EXAMPLES) == set(OUTPUT)


# Processes that shard a model train in the documentation, too.
QUICK_OR_LONG = [
    pytest.param(name, marks=[pytest.mark.long] * (name == "fsdp2.py")) for name in EXAMPLES
]


@pytest.mark.parametrize("name", QUICK_OR_LONG)
def test_an_example_runs(name, tmp_path, monkeypatch, capfd):
    for module in OPTIONAL_PACKAGES.get(name, ()):
        pytest.importorskip(module, reason="of the extra integrations")
    path = FOLDER / name
    for file in path.parent.glob("*.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    arguments = TINY.get(name, ("--tiny",))
    if name in IN_TWO_PROCESSES:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*command, "--nproc-per-node", "2", path, *arguments],
            env={**os.environ, **environment},
            check=True,
        )
    else:
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        runpy.run_path(str(path), run_name="__main__")
    assert OUTPUT[name] in capfd.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_uses_public_names_only(name):
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) <= 150
    assert "spherenorm" in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spherenorm"):
            assert not any(part.startswith("_") for part in node.module.split("."))
            assert not any(alias.name.startswith("_") for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert not (node.value.id in ("sn", "r") and node.attr.startswith("_"))
