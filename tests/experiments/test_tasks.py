"""The tasks: their data, what of their models is scale-invariant, and that they can be learned."""

from itertools import combinations

import numpy as np
import pytest
import torch

from experiments.spec import Spec
from experiments.task import Task, find_task, task_classes
from experiments.tasks.digits import _cutmix
from experiments.tasks.mlp import Mlp
from spherenorm.invariance import audit

TRAINED = [name for name, cls in task_classes().items() if issubclass(cls, Task)]


def test_tasks_are_found_by_themselves():
    assert list(task_classes()) == ["cosine", "digits", "mlp", "overhead", "rosenbrock", "tagging"]


@pytest.mark.parametrize("name", TRAINED)
def test_splits_do_not_overlap_and_their_fingerprint_is_theirs(name):
    task = find_task(name)
    rows = [{x.numpy().tobytes() for x in split[0]} for split in task.data()]
    assert [len(r) for r in rows] == [len(split[0]) for split in task.data()]
    assert all(a.isdisjoint(b) for a, b in combinations(rows, 2))
    assert all(len({len(x) for x in split}) == 1 for split in task.data())
    assert task.fingerprint() == find_task(name).fingerprint()
    assert len({find_task(n).fingerprint() for n in TRAINED}) == len(TRAINED)


def test_digits_are_stratified_and_standardized():
    train, validation, test = find_task("digits").data()
    assert [len(y) for _, y in (train, validation, test)] == [1150, 287, 360]
    shares = np.array(
        [torch.bincount(y, minlength=10).numpy() / len(y) for _, y in (train, validation, test)]
    )
    assert np.ptp(shares, axis=0).max() < 0.01
    assert train[0].mean().abs() < 1e-5
    assert abs(train[0].std() - 1) < 1e-5


@pytest.mark.parametrize(
    ("options", "invariant", "variant"),
    [
        ({"variant": "plain"}, 3, 1),
        ({"variant": "depthwise"}, 7, 1),
        ({"variant": "residual"}, 6, 1),
        ({"variant": "transformer"}, 0, 11),
    ],
)
def test_the_audit_finds_what_normalization_makes_invariant(options, invariant, variant):
    task = find_task("digits", options)
    torch.manual_seed(0)
    views = [finding.view for finding in audit(task.model(), *task.audit_inputs())]
    assert views.count("channel") == invariant
    assert views.count(None) == variant


def test_every_weight_of_the_mlp_is_invariant_row_by_row():
    task = Mlp()
    params = {name: value[0] for name, value in task.start((3,)).items()}
    images, labels = (x[0] for x in task.batches((3,))(5))
    reference = task.loss(params, (images, labels))
    for name, weight in params.items():
        factors = torch.rand(len(weight), 1, dtype=torch.float64) + 0.5
        torch.testing.assert_close(
            task.loss({**params, name: factors * weight}, (images, labels)),
            reference,
            rtol=1e-9,
            atol=0,
        )
    again = task.batches((3,))(5)
    assert torch.equal(again[0][0], images)
    assert not torch.equal(task.batches((4,))(5)[0][0], images)


def test_the_mlp_measures_gradients_that_do_not_depend_on_the_norm():
    task = Mlp()
    params = task.start((0,))
    size, count = task.gradients(params)
    again, _ = task.gradients({name: 3 * weight for name, weight in params.items()})
    torch.testing.assert_close(size, again, rtol=1e-6, atol=0)
    alive = len([x for x in task.batches((0,))(0)[0][0].T if x.std() > 0])
    assert (
        24**2 < 2 * count.item() - 24**2 <= 64**2
    )  # the second layer's units have 24 weights, the first one's up to 64
    assert 2 * count.item() - 24**2 >= alive**2  # one batch shows some of the pixels that change


def test_cutmix_pastes_and_mixes_in_the_same_proportion():
    torch.manual_seed(0)
    images = torch.arange(8.0)[:, None, None, None].expand(8, 1, 8, 8)
    targets = torch.eye(8)
    for _ in range(20):
        mixed, soft = _cutmix(images, targets)
        for i in range(8):
            kept = (mixed[i] == i).double().mean().item()
            assert soft[i, i].item() == pytest.approx(kept, abs=1e-6)
        torch.testing.assert_close(soft.sum(1), torch.ones(8))


def test_the_tags_of_the_clips_are_what_they_say():
    spectra, tags = find_task("tagging").data().train
    assert spectra.shape[1:] == (4, 32, 8)
    assert torch.equal(tags[:, :3].sum(1), torch.ones(len(tags)))  # low, middle or high
    frames = spectra.mean((1, 2))
    slope = frames[:, -1] - frames[:, 0]
    plucked, swelling = tags[:, 6] == 1, tags[:, 7] == 1
    assert slope[plucked].mean() < slope[~plucked & ~swelling].mean() < slope[swelling].mean()


@pytest.mark.parametrize(("name", "least"), [("digits", 60.0), ("tagging", 60.0)])
def test_a_task_can_be_learned(name, least, tmp_path):
    from experiments.runner import execute
    from experiments.store import Store

    spec = Spec(name, "adamp", {"lr": 0.01}, epochs=2, batch_size=64)
    assert execute(spec, tmp_path).state == "finished"
    assert Store(tmp_path).folder(spec).summary()["test"] > least


def test_the_overhead_is_measured_in_turns():
    spec = Spec(
        "overhead",
        "sgdp",
        {"lr": 0.1, "momentum": 0.9},
        {"baseline": "sgd"},
        epochs=3,
        schedule="constant",
        probes=(),
    )
    measured = find_task("overhead", {"baseline": "sgd"}).measure(spec)
    assert measured["gradient_ms"] > 0
    total = (
        measured["gradient_ms"] + measured["recipe_ms"],
        measured["gradient_ms"] + measured["baseline_ms"],
    )
    assert measured["ratio"] == total[0] / total[1]
