"""SGDG and AdamG against Cho and Lee's equations in numpy, and the invariants of the sphere."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spherenorm import Sphere, find_recipe
from spherenorm._views import as_view

UNITS, ENTRIES = 5, 7


def regularized_gradient(Y, G, alpha, nu):
    """Rows of Y are units; V = Y^T in Cho and Lee's notation. Regularize, project, clip."""
    V = Y.T
    G = G + (2 * alpha * V @ (V.T @ V - np.eye(V.shape[1]))).T
    H = G - np.sum(Y * G, 1, keepdims=True) * Y
    if nu is not None:
        length = np.linalg.norm(H, axis=1, keepdims=True)
        H = H * np.minimum(1, nu / length)
    return H


def numpy_sgdg(Y, gradients, lr, beta, alpha, nu):
    m = np.zeros_like(Y)
    for G in gradients:
        m = beta * m - lr * regularized_gradient(Y, G, alpha, nu)
        length = np.linalg.norm(m, axis=1, keepdims=True)
        u = m / length
        Y, m = (
            Y * np.cos(length) + u * np.sin(length),
            length * (u * np.cos(length) - Y * np.sin(length)),
        )
    return Y, m


def numpy_adamg(Y, gradients, lr, betas, eps, alpha, nu):
    m, v = np.zeros_like(Y), np.zeros((len(Y), 1))
    for t, G in enumerate(gradients, 1):
        h = regularized_gradient(Y, G, alpha, nu)
        m = betas[0] * m + (1 - betas[0]) * h
        v = betas[1] * v + (1 - betas[1]) * np.sum(h * h, 1, keepdims=True)
        d = -lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * m / np.sqrt(v + eps)
        length = np.linalg.norm(d, axis=1, keepdims=True)
        u = d / length
        along = np.sum(u * m, 1, keepdims=True)
        Y, m = (
            Y * np.cos(length) + u * np.sin(length),
            m - along * (np.sin(length) * Y + (1 - np.cos(length)) * u),
        )
    return Y, m


@pytest.mark.parametrize("nu", [None, 0.1, 3.0])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("name", ["sgdg", "adamg"])
def test_against_numpy(name, alpha, nu):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(UNITS, ENTRIES))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    gradients = rng.normal(size=(30, UNITS, ENTRIES))
    if name == "sgdg":
        expected, momentum = numpy_sgdg(Y, gradients, 0.2, 0.9, alpha, nu)
    else:
        expected, momentum = numpy_adamg(Y, gradients, 0.05, (0.9, 0.99), 1e-8, alpha, nu)
    rule = find_recipe(name)(nu=nu, alpha=alpha)
    weight = torch.from_numpy(Y).reshape(UNITS, ENTRIES, 1)
    state = rule.init(weight)
    for G in gradients:
        weight, state = rule.step(weight, torch.from_numpy(G).reshape(weight.shape), state)
    np.testing.assert_allclose(weight.squeeze(-1).numpy(), expected, rtol=0, atol=1e-12)
    # SGDG's m is the sum of steps; ours is the direction to subtract, its negative.
    buffer = -state["momentum"] if name == "sgdg" else state["exp_avg"]
    np.testing.assert_allclose(buffer.squeeze(-1).numpy(), momentum, rtol=0, atol=1e-12)


DTYPES = st.sampled_from([torch.float32, torch.float64])
VIEWS = st.sampled_from(["channel", "layer", "dim=1", "groups=2"])


@given(
    name=st.sampled_from(["sgdg", "adamg"]),
    dtype=DTYPES,
    view=VIEWS,
    lr=st.floats(0, 1),
    beta=st.floats(0, 0.95),
    nu=st.sampled_from([None, 0.1, 3.0]),
    alpha=st.floats(0, 0.5),
    seed=st.integers(0, 2**31),
)
def test_stays_on_the_sphere_with_a_tangent_momentum(name, dtype, view, lr, beta, nu, alpha, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return torch.randn(4, 3, 2, generator=generator, dtype=torch.float64).to(dtype)

    v, steps, eps = as_view(view), 20, torch.finfo(dtype).eps
    rule = find_recipe(name)(
        lr=lr,
        nu=nu,
        alpha=alpha,
        view=view,
        **({"momentum": beta} if name == "sgdg" else {"betas": (beta, 0.99)}),
    )
    weight = Sphere(view).normalize(draw())
    state = rule.init(weight)
    for _ in range(steps):
        weight, state = rule.step(weight, draw(), state)
    buffer = state["momentum" if name == "sgdg" else "exp_avg"]
    # Each step rounds the angle that it turns by, which may be several turns.
    assert (v.norm(weight) - 1).abs().max() < 100 * steps * eps
    assert (v.inner(weight, buffer).abs() <= 100 * steps * eps * v.norm(buffer).clamp(min=1)).all()


@given(
    seed=st.integers(0, 2**31),
    dtype=DTYPES,
    radius=st.sampled_from([1e-6, 1.0, 1e6]),
    length=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.0]),
    view=VIEWS,
)
def test_a_geodesic_keeps_radius_angles_and_lengths_and_can_be_walked_back(
    seed, dtype, radius, length, view
):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return torch.randn(4, 3, 2, generator=generator, dtype=torch.float64).to(dtype)

    sphere, v, rounding = Sphere(view), as_view(view), 1e4 * torch.finfo(dtype).eps
    weight = radius * sphere.normalize(draw())

    def tangent():
        x = draw()
        return x - v.radial_coefficient(weight, x) * weight

    direction = length * radius * tangent()
    x, y = tangent(), tangent()
    retraction = sphere.retract(weight, direction)
    a, b, back = retraction.transport(x), retraction.transport(y), retraction.transport(direction)

    def close(found, expected):
        torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)

    close(v.norm(retraction.weight) / radius, torch.ones_like(v.norm(weight)))
    close(v.inner(a, b), v.inner(x, y))
    close(v.inner(retraction.weight / radius, a), torch.zeros_like(v.norm(weight)))
    # Along the transported direction, the other way, the path leads home.
    home = sphere.retract(retraction.weight, -back)
    close(home.weight / radius, weight / radius)
    close(home.transport(a), x)


