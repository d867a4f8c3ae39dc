"""The measurement of a step's cost."""

from running import run_of

from spherenorm_experiments.core import Spec


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
    run = run_of(spec)
    measured = run.task.measure(spec, run.bound)
    assert measured["gradient_ms"] > 0
    total = (
        measured["gradient_ms"] + measured["recipe_ms"],
        measured["gradient_ms"] + measured["baseline_ms"],
    )
    assert measured["ratio"] == total[0] / total[1]
