"""Each section of docs/integrations.md runs, on the model at its top."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "integrations.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOP, *REST = re.split(r"^## (.+)\n", TEXT, flags=re.MULTILINE)
SECTIONS = dict(zip(REST[::2], REST[1::2], strict=True))
OPTIONAL = ("lightning", "transformers", "accelerate")


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_runs(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(SECTIONS[name])
    assert blocks
    for module in OPTIONAL:
        if re.search(rf"^(import|from) {module}\b", "".join(blocks), re.MULTILINE):
            pytest.importorskip(module, reason="of the extra integrations")
    if named := re.match(r"# (\w+\.py)\n", blocks[0]):
        return run_in_two_processes(tmp_path / named[1], blocks[0])
    namespace = {"__name__": "section", "storage": str(tmp_path)}
    try:
        exec(BLOCK.search(TOP)[1], namespace)
        for block in blocks:
            exec(compile(block, f"docs/integrations.md, {name}", "exec"), namespace)
    finally:
        torch._dynamo.reset()


def run_in_two_processes(path, text):
    # Once in many runs Python ends a thread of torch's inside C++ at its exit, which aborts (3.11).
    path.write_text(f"{text}\nimport os\nos._exit(0)\n")
    command = [*(sys.executable, "-m", "torch.distributed.run", "--standalone"), "--nproc-per-node"]
    result = subprocess.run(
        [*command, "2", path, path.parent / "checkpoint"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
