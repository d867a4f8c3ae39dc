"""Turns beside their laws: the probe, the readings of a run, and the studies that rest on them."""

import math

import numpy as np
import pytest
import torch

from spherenorm_experiments.extra.control import turns
from spherenorm_experiments.extra.control.arms import BASES, CONTROLS
from spherenorm_experiments.extra.control.end_of_training import EndOfTraining
from spherenorm_experiments.extra.control.lr_transfer import AT_ONCE, SHARE, WARM_UP
from spherenorm_experiments.extra.control.norm_control import NormControl
from spherenorm_experiments.extra.control.probe import rotation
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.probes import MeasuredStep
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Regime, Spec
from spherenorm_theory import turn_at_rest
from tests.experiments.fabricated import result

STEPS = 100
VIEWS = {"blocks.0.query.weight": "layer", "blocks.0.value.weight": None, "head.weight": "layer"}


def run(spec, turn, norm=lambda step: 1.0, gradient=lambda step: 1.0, views=None, **summary):
    """A run of 100 steps that was probed at each tenth.

    Args:
        turn: of the hidden weights, a function of the step from 0 and of the weight's place.
        norm, gradient: of each, functions of the step.
    """
    views = VIEWS if views is None else views
    records = [
        {
            "step": step + 1,
            "rotation": {
                name: [norm(step), turn(step, place), gradient(step)] if place < 2 else [9, 9, 9]
                for place, name in enumerate(views)
            },
        }
        for step in range(9, STEPS, 10)
    ]
    numbers = {"steps": STEPS, "steps_per_epoch": STEPS, "views": views, **summary}
    return lambda place: result(place, 0, spec, records, **numbers)


def hyperball(**more):
    return Spec("bytes", "hyperball(adamw)", {"lr": 0.5}, **more)


ARM = Place("bytes", "Adam, Hyperball")


def test_a_hyperball_has_a_law_with_momentum():
    betas, lr = {"betas": [0.9, 0.95]}, 1 / 16
    law = turns.law_with_momentum(Spec("bytes", "hyperball(adamw)", {"lr": lr, **betas}))
    assert law(lr) == turn_at_rest("hyperball(adamw)", lr=lr, betas=(0.9, 0.95)) < math.atan(lr)
    law = turns.law_with_momentum(Spec("bytes", "hyperball(muon)", {"lr": lr}))
    assert law(lr) == turn_at_rest("hyperball(muon)", lr=lr) < math.atan(lr)
    for recipe, given in (("adamw", betas), ("rotational(adamw)", betas)):
        assert turns.law_with_momentum(Spec("bytes", recipe, {"lr": lr, **given})) is None


def test_the_probe_measures_each_weight_as_a_whole():
    random = torch.Generator().manual_seed(0)
    before, after, grad = (torch.randn(3, 5, generator=random).double() for _ in range(3))
    found = rotation(MeasuredStep({"a": before}, {"a": after}, {"a": grad}, {"a": None}))
    norm, turn, gradient = found["rotation"]["a"]
    w, v = before.flatten().tolist(), after.flatten().tolist()
    cosine = sum(x * y for x, y in zip(w, v, strict=True)) / math.hypot(*w) / math.hypot(*v)
    assert norm == pytest.approx(math.hypot(*v), rel=1e-12)
    assert turn == pytest.approx(math.acos(cosine), rel=1e-12)
    assert gradient == pytest.approx(math.hypot(*grad.flatten().tolist()), rel=1e-12)


def test_turns_are_compared_with_the_law_at_the_rate_of_each_step():
    spec = hyperball(schedule="linear", regime=Regime(warmup=0.3))

    def rate(step):
        return 0.5 * (1 - step / STEPS) * min(1.0, (step + 1) / 30)

    def turn(step, place):
        return math.atan(rate(step)) * ((1.0 if place else 1.2) if step >= STEPS / 2 else 9.0)

    item = run(spec, turn)(ARM)
    assert turns.Rotations.of(item).rates == pytest.approx([rate(s) for s in range(9, STEPS, 10)])
    assert turns.turn_over_law(item) == pytest.approx(1.1)
    law = turns.law_with_momentum
    late = [math.atan(rate(s)) / law(spec)(rate(s)) for s in range(59, STEPS, 10)]
    assert turns.turn_over_law(item, law) == pytest.approx(1.1 * sum(late) / len(late))


@pytest.mark.parametrize(
    ("recipe", "settings", "turn"),
    [
        ("hyperball(muon)", {}, math.atan(0.25)),
        ("rotational(adamw)", {}, 0.25),
        # Kosson et al. 2024: sqrt(2 eta lambda (1 - beta1) / (1 + beta1))
        ("adamw", {"betas": [0.9, 0.95], "weight_decay": 1e-4}, math.sqrt(5e-5 * 0.1 / 1.9)),
        ("adamp", {"betas": [0.9, 0.95], "weight_decay": 1e-4}, None),
        ("muon", {"weight_decay": 0.1}, None),
        ("mdmuon", {}, None),
    ],
)
def test_the_laws_are_those_of_the_literature(recipe, settings, turn):
    law = turns.law_of(Spec("bytes", recipe, {"lr": 0.25, **settings}))
    assert (law is None) == (turn is None)
    assert law is None or law(0.25) == pytest.approx(turn, rel=1e-3)


