"""The study of weights in equilibrium, and its network of scale-invariant weights only."""

import math

import pytest
import torch
from equilibrium import EquilibriumStudy, Mlp, predict
from running import run_study

from spherenorm_experiments.runs import Runs
from spherenorm_experiments.spec import Spec
from tests.experiments.fabricated import result


def test_the_norm_in_equilibrium_is_predicted_from_the_gradients(store):
    """At the end |w|^4 is the fixed point of the recursion, for gradients like those there."""
    _, _, results = run_study("equilibrium:EquilibriumStudy", store, only=("sgd",))
    assert len(results) == 4
    for item in results:
        lr, decay = (item.spec.hyper_parameters[name] for name in ("lr", "weight_decay"))
        law = predict("sgd", {"lr": lr, "weight_decay": decay, "momentum": 0.9})
        # By hand, for a small eta lambda: |w|^4 = gamma^2 eta / (2 lambda (1 - beta)), and
        # step^2 = 2 eta lambda / (1 + beta).
        assert law.norm(item) == pytest.approx(
            (item.summary["gamma_squared"] * lr / (2 * decay) / 0.1) ** 0.25, rel=0.01
        )
        assert law.step == pytest.approx((2 * lr * decay / 1.9) ** 0.5, rel=0.01)


def test_every_weight_of_the_mlp_is_invariant_row_by_row():
    task = Mlp()
    params, batch = task.start(3), task.batches(3)(5)
    reference = task.loss(params, batch)
    for name, weight in params.items():
        factors = torch.rand(len(weight), 1, dtype=torch.float64) + 0.5
        torch.testing.assert_close(
            task.loss({**params, name: factors * weight}, batch),
            reference,
            rtol=1e-9,
            atol=0,
        )
    assert torch.equal(task.batches(3)(5)[0], batch[0])
    assert not torch.equal(task.batches(4)(5)[0], batch[0])


def test_the_mlp_measures_gradients_that_do_not_depend_on_the_norm():
    task = Mlp()
    params = {name: weight[None] for name, weight in task.start(0).items()}
    size, count = task.gradients(params)
    again, _ = task.gradients({name: 3 * weight for name, weight in params.items()})
    torch.testing.assert_close(size, again, rtol=1e-6, atol=0)
    alive = len([x for x in task.batches(0)(0)[0].T if x.std() > 0])
    assert (
        24**2 < 2 * count.item() - 24**2 <= 64**2
    )  # the second layer's units have 24 weights, the first one's up to 64
    assert 2 * count.item() - 24**2 >= alive**2  # one batch shows some of the pixels that change


def test_a_point_that_diverged_counts_against_an_equilibrium():
    study = EquilibriumStudy()
    claims = {claim.name: claim for claim in study.claims}
    law = predict("sgd", {"momentum": 0.9, "lr": 0.1, "weight_decay": 0.1}).step

    def off(found):
        runs = [
            result("SGD", seed,
                   Spec("equilibrium:Mlp", "sgd",
                        {"lr": lr, "weight_decay": 0.01 / lr, "momentum": 0.9}, seed=seed),
                   effective_step_rms=None if share is None else share * law,
                   diverged_at=3 if share is None else None)
            for (lr, seed), share in found.items()
        ]  # fmt: skip
        return claims["effective-step.sgd"].statistic(Runs(runs)).to_dict()

    found = {(0.1, 0): 1.1, (0.2, 0): 0.8, (0.1, 1): 1.0, (0.2, 1): None}
    assert off(found) == {0: pytest.approx(20.0, abs=0.1), 1: math.inf}
