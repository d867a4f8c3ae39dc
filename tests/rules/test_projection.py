"""Properties of the scale-invariance test and the projection."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spherenorm import chain, find_recipe, rules
from spherenorm._update import Update
from spherenorm._views import View, as_view
from spherenorm.rules._invariance import SumsInTurn, sums_of
from tests.harness.gradients import FAMILIES, gradient, without_radial_part

SHAPES = [(), (0,), (5,), (0, 4), (4, 0), (6, 1), (1, 6), (3, 4), (4, 3, 2, 2)]
LAYOUTS = ["contiguous", "transposed", "channels_last", "strided"]


def lay_out(x, layout):
    if layout == "transposed" and x.ndim >= 2:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and x.ndim == 4:
        return x.to(memory_format=torch.channels_last)
    if layout == "strided" and x.ndim >= 1:
        return torch.stack([x, x], -1)[..., 0]
    return x


def project(weight, direction, view):
    update, _ = rules.RadialProjection(view).update(Update(weight, direction, direction), {})
    return update.direction


def decide(weight, grad, **kwargs):
    """The annotation of one test: whether any entry is claimed, by view."""
    update, _ = rules.ScaleInvarianceTest(**kwargs).update(Update(weight, grad, grad), {})
    return {
        str(v): flag
        for v, flag in zip(update.invariance.views, update.invariance.flags, strict=True)
    }


@given(
    shape=st.sampled_from(SHAPES),
    layout=st.sampled_from(LAYOUTS),
    view=st.sampled_from(["channel", "layer"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    magnitude=st.floats(-1, 1),
    seed=st.integers(0, 2**31),
)
def test_projection_is_orthogonal_and_idempotent_at_any_scale(
    shape, layout, view, dtype, magnitude, seed
):
    generator = torch.Generator().manual_seed(seed)
    weight, direction = (
        lay_out(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype), layout)
        for _ in range(2)
    )
    weight = weight * 10.0 ** (
        magnitude * (17 if dtype is torch.float32 else 150)
    )  # as far as |w|^2 is a normal number
    q, rounding = project(weight, direction, view), 50 * torch.finfo(dtype).eps
    v = as_view(view)
    # Of unit vectors: |w| |d| |cos| of the projection would be lost among the smallest numbers.
    unit = weight / torch.where(v.norm(weight) > 0, v.norm(weight), 1)
    assert (v.inner(unit, q).abs() <= rounding * v.norm(direction)).all()
    torch.testing.assert_close(
        project(weight, q, view),
        q,
        rtol=0,
        atol=rounding * max(1.0, direction.abs().max().item() if direction.numel() else 1.0),
    )
    assert q.shape == weight.shape
    assert q.dtype is dtype


@given(view=st.sampled_from(["channel", "layer", "dim=1", "groups=2"]), seed=st.integers(0, 2**31))
def test_projection_is_the_orthogonal_projector_of_each_unit(view, seed):
    generator = torch.Generator().manual_seed(seed)
    weight, direction = (
        torch.randn(4, 3, 2, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    v = as_view(view)
    rows, q = v.rows(direction), v.rows(project(weight, direction, view))
    for w, d, got in zip(v.rows(weight), rows, q, strict=True):
        projector = torch.eye(len(w), dtype=torch.float64) - torch.outer(w, w) / w.dot(w)
        torch.testing.assert_close(got, projector @ d, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "view"),
    [
        ("row_tangential", "channel"),
        ("layer_tangential", "layer"),
        ("random", None),
        ("mixed", None),
    ],
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("weight_scale", [1e-20, 1.0, 1e20])
def test_the_branches(family, view, scale, weight_scale):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    grad = scale * gradient(family, weight, generator, 0)
    flags = decide(weight_scale * weight, grad)
    assert {v for v, flag in flags.items() if flag.any()} == ({view} if view else set())


def test_per_unit_as_equation_12_reads():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    grad = gradient("mixed", weight, generator, 0)
    assert decide(weight, grad, per="unit")["channel"].flatten().tolist() == [False, True] * 3
    assert not decide(weight, grad, per="unit")["layer"].any()
    rule = chain(rules.ScaleInvarianceTest(per="unit"), rules.RadialProjection())
    moved, _ = rule.step(weight, grad, {})
    expected = torch.stack(
        [
            without_radial_part(w, g) if i % 2 else g
            for i, (w, g) in enumerate(zip(weight, grad, strict=True))
        ]
    )
    torch.testing.assert_close(moved, weight - expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3, 2, 2), (3, 1)])
@pytest.mark.parametrize("zero", ["grad", "weight"])
def test_no_evidence_is_not_invariance(shape, zero):
    weight, grad = torch.ones(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
    (grad if zero == "grad" else weight).zero_()
    assert not any(flag.any() for flag in decide(weight, grad).values())


def test_a_dead_unit_does_not_hide_that_the_others_are_invariant():
    weight, grad = (
        torch.tensor([[1.0, 1.0], [1.0, 0.0], [2.0, 1.0]]),
        torch.tensor([[1.0, -1.0], [0.0, 0.0], [-1.0, 2.0]]),
    )
    assert decide(weight, grad)["channel"]


@pytest.mark.parametrize("name", ["sgdp", "adamp"])
@pytest.mark.parametrize("case", ["zero weight", "zero row", "zero gradient"])
def test_steps_stay_finite(name, case):
    weight, grad = torch.randn(3, 4), torch.randn(3, 4)
    if case == "zero weight":
        weight.zero_()
    elif case == "zero row":
        weight[1] = 0
    else:
        grad.zero_()
    rule = find_recipe(name)(lr=0.1)
    moved, state = rule.step(weight, grad, rule.init(weight))
    assert torch.isfinite(moved).all()
    assert all(torch.isfinite(value).all() for value in state.values())


@given(
    shape=st.sampled_from([(4, 6), (6, 4), (4, 3, 2, 2), (3, 2), (1, 5)]),
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    c=st.sampled_from([1e-3, 0.5, 7.0, 1e3]),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    delta=st.floats(0.01, 0.5),
    per=st.sampled_from(["tensor", "unit"]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_adamp_turns_a_scaled_weight_in_the_same_direction(
    shape, family, dtype, c, betas, delta, per, nesterov, decay, seed
):
    """f(cw) = f(w) has gradient g/c at cw; Adam's ratio removes the 1/c (eps = 0): equal steps.

    In each branch of the test, which knows no scale either; decay takes its share of cw.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    rule = find_recipe("adamp")(
        lr=0.1, betas=betas, eps=0.0, weight_decay=decay, delta=delta, per=per, nesterov=nesterov
    )
    plain = find_recipe("adamp")(
        lr=0.1,
        betas=betas,
        eps=0.0,
        weight_decay=c * decay,
        delta=delta,
        per=per,
        nesterov=nesterov,
    )
    states = [rule.init(weight), rule.init(weight)]
    for step in range(3):
        grad = gradient(family, weight, generator, step)
        # Both are kept on the same ray, so that the gradients stay those of one scale-invariant
        # function.
        moved, states[0] = plain.step(weight, grad, states[0])
        moved_scaled, states[1] = rule.step(c * weight, grad / c, states[1])
        rounding = 1e3 * torch.finfo(dtype).eps * max(1.0, c)
        torch.testing.assert_close(
            moved_scaled - c * weight, moved - weight, rtol=rounding, atol=rounding
        )


