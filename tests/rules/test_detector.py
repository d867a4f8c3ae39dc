"""The accumulating test against its definition, the single-step test and its error law."""

import math

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from spherenorm._update import Update

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
        r.AccumulatedInvarianceTest(0.5, memory=0.0, per=per, level=1.0),
    )
    state = remembering.init(weight)
    for _ in range(5):
        cosines = (0.4 * torch.randn(3, generator=generator)).clamp(-0.9, 0.9).tolist()
        grad = with_cosines(weight, cosines, generator)
        expected, _ = flags_of(single, weight, grad, {})
        found, state = flags_of(remembering, weight, grad, state)
        assert [f.tolist() for f in found] == [f.tolist() for f in expected]


def test_the_evidence_is_the_weighted_mean_of_clipped_squared_cosines(weight):
    rule = r.AccumulatedInvarianceTest(0.5, 0.8, ("channel",), "unit", level=1.0)
    history, state, generator = [], rule.init(weight), torch.Generator().manual_seed(41)
    for cosines in ([0.1, 0.9, 0.0], [0.4, 0.1, 0.3], [0.2, 0.05, 0.0], [0.3, 0.01, 0.2]):
        history.append([min(4 * c**2, 0.75) for c in cosines])
        found, state = flags_of(rule, weight, with_cosines(weight, cosines, generator), state)
        weights = [0.8 ** (len(history) - 1 - t) for t in range(len(history))]
        mean = [
            sum(w * row[unit] for w, row in zip(weights, history, strict=True)) / sum(weights)
            for unit in range(3)
        ]
        evidence = state["evidence_channel"] / state["evidence_count_channel"]
        assert evidence.flatten().tolist() == pytest.approx(mean, rel=1e-12)
        assert found[0].tolist() == [m < 0.25 for m in mean]


def test_the_evidence_of_a_unit_without_a_direction_fades(weight):
    rule = r.AccumulatedInvarianceTest(0.5, memory=0.5)
    generator = torch.Generator().manual_seed(42)
    grad = with_cosines(weight, [0.8, 0.1, 0.1], generator)
    _, state = flags_of(rule, weight, grad, rule.init(weight))
    found, after = flags_of(rule, weight, torch.zeros_like(weight), state)
    assert all(torch.equal(after[name], 0.5 * state[name]) for name in state)
    nothing, _ = flags_of(rule, weight, torch.zeros_like(weight), rule.init(weight))
    assert not any(flag.any() for flag in nothing)
    assert not found[0].any()  # the first row's 0.8 is remembered


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan, 1e200])
@pytest.mark.parametrize("per", ["tensor", "unit"])
def test_one_infinite_gradient_leaves_the_evidence_alone(weight, per, wrong):
    rule, generator = r.AccumulatedInvarianceTest(per=per), torch.Generator().manual_seed(45)
    state = rule.init(weight)
    for step in range(6):
        grad = with_cosines(weight, [0.0, 0.0, 0.0], generator)
        if step == 3:
            grad[0, 0] = wrong  # (the square of 1e200 overflows)
        found, state = flags_of(rule, weight, grad, state)
        assert all(value.isfinite().all() for value in state.values())
        assert found[0].all()


@pytest.mark.parametrize("per", ["tensor", "unit"])
@pytest.mark.parametrize("bad", [1, 2])
def test_bad_steps_exclude_no_unit_that_has_long_been_invariant(weight, per, bad):
    """One step of cosine 1 weighs no more than 3 d^2, however long the unit."""
    rule, generator = r.AccumulatedInvarianceTest(per=per), torch.Generator().manual_seed(46)
    state = rule.init(weight)
    for step in range(30):
        radial = 0.99 if 20 <= step < 20 + bad else 0.0
        grad = with_cosines(weight, [radial, 0.0, 0.0], generator)
        found, state = flags_of(rule, weight, grad, state)
        assert found[0].all(), step


def test_a_weight_that_is_no_longer_invariant_loses_the_verdict_within_the_memory(weight):
    rule, generator = r.AccumulatedInvarianceTest(), torch.Generator().manual_seed(47)
    state, steps = rule.init(weight), []
    for step in range(60):
        radial = 0.9 if step >= 40 else 0.0
        grad = with_cosines(weight, [radial] * 3, generator)
        found, state = flags_of(rule, weight, grad, state)
        steps.append(bool(found[0].any()))
    assert steps == [True] * 43 + [False] * 17


