"""The files of a probe: whole, complete, and equal in every format."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import support
from spherenorm.probes import JSONLines, Measurement, Parquet, TensorBoard

FIRST = Measurement(
    10, "a.weight", "channel", 1.0, 1.5, 0.25, 0.26, math.nan, 0.0, None, predicted=1.25
)
SECOND = Measurement(10, "b.weight", "layer", 2.0, math.inf, 0.5, 0.5, 0.125, 1.0, "layer")
THIRD = Measurement(20, "a.weight", "channel", 1.5, 2.0, 0.25, 0.26, 0.5, 0.5, "channel")
BLOCKS = [[FIRST, SECOND], [THIRD]]
PLAIN = [each.plain() for block in BLOCKS for each in block]


def test_json_lines(tmp_path):
    write = JSONLines(tmp_path / "new" / "folder")
    for block in [*BLOCKS, BLOCKS[-1]]:  # a block that is written again replaces its file
        write(block)
    files = sorted((tmp_path / "new" / "folder").iterdir())
    assert [file.name for file in files] == ["000000010.jsonl", "000000020.jsonl"]
    lines = "".join(file.read_text() for file in files).splitlines()
    assert [json.loads(line) for line in lines] == PLAIN
    assert PLAIN[0]["cosine"] is None
    assert PLAIN[1]["norm"] is None


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write = Parquet(tmp_path / "table")
    for block in BLOCKS:
        write(block)
    assert parquet.read_table(tmp_path / "table").to_pylist() == PLAIN
    assert [f.name for f in sorted((tmp_path / "table").iterdir())] == [
        "000000010.parquet",
        "000000020.parquet",
    ]


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write = TensorBoard(tmp_path)
    for block in BLOCKS:
        write(block)
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    norms = [(event.step, event.value) for event in found.Scalars("norm/a.weight")]
    assert norms == [(10, 1.5), (20, 2.0)]
    tags = found.Tags()["scalars"]
    assert "cosine/b.weight" in tags
    assert "norm/b.weight" not in tags  # it is infinite
    assert not any(tag.startswith(("step", "view", "weight")) for tag in tags)


@pytest.mark.parametrize(("writer", "extra"), [(Parquet, "parquet"), (TensorBoard, "tensorboard")])
def test_a_missing_package_is_named_with_its_extra(writer, extra, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(support.importlib, "import_module", missing)
    with pytest.raises(sn.support.MissingExtraError, match=rf"spherenorm\[{extra}\]"):
        writer(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_probe_imports_no_writers_package(tmp_path):
    code = """
import sys, torch, spherenorm as sn
weight = torch.nn.Parameter(torch.ones(2, 2))
with sn.probe(torch.optim.SGD([weight], lr=0.1), every=1, to=sn.probes.JSONLines(sys.argv[1])):
    pass
print([m for m in ("pyarrow", "tensorboard", "lightning", "transformers") if m in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_an_interrupted_write_leaves_no_part(tmp_path, monkeypatch):
    write = JSONLines(tmp_path)
    write(BLOCKS[0])

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="no space"):
        write(BLOCKS[1])
    assert [file.name for file in tmp_path.iterdir()] == ["000000010.jsonl"]


def test_what_a_probe_writes_is_what_it_measures(tmp_path):
    kept = []

    write = JSONLines(tmp_path)

    def both(block):
        kept.extend(block)
        write(block)

    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with sn.probe(optimizer, every=2, to=both, model=layer, block=2):
        for _ in range(7):
            layer.weight.grad = torch.randn(3, 4)
            optimizer.step()
    files = sorted(tmp_path.iterdir())
    assert [file.stem for file in files] == ["000000004", "000000006"]
    lines = "".join(file.read_text() for file in files).splitlines()
    assert [json.loads(line) for line in lines] == [each.plain() for each in kept]
    assert [each.step for each in kept] == [2, 4, 6]


def test_a_sink_that_raises_costs_no_step_and_no_block():
    full, kept = [True, True], []

    def write(block):
        if full and full.pop():
            raise OSError("no space left")
        kept.extend(block)

    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with sn.probe(optimizer, every=1, to=write, model=layer, block=2):
        for step in range(1, 6):
            layer.weight.grad = torch.randn(3, 4)
            if step in (2, 4):
                with pytest.warns(UserWarning, match="block; it is kept.*: OSError: no space left"):
                    optimizer.step()
            else:
                optimizer.step()
    assert [each.step for each in kept] == [1, 2, 3, 4, 5]


def test_what_a_sink_does_not_take_at_the_end_raises_and_is_kept():
    kept, taken = [], [False]

    def write(block):
        if not taken[0]:
            raise OSError("no space left")
        kept.extend(block)

    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    probe = sn.probe(optimizer, every=1, to=write, model=layer)
    layer.weight.grad = torch.randn(3, 4)
    optimizer.step()
    with pytest.raises(OSError, match="no space left"):
        probe.close()
    taken[0] = True
    probe.flush()
    assert [each.step for each in kept] == [1]
