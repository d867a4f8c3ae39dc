"""The files of a probe: whole and complete."""

import contextlib
import json
import math

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm.probes import JSONLines, Measurement, TensorBoard

FIRST = Measurement(
    10, "a.weight", "channel", 1.0, 1.5, 0.25, 0.26, math.nan, 0.0, None, predicted=1.25
)
SECOND = Measurement(10, "b.weight", "layer", 2.0, math.inf, 0.5, 0.5, 0.125, 1.0, "layer")
THIRD = Measurement(20, "a.weight", "channel", 1.5, 2.0, 0.25, 0.26, 0.5, 0.5, "channel")
BLOCKS = [[FIRST, SECOND], [THIRD]]
PLAIN = [each.plain() for block in BLOCKS for each in block]


def lines_of(folder):
    return [json.loads(x) for f in sorted(folder.iterdir()) for x in f.read_text().splitlines()]


def test_files_hold_the_plain_measurements_of_each_block(tmp_path):
    folder = tmp_path / "new" / "folder"
    write = JSONLines(folder)
    for block in [*BLOCKS, BLOCKS[-1]]:  # a block that is written again replaces its file
        write(block)
    assert sorted(f.name for f in folder.iterdir()) == ["000000010.jsonl", "000000020.jsonl"]
    assert lines_of(folder) == PLAIN
    assert PLAIN[0]["cosine"] is PLAIN[1]["norm"] is None


def test_files_hold_the_units(tmp_path):
    weight = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with sn.probe(optimizer, every=1, units=True, to=JSONLines(tmp_path)):
        weight.grad = torch.tensor([[4.0, -3.0], [0.0, 0.0]])
        optimizer.step()
    (line,) = lines_of(tmp_path)
    assert line["units"]["norm_before"] == [5, 0]
    assert line["units"]["cosine"] == [0, None]
    assert line["units"]["turn"] == pytest.approx([math.atan(0.1), 0])


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


def test_an_interrupted_write_leaves_no_part(tmp_path, monkeypatch):
    write = JSONLines(tmp_path)
    write(BLOCKS[0])

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="no space"):
        write(BLOCKS[1])
    assert [file.name for file in tmp_path.iterdir()] == ["000000010.jsonl"]


@pytest.mark.parametrize("failing", [(), (2, 4), (6,)])
def test_a_sink_that_fails_costs_no_step_and_no_block(failing):
    """Within a run it warns; at the end it raises, and the block waits for another flush."""
    step, kept = 0, []

    def write(block):
        if step in failing:
            raise OSError("no space left")
        kept.extend(block)

    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    probe = sn.probe(optimizer, every=1, to=write, model=layer, block=2)
    for step in range(1, 6):
        layer.weight.grad = torch.randn(3, 4)
        warns = pytest.warns(UserWarning, match="no space left")
        with warns if step in failing else contextlib.nullcontext():
            optimizer.step()
    step = 6
    with pytest.raises(OSError, match="no space") if 6 in failing else contextlib.nullcontext():
        probe.close()
    step = 7
    probe.flush()
    assert [each.step for each in kept] == [1, 2, 3, 4, 5]
