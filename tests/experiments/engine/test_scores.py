"""Scores are of the split that they name, of a model in evaluation mode."""

from dataclasses import replace

import pytest
import torch
from running import folder_of, run_of
from spherenorm_pictures import PictureTask, picture_spec
from spherenorm_tiny import tiny_spec
from torch import nn
from torch.nn.functional import cross_entropy

from spherenorm_experiments.core import Mean, Spec
from spherenorm_experiments.engine import execute
from spherenorm_experiments.engine.door import execute_spec


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
    summary, records = folder.summary(), folder.metrics.read()
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
    run.task.rehearse()
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