def test_a_row_of_an_embedding_that_was_seen_once_loses_its_verdict(weight):
    rule = r.AccumulatedInvarianceTest(per="unit")
    generator, state = torch.Generator().manual_seed(48), rule.init(weight)
    grad = with_cosines(weight, [0.0, 0.0, 0.0], generator)
    verdicts = []
    for step in range(12):
        seen = grad if step == 0 else grad * torch.tensor([[0.0], [1.0], [1.0]])
        found, state = flags_of(rule, weight, seen, state)
        verdicts.append(found[0].tolist())
    # of 0.9^t (1 - 0.9), half of one step remains for 6 steps
    assert [row[0] for row in verdicts] == [True] * 7 + [False] * 5
    assert all(row[1:] == [True, True] for row in verdicts)


def test_one_row_of_many_is_too_little_evidence_for_the_whole_weight():
    """A random row passes in 8 % of all cases; that cannot decide for a vocabulary."""
    weight, grad = torch.randn(100, 8), torch.zeros(100, 8)
    grad[0] = with_cosines(weight[:1], [0.0], torch.Generator().manual_seed(49))
    rule = r.AccumulatedInvarianceTest(views=("channel",))
    assert not flags_of(rule, weight, grad, rule.init(weight))[0][0].any()
    grad[1] = with_cosines(weight[1:2], [0.0], torch.Generator().manual_seed(50))
    assert flags_of(rule, weight, grad, rule.init(weight))[0][0].all()


def share_flagged(rule, statistics, size=400):
    """The share of units that pass, for s_t of shape (steps, units), at each step."""
    rows, state, flagged = statistics.shape[1], None, []
    weight = torch.zeros(rows, size, dtype=torch.float64)
    weight[:, 0] = 1
    state = rule.init(weight)
    for row in statistics:
        cosine = row / math.sqrt(size)
        grad = torch.zeros_like(weight)
        grad[:, 0], grad[:, 1] = cosine, (1 - cosine**2).sqrt()
        found, state = flags_of(rule, weight, grad, state)
        flagged.append(found[0].double().mean().item())
    return flagged


def correlated(steps, units, correlation):
    """Standard normal variables, an AR(1) process of this correlation for each unit."""
    s = [torch.randn(units, dtype=torch.float64)]
    for _ in range(steps - 1):
        fresh = torch.randn(units, dtype=torch.float64)
        s.append(correlation * s[-1] + math.sqrt(1 - correlation**2) * fresh)
    return torch.stack(s)


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99, 1.0])
@pytest.mark.parametrize(("level", "threshold"), [(1.0, 0.1), (0.02, 0.02), (0.01, 0.01)])
def test_the_error_law_holds_however_the_steps_correlate(correlation, level, threshold):
    """sqrt(6/pi) d at most, of 20,000 units; a constant gradient comes near with 0.80 d."""
    units = 20_000
    bound = math.sqrt(6 / math.pi) * threshold if level == 1 else level
    rule = r.AccumulatedInvarianceTest(0.1, views=("channel",), per="unit", level=level)
    shares = share_flagged(rule, correlated(40, units, correlation), size=4)
    slack = 4 * math.sqrt(bound / units)
    assert max(shares) <= bound + slack
    if correlation == 1.0:
        d = 0.1 if level == 1 else level / math.sqrt(6 / math.pi)
        expected = math.erf(d / math.sqrt(2))
        assert shares[-1] == pytest.approx(expected, abs=4 * math.sqrt(expected / units))
    if correlation == 0.0:
        assert shares[-1] < 0.05 * bound  # independent evidence adds up