def test_false_positives_of_the_layer_view_follow_the_beta_law():
    """A random direction passes at P(|cos| < delta / sqrt(d)), and cos^2 is Beta(1/2, (d-1)/2)."""
    rows, columns, delta, trials = 4, 16, 0.5, 4000
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    grads = torch.randn(trials, rows, columns, generator=generator, dtype=torch.float64)
    passed = torch.vmap(lambda g: decide(weight, g, delta=delta, views=("layer",))["layer"])(grads)
    d = rows * columns
    expected = stats.beta(0.5, (d - 1) / 2).cdf(delta**2 / d)
    standard_error = math.sqrt(expected * (1 - expected) / trials)
    assert abs(passed.double().mean().item() - expected) < 4 * standard_error


def test_a_declared_view_finds_what_the_default_views_miss():
    """A transposed convolution has its units on dim 1."""
    weight = torch.randn(3, 4, 2, 2, dtype=torch.float64)
    grad = torch.stack(
        [
            without_radial_part(weight[:, j], torch.randn(3, 2, 2, dtype=torch.float64))
            for j in range(4)
        ],
        dim=1,
    )
    assert not decide(weight, grad)["channel"]
    assert decide(weight, grad, views=("dim=1",))["dim=1"]


def test_projection_and_ratio_need_a_test_before_them():
    weight = torch.ones(2, 2)
    for rule in (rules.RadialProjection(), rules.DecoupledDecay(0.1, invariant_ratio=0.1)):
        with pytest.raises(ValueError, match="needs a ScaleInvarianceTest before it"):
            chain(rule).step(weight, weight, {})


@pytest.mark.parametrize("per", ["tensor", "unit"])
def test_a_decay_with_a_ratio_is_the_same_as_a_number_and_as_a_tensor(per):
    """In float32 1e-300 is 0, and no decay of an infinite weight; not 1e-300 inf, which is nan."""
    weight = torch.tensor([[math.inf, 1.0], [2.0, -3.0]])
    moved = []
    for kind in (float, lambda x: torch.tensor(x, dtype=torch.float64)):
        decay = rules.DecoupledDecay(kind(1e-300), invariant_ratio=kind(0.1))
        rule = chain(rules.ScaleInvarianceTest(per=per), decay, rules.StepSize(0.1))
        moved.append(rule.step(weight, torch.ones(2, 2), rule.init(weight))[0])
    torch.testing.assert_close(*moved, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("share", "passes"), [(0.9, True), (1.1, False)])
