"""The accumulating test against its definition, the single-step test, and the law of false positives."""

import math

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.update import Update

SHAPE = (3, 4)


def flags_of(rule, weight, grad, state):
    update, state = rule.update(Update(weight, grad, grad), state)
    return [flag.expand(weight.shape)[:, 0] for flag in update.invariance.flags], state


def with_cosines(weight, cosines, generator):
    """A gradient that has these cosines with the rows of the weight."""
    free = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    unit = weight / weight.norm(dim=1, keepdim=True)
    tangent = free - (free * unit).sum(1, keepdim=True) * unit
    tangent = tangent / tangent.norm(dim=1, keepdim=True)
    c = torch.tensor(cosines, dtype=weight.dtype)[:, None]
    return c * unit + (1 - c**2).sqrt() * tangent


@pytest.fixture
def weight():
    return torch.randn(SHAPE, dtype=torch.float64)


@pytest.mark.parametrize("per", ["tensor", "unit"])
@pytest.mark.parametrize("seed", range(20))
def test_without_memory_it_is_the_single_step_test(weight, per, seed):
    generator = torch.Generator().manual_seed(100 + seed)
    single, remembering = (
        r.ScaleInvarianceTest(0.5, per=per),
        r.AccumulatedInvarianceTest(0.5, memory=0.0, per=per),
    )
    state = remembering.init(weight)
    for _ in range(5):
        cosines = (0.4 * torch.randn(3, generator=generator)).clamp(-0.9, 0.9).tolist()
        grad = with_cosines(weight, cosines, generator)
        expected, _ = flags_of(single, weight, grad, {})
        found, state = flags_of(remembering, weight, grad, state)
        assert [f.tolist() for f in found] == [f.tolist() for f in expected]


def test_the_evidence_is_the_weighted_mean_of_squared_cosines(weight):
    rule, history = r.AccumulatedInvarianceTest(0.5, memory=0.8, views=("channel",), per="unit"), []
    state, generator = rule.init(weight), torch.Generator().manual_seed(41)
    for cosines in ([0.1, 0.9, 0.0], [0.4, 0.1, 0.3], [0.2, 0.05, 0.0], [0.3, 0.01, 0.2]):
        history.append([4 * c**2 for c in cosines])
        found, state = flags_of(rule, weight, with_cosines(weight, cosines, generator), state)
        weights = [0.8 ** (len(history) - 1 - t) for t in range(len(history))]
        mean = [
            sum(w * row[unit] for w, row in zip(weights, history, strict=True)) / sum(weights)
            for unit in range(3)
        ]
        evidence = state["evidence_channel"] / state["evidence_count_channel"]
        assert evidence.flatten().tolist() == pytest.approx(mean, rel=1e-12)
        assert found[0].tolist() == [m < 0.25 for m in mean]


def test_a_unit_without_a_direction_adds_no_evidence(weight):
    rule = r.AccumulatedInvarianceTest(0.5, memory=0.5)
    generator = torch.Generator().manual_seed(42)
    _, state = flags_of(
        rule, weight, with_cosines(weight, [0.8, 0.1, 0.1], generator), rule.init(weight)
    )
    found, after = flags_of(rule, weight, torch.zeros_like(weight), state)
    assert all(torch.equal(after[name], state[name]) for name in state)
    nothing, _ = flags_of(rule, weight, torch.zeros_like(weight), rule.init(weight))
    assert not any(flag.any() for flag in nothing)
    assert not found[0].any()  # the first row's 0.8 is remembered


def test_random_gradients_pass_the_single_step_and_not_the_remembered_test():
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(16, 64, generator=generator, dtype=torch.float64)
    single, remembering = r.ScaleInvarianceTest(0.1), r.AccumulatedInvarianceTest(0.1, memory=0.9)
    state, wrong, late = remembering.init(weight), 0, 0
    steps = 600
    for step in range(steps):
        grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        wrong += any(flag.any() for flag in flags_of(single, weight, grad, {})[0])
        found, state = flags_of(remembering, weight, grad, state)
        late += step >= 10 and any(flag.any() for flag in found)
    expected = math.erf(0.1 / math.sqrt(2))
    assert abs(wrong / steps - expected) < 4 * math.sqrt(expected * (1 - expected) / steps)
    assert late == 0


def adamp_remembering(lr=0.01, memory=0.9):
    return sn.chain(
        r.AdaptiveMoments(0.9, 0.999),
        r.AccumulatedInvarianceTest(0.1, memory),
        r.RadialProjection(),
        r.StepSize(lr),
    )


def test_in_a_network_with_batch_norm_it_finds_the_invariant_weights_at_every_step():
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Linear(8, 1)
    ).double()
    optimizer = sn.torch_optimizer(adamp_remembering)(model.parameters())
    x, y = torch.randn(32, 6, dtype=torch.float64), torch.randn(32, 1, dtype=torch.float64)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        before = model[0].weight.detach().clone()
        optimizer.step()
        radial = (before * (model[0].weight.detach() - before)).sum(1)
        assert radial.abs().max() < 1e-12
    assert set(optimizer.state[model[0].weight]) >= {"evidence_channel", "evidence_count_layer"}
    reloaded = sn.torch_optimizer(adamp_remembering)(model.parameters())
    reloaded.load_state_dict(optimizer.state_dict())
    for name, value in optimizer.state[model[0].weight].items():
        assert torch.equal(reloaded.state[model[0].weight][name], value)


def test_it_sweeps():
    swept = sn.functional.sweep(
        adamp_remembering,
        lambda params: (
            params["w"] / params["w"].norm() * torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
        ).sum(),
        {"w": torch.randn(1, 2, 3, dtype=torch.float64)},
        {"lr": [0.01, 0.1], "memory": [0.0, 0.9]},
        steps=5,
    )
    assert torch.isfinite(swept.loss).all()
    assert swept.loss[-1, 1] < swept.loss[0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"memory": 1.0}, "memory"), ({"delta": 0.0}, "delta"), ({"views": "channel"}, "views")],
)
def test_wrong_values_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        r.AccumulatedInvarianceTest(**arguments)


def test_it_compiles_into_one_graph(weight):
    rule, generator = (
        r.AccumulatedInvarianceTest(0.1, views=(sn.View(0), "layer")),
        torch.Generator().manual_seed(44),
    )
    chained = sn.chain(rule, r.RadialProjection(), r.StepSize(0.1))
    compiled = torch.compile(chained.step, backend="eager", fullgraph=True)
    state, other = chained.init(weight), weight
    again = state
    for _ in range(3):
        grad = with_cosines(weight, [0.0, 0.001, 0.0], generator)
        weight, state = chained.step(weight, grad, state)
        other, again = compiled(other, grad, again)
        assert torch.equal(weight, other)
    assert set(state) == {
        "evidence_channel",
        "evidence_count_channel",
        "evidence_layer",
        "evidence_count_layer",
    }