def test_the_move_is_the_exponential_map_of_the_tangent_part():
    weight = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    quarter = torch.tensor(
        [[5.0, -math.pi / 2, 0.0]], dtype=torch.float64
    )  # the radial 5 does not move it
    torch.testing.assert_close(
        Sphere().retract(weight, quarter).weight,
        torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64),
        rtol=0,
        atol=1e-15,
    )
    torch.testing.assert_close(
        Sphere().retract(2 * weight, quarter).weight.norm(), torch.tensor(2.0, dtype=torch.float64)
    )


def test_a_zero_unit_stays_and_disturbs_no_other():
    weight = torch.zeros(2, 3, dtype=torch.float64)
    weight[1] = 1
    moved = (
        Sphere()
        .retract(weight, torch.ones(2, 3, dtype=torch.float64) * torch.tensor([[1.0], [0.0]]))
        .weight
    )
    assert torch.equal(moved, weight)


def test_orthogonality_regularization_is_the_gradient_of_its_penalty():
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    rows = weight.flatten(1)
    penalty = 0.3 / 2 * ((rows @ rows.T - torch.eye(4)) ** 2).sum()
    (expected,) = torch.autograd.grad(penalty, weight)
    from spherenorm._update import Update
    from spherenorm.rules import OrthogonalityRegularization

    zero = torch.zeros_like(weight)
    update, _ = OrthogonalityRegularization(0.3).update(Update(weight.detach(), zero, zero), {})
    torch.testing.assert_close(update.direction, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("view", ["channel", "layer", "dim=1", "groups=2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sphere_complains_of_weights_off_the_unit_sphere(view, dtype):
    sphere = Sphere(view)
    weight = sphere.normalize(torch.randn(4, 6, 3, dtype=torch.float64))
    assert not sphere.weight_warnings(weight.to(dtype))
    for scale in (0, 0.98, 1.02, 1e3):
        (warning,) = sphere.weight_warnings((scale * weight).to(dtype))
        assert warning.endswith(f"start from spherenorm.Sphere({view!r}).normalize(weight)")
    if view != "layer":  # one unit is enough
        weight[0, 0] *= 2
        assert sphere.weight_warnings(weight.to(dtype))
    assert not sphere.weight_warnings(torch.empty(4, 6, device="meta"))
    assert not sphere.weight_warnings(torch.empty(0, 6))


@pytest.mark.parametrize("leaf", [True, False])
def test_weight_warnings_of_one_that_requires_grad_raise_no_warning(leaf):
    weight = torch.randn(4, 6, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_recipe("sgdg")().weight_warnings(weight if leaf else 2 * weight)


@pytest.mark.parametrize(
    ("view", "shape", "still"),
    [
        ("channel", (5,), True),
        ("channel", (), True),
        ("layer", (1, 1), True),
        ("channel", (5, 1), True),
        ("dim=1", (1, 5), True),
        ("layer", (5,), False),
        ("groups=2", (4,), False),
        ("dim=1", (5, 1), False),
    ],
)
def test_a_sphere_complains_of_weights_that_cannot_move(view, shape, still):
    """As the moves themselves say."""
    sphere = Sphere(view)
    weight = sphere.normalize(torch.randn(shape, dtype=torch.float64))
    moved = sphere.retract(weight, torch.randn_like(weight)).weight
    assert torch.allclose(moved, weight, rtol=0, atol=1e-12) == still
    weight_warnings = sphere.weight_warnings(2 * weight if still else weight)
    assert [text.split(",")[0] for text in weight_warnings] == ["cannot move"] * still
