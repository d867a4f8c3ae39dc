"""The rules of norm control, one by one: closed forms, invariants, and the points of a family."""

import math

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.rules._orthogonalize import TABLES, newton_schulz


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def applied(rule, weight, direction, grad=None):
    update = sn.Update(weight, direction if grad is None else grad, direction)
    return rule.update(update, rule.init(weight))[0].direction


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 2.5])
@pytest.mark.parametrize("lr", [0.01, 0.5, 2.0])
def test_a_hyperball_step_turns_by_its_law(lr, angle):
    """atan2(lr sin a, 1 - lr cos a), which is arctan(lr) for an update orthogonal to the weight."""
    weight = 7 * torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    grad = 3 * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    rule = sn.bind("hyperball(sgd)", lr=lr).rule
    moved, _ = rule.step(weight, grad, rule.init(weight))
    turn = math.atan2(-moved[0, 1], moved[0, 0])
    assert turn == pytest.approx(math.atan2(lr * math.sin(angle), 1 - lr * math.cos(angle)))


def test_decay_before_a_projection_is_a_change_of_rate():
    """R N((1 - lr wd) w - lr u) = R N(w - lr / (1 - lr wd) u), exactly."""

    def pinned(lr, weight_decay):
        return sn.chain(r.DecoupledDecay(weight_decay), r.StepSize(lr), r.RadiusPin())

    weight, grad = randn(3, 4), randn(3, 4, seed=1)
    decayed, plain = pinned(0.1, 0.5), pinned(0.1 / 0.95, 0.0)
    ours, other = (rule.step(weight, grad, rule.init(weight))[0] for rule in (decayed, plain))
    torch.testing.assert_close(ours, other, rtol=1e-14, atol=1e-15)


def drift(name, steps, **settings):
    """|1 - |w| / |w_0|| of the worst unit, after float32 steps under random gradients."""
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    rule, generator = sn.bind(name, **settings).rule, torch.Generator().manual_seed(1)
    view = sn.as_view(sn.bind(name).defaults["view"])
    state, start = rule.init(weight), view.norm(weight.double())
    for _ in range(steps):
        weight, state = rule.step(weight, torch.randn(4, 6, generator=generator), state)
    end = view.norm(weight.double())
    return ((1 if name == "ngpt" else start) - end).abs().max() / start.min()


SPHERES = ("adamh", "muonh", "ngpt", "hyperball(lion)", "rotational(sgd)")


@pytest.mark.parametrize("name", SPHERES)
def test_norms_do_not_drift(name):
    assert drift(name, 300) <= 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", SPHERES)
def test_norms_do_not_drift_over_a_hundred_thousand_steps(name):
    assert drift(name, 100_000) <= 1e-5


def test_the_radial_family():
    weight, direction = randn(6, 4), randn(6, 4, seed=1)
    along = (weight * direction).sum(1, keepdim=True) / (weight * weight).sum(1, keepdim=True)
    radial = along * weight
    assert (along < 0).any()
    assert (along > 0).any()
    none = applied(r.RadialProjection("channel"), weight, direction)
    torch.testing.assert_close(none, direction - radial)
    whole = applied(r.RadialProjection("channel", 1.0, 1.0), weight, direction)
    torch.testing.assert_close(whole, direction)
    brake = applied(r.RadialProjection("channel", 0.5, 1.0), weight, direction)
    torch.testing.assert_close(brake, direction - torch.where(along < 0, 0.5, 0.0) * radial)
    tested = sn.chain(r.ScaleInvarianceTest(10.0), r.RadialProjection(None, 0.5, 1.0))
    torch.testing.assert_close(applied(tested, weight, direction), brake)


