"""The study of learning rates over widths: losses against rate, and what is told from them."""

import math

import numpy as np
import pandas as pd
import pytest
from byte_model import UNIFORM
from lr_transfer import (
    ARMS,
    CONDITIONS,
    STUDY,
    around_best,
    best_octave,
    drift,
    losses,
    over_widths,
    sensitivity,
    vertex,
)
from norm_controls import BASES, CONTROLS

from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from tests.experiments.fabricated import result


def test_the_best_rate_of_a_parabola_is_its_vertex():
    octaves = [-6.0, -5.0, -4.0, -3.0]
    for best in (-4.5, -4.2, -4.0):
        assert vertex(octaves, [(x - best) ** 2 for x in octaves]) == pytest.approx(best)
    assert vertex(octaves, octaves) == -6.0  # an end
    assert vertex(octaves, [3.0, 1.0, 1.0, 1.0]) == pytest.approx(-4.5)


def test_the_sensitivity_is_over_the_rates_within_two_octaves_of_the_best_mean():
    found = pd.DataFrame([[9.0, 4.0, 2.0, 1.0, 3.0, 5.0, 9.0], [9.0, 2.0, 1.0, 1.5, 3.0, 5.0, 9.0]])
    assert around_best(found) == [1, 2, 3, 4, 5]  # the fourth rate is best on the average
    by_hand = {0: 15 / 5 - 1, 1: 12.5 / 5 - 1}
    assert dict(sensitivity(found)) == pytest.approx(by_hand)
    rising = pd.DataFrame([np.arange(7.0)])
    assert around_best(rising) == [0, 1, 2]  # not those further off


def world(loss, plan="evidence", lost=()):
    """Runs of the study with these losses, a function of (base, control, width, octave).

    Args:
        lost: controls whose runs at the largest rate diverge.
    """
    items = []
    for trial in STUDY.trials(Plan(plan), Runs()):
        name, spec = trial.place.arm, trial.spec
        base, control = name.split(", ")
        octave = math.log2(spec.hyper_parameters["lr"])
        middle = -5.5 if spec.recipe in ("adamw", "adamp", "radial_brake(adamw)") else -4.5
        value = loss(base, control, spec.options["width"], octave - middle)
        value += 0.001 * math.cos(7 * spec.seed + 3 * CONTROLS.index(control) + 5 * octave)
        diverged = 3 if control in lost and octave - middle > 2 else None
        numbers = {"test": None if diverged else -value, "validation": -value}
        numbers |= {"diverged_at": diverged, "views": {}, "metric": "minus loss (nats)"}
        items.append(result(trial.place, 0, spec, **numbers))
    return Runs(items)


def decided(results):
    return {each.claim.name: each.verdict for each in STUDY.decide_claims(results)}


@pytest.mark.parametrize(("better", "verdict"), [(1, "supported"), (-1, "contradicted")])
def test_a_control_with_flatter_curves_that_do_not_drift_is_told_from_decay(better, verdict):
    def loss(base, control, width, octave):
        flat = (control == "Hyperball") == (better == 1)
        shift = 0.0 if flat else 0.75 * math.log2(width / 32)
        return 2.0 + 0.05 * (not flat) + (0.02 if flat else 0.1) * (octave - shift) ** 2

    found = decided(world(loss))
    for base in ("adam", "muon"):
        for what in ("loss", "sensitivity", "drift"):
            assert found[f"{what}.{base}.hyperball"] == verdict, what
            assert found[f"{what}.{base}.rotational"] in ("inconclusive", "equivalent")


def test_numbers_over_widths_are_those_of_the_losses():
    results = world(lambda base, control, width, octave: 2 + 0.1 * (octave - width / 64) ** 2)
    arm = ARMS["Muon", "Hyperball"].name
    ends = [each for each in CONDITIONS if each.label in ("width 16", "width 64")]
    narrow, wide = (losses(results, each.label, arm) for each in ends)
    assert set(narrow.index) == set(STUDY.chosen_seeds(Plan("evidence")))
    assert dict(best_octave(wide)) == pytest.approx(dict.fromkeys(wide.index, -4.5 + 1), abs=0.02)
    shift = dict.fromkeys(narrow.index, 1 - 16 / 64)
    assert dict(drift(results, arm)) == pytest.approx(shift, abs=0.04)
    mean = (sensitivity(narrow) + sensitivity(wide)) / 2
    assert dict(over_widths(results, arm, sensitivity)) == pytest.approx(dict(mean))


def test_a_run_that_diverged_counts_as_a_uniform_model():
    results = world(lambda *_: 9.0, lost=("Hyperball",))
    for base in BASES:
        for control in ("decay", "Hyperball"):
            found = losses(results, CONDITIONS[0].label, ARMS[base, control].name)
            assert (found == UNIFORM).all(axis=None)
            assert found.shape == (6, 6)
