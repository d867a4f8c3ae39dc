"""The sphere: its exponential map, parallel transport, and the weights that it does not suit."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spherenorm as sn
from spherenorm import rules as r
from tests.rules.units import close, randn, rows

VIEWS = ("channel", "layer", "dim=1", "groups=2")


def tangent(weight, x, view):
    """The tangent part of `x` at `weight`, as rows of units."""
    w, v = rows(weight, view), rows(x, view)
    return v - (w * v).sum(1, keepdim=True) / (w * w).sum(1, keepdim=True) * w


@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    radius=st.sampled_from([1e-6, 1.0, 1e6]),
    length=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.0]),
    view=st.sampled_from(VIEWS),
)
def test_the_move_is_the_exponential_map_and_transport_is_parallel(
    seed, dtype, radius, length, view
):
    """Against rotations: by |d| / |w| in the plane of w and d; what is across stays as it is."""
    weight, direction, x = (radius * randn(4, 3, 2, seed=seed + i, dtype=dtype) for i in range(3))
    direction = length * direction
    sphere = sn.Sphere(view)
    w, d = rows(weight.double(), view), tangent(weight.double(), direction.double(), view)
    v = tangent(weight.double(), x.double(), view)
    r_, l_ = w.norm(dim=1, keepdim=True), d.norm(dim=1, keepdim=True)
    angle, u = l_ / r_, d / torch.where(l_ > 0, l_, 1)
    n = w / r_
    tol, size = 1e4 * torch.finfo(dtype).eps, radius
    given_ = rows_of(v, x, view).to(dtype)
    ahead = rows_of(d, x, view).to(dtype)
    end, transported = sphere.move(weight, direction, {"x": given_, "ahead": ahead})
    new_weight = rows(end.double(), view)
    close(new_weight, r_ * (angle.cos() * n - angle.sin() * u), tol, size)
    # The part along the path turns with it, from u to cos u + sin n.
    along = (u * v).sum(1, keepdim=True)
    expected = v - along * u + along * (angle.cos() * u + angle.sin() * n)
    close(rows(transported["x"].double(), view), expected, tol, size)
    # Along the transported direction, the other way, the path leads home.
    home, back = sphere.move(end, -transported["ahead"], {"x": transported["x"]})
    close(home, weight, tol, size)
    close(back["x"], given_, tol, size)


def rows_of(values, like, view):
    """A tensor shaped as `like` of which the units are these rows."""
    out = torch.zeros_like(like, dtype=torch.float64)
    numbers = rows(torch.arange(like.numel()).reshape(like.shape), view)
    out.view(-1)[numbers.flatten()] = values.flatten()
    return out


def test_a_zero_unit_stays_and_disturbs_no_other():
    weight, direction = randn(2, 3), randn(2, 3, seed=1)
    weight[0] = 0
    new_weight, transported = sn.Sphere().move(weight, direction, {"d": direction})
    assert not new_weight[0].any()
    alone, _ = sn.Sphere().move(weight[1:], direction[1:], {})
    assert torch.equal(new_weight[1:], alone)
    assert torch.equal(transported["d"][0], direction[0])
    close(sn.Sphere().normalize(weight).norm(dim=1), [0.0, 1.0])
    flat, kept = sn.Euclidean().move(weight, direction, {"d": direction})
    assert torch.equal(flat, weight - direction)
    assert kept["d"] is direction


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sphere_complains_of_weights_off_the_unit_sphere(view, dtype):
    """To 1e-3, or to the precision of the weight."""
    sphere, rounds = sn.Sphere(view), torch.finfo(dtype).eps > 1e-3
    weight = sphere.normalize(randn(4, 6, 3))
    for scale, warned in (
        (1, False),
        (1.0005, False),
        (1.002, not rounds),
        (0.98, True),
        (0, True),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = sphere.weight_warnings((scale * weight).to(dtype).requires_grad_())
        assert len(result) == warned or (rounds and scale == 1.0005)
        assert all(f"Sphere({view!r}).normalize" in text for text in result)
    if view != "layer":  # one unit is enough
        weight[0, 0] *= 2
        assert sphere.weight_warnings(weight.to(dtype))
    assert not sphere.weight_warnings(torch.empty(4, 6, device="meta"))
    assert not sphere.weight_warnings(torch.empty(0, 6))


@pytest.mark.parametrize(
    ("view", "shape", "still"),
    [
        ("channel", (5,), True), ("channel", (), True), ("layer", (1, 1), True),
        ("channel", (5, 1), True), ("dim=1", (1, 5), True), ("layer", (5,), False),
        ("groups=2", (4,), False), ("dim=1", (5, 1), False),
    ],
)  # fmt: skip
def test_a_sphere_complains_of_weights_that_cannot_move(view, shape, still):
    """As the moves themselves say."""
    sphere = sn.Sphere(view)
    weight = sphere.normalize(randn(*shape))
    new_weight, _ = sphere.move(weight, randn(*shape, seed=1), {})
    assert torch.allclose(new_weight, weight, rtol=0, atol=1e-12) == still
    assert len(sphere.weight_warnings(2 * weight)) == 1
    assert len(sphere.weight_warnings(weight)) == still


def test_a_pin_complains_of_weights_whose_norm_matters():
    pin = r.FixedNorm()
    assert len(pin.weight_warnings(torch.ones(3))) == len(pin.weight_warnings(torch.ones(()))) == 1
    assert not pin.weight_warnings(torch.ones(3, 1))


@pytest.mark.parametrize("view", ["layer", "channel", "groups=2"])
def test_norms_that_are_held_do_not_drift(view):
    """In float32: by a pin, whose radius is a state, and by the sphere."""
    pin = sn.chain(r.StepSize(0.1), r.FixedNorm(view))
    weight = randn(4, 6, dtype=torch.float32)
    radius = pin.init(weight)["radius"]
    # A layer has one number, in double precision.
    shapes = ((), torch.float64) if view == "layer" else ((4, 1), torch.float32)
    assert (tuple(radius.shape), radius.dtype) == shapes
    assert pin.init(weight.half())["radius"].dtype is shapes[1]
    for rule in (pin, sn.chain(r.StepSize(0.1), manifold=sn.Sphere(view))):
        start, state = rows(weight.double(), view).norm(dim=1), rule.init(weight)
        new_weight, most = weight, 1e-6 if rule is pin else 1e-5
        for step in range(300):
            new_weight, state = rule.step(
                new_weight, randn(4, 6, seed=step, dtype=torch.float32), state
            )
        close(rows(new_weight.double(), view).norm(dim=1) / start, [1.0] * len(start), most)
