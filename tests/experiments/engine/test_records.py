"""Records while a run trains, scores of the split that they name, metrics of whole splits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import folder_of, run_of, stop_after
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from spherenorm_pictures import PictureTask, picture_spec, recall_at_1
from spherenorm_tiny import tiny_spec
from torch import nn
from torch.nn.functional import cross_entropy

from spherenorm_experiments.execute import execute, execute_spec
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.store import RunFolder
from spherenorm_experiments.task import Mean
from spherenorm_experiments.train import Training, score


def some_records(start, stop):
    return [
        {"step": step, "loss": step / 3, "lists": [[0.5, None], []]} for step in range(start, stop)
    ]


def test_records_rewind_to_the_length_that_a_checkpoint_has_kept(tmp_path):
    folder = RunFolder(tmp_path)
    length = folder.append(some_records(0, 6))
    folder.append(some_records(6, 15))  # killed before its checkpoint was safe
    folder.rewind(length)
    assert folder.records() == some_records(0, 6)
    length = folder.append(some_records(6, 9))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')  # killed as it wrote
    assert folder.records() == some_records(0, 9)
    folder.rewind(length)
    folder.append(some_records(9, 10))
    assert folder.records(("step",)) == [{"step": step} for step in range(10)]


def test_probes_measure_every_k_steps_and_copy_the_weights_only_then(tmp_path, monkeypatch):
    spec = replace(tiny_spec(epochs=4), probe_every=3)
    copies, original = [], Training.__init__.__globals__["Watched"].copies

    def copying(self, module):
        copies.append(1)
        return original(self, module)

    monkeypatch.setattr(Training.__init__.__globals__["Watched"], "copies", copying)
    execute_spec(spec, tmp_path)
    monkeypatch.undo()
    records = folder_of(spec, tmp_path).records()
    probed = [record["step"] for record in records if "norm" in record]
    assert probed == [3, 4, 6, 8, 9, 12, 15, 16]  # every third, and the ends of epochs of 4
    assert len(copies) == len(probed)
    execute_spec(replace(spec, probe_every=1), tmp_path)
    every = folder_of(replace(spec, probe_every=1), tmp_path)
    by_step = {record["step"]: record for record in every.records()}
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
    events = accumulator(str(tmp_path / "tensorboard" / run_of(spec).name)).Reload()
    records = folder_of(spec, tmp_path).records()
    for name in ("loss", "norm", "validation"):
        expected = [(record["step"], record[name]) for record in records if name in record]
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]


def test_a_probe_of_ones_own_is_named_by_its_module_and_may_lack_a_number(tmp_path):
    names = ("spherenorm_tiny:norm_of_update", "spherenorm_tiny:undefined_probe")
    spec = replace(tiny_spec(epochs=1), probes=names[:1])
    assert execute_spec(spec, tmp_path).state == "finished"
    assert all(record["moved"] > 0 for record in folder_of(spec, tmp_path).records())
    spec = replace(spec, probes=names[1:])
    assert execute_spec(spec, tmp_path).state == "finished"  # 0/0 is no divergence
    assert not any("ratio" in record for record in folder_of(spec, tmp_path).records())


def test_validation_and_test_are_of_their_own_splits(tmp_path):
    """Against the checkpoint's weights, in a model that the engine has not seen."""
    spec = picture_spec(epochs=2)
    assert execute_spec(spec, tmp_path).state == "finished"
    folder, run = folder_of(spec, tmp_path), run_of(spec)
    model = run.task.model()
    model.load_state_dict(folder.load_checkpoint()["model"])
    model.eval()
    expected = {}
    for name in ("train", "validation", "test"):
        split = getattr(run.splits, name)
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(model(split.x), split.labels)
        expected[name] = losses.exp().item()
    assert len({round(x, 4) for x in expected.values()}) == 3
    summary, records = folder.summary(), folder.records()
    for name in ("validation", "test"):
        found = summary[f"{name}_metrics"]
        assert found["perplexity"] == pytest.approx(expected[name], rel=1e-5)
        assert summary[name] == found["accuracy"]
    assert records[-1]["validation"] == summary["validation"]
    in_training = records[-1]["validation/perplexity"]
    assert in_training == pytest.approx(expected["validation"], rel=1e-5)
    assert [record["step"] for record in records if "validation" in record] == [5, 10]


