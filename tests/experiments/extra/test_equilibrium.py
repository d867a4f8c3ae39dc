"""The study of weights in equilibrium."""

import pytest
from running import run_study, shown

from spherenorm_experiments.engine import Store
from spherenorm_experiments.extra.equilibrium import predict


def test_the_norm_in_equilibrium_is_predicted_from_the_gradients(store):
    """At the end |w|^4 is the fixed point of the recursion, for gradients like those there."""
    _, _, results = run_study("equilibrium", store, only=("sgd",))
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


def test_a_partly_diverged_sweep_is_in_the_table_with_what_survived(tmp_path):
    study, _, results = run_study(
        "equilibrium", Store(tmp_path), only=("sgd",), overrides={"lr": [0.1, 0.2, 0.1, 1e300]}
    )
    rows = shown(study.tables(results)[0])
    assert (
        [row[4] == "diverged" for row in rows]
        == [row[7] == "diverged" for row in rows]
        == [False, False, False, True]
    )
    study.pictures(results)
    claim = study.evaluated(results)[0]  # on the worst point, which diverged
    assert (claim.ours, claim.supported) == ("– (1 diverged)", False)
