"""A campaign rehearses each task with each recipe before anything runs or is stored."""

import re
import signal
import subprocess
from dataclasses import replace

import pytest
import torch
from commands import STUDY, process
from running import run_of
from spherenorm_bench import PLAIN, small_table
from spherenorm_tiny import Tiny, TinyStudy, tiny_spec

from spherenorm_experiments.core import Regime, Spec
from spherenorm_experiments.engine import Store, Training, _weights, rehearse
from spherenorm_experiments.engine.door import Door, execute_spec
from spherenorm_experiments.study import Campaign, Plan, Study, find_study, study_classes

PLACE = r" \(spherenorm_tiny.py, line \d+\)$"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tiny_spec("spherenorm_tiny:raising", at=0.0), "this recipe gave up" + PLACE),
        (tiny_spec("spherenorm_tiny:mistyped", lr=0.1), "no attribute 'directoin'" + PLACE),
        (replace(tiny_spec(), task="spherenorm_tiny:Mistaken"), "'evaluations'.*" + PLACE),
        (replace(tiny_spec(), probes=("spherenorm_tiny:tensor_probe",)), "Tensor is not JSON"),
        (
            replace(tiny_spec(), probes=("spherenorm_tiny:clashing_probe",)),
            "'loss', which is taken",
        ),
        (Spec("cosine", "spherenorm_tiny:mistyped", epochs=5, probes=()), "'directoin'"),
    ],
    ids=["recipe", "typo", "score", "json", "probe", "sweep"],
)
def test_what_cannot_run_is_refused_with_file_and_line(spec, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        rehearse(run_of(spec))
    assert torch.equal(torch.get_rng_state(), state)


ODD = r"\(spherenorm_odd.py, line \d+\)"


@pytest.mark.parametrize(
    ("fault", "message"),
    {
        "a list": f"data.. of Faulty {ODD}: the train split must be a tuple of tensors.* of Tensor",
        "arrays": "the validation split must be a tuple of tensors.* got a tuple of ndarray",
        "a dict": "the train split must be a tuple of tensors.* got a dict",
        "lengths": r"the train split has tensors without a common .*: \(40, 6\), \(60, 1\)",
        "a scalar": "the test split has tensors without a common first dimension",
        "no items": "the train split is empty",
        "no validation": "the validation split is empty",
        "a tuple": r"must return Splits\(train, validation, test\), got a tuple of tuple",
        "one model": f"model.. of Faulty {ODD} returns the same '0.weight' on each call",
        "statistics": "returns the same '0.1.running_mean' on each call",
        "no model": "must return a torch.nn.Module, got a OrderedDict",
        "frozen": f"loss.. of Faulty {ODD}: no parameter of the model takes a gradient",
        "a vector": r"loss.. of Faulty .* must return one real number.* got shape \(8, 1\)",
        "a number": "must return a tensor, got a float",
        "detached": "has no gradient: it is detached",
        "integer": "must return one real number.* torch.int64",
        "a tensor": f"evaluate.. of Faulty {ODD}: the metric 'score' must be .* got a Tensor",
        "a float": "the metric 'score' must be a Mean, Sums or Collected, got a float",
        "nan": "the metric 'score' is not a number",
        "a typo": f"'float' object has no attribute 'mean' {ODD}",
        "bare": "evaluate.. of Faulty .* gives no metric: return them by name",
    }.items(),
)
def test_a_mistake_in_a_task_is_one_sentence_with_its_place(fault, message, tmp_path):
    spec = replace(tiny_spec(), task="spherenorm_odd:Faulty", options={"fault": fault})
    with pytest.raises(ValueError, match=message) as raised:
        rehearse(run_of(spec, tmp_path))
    assert len(str(raised.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_what_eight_items_cannot_tell_is_no_mistake():
    spec = replace(tiny_spec(), task="spherenorm_odd:Faulty", options={"fault": "too few"})
    rehearse(run_of(spec))


def test_a_task_without_a_budget_is_named_with_its_place(monkeypatch):
    monkeypatch.delattr(Tiny, "tiers")
    message = r"Tiny \(spherenorm_tiny.py, line \d+\) has no budget for the tier 'smoke'; give"
    with pytest.raises(ValueError, match=message):
        Study().budget(Plan("smoke"), "spherenorm_tiny:Tiny")


def test_a_crash_names_the_line_and_stores_nothing(tmp_path):
    asked = ("run", STUDY, "--optimizers", "spherenorm_tiny:dying", "--tier", "smoke")
    command = process(*asked, "--out", tmp_path / "runs")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGSEGV
    assert re.search(r'spherenorm_tiny.py", line \d+ in update', ended.stderr)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("task", ["detection", "retrieval", "debiasing"])
def test_parts_of_a_batch_are_refused_where_they_have_another_loss(task, tmp_path):
    """By the door, which a worker's request comes through too, that nobody rehearses."""
    spec = Spec(task, "adamp", {"lr": 1e-3}, regime=Regime(micro_batches=2))
    with pytest.raises(ValueError, match=f"micro_batches=2: the loss of task '{task}' is no mean"):
        execute_spec(spec, tmp_path)


def test_each_recipe_and_task_is_rehearsed_once(monkeypatch, tmp_path):
    steps, original = [], Training.step
    monkeypatch.setattr(
        Training, "step", lambda self, *a: (steps.append(self.run.spec), original(self, *a))[1]
    )
    Campaign([TinyStudy()], Plan("smoke"), Door(Store(tmp_path))).rehearse()
    assert [spec.recipe for spec in steps] == ["sgd", "sgdp"]


def test_equal_models_of_equal_tasks_are_audited_once(monkeypatch):
    audited, audit = [], _weights.audit
    monkeypatch.setattr(_weights, "_AUDITED", {})
    monkeypatch.setattr(
        _weights, "audit", lambda *of, **how: audited.append(of) or audit(*of, **how)
    )

    def count(seed=0, scale=1.0, change=lambda model: None):
        """The audits up to this model."""
        torch.manual_seed(seed)
        task = Tiny(scale)
        model = task.model()
        change(model)
        watched = _weights.Watched.of(model, task, "cpu")
        assert watched.views == {"0.weight": "channel", "4.weight": None}
        return len(audited)

    assert [count(), count(), count(seed=1), count(scale=2.0), count()] == [1, 1, 2, 3, 3]
    assert count(change=lambda model: model[1].running_mean.add_(1)) == 4
    assert count(change=lambda model: model[4].bias.requires_grad_(False)) == 5


def test_a_table_is_rehearsed_by_its_first_row_and_its_first_column(monkeypatch, tmp_path):
    """Of all pairs of settings and recipes it would take minutes."""
    seen = []
    monkeypatch.setattr(
        "spherenorm_experiments.study._campaign.rehearse", lambda run, **_: seen.append(run)
    )
    other = replace(PLAIN, label="other", setup={"variant": "residual"})
    study = small_table(on=[PLAIN, other])
    Campaign([study], Plan("small"), Door(Store(tmp_path))).rehearse()
    pairs = [(run.spec.options["variant"], run.spec.recipe) for run in seen]
    assert pairs == [("plain", "sgd"), ("plain", "sgdp"), ("residual", "sgd")]


@pytest.mark.long
@pytest.mark.parametrize("tier", ["small", "full"])
def test_every_study_starts_at_this_tier(tier, tmp_path):
    """The smoke tier, which the suite runs, has but the first condition of a comparison."""
    studies = [find_study(name) for name in study_classes()]
    Campaign(studies, Plan(tier), Door(Store(tmp_path))).rehearse()
