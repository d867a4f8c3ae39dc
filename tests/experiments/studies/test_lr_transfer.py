"""The study of rates over widths: the factors of its policies, and losses that drift or stay."""

import math

import pandas as pd
import pytest
from lr_transfer import (
    ARMS,
    BASE_WIDTH,
    OPTIMIZERS,
    STAYS,
    LrTransfer,
    TransferredModel,
    arm_name,
    at_edge,
    best_octave,
    cost_of_transfer,
    drift,
    losses,
    rate_factors,
    vertex,
)

import spherenorm as sn
from spherenorm_experiments import ByteModel, Plan, Runs
from tests.experiments.fabricated import result

STUDY = LrTransfer()


def test_the_best_rate_of_a_parabola_is_its_vertex():
    octaves = [-6.0, -5.0, -4.0, -3.0]
    for best in (-4.5, -4.2, -4.0):
        assert vertex(octaves, [(x - best) ** 2 for x in octaves]) == pytest.approx(best)
    assert vertex(octaves, octaves) == -6.0  # an end
    assert vertex(octaves, [3.0, 1.0, 1.0, 1.0]) == pytest.approx(-4.5)
    assert at_edge(pd.DataFrame([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]])) == 2


@pytest.mark.parametrize(
    ("policy", "recipe", "scale", "hidden", "head"),
    [
        ("mup", "adamw", "", 1 / 2, 1 / 2),
        ("spectral", "muon", "", 1, 1 / 2),
        ("spectral", "muon", "match_rms_adamw", 2**-0.5, 1 / 2),
        ("turn", "hyperball(muon)", "", 1, 2**-0.5),
        ("spectral", "hyperball(muon)", "", 2**-0.5, 1 / 2),
    ],
)
def test_a_policy_multiplies_the_rates_of_a_model_of_twice_the_width(
    policy, recipe, scale, hidden, head
):
    task = TransferredModel(2 * BASE_WIDTH, 16, policy, recipe, scale)
    factors = rate_factors(task)
    matrices = [name for name in factors if name.startswith("blocks.")]
    assert {name: factors[name] for name in matrices} == pytest.approx(
        dict.fromkeys(matrices, hidden), rel=0.03
    )
    assert factors["head.weight"] == pytest.approx(head, rel=0.03)
    assert factors["bytes.weight"] == factors["places.weight"] == 1
    model = task.model()
    names = {weight: name for name, weight in model.named_parameters()}
    grouped = {
        names[weight]: group["lr_factor"]
        for group in task.parameter_groups(model)
        for weight in group["params"]
    }
    assert grouped == factors
    one_rate = TransferredModel(2 * BASE_WIDTH, 16, "one rate", recipe, scale)
    assert not one_rate.parameter_groups(model)


def test_the_start_of_the_byte_model_is_that_of_the_base_at_every_width():
    base, model = ByteModel(32).model(), ByteModel(128).model()
    batch = ByteModel(windows=16).audit_inputs()
    assert {change.factor for change in sn.transfer.start(model, base, batch)} == {1.0}


def world(loss):
    """Runs of the study with these losses, a function of (optimizer, policy, width, octave)."""
    items = []
    for trial in STUDY.trials(Plan("evidence"), Runs()):
        name, policy = trial.place.arm.split(", ")
        width = int(trial.place.condition.split()[1])
        octave = math.log2(trial.spec.hyper_parameters["lr"])
        value = loss(name, policy, width, octave) + 0.002 * math.cos(
            5 * trial.spec.seed + octave + width
        )
        numbers = {"test": -value, "validation": -value, "metric": "minus loss (nats)"}
        items.append(result(trial.place, 0, trial.spec, **numbers, views={}))
    return Runs(items)


MIDDLE = {"adamw": -6.4, "muon": -4.6, "muon (rms)": -5.4, "hyperball": -3.6}


def curve(name, policy, width, octave):
    """The best rate falls by half an octave per doubling under the second policy of an arm."""
    falls = policy != OPTIMIZERS[name].policies[0]
    best = MIDDLE[name] - 0.5 * falls * math.log2(width / BASE_WIDTH)
    return 2.0 + 0.1 * (octave - best) ** 2 - 0.001 * width


def test_a_rate_that_stays_is_told_from_one_that_drifts():
    runs = world(curve)
    verdicts = {each.claim.name: each.verdict for each in STUDY.decide_claims(runs)}
    assert verdicts == {
        "stays.adamw-mup": "supported",
        "stays.adamw-one-rate": "contradicted",
        "less.adamw-mup": "supported",
        "stays.muon-spectral": "supported",
        "stays.muon-rms-spectral": "supported",
        "stays.muon-rms-one-rate": "contradicted",
        "less.muon-rms-spectral": "supported",
        "stays.hyperball-turn": "supported",
        "stays.hyperball-spectral": "contradicted",
        "less.hyperball-turn": "supported",
    }
    drifts = drift(runs, "adamw, one rate")
    assert dict(drifts) == pytest.approx(dict.fromkeys(drifts.index, -1.0), abs=0.05)
    assert abs(drift(runs, "adamw, mup")).max() < 0.05 < STAYS
    summary, curves = STUDY.tables(runs)
    assert len(summary.rows) == len(curves.rows) == 2 * len(ARMS)


def test_the_cost_of_a_transferred_rate_is_the_loss_at_the_bases_choice():
    runs = world(curve)
    cost = cost_of_transfer(runs, "width 128", arm_name("adamw", "one rate"))
    # The base's best rate of the grid is 2^-6, and the wide model's 2^-7 (its vertex is -7.4).
    expected = 0.1 * ((-6 + 7.4) ** 2 - (-7 + 7.4) ** 2)
    assert dict(cost) == pytest.approx(dict.fromkeys(cost.index, expected), abs=0.005)
    assert (cost_of_transfer(runs, "width 128", arm_name("adamw", "mup")) == 0).all()


def test_policies_share_the_runs_of_the_base_width():
    trials = STUDY.trials(Plan("evidence"), Runs())
    base = [trial for trial in trials if trial.place.condition == f"width {BASE_WIDTH}"]
    seeds, rates = STUDY.seeds["evidence"], 6
    assert len(base) == len(ARMS) * rates * seeds
    assert len({trial.spec.text for trial in base}) == len(OPTIMIZERS) * rates * seeds


def test_a_run_that_diverged_counts_as_a_uniform_model():
    runs = world(lambda *_: 9.0)
    table = losses(runs, "width 128", "muon, spectral")
    assert (table == ByteModel.uniform_loss).all(axis=None)
    assert table.shape == (6, 6)
    assert best_octave(table).notna().all()
