"""Turns beside their laws: probe, readings of a run, and the study; MDAdam against a loop."""

import math

import norm_control
import numpy as np
import pytest
import torch
from norm_control import BASES, CONTROLS, NormControl, mdadam, rotation

from spherenorm_experiments.plan import Plan
from spherenorm_experiments.probes import MeasuredStep
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Regime, Spec
from spherenorm_theory import equilibrium_turn
from tests.experiments.fabricated import result

BYTES = "spherenorm_experiments.byte_model:ByteModel"
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
    return Spec(BYTES, "hyperball(adamw)", {"lr": 0.5}, **more)


ARM = Place("bytes", "Adam, Hyperball")


def test_a_hyperball_has_a_law_with_momentum():
    betas, lr = {"betas": [0.9, 0.95]}, 1 / 16
    law = norm_control.law_with_momentum(Spec(BYTES, "hyperball(adamw)", {"lr": lr, **betas}))
    assert law(lr) == equilibrium_turn("hyperball(adamw)", lr=lr, betas=(0.9, 0.95)) < math.atan(lr)
    law = norm_control.law_with_momentum(Spec(BYTES, "hyperball(muon)", {"lr": lr}))
    assert law(lr) == equilibrium_turn("hyperball(muon)", lr=lr) < math.atan(lr)
    for recipe, given in (("adamw", betas), ("rotational(adamw)", betas)):
        assert norm_control.law_with_momentum(Spec(BYTES, recipe, {"lr": lr, **given})) is None


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
    assert norm_control.Rotations.of(item).rates == pytest.approx(
        [rate(s) for s in range(9, STEPS, 10)]
    )
    assert norm_control.turn_over_law(item) == pytest.approx(1.1)
    law = norm_control.law_with_momentum
    late = [math.atan(rate(s)) / law(spec)(rate(s)) for s in range(59, STEPS, 10)]
    assert norm_control.compare_turn(item, law) == pytest.approx(1.1 * sum(late) / len(late))


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
    law = norm_control.law_of(Spec(BYTES, recipe, {"lr": 0.25, **settings}))
    assert (law is None) == (turn is None)
    assert law is None or law(0.25) == pytest.approx(turn, rel=1e-3)


def test_stationary_numbers_are_of_hidden_weights_in_the_second_half():
    def turn(step, place):
        return 5.0 if step < 50 else 0.1 * (1 + place)

    item = run(hyperball(), turn, norm=lambda step: 2.0 ** (step / 90))(ARM)
    assert norm_control.late_turn(item) == pytest.approx(math.sqrt((0.1**2 + 0.2**2) / 2))
    assert norm_control.spread_over_layers(item) == pytest.approx(np.std([0.1, 0.2], ddof=1) / 0.15)
    assert norm_control.norm_growth(item) == pytest.approx(2.0)
    views = {"conv.weight": "channel", "next.weight": "channel", "last.weight": None}
    convolutions = run(hyperball(), turn, views=views)(ARM)
    assert norm_control.late_turn(convolutions) == pytest.approx(norm_control.late_turn(item))
    assert norm_control.late_turn(run(hyperball(), turn, views={"last.weight": None})(ARM)) is None


@pytest.fixture
def law(monkeypatch):
    """AdamW's turn in equilibrium is twice its rate, and momentum changes nothing on hyperballs."""
    monkeypatch.setattr(norm_control, "_equilibrium_turn", lambda *given: math.atan(given[-1]))
    monkeypatch.setattr(norm_control, "_turn_under_decay", lambda _, rate: 2 * rate)


@pytest.mark.parametrize(("off", "verdict"), [(1.0, "supported"), (1.4, "contradicted")])
def test_turns_on_their_law_are_told_from_others(law, off, verdict):
    study, items = NormControl(), []
    for trial in study.trials(Plan("evidence"), Runs()):
        control, predicted = trial.place.arm.split(", ")[1], norm_control.law_of(trial.spec)
        base = 0.1 if predicted is None else predicted(trial.spec.hyper_parameters["lr"])
        noise = 1 + 0.002 * math.cos(5 * trial.spec.seed + len(trial.spec.recipe))
        wide = (0.4 if (control == "decay") == (off == 1.0) else 0.1) * noise
        made = run(
            trial.spec,
            lambda _, place, x=base * noise * off, w=wide: x * (1 + w * (2 * place - 1)),
        )
        items.append(made(trial.place))
    found = {each.claim.name: each.verdict for each in study.decide_claims(Runs(items))}
    assert len(found) == 22
    assert set(found.values()) == {verdict}
    (table,) = study.tables(Runs(items))
    assert len(table.rows) == 2 * len(BASES) * len(CONTROLS) * 3  # tasks, arms, rates


def test_gains_and_direction_are_those_of_a_loop_in_float64():
    random = torch.Generator().manual_seed(0)
    moments = {}

    def adam(name, grad, step):
        first, second = moments.get(name, (0.0, 0.0))
        moments[name] = first, second = 0.9 * first + 0.1 * grad, 0.95 * second + 0.05 * grad**2
        return first / (1 - 0.9**step) / ((second / (1 - 0.95**step)) ** 0.5 + 1e-8)

    weight = torch.randn(5, 3, generator=random, dtype=torch.float64)
    rule = mdadam(lr=0.05, gain_ratio=0.2)
    state = rule.init(weight)
    held, radius = weight, weight.norm()
    one = torch.tensor(math.log(math.e - 1), dtype=torch.float64)  # its softplus is 1
    rows, columns = one.expand(5, 1), one.expand(1, 3)
    for step in range(1, 30):
        grad = torch.randn(5, 3, generator=random, dtype=torch.float64)
        weight, state = rule.step(weight, grad, state)
        a, b = (torch.log1p(gain.exp()) for gain in (rows, columns))
        moved = adam("direction", a * b * grad, step)
        slopes = held * b * grad, held * a * grad
        held = held - 0.05 * radius * moved / moved.norm()
        held = radius * held / held.norm()
        rows = rows - 0.01 * adam("a", slopes[0].sum(1, keepdim=True) * rows.sigmoid(), step)
        slope = slopes[1].sum(0, keepdim=True)
        columns = columns - 0.01 * adam("b", slope * columns.sigmoid(), step)
        expected = torch.log1p(rows.exp()) * held * torch.log1p(columns.exp())
        assert (weight - expected).norm() <= 1e-12 * expected.norm()