def test_an_intended_radius_has_the_radial_change_alone():
    weight, direction = randn(3, 4), randn(3, 4, seed=1)
    rule = sn.chain(r.RadiusPin("channel", "intended"))
    moved, _ = rule.step(weight, direction, {})
    norm = weight.norm(dim=1)
    intended = norm - (weight * direction).sum(1) / norm
    torch.testing.assert_close(moved.norm(dim=1), intended.abs())
    turned = (weight - direction) / (weight - direction).norm(dim=1, keepdim=True)
    torch.testing.assert_close(moved, moved.norm(dim=1, keepdim=True) * turned)


def test_a_unit_that_starts_at_0_moves_by_its_whole_step_to_an_intended_radius():
    weight, direction = randn(3, 4), randn(3, 4, seed=1)
    weight[1] = 0
    moved, _ = sn.chain(r.RadiusPin("channel", "intended")).step(weight, direction, {})
    torch.testing.assert_close(moved[1], -direction[1])
    rule = sn.bind("radial_brake(sgd)", lr=0.1).rule
    moved, _ = rule.step(torch.zeros(3, 4), direction.float(), {})
    torch.testing.assert_close(moved, -0.1 * direction.float())


@pytest.mark.parametrize("radius", ["initial", "current"])
def test_a_unit_of_0_is_refused_where_its_norm_would_stay(radius):
    rule, weight = sn.chain(r.RadiusPin("channel", radius)), torch.eye(2)
    weight[1] = 0
    with pytest.raises(ValueError, match="a unit of view channel is 0, and a radius of 0 never"):
        rule.init(weight)


@pytest.mark.parametrize("backend", ["rule", "auto"])
@pytest.mark.parametrize(
    "views", [("layer", "channel"), ("channel", "layer"), ("channel", "dim=1")]
)
def test_a_radius_of_other_units_is_refused(views, backend):
    """It would broadcast: rows as long as the whole matrix, without a word."""
    weight = torch.nn.Parameter(randn(4, 6))
    optimizer = sn.optim.AdamH([weight], view=views[0], backend=backend)
    weight.grad = randn(4, 6, seed=1)
    optimizer.step()
    optimizer.param_groups[0]["view"] = views[1]
    before = weight.detach().clone()
    with pytest.raises(ValueError, match=r"its state 'radius' is torch\.float64 of shape"):
        optimizer.step()
    assert torch.equal(weight.detach(), before)


@pytest.mark.parametrize("radius", ["current", 2.0])
def test_radii(radius):
    weight, direction = randn(3, 4), randn(3, 4, seed=1)
    moved, _ = sn.chain(r.RadiusPin("layer", radius)).step(weight, direction, {})
    expected = weight.norm() if radius == "current" else torch.tensor(2.0).double()
    torch.testing.assert_close(moved.norm(), expected)


@pytest.mark.parametrize("radius", ["first", 0.0, -1.0, True, math.inf])
def test_what_is_no_radius_is_refused(radius):
    with pytest.raises(ValueError, match="RadiusPin: radius must be"):
        r.RadiusPin("layer", radius)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2, 2)])
def test_a_step_on_the_stiefel_manifold_stays_there(shape):
    rule, weight = sn.bind("spel", lr=0.3).rule, randn(*shape)
    torch.nn.init.orthogonal_(weight)
    tangent = applied(r.StiefelProjection(), weight, randn(*shape, seed=1)).flatten(1)
    flat = weight.flatten(1)
    flat, tangent = (flat.T, tangent.T) if flat.shape[0] < flat.shape[1] else (flat, tangent)
    assert (flat.T @ tangent + tangent.T @ flat).abs().max() <= 1e-14
    state = rule.init(weight)
    for step in range(5):
        weight, state = rule.step(weight, randn(*shape, seed=step), state)
        flat = weight.flatten(1)
        gram = flat @ flat.T if flat.shape[0] < flat.shape[1] else flat.T @ flat
        torch.testing.assert_close(gram, torch.eye(len(gram)).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2, 2)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_step_starts_on_the_spectral_sphere(shape, size):
    u, _, v = torch.linalg.svd(randn(*shape).flatten(1), full_matrices=False)
    values = torch.tensor([1.0, 0.3, 0.2, 0.1]).double()  # apart, so that the iteration converges
    weight, step = size * (u * values @ v).reshape(shape), randn(*shape, seed=1)
    start = weight - applied(r.SpectralPin(0.5), weight, step) + step
    radius = 0.5 * math.sqrt(shape[0] / weight[0].numel())
    # The step takes the rest of the weight away, and leaves its rounding.
    torch.testing.assert_close(start, radius / size * weight, rtol=0, atol=1e-14 * max(1, size))
    still = applied(r.SpectralPin(0.5), torch.zeros(shape).double(), step)
    assert torch.equal(still, step)