def test_a_worst_case_of_dependence_nearly_reaches_the_law():
    """Units that stay within 3^0.5 d of 0, and have all values there in turn."""
    units, d = 30_000, 0.1
    rule = r.AccumulatedInvarianceTest(d, 0.99, ("channel",), "unit", level=1.0)
    # Standard normal at each step: values within 3^0.5 d are exchanged among their units.
    s = correlated(1, units, 1.0)[0]
    inside = s.abs() < math.sqrt(3) * d
    steps = []
    for _ in range(300):
        row = s.clone()
        row[inside] = s[inside][torch.randperm(int(inside.sum()))]
        steps.append(row)
    share = share_flagged(rule, torch.stack(steps), size=4)[-1]
    # the mean of s^2 over |s| < 3^0.5 d is d^2: half of these units pass, or nearly all of them
    assert share <= math.sqrt(6 / math.pi) * d
    assert share >= 0.4 * math.sqrt(6 / math.pi) * d


@pytest.mark.parametrize("level", [0.02, 0.001])
def test_the_threshold_of_units_that_pass_together(level):
    """d = min(delta, level^(1/n) sqrt(pi/6)): just below it a constant gradient passes."""
    generator = torch.Generator().manual_seed(51)
    for n in (1, 2, 3, 8):
        d = min(0.1, level ** (1 / n) * math.sqrt(math.pi / 6))
        weight = torch.randn(n, 100, generator=generator, dtype=torch.float64)
        for share, passes in ((0.999, True), (1.001, False)):
            rule = r.AccumulatedInvarianceTest(views=("channel",), level=level)
            grad = with_cosines(weight, [share * d / 10] * n, generator)
            found, _ = flags_of(rule, weight, grad, rule.init(weight))
            assert found[0].all() == passes, (n, share)


def test_full_batch_layers_are_not_flagged_as_the_single_step_test_flags_them():
    """Gradients that hardly change: 1000 plain layers under a small learning rate."""
    layers, generator = 1000, torch.Generator().manual_seed(52)
    w, x, noise = (
        torch.randn(layers, *shape, generator=generator, dtype=torch.float64)
        for shape in ((1, 64), (32, 64), (32, 1))
    )
    x, y = x + 3, noise + 100  # a large mean of inputs and of targets
    shares = {}
    for rule in (r.ScaleInvarianceTest(), r.AccumulatedInvarianceTest()):
        weight, state = w, torch.vmap(rule.init)(w)
        for _ in range(20):
            grad = (x @ weight.mT - y).mT @ x / 32

            def found(weight, grad, state, rule=rule):
                update, state = rule.update(Update(weight, grad, grad), state)
                return torch.stack([flag.any() for flag in update.invariance.flags]).any(), state

            flagged, state = torch.vmap(found)(weight, grad, state)
            weight = weight - 1e-6 * grad
        shares[type(rule).__name__] = flagged.double().mean().item()
    assert shares["ScaleInvarianceTest"] == pytest.approx(0.08, abs=0.035)
    assert shares["AccumulatedInvarianceTest"] <= 0.02


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


@pytest.mark.parametrize("silent", ["gradient", "weight"])
def test_a_unit_without_evidence_has_derivatives(weight, silent):
    """The root of |w|^2 |g|^2 = 0 has an infinite one, which must not reach the weight or delta."""
    grad = torch.randn(SHAPE, dtype=torch.float64)
    (grad if silent == "gradient" else weight)[0] = 0

    def evidence(weight, grad, memory):
        rule = r.AccumulatedInvarianceTest(0.5, memory, ("channel",))
        return rule.update(Update(weight, grad, grad), rule.init(weight))[1]["evidence_channel"]

    memory = torch.tensor(0.9, dtype=torch.float64)
    points = weight.requires_grad_(), grad.requires_grad_(), memory.requires_grad_()
    by_torch = torch.autograd.grad(evidence(*points).sum(), points)
    with torch.no_grad():
        ahead, behind = (evidence(weight, grad, memory + h).sum() for h in (1e-6, -1e-6))
    assert by_torch[2] == pytest.approx((ahead - behind).item() / 2e-6, rel=1e-6)
    for found in by_torch[:2]:
        assert (found[0] == 0).all()
        assert found.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": 1.0}, "memory"),
        ({"delta": 0.0}, "delta"),
        ({"views": "channel"}, "views"),
        ({"level": 0.0}, "level"),
        ({"level": 1.5}, "level"),
    ],
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
