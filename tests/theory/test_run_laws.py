"""The law of a run: its norms, its turns in equilibrium, and the rate of `rotational`."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm.probes import Measurement
from spherenorm_theory import (
    NoEquilibriumError,
    equilibrium,
    equilibrium_turn,
    rotational_rate,
    run_law,
)
from tests.harness import refuses
from tests.theory.adversaries import decays_each_fifth


def network():
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 2))


def trained(optimizer, model, law, **options):
    with sn.probe(optimizer, every=1, model=model, law=law, **options) as probe:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(32, 6)).square().mean().backward()
            optimizer.step()
    return [m for m in probe.measurements if len(m.shape) == 2]


def test_the_law_of_a_projected_run_is_its_norm():
    """The prediction is exact for one unit; where each row is projected, so is the whole."""
    model = network().double()
    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    law = run_law(torch.optim.lr_scheduler.StepLR(optimizer, 1), model=model)
    torch.set_default_dtype(torch.float64)
    try:
        measurements = trained(optimizer, model, law, views={"0.weight": "layer", "2.weight": None})
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(abs(m.predicted / m.norm - 1) < 1e-12 for m in measurements)
    retention = 1 - 0.1 * 0.1 * 0.1 / (1 - 0.9)  # not a law without its decay
    assert all(abs(m.predicted / retention / m.norm - 1) > 1e-3 for m in measurements)


def test_a_decay_by_a_counter_of_its_own_is_not_predicted():
    weight = nn.Parameter(torch.eye(2, dtype=torch.float64))
    optimizer = sn.torch_optimizer(sn.recipe(decays_each_fifth))([weight], lr=0.1)
    with sn.probe(optimizer, every=1, law=run_law(optimizer)) as probe:
        for _ in range(6):
            weight.grad = weight.detach().flip(0) * torch.tensor([[1.0], [-1.0]])
            optimizer.step()
    assert all(math.isnan(m.predicted) for m in probe.measurements)


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 4)


class HalvedByHand:
    def __init__(self, optimizer):
        self.group = optimizer.param_groups[0]

    def step(self):
        self.group["lr"] *= 0.5


@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize(
    ("lr", "schedule_of"),
    [
        (sn.schedule.warmup_cosine(0.1, 3, 8), lambda optimizer: None),
        (0.1, warm_up),
        (0.1, HalvedByHand),
        (torch.tensor(0.1), HalvedByHand),
    ],
)
def test_a_predicted_norm_has_the_learning_rate_of_its_step(lr, schedule_of, block):
    """A block is handed over later, at another rate: for 64 steps, the norm was off by 0.9 %."""
    weight = nn.Parameter(torch.randn(1, 32, dtype=torch.float64))
    optimizer = sn.torch_optimizer("sgdp")([weight], lr=lr, momentum=0.9, weight_decay=0.9)
    schedule = schedule_of(optimizer)
    with sn.probe(optimizer, every=2, law=run_law(optimizer), block=block) as probe:
        for _ in range(8):
            grad, row = torch.randn(1, 32, dtype=torch.float64), weight.detach()
            weight.grad = grad - (grad @ row.T) / (row @ row.T) * row
            optimizer.step()
            if schedule is not None:
                schedule.step()
    assert [m.step for m in probe.measurements] == [2, 4, 6, 8]
    for m in probe.measurements:
        assert m.predicted == pytest.approx(m.norm, rel=1e-12)


def test_equilibria_of_a_run_are_those_of_the_literature():
    """docs/theory.md, section 6."""
    model = network()
    invariant = Measurement(1, "0.weight", "channel", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "channel")
    for optimizer, squared in (
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), 0.02 / 1.9),
        (sn.optim.SGDP(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), 0.02),
    ):
        law = run_law(optimizer, model=model)
        assert 2 * math.sin(law.turn(invariant) / 2) == pytest.approx(math.sqrt(squared), rel=1e-6)
        assert math.isnan(law.turn(replace(invariant, invariant_view=None)))
        assert math.isnan(law.turn(replace(invariant, weight="nobody's")))
        optimizer.param_groups[0]["weight_decay"] = 0.0
        assert math.isnan(law.turn(invariant))


def test_a_factor_turns_as_one_of_the_shape_of_its_weight():
    """A large weight turns as a smaller one with its ratio of sides."""
    shapes = {"tall": (256, 8), "large": (512, 64)}
    weights = [(name, nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()]
    law = run_law(sn.torch_optimizer("muon")(weights, lr=0.02, weight_decay=0.5))
    measured = Measurement(1, "tall", "layer", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "layer")
    square, tall, large = (
        equilibrium_turn("muon", shape=shape, lr=0.02, weight_decay=0.5)
        for shape in ((64, 64), *shapes.values())
    )
    assert law.turn(measured) == pytest.approx(tall, rel=1e-6)
    assert law.turn(replace(measured, weight="large")) == pytest.approx(large, rel=0.05)
    assert abs(square / tall - 1) > 0.1


def test_an_optimizer_without_a_recipe_has_no_law():
    with refuses("run_law", "SGD", by=TypeError):
        run_law(torch.optim.Adagrad([torch.ones(2, 2)]))


DECAY, SMALL = 0.1, 1e-7


@pytest.mark.parametrize(
    ("recipe", "settings", "factor"),
    [
        ("sgd", {"momentum": 0.9}, 1 / 1.9),  # coupled decay
        ("adamw", {"betas": (0.8, 0.99)}, 0.2 / 1.8),
        ("lion", {"betas": (0.0, 0.9)}, 1.0),  # signs of single gradients
    ],
)
def test_rates_of_the_literature(recipe, settings, factor):
    """Kosson et al. 2024, Table 1, for a small learning rate."""
    rate = rotational_rate(recipe, weight_decay=DECAY, **settings)
    assert rate(SMALL) == pytest.approx(math.sqrt(2 * SMALL * DECAY * factor), rel=1e-6)


def test_a_step_turns_as_the_equilibrium_does():
    rate = rotational_rate("sgd", weight_decay=DECAY)
    law = equilibrium("sgd", weight_decay=DECAY, momentum=0.0, dampening=0.0, nesterov=False)
    chord = law.effective_step({law.traced.symbols["lr"]: 0.5})
    rule = sn.bind("rotational(sgd)", lr=rate(0.5), memory=0.0, eps=0.0, zero_mean=False).rule
    weight = torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    new_weight, _ = rule.step(weight, torch.tensor([[1.0, 7.0]]).double(), rule.init(weight))
    assert (new_weight - weight).norm() / 3 == pytest.approx(chord, rel=1e-12)


def test_what_does_not_settle_is_refused():
    with refuses("without decay", by=NoEquilibriumError):
        rotational_rate("sgdp")
    with pytest.raises(NoEquilibriumError):
        rotational_rate("sgd", weight_decay=DECAY)(15.0)


def test_a_norm_that_grows_without_bound_has_no_rate():
    """The floor leaves a case open, which cancels out of the formula of the turn."""

    def floored(lr=0.1, momentum=0.5, weight_decay=0.1):
        last = sn.rules.DecoupledDecay(weight_decay), sn.rules.StepSize(lr)
        return sn.chain(sn.rules.HeavyBall(momentum), sn.rules.UpdateFloor(1.0, "channel"), *last)

    rate = rotational_rate(floored, weight_decay=0.1, momentum=0.5)
    with refuses("does not settle", by=NoEquilibriumError):
        rate(0.1)