def test_stationary_numbers_are_of_hidden_weights_in_the_second_half():
    def turn(step, place):
        return 5.0 if step < 50 else 0.1 * (1 + place)

    item = run(hyperball(), turn, norm=lambda step: 2.0 ** (step / 90))(ARM)
    assert turns.late_turn(item) == pytest.approx(math.sqrt((0.1**2 + 0.2**2) / 2))
    assert turns.spread_over_layers(item) == pytest.approx(np.std([0.1, 0.2], ddof=1) / 0.15)
    assert turns.norm_growth(item) == pytest.approx(2.0)
    views = {"conv.weight": "channel", "next.weight": "channel", "last.weight": None}
    convolutions = run(hyperball(), turn, views=views)(ARM)
    assert turns.late_turn(convolutions) == pytest.approx(turns.late_turn(item))
    assert turns.late_turn(run(hyperball(), turn, views={"last.weight": None})(ARM)) is None


@pytest.fixture
def law(monkeypatch):
    """AdamW's turn in equilibrium is twice its rate, and momentum changes nothing on hyperballs."""
    monkeypatch.setattr(turns, "_turn_at_rest", lambda recipe, others, rate: math.atan(rate))
    monkeypatch.setattr(turns, "_turn_under_decay", lambda _, rate: 2 * rate)


@pytest.mark.parametrize(("off", "verdict"), [(1.0, "supported"), (1.4, "contradicted")])
def test_turns_on_their_law_are_told_from_others(law, off, verdict):
    study, items = NormControl(), []
    for trial in study.trials(Plan("evidence"), Runs()):
        control, predicted = trial.place.arm.split(", ")[1], turns.law_of(trial.spec)
        base = 0.1 if predicted is None else predicted(trial.spec.hyper_parameters["lr"])
        noise = 1 + 0.002 * math.cos(5 * trial.spec.seed + len(trial.spec.recipe))
        wide = (0.4 if (control == "decay") == (off == 1.0) else 0.1) * noise
        made = run(
            trial.spec,
            lambda _, place, x=base * noise * off, w=wide: x * (1 + w * (2 * place - 1)),
        )
        items.append(made(trial.place))
    found = {each.claim.name: each.verdict for each in study.decided(Runs(items))}
    assert len(found) == 22
    assert set(found.values()) == {verdict}
    (table,) = study.tables(Runs(items))
    assert len(table.rows) == 2 * len(BASES) * len(CONTROLS) * 3  # tasks, arms, rates


@pytest.mark.parametrize("grows", [True, False])
def test_growing_gradients_are_told_from_cured_ones(grows):
    study, items = EndOfTraining(), []
    for trial in study.trials(Plan("evidence"), Runs()):
        decayed = trial.place.arm == "AdamW"
        late = (2.0 if decayed == grows else 0.8) + 0.01 * math.cos(5 * trial.spec.seed)
        shrunk = (0.7 if decayed == grows else 1.1) + 0.001 * math.cos(5 * trial.spec.seed)
        made = run(
            trial.spec, lambda *_: 0.1, test=80.0 + math.cos(trial.spec.seed),
            gradient=lambda step, x=late: 1.0 if step < 60 else x,
            norm=lambda step, x=shrunk: 1.0 if step < 60 else x,
        )  # fmt: skip
        items.append(made(trial.place))
    found = {each.claim.name: each.verdict for each in study.decided(Runs(items))}
    for place in ("bytes", "digits"):
        for name in ("grows", "less.adamc", "less.hyperball", "shrinks"):
            assert found[f"{name}.{place}"] == ("supported" if grows else "contradicted"), name
        assert found[f"keeps.{place}"] == "contradicted"
    (table,) = study.tables(Runs(items))
    assert len(table.rows) == 6


@pytest.mark.parametrize("needless", [True, False])
def test_a_warm_up_that_only_decay_needs_is_told_from_one_that_all_need(needless):
    items = []
    for trial in WARM_UP.trials(Plan("evidence"), Runs()):
        name, spec = trial.place.arm, trial.spec
        warmed = name.endswith("warm-up")
        assert spec.regime == Regime(warmup=SHARE if warmed else 0.0)
        gain = 0.2 if ("decay" in name) == needless else 0.05
        octave = math.log2(spec.hyper_parameters["lr"])
        loss = 2.0 - gain * warmed + 0.01 * octave**2
        pair = AT_ONCE.index(tuple(name.split(", ")[:2]))
        loss += 0.002 * math.cos(5 * spec.seed + 2 * pair + warmed + octave)
        numbers = {"test": -loss, "validation": -loss, "metric": "minus loss (nats)", "views": {}}
        items.append(result(trial.place, 0, spec, **numbers))
    found = {each.claim.name: each.verdict for each in WARM_UP.decided(Runs(items))}
    assert len(found) == 2 * len(AT_ONCE) + 2 * (len(AT_ONCE) - 2)
    for name, verdict in found.items():
        less = name.startswith("less.")
        assert verdict == ("contradicted" if less and not needless else "supported"), name
    assert {item.spec.options["width"] for item in items} == {32}
    assert {item.spec.task for item in items} == {"bytes"}
