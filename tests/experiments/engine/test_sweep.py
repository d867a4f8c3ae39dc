"""Runs of pure tasks: one point and one seed each, however many train as one computation."""

import numpy as np
import pytest
import torch
from running import run_of

from spherenorm_experiments.execute import execute
from spherenorm_experiments.jobs import jobs_of
from spherenorm_experiments.spec import Spec, points_of
from spherenorm_experiments.store import Store
from spherenorm_paper.shared.toys import Cosine


def pure(task, hyper_parameters, options=None, recipe="sgd", epochs=20, seeds=(0,), **more):
    """Every point with every seed."""
    common = {"schedule": "constant", "probes": (), "epochs": epochs, **more}
    return [
        Spec(task, recipe, point, options or {}, seed=seed, **common)
        for point in points_of(hyper_parameters)
        for seed in seeds
    ]


def executed(specs, root):
    """The outcome, and the rows in the order of the specs, of which one computation is made."""
    runs = [run_of(spec, root) for spec in specs]
    (job,) = jobs_of(runs)
    outcome = execute(job)
    assert outcome.state != "failed", outcome.error
    found = Store(root).find(job.names)
    return outcome, [found[run.name] for run in runs]


@pytest.mark.parametrize("task", ["rosenbrock", "equilibrium:Mlp"])
def test_a_point_diverges_alone(tmp_path, task):
    def ends(*rates):
        outcome, rows = executed(pure(task, {"lr": list(rates), "momentum": 0.9}), tmp_path)
        text = (rows[0].folder.path / "rows.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        for row in rows:
            numbers = [x for name, x in row.summary.items() if name not in ("steps", "diverged_at")]
            assert row.summary["diverged_at"] is None or set(numbers) == {None}
        return outcome.state, [row.summary["diverged_at"] for row in rows]

    state, (good, bad) = ends(0.01, 1e300)
    assert (state, good) == ("finished", None)
    assert 0 <= bad < 20
    assert ends(1e300) == ("diverged", [bad])
    assert ends(0.01) == ("finished", [None])


def test_a_toy_descends_as_torch_does(tmp_path):
    """The path against torch.optim.SGD on the same loss."""
    points = {"lr": [0.02, 0.1], "momentum": 0.9}
    specs = pure("cosine", points, {"path": True}, schedule="linear", epochs=50)
    _, (_, row) = executed(specs, tmp_path)
    w = torch.tensor([0.001, 1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 50)
        optimizer.zero_grad()
        Cosine().value(w).backward()
        optimizer.step()
    np.testing.assert_allclose(row.arrays["w"][-1], w.detach().numpy(), rtol=1e-10)


def test_a_pure_task_that_draws_from_the_global_random_states_is_seeded_by_the_run(tmp_path):
    ends = []
    for root, seeds in (("a", (1,)), ("b", (0, 1))):
        _, rows = executed(pure("spherenorm_tiny:Noisy", {"lr": 0.1}, seeds=seeds), tmp_path / root)
        ends.append(rows[-1].arrays["loss"].tolist())
        np.random.rand()
    assert ends[0] == ends[1]


SEEDS = (5, 6, 7)
TASKS = [
    pytest.param("rosenbrock", {}, "adamp", 0.02, marks=pytest.mark.long),
    ("equilibrium:Mlp", {}, "adamp", 0.01),
    pytest.param("network", {"precision": "float64"}, "adamp", 0.01, marks=pytest.mark.long),
    pytest.param("network", {}, "sgdp", 0.1, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("task", "options", "recipe", "rate"), TASKS)
def test_a_run_is_the_same_alone_among_3_and_among_7(tmp_path, task, options, recipe, rate):
    """Equal to rounding; on the machines that these tests ran on, to the last bit."""
    every = [rate, rate / 2, rate * 2, rate / 4, rate * 4, rate / 8, rate * 8]
    found = {}
    for name, rates, seeds in (
        ("alone", [rate / 2], (6,)),
        (3, every[:3], (5,)),
        (7, every, SEEDS),
    ):
        specs = pure(task, {"lr": rates}, options, recipe, 12, seeds=seeds)
        _, rows = executed(specs, tmp_path / str(name))
        found[name] = {row.spec.text: _numbers(row) for row in rows}
        assert list(found[name]) == [spec.text for spec in specs]
    single = "precision" not in options and task == "network"
    for some in ("alone", 3):
        for text in found[some].keys() & found[7].keys():
            one, among = found[some][text], dict(found[7][text])
            assert among.pop("test", 0) == one.get("test", 0)  # a score is a count
            for name, value in among.items():
                assert value == pytest.approx(one[name], rel=1e-4 if single else 1e-9), name
    assert len(found["alone"].keys() & found[7].keys()) == 1
    assert len(found[3].keys() & found[7].keys()) == 3


def _numbers(row):
    return {name: x for name, x in row.summary.items() if x is not None}


def test_a_recipe_takes_the_number_of_steps_of_its_run(tmp_path):
    """The recipe's own cosine over these steps is that of the run."""
    own = pure("rosenbrock", {"lr": [0.001, 0.002]}, recipe="spherenorm_tiny:falling")
    of_run = pure("rosenbrock", {"lr": [0.001, 0.002], "momentum": 0.9}, schedule="cosine")
    rows = [executed(specs, tmp_path)[1] for specs in (own, of_run)]
    for found, expected in zip(*rows, strict=True):
        numbers = {name: x for name, x in expected.summary.items() if isinstance(x, float)}
        assert numbers
        assert {name: found.summary[name] for name in numbers} == pytest.approx(numbers, rel=1e-5)
