"""Runs of pure tasks: a sweep over the points of their hyper-parameters."""

import numpy as np
import pytest
import torch
from running import folder_of

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine.door import execute_spec
from spherenorm_experiments.paper.shared.toys import Cosine


@pytest.mark.parametrize("task", ["rosenbrock", "mlp"])
def test_a_point_of_a_sweep_diverges_alone(tmp_path, task):
    def summary(*rates):
        spec = Spec(
            task,
            "sgd",
            {"lr": list(rates), "momentum": 0.9},
            epochs=20,
            schedule="constant",
            probes=(),
        )
        outcome = execute_spec(spec, tmp_path)
        text = (folder_of(spec, tmp_path).path / "summary.json").read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        return outcome.state, folder_of(spec, tmp_path).summary()

    state, both = summary(0.01, 1e300)
    good, bad = both["points_diverged_at"]
    assert (state, both["diverged_at"], good) == ("finished", None, None)
    assert 0 <= bad < 20
    state, alone = summary(1e300)
    assert (state, alone["diverged_at"], alone["points_diverged_at"]) == ("diverged", bad, [bad])
    assert summary(0.01)[1]["points_diverged_at"] == [None]


def test_a_sweep_of_another_hyper_parameter_has_a_schedule_too(tmp_path):
    for hyper_parameters in ({"momentum": [0.0, 0.9]}, {"momentum": [0.0, 0.9], "lr": 0.02}, {}):
        outcome = execute_spec(
            Spec("cosine", "sgd", hyper_parameters, epochs=5, schedule="linear", probes=()),
            tmp_path,
        )
        assert outcome.state == "finished", outcome.error


def test_a_toy_descends_as_torch_does(tmp_path):
    """The sweep's trajectory against torch.optim.SGD on the same loss."""

    spec = Spec(
        "cosine",
        "sgd",
        {"lr": [0.02, 0.1], "momentum": 0.9},
        epochs=50,
        schedule="linear",
        probes=(),
    )
    assert execute_spec(spec, tmp_path).state == "finished"
    arrays = folder_of(spec, tmp_path).arrays()
    w = torch.tensor([0.001, 1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 50)
        optimizer.zero_grad()
        Cosine().value(w).backward()
        optimizer.step()
    np.testing.assert_allclose(arrays["w"][-1, 1], w.detach().numpy(), rtol=1e-10)


def test_a_pure_task_that_draws_from_the_global_random_states_is_seeded_by_the_run(tmp_path):
    spec = Spec("spherenorm_tiny:Noisy", "sgd", {"lr": 0.1}, epochs=3, probes=())
    ends = []
    for root in "ab":
        assert execute_spec(spec, tmp_path / root).state == "finished"
        ends.append(folder_of(spec, tmp_path / root).arrays()["loss"].tolist())
        np.random.rand()
    assert ends[0] == ends[1]