@pytest.mark.parametrize("size", [1e-100, 1e100])
def test_a_weight_of_any_size_comes_to_the_spectral_sphere(size):
    weight = size * torch.diag(torch.tensor([1.0, 0.5])).double()
    taken = applied(r.SpectralPin(), weight, torch.zeros(2, 2).double())
    share = 1 - max(1 / size, torch.finfo(torch.float64).eps ** 0.5)
    torch.testing.assert_close(taken, share * weight, rtol=1e-12, atol=0)


def test_a_weight_far_outside_keeps_half_of_its_digits():
    start, rule = randn(6, 4).float(), r.SpectralPin()
    weight = 1e9 * start
    for _ in range(4):
        weight, _ = rule.step(weight, torch.zeros(6, 4), {})
    ends = math.sqrt(6 / 4) * start / torch.linalg.matrix_norm(start, 2)
    half = torch.finfo(torch.float32).eps ** 0.5
    torch.testing.assert_close(weight, ends, rtol=half, atol=half)


def of_values(values, shape):
    u, _, v = torch.linalg.svd(randn(*shape), full_matrices=False)
    return u * torch.as_tensor(values).double() @ v


STARTS = {
    "identity": torch.eye(6).double(),
    "rank 1": of_values([1, 0, 0, 0, 0], (5, 8)),
    "close": of_values(torch.linspace(1, 1.001, 16), (32, 16)),
    "close to rounding": of_values(torch.linspace(1, 1 + 1e-6, 16), (16, 16)),
    "random": randn(8, 40),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("diagonal", [False, True])
def test_the_spectral_norm_is_exact_at_each_of_many_steps(start, diagonal):
    """Diagonal directions keep singular vectors where they are, and change whose is the largest."""
    weight, rule = STARTS[start], r.SpectralPin()
    radius, still = math.sqrt(weight.shape[0] / weight.shape[1]), torch.zeros_like(weight)
    for step in range(200):
        pinned = weight - applied(rule, weight, still)
        excess = torch.linalg.matrix_norm(pinned, 2) / radius - 1
        assert -1e-14 <= excess <= math.log(min(weight.shape)) / 2**14
        noise = randn(*weight.shape, seed=step)
        u, _, v = torch.linalg.svd(noise, full_matrices=False)
        turn = noise.sign() * torch.eye(*noise.shape) if diagonal else u @ v
        weight = pinned - 0.02 * radius * turn


def test_gains_are_factors_of_the_weight():
    """A gain alone scales its row, and the rest alone keeps each row's norm where it is pinned."""
    weight, grad = randn(3, 4), randn(3, 4, seed=1)
    gain = r.Gain(r.StepSize(0.0), r.StepSize(0.1))
    moved, _ = gain.step(weight, grad, gain.init(weight))
    unit = weight / weight.norm(dim=1, keepdim=True)
    slope = (unit * grad).sum(1, keepdim=True)
    torch.testing.assert_close(moved, weight - 0.1 * slope * unit)
    rest = r.Gain(sn.chain(r.StepSize(0.1), r.RadiusPin("channel", 1.0)), r.StepSize(0.0))
    moved, _ = rest.step(weight, grad, rest.init(weight))
    torch.testing.assert_close(moved.norm(dim=1), weight.norm(dim=1))


def test_a_free_length_sets_the_angle_alone():
    """As in weight normalization: it grows by the squared step, and the weight keeps its norm."""
    free = r.Gain(
        sn.chain(r.RadialProjection("channel"), r.StepSize(0.1)), r.StepSize(0.0), free=True
    )
    weight, grad = randn(3, 4), randn(3, 4, seed=1)
    state = free.init(weight)
    moved, after = free.step(weight, grad, state)
    tangent = (
        grad - (grad * weight).sum(1, keepdim=True) / (weight**2).sum(1, keepdim=True) * weight
    )
    squared = state["length"] ** 2 + (0.1 * tangent).square().sum(1, keepdim=True)
    torch.testing.assert_close(after["length"] ** 2, squared)
    torch.testing.assert_close(moved.norm(dim=1), weight.norm(dim=1))


def test_what_has_no_gain_is_refused():
    weight = torch.eye(3)
    weight[1] = 0
    with pytest.raises(ValueError, match="Gain: a unit of view channel is 0, without direction"):
        r.Gain(r.StepSize(1.0), r.StepSize(1.0)).init(weight)
    with pytest.raises(ValueError, match=r"parameter 0 .*Gain: a unit of view channel is 0"):
        sn.optim.Muown([weight.requires_grad_()])
    with pytest.raises(ValueError, match='Gain: free=True needs start="norm", got "one"'):
        r.Gain(r.StepSize(1.0), r.StepSize(1.0), start="one", free=True)


@pytest.mark.parametrize("view", ["channel", "layer", "dim=1", "groups=2"])
@pytest.mark.parametrize("setting", [{}, {"start": "one"}, {"free": True}], ids=str)
def test_factors_that_stand_still_leave_the_weight(view, setting):
    rule = r.Gain(r.StepSize(0.0), r.StepSize(0.0), view, **setting)
    weight = 3 * randn(4, 3)
    moved, state = rule.step(weight, randn(4, 3, seed=1), rule.init(weight))
    moved, _ = rule.step(moved, randn(4, 3, seed=2), state)
    torch.testing.assert_close(moved, weight)

    class Averaged(sn.Rule):
        def after(self, before, weight, state):
            return weight, state

    with pytest.raises(ValueError, match="Gain: after of Averaged is for the model's weight"):
        r.Gain(Averaged(), r.StepSize(1.0))


def test_lengths_of_updates():
    weight, direction = randn(3, 4), randn(3, 4, seed=1)
    weight[1], direction[2] = 0, 0
    one = applied(r.NormalizedUpdate("channel"), weight, direction)
    torch.testing.assert_close(one.norm(dim=1), torch.tensor([1.0, 1, 0]).double())
    relative = applied(r.NormalizedUpdate("channel", "weight"), weight, direction)
    torch.testing.assert_close(relative[0].norm(), weight[0].norm())
    assert torch.equal(relative[1], direction[1])  # a zero unit keeps its direction
    assert torch.equal(relative[2], direction[2])
    floor = applied(r.UpdateFloor(0.5, "channel"), weight, 1e-3 * direction)
    torch.testing.assert_close(floor[0].norm(), 0.5 * weight[0].norm())
    assert torch.equal(applied(r.UpdateFloor(1e-3, "channel"), weight, direction), direction)


def test_cautious_rules_decide_entry_by_entry():
    weight, direction, grad = randn(3, 4), randn(3, 4, seed=1), randn(3, 4, seed=2)
    agrees = (direction * grad > 0).double()
    masked = applied(r.CautiousMask(), weight, direction, grad)
    torch.testing.assert_close(masked, direction * agrees / agrees.mean())
    assert not applied(r.CautiousMask(), weight, direction, -direction).any()
    decayed = applied(r.DecoupledDecay(0.1, cautious=True), weight, direction)
    expected = direction + 0.1 * weight * (weight * direction >= 0)
    torch.testing.assert_close(decayed, expected)


def test_decay_towards_a_norm_has_it_for_a_limit():
    rule = sn.chain(r.TargetNormDecay(0.5, radius=2.0), r.StepSize(0.5))
    weight = randn(3, 4)
    for _ in range(200):
        weight, _ = rule.step(weight, torch.zeros_like(weight), {})
    torch.testing.assert_close(weight.norm(), torch.tensor(2.0).double())


@pytest.mark.parametrize("table", TABLES)
def test_newton_schulz_keeps_the_singular_vectors(table):
    """And brings the singular values of a matrix of condition 10 near 1."""
    matrix = randn(6, 4)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    matrix = u * torch.linspace(0.1, 1, 4, dtype=torch.float64) @ vh
    inner = u.T @ newton_schulz(matrix, TABLES[table], 1e-7) @ vh.T
    values = inner.diagonal()
    torch.testing.assert_close(inner, torch.diag(values), rtol=0, atol=1e-13)
    spread = {"original": 0.35, "plain": 1e-9}.get(table, 0.15)
    assert (values - 1).abs().max() <= spread, values


@pytest.mark.parametrize(
    ("view", "shape", "parts"),
    [
        ("groups=2", (6, 5), lambda x: [x[:3], x[3:]]),
        ("dim=1,groups=2", (6, 4), lambda x: [x[:, :2], x[:, 2:]]),
        ("dim=1,groups=2", (3, 4, 2, 2), lambda x: [x[:, :2], x[:, 2:]]),
        ("dim=-1", (4, 3, 2), lambda x: [x[..., 0], x[..., 1]]),
        ("channel", (2, 4, 3), lambda x: [x[0], x[1]]),
        ("layer", (4, 3, 2, 2), lambda x: [x]),
    ],
)
def test_each_unit_is_one_matrix(view, shape, parts):
    """Heads, a stack of experts, and a flattened convolution, each of its own shape scale."""
    weight, direction = randn(*shape), randn(*shape, seed=1)
    whole = applied(r.Orthogonalize(scale="spectral", view=view), weight, direction)
    for ours, part in zip(parts(whole), parts(direction), strict=True):
        flat = part.flatten(1)
        m, n = flat.shape
        alone = newton_schulz(flat, TABLES["original"], 1e-7) * math.sqrt(m / n)
        torch.testing.assert_close(ours.flatten(1), alone, rtol=1e-13, atol=1e-14)


def test_orthogonalization_in_bfloat16_is_near():
    direction = randn(6, 4)
    rules = [r.Orthogonalize(precision=precision) for precision in ("weight", "bfloat16")]
    ours, fast = (applied(rule, direction, direction) for rule in rules)
    assert fast.dtype is torch.float64
    assert 0 < (ours - fast).norm() / ours.norm() < 0.1


def test_scion_stays_in_its_ball():
    """A step is a convex combination of two points of it."""
    radius, scale = 3.0, math.sqrt(4 / 6)
    rule = sn.bind("scion", lr=0.3, radius=radius, coefficients="plain").rule
    weight = randn(4, 6)
    weight *= 0.9 * radius * scale / torch.linalg.matrix_norm(weight, 2)
    state = rule.init(weight)
    for step in range(20):
        weight, state = rule.step(weight, randn(4, 6, seed=step), state)
        assert torch.linalg.matrix_norm(weight, 2) <= radius * scale * (1 + 1e-6)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"coefficients": "new"}, {"scale": "up"}])
def test_what_no_orthogonalization_has_is_refused(bad):
    with pytest.raises(ValueError, match=f"Orthogonalize: {next(iter(bad))} must be"):
        r.Orthogonalize(**bad)


def test_adamc_is_adamw_at_the_schedules_maximum():
    at = {"lr": 0.1, "weight_decay": 0.5}
    for given in (at, {**at, "max_lr": 0.1}):
        assert sn.bind("adamc", **given).rule == sn.bind("adamw", **at).rule
    for wrong in (0.09, 0.0):
        with pytest.raises(ValueError, match=f"got max_lr={wrong} and lr=0.1"):
            sn.bind("adamc", lr=0.1, max_lr=wrong).rule  # noqa: B018