@pytest.mark.parametrize("view", ["channel", "layer", "dim=1", "groups=2"])
def test_the_threshold_is_delta_over_the_root_of_the_units_dimension(view, share, passes):
    """Every unit's cosine is `share` of delta / sqrt(dim(unit)): the only thing that decides."""
    delta, v = 0.3, as_view(view)
    generator = torch.Generator().manual_seed(0)
    weight, tangent = (
        torch.randn(4, 6, 2, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    unit = weight / v.norm(weight)
    tangent = tangent - v.radial_coefficient(weight, tangent) * weight
    tangent = tangent / v.norm(tangent)
    cosine = share * delta / math.sqrt(v.rows(weight).shape[1])
    grad = cosine * unit + math.sqrt(1 - cosine**2) * tangent
    for per in ("tensor", "unit"):
        assert decide(weight, grad, delta=delta, views=(view,), per=per)[view].all() == passes


@pytest.mark.parametrize("per", ["tensor", "unit"])
@pytest.mark.parametrize("scale", [1e19, 1e25, 1e38, math.inf, math.nan])
def test_a_radial_gradient_that_overflows_is_not_called_invariant(scale, per):
    weight, grad = torch.randn(3, 40), torch.zeros(3, 40)
    grad[0] = scale * weight[0]
    grad[1:] = torch.stack([without_radial_part(w, torch.randn(40)) for w in weight[1:]])
    flags = decide(weight, grad, per=per)
    assert not flags["channel"].expand(3, 40)[0].any()
    assert not flags["layer"].any()
    if per == "unit":
        assert flags["channel"].expand(3, 40)[1:].all()
    assert not any(f.any() for f in decide(weight, scale * weight, per=per).values())


@pytest.mark.parametrize("test", [rules.ScaleInvarianceTest, rules.AccumulatedInvarianceTest])
@pytest.mark.parametrize("decay", [0.0, 5e-4, 1e-2, 1.0])
def test_decay_that_a_rule_adds_is_not_tested_and_decay_of_the_loss_is(test, decay):
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(16, 64, generator=generator, dtype=torch.float64)
    free = torch.randn(16, 64, generator=generator, dtype=torch.float64)
    grad = 1e-2 * torch.stack(
        [without_radial_part(w, x) for w, x in zip(weight, free, strict=True)]
    )
    rule = chain(rules.CoupledDecay(decay), rules.HeavyBall(0.9), test(), rules.RadialProjection())
    moved, _ = rule.step(weight, grad, rule.init(weight))
    radial = ((moved - weight) * weight).sum(1)
    assert radial.abs().max() < 1e-12  # found, hence projected: the decay's radial part, too
    by_loss = chain(test(), rules.RadialProjection())
    moved, _ = by_loss.step(weight, grad + decay * weight, by_loss.init(weight))
    found = ((moved - weight) * weight).sum(1).abs().max() < 1e-12
    assert found == (decay == 0)


def test_a_view_that_has_no_turn_is_not_computed(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    seen = []
    total = View.total
    monkeypatch.setattr(View, "total", lambda view, x: (seen.append(view.name), total(view, x))[1])

    def found(family, **kwargs):
        grad = gradient(family, weight, generator, 0)
        seen.clear()
        update, _ = rules.ScaleInvarianceTest(**kwargs).update(Update(weight, grad, grad), {})
        return update.invariance, set(seen)

    invariance, read = found("row_tangential")
    assert read == {"channel"}
    assert [bool(flag) for flag in invariance.flags] == [True, False]
    assert invariance.squared_norms[1].isnan()
    assert found("layer_tangential")[1] == {"channel", "layer"}
    assert found("random")[1] == {"channel", "layer"}
    assert found("row_tangential", per="unit")[1] == {"channel", "layer"}


def test_sums_that_are_read_in_turn_are_those_of_all_views():
    weight, grad = torch.randn(2, 6, 5, dtype=torch.float64)
    views = [as_view("channel"), as_view("layer"), as_view("dim=1")]
    lazy, whole = SumsInTurn(views, weight, grad), sums_of(views, weight, grad)
    assert len(lazy) == 3
    for one, other in [(lazy[-1], whole[-1]), *zip(lazy, whole, strict=True)]:
        assert (one.view, one.size, one.units) == (other.view, other.size, other.units)
        assert torch.equal(one.squared_grad, other.squared_grad)
        assert torch.equal(one.product, other.product)
    assert lazy[1:] == [lazy[1], lazy[2]]
    with pytest.raises(IndexError):
        lazy[3]
