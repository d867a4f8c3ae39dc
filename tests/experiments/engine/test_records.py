"""Records as lines of JSON, and the progress of a run while it trains."""

import json
from dataclasses import replace

import pytest
from interrupted import stop_after
from running import folder_of, run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.engine import (
    Training,
)
from spherenorm_experiments.engine.door import execute_spec
from spherenorm_experiments.store import Records


def some_records(start, stop):
    return [
        {"step": step, "loss": step / 3, "lists": [[0.5, None], []]} for step in range(start, stop)
    ]


def test_records_rewind_to_a_mark_that_a_checkpoint_has_kept(tmp_path):
    records = Records(tmp_path)
    records.append(some_records(0, 6))
    mark = json.loads(json.dumps(records.mark()))
    records.append(some_records(6, 15))  # killed before its checkpoint was safe
    later = Records(tmp_path)
    assert later.rewind(mark)
    assert later.read() == some_records(0, 6)
    later.append(some_records(6, 9))
    assert Records(tmp_path).rewind(later.mark())
    assert Records(tmp_path).read() == some_records(0, 9)
    assert Records(tmp_path).read(("step",)) == [{"step": step} for step in range(9)]


def test_probes_measure_every_k_steps_and_copy_the_weights_only_then(tmp_path, monkeypatch):
    spec = replace(tiny_spec(epochs=4), probe_every=3)
    copies, original = [], Training.__init__.__globals__["Watched"].copies

    def copying(self, module):
        copies.append(1)
        return original(self, module)

    monkeypatch.setattr(Training.__init__.__globals__["Watched"], "copies", copying)
    execute_spec(spec, tmp_path)
    monkeypatch.undo()
    records = folder_of(spec, tmp_path).metrics.read()
    probed = [record["step"] for record in records if "norm" in record]
    assert probed == [3, 4, 6, 8, 9, 12, 15, 16]  # every third, and the ends of epochs of 4
    assert len(copies) == len(probed)
    execute_spec(replace(spec, probe_every=1), tmp_path)
    every = folder_of(replace(spec, probe_every=1), tmp_path)
    by_step = {record["step"]: record for record in every.metrics.read()}
    for record in records:
        assert {**by_step[record["step"]], **record} == by_step[record["step"]]
    summary, full = folder_of(spec, tmp_path).summary(), every.summary()
    for name in ("norm_start", "norm_first_epoch", "norm_last", "validation", "test"):
        assert summary[name] == full[name]
    path = [(3, 3), (4, 1), (6, 2), (8, 2), (9, 1), (12, 3), (15, 3), (16, 1)]
    expected = sum(by_step[step]["effective_step"] * count for step, count in path)
    assert summary["total_effective_step"] == pytest.approx(expected)


def test_tensorboard_is_written_while_a_run_trains(tmp_path, monkeypatch):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator
    spec = replace(tiny_spec(epochs=3), probe_every=2)
    stop_after(spec, tmp_path, 5, tensorboard=True)
    execute_spec(spec, tmp_path, tensorboard=True)
    events = accumulator(str(tmp_path / "tensorboard" / run_of(spec).id)).Reload()
    records = folder_of(spec, tmp_path).metrics.read()
    for name in ("loss", "norm", "validation"):
        expected = [(record["step"], record[name]) for record in records if name in record]
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]


def test_a_probe_of_ones_own_is_named_by_its_module_and_may_lack_a_number(tmp_path):
    names = ("spherenorm_tiny:norm_of_update", "spherenorm_tiny:undefined_probe")
    spec = replace(tiny_spec(epochs=1), probes=names[:1])
    assert execute_spec(spec, tmp_path).state == "finished"
    assert all(record["moved"] > 0 for record in folder_of(spec, tmp_path).metrics.read())
    spec = replace(spec, probes=names[1:])
    assert execute_spec(spec, tmp_path).state == "finished"  # 0/0 is no divergence
    assert not any("ratio" in record for record in folder_of(spec, tmp_path).metrics.read())
