"""Scores are of the split that they name, of a model in evaluation mode."""

from dataclasses import replace

import pytest
import torch
from running import folder_of, run_of
from spherenorm_pictures import picture_spec
from spherenorm_tiny import tiny_spec

from experiments.core import Spec
from experiments.door import execute_spec
from experiments.engine import execute


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
    [("tagging", 1024), ("keywords", 600), ("events", 768), ("retrieval", 600)],
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