@pytest.mark.parametrize(
    ("task", "batch_size"),
    [("tagging", 1024), ("retrieval", 600)],
)
def test_outputs_that_are_no_numbers_have_no_score(task, batch_size, tmp_path):
    """The weights are finite after the one step, but not what comes out of the network.

    An accuracy of chance would be no worse than that of a run at too low a rate; and an error of a
    library would stop a search.
    """
    common = {"epochs": 1, "batch_size": batch_size, "schedule": "constant", "probes": ()}
    spec = Spec(task, "adamw", {"lr": 1e12}, **common)
    assert execute_spec(spec, tmp_path).state == "diverged"
    assert folder_of(spec, tmp_path).summary()["test"] is None


def test_a_model_that_changes_its_inputs_in_place_leaves_the_splits_alone(tmp_path):
    """Else each evaluation would be of other data, in this run and in the next one."""
    spec = replace(tiny_spec("sgd"), task="spherenorm_tiny:ScalesInPlace")
    run = run_of(spec, tmp_path)
    before = [x.clone() for split in run.splits for x in split]
    assert execute(run).state == "finished"
    after = [x for split in run.splits for x in split]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize(("fill", "state"), [(-torch.inf, "finished"), (torch.inf, "diverged")])
def test_logits_that_a_mask_fills_are_no_divergence(tmp_path, fill, state):
    """The loss and all scores are finite: the classes after the third do not exist."""

    class Masked(PictureTask):
        def model(self):
            class Model(nn.Linear):
                def forward(self, x):
                    return super().forward(x).masked_fill(torch.arange(5) > 2, fill)

            return Model(6, 5)

        def loss(self, model, batch):
            return cross_entropy(model(batch[0])[:, :3], batch[1])

        def evaluate(self, model, batch):
            return {"accuracy": Mean(100.0 * (model(batch[0]).argmax(1) == batch[1]))}

    run = run_of(picture_spec(tensors=True, noisy=False, augment=False), tmp_path)
    outcome = execute(replace(run, task=Masked(tensors=True, noisy=False, augment=False)))
    assert outcome.state == state, outcome.error


@pytest.mark.parametrize("workers", [0, 1])
def test_metrics_of_a_run_are_the_libraries(workers):
    run = run_of(picture_spec())
    training = Training(run, run.task, workers=workers)
    found = score(training, run.splits.test)
    x, y = run.splits.test.x, run.splits.test.labels
    with torch.no_grad():
        logits = training.module.eval()(x)
    one = (y == 1).numpy()
    assert next(iter(found)) == "accuracy"
    assert found["accuracy"] == pytest.approx(100 * (logits.argmax(1) == y).double().mean().item())
    entropy = torch.nn.functional.cross_entropy(logits, y).item()
    assert found["perplexity"] == pytest.approx(math.exp(entropy), rel=1e-6)
    assert found["f1"] == pytest.approx(f1_score(one, (logits.argmax(1) == 1).numpy()))
    assert found["auc"] == pytest.approx(roc_auc_score(one, logits[:, 1]))
    assert found["ap"] == pytest.approx(average_precision_score(one, logits[:, 1]))
    assert found["recall@1"] == pytest.approx(recall_at_1(logits, y).item())
    assert found["boxes"] == len(y)
    assert found["attacked"] <= found["accuracy"]
    assert found == score(training, run.splits.test)  # the attack's noise has its own keys


def test_means_add_up_by_items_and_not_by_batches():
    values = torch.arange(10.0)
    shares = [Mean(values[:7]), Mean(values[7:])]
    assert shares[0].value([share.state for share in shares]) == pytest.approx(4.5)
    assert np.isnan(Mean(values[:0]).value([Mean(values[:0]).state]))


def test_a_perplexity_that_is_too_large_is_infinite():
    """`math.exp` would raise, and a run that diverges would have failed."""
    share = Mean(torch.tensor([1e3]), then=math.exp)
    assert share.value([share.state]) == math.inf
