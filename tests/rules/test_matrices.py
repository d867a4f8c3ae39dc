"""Rules of matrices: orthogonal factors, spectral norms, the Stiefel manifold, penalties."""

import math

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.rules import orthogonalize
from tests.harness import refuses
from tests.rules.units import applied, close, exact, randn, rows

VIEWS = [
    ("groups=2", (6, 5), lambda x: [x[:3], x[3:]]),
    ("dim=1,groups=2", (6, 4), lambda x: [x[:, :2], x[:, 2:]]),
    ("dim=1,groups=2", (3, 4, 2, 2), lambda x: [x[:, :2], x[:, 2:]]),
    ("dim=-1", (4, 3, 2), lambda x: [x[..., 0], x[..., 1]]),
    ("channel", (2, 4, 3), lambda x: [x[0], x[1]]),
    ("layer", (4, 3, 2, 2), lambda x: [x]),
    ("layer", (6, 4), lambda x: [x]),
    ("layer", (4, 6), lambda x: [x]),
]
"""Heads, a stack of experts, flattened convolutions: the matrices of each view."""
TABLES = {
    "original": ([(3.4445, -4.7750, 2.0315)] * 5, 0.35),
    "quintic": (None, 0.15),
    "polar_express": (None, 0.15),
    "cans": (None, 0.15),
    "deepseek": ([(3.4445, -4.7750, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2, 0.15),
    "plain": ([(2.0, -1.5, 0.5)] * 12, 1e-9),
}
"""The published coefficients, and how near to 1 they bring singular values from 0.1 on."""
SCALES = {
    "none": lambda m, n: 1.0,
    "original": lambda m, n: math.sqrt(max(1, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),
    "spectral": lambda m, n: math.sqrt(m / n),
    "aspect": lambda m, n: math.sqrt(max(m, n) / min(m, n)),
}


def of_values(values, m, n):
    """A matrix of these singular values, and its factors."""
    u, _, vh = torch.linalg.svd(randn(m, n), full_matrices=False)
    return u * torch.as_tensor(values, dtype=torch.float64) @ vh, u, vh


def polynomial(values, table):
    """The singular values after the iteration: x <- a x + b x^3 + c x^5, from x / |x| on."""
    x = values / (values**2).sum().sqrt()
    for a, b, c in table:
        x = a * x + b * x**3 + c * x**5
    return x


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("m", "n"), [(6, 4), (4, 6)])
def test_singular_values_go_to_1_and_their_vectors_stay(name, m, n):
    table, spread = TABLES[name]
    values = torch.linspace(0.1, 1, 4, dtype=torch.float64)
    matrix, u, vh = of_values(values, m, n)
    result = u.T @ applied(r.Orthogonalize(name), matrix, 3 * matrix) @ vh.T
    close(result, result.diagonal().diag(), 1e-13)
    assert (result.diagonal() - 1).abs().max() <= spread
    if table:
        close(result.diagonal(), polynomial(values, table))
        for steps in (1, 3, len(table) + 2):  # of which the last goes on
            rule = r.Orthogonalize(name, steps=steps)
            taken = [*table, table[-1], table[-1]][:steps]
            result = u.T @ applied(rule, matrix, 3 * matrix) @ vh.T
            close(result.diagonal(), polynomial(values, taken))


@pytest.mark.parametrize(("name", "worst"), [("quintic", 0.12), ("polar_express", 1e-3)])
def test_published_ranges(name, worst):
    """On all singular values from 0.05 |G| on; a wrong coefficient leaves the range."""
    matrix, u, vh = of_values(torch.linspace(0.05, 1, 24), 24, 32)
    result = (u.T @ applied(r.Orthogonalize(name), matrix, matrix) @ vh.T).diagonal()
    assert (result - 1).abs().max() <= worst


ORIGINAL = ((3.4445, -4.7750, 2.0315),) * 5


def test_a_table_of_ones_own_has_the_bits_of_the_librarys():
    weight, direction = randn(6, 4), randn(6, 4, seed=1)
    named = applied(r.Orthogonalize(), weight, direction)
    for coefficients, steps in (
        (ORIGINAL, None),
        ([list(triple) for triple in ORIGINAL], None),
        (np.array(ORIGINAL), None),
        (ORIGINAL[:1], 5),
        (lambda i: ORIGINAL[i], 5),
    ):
        rule = r.Orthogonalize(coefficients, steps)
        assert rule.coefficients == ORIGINAL[: len(rule.coefficients)]
        assert torch.equal(applied(rule, weight, direction), named)


@pytest.mark.parametrize(
    ("coefficients", "steps", "error", "named"),
    [
        (((5.0, 0.0, 0.0),) * 5, None, ValueError, "grows to 3.12"),
        (((1.0, -3.0, 0.0),) * 3, None, ValueError, "negative"),
        (((1.0, 0.0, 0.0),), None, ValueError, "0.1 stays at 0.1"),
        (((float("nan"), 0.0, 0.0),), None, ValueError, "nan"),
        (((1.5, -0.5, 0.0),) * 2, None, ValueError, "more steps"),
        (((1.5, -0.5),) * 8, None, TypeError, (1.5, -0.5)),
        ((("a", 0.0, 0.0),), None, TypeError, "a"),
        ((torch.tensor(ORIGINAL[0]),), None, TypeError, "triples"),
        ((1.5, -0.5, 0.0), None, TypeError, "triples"),
        ((), None, ValueError, "none"),
        (3.0, None, TypeError, 3.0),
        ("orignal", None, ValueError, "original"),
        (lambda i: ORIGINAL[i], None, ValueError, "steps=5"),
    ],
)
def test_polynomials_that_do_not_bring_singular_values_near_1_are_refused(
    coefficients, steps, error, named
):
    with refuses("Orthogonalize", "coefficients", named, by=error):
        r.Orthogonalize(coefficients, steps)


@pytest.mark.parametrize("name", TABLES)
def test_published_tables_pass_the_check(name):
    table = orthogonalize.TABLES[name]
    assert r.Orthogonalize(table).coefficients == table


@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5)])
def test_almost_orthogonal_rows(m, n):
    """Rows of the wide matrix over the root of the sums of |entries| of its Gram matrix."""
    weight, direction = randn(m, n), randn(m, n, seed=1)
    wide = exact(direction).T if m > n else exact(direction)
    scaled = wide / np.sqrt(np.abs(wide @ wide.T).sum(1, keepdims=True))
    assert np.linalg.norm(scaled, 2) <= 1 + 1e-12
    u, _, vh = np.linalg.svd(scaled, full_matrices=False)
    result = applied(r.Orthogonalize("plain", 30, start="aol"), weight, direction)
    close(result.T if m > n else result, u @ vh, 1e-11)
    assert not applied(r.Orthogonalize(start="aol"), weight, 0 * direction).any()


@pytest.mark.parametrize("start", ["frobenius", "aol"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (3, 2, 2, 2)])
def test_the_gram_matrix_gives_the_same_factor(shape, start):
    weight, direction = randn(*shape), randn(*shape, seed=1)
    results = [
        applied(r.Orthogonalize(steps=steps, start=start, method=method), weight, direction)
        for steps in (1, 5)
        for method in ("iterate", "gram")
    ]
    close(results[1], exact(results[0]), 1e-13)
    close(results[3], exact(results[2]), 1e-11)
    with refuses("gram", "bfloat16", "float32"):
        r.Orthogonalize(method="gram", precision="bfloat16")


def test_an_optimizer_with_a_table_saves_and_loads_it(tmp_path):
    def train(coefficients, reload):
        weight = torch.nn.Parameter(randn(6, 4))
        optimizer = sn.optim.Muon([weight], lr=0.02, coefficients=coefficients)
        for step in range(4):
            if reload and step == 2:
                torch.save(optimizer.state_dict(), tmp_path / "state.pt")
                optimizer = sn.optim.Muon([weight])
                optimizer.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            weight.grad = randn(6, 4, seed=step)
            optimizer.step()
        return weight.detach()

    expected = train("original", False)
    assert torch.equal(train(ORIGINAL, False), expected)
    assert torch.equal(train(ORIGINAL, True), expected)


@pytest.mark.parametrize("scale", SCALES)
def test_each_unit_of_a_view_is_one_matrix(scale):
    for view, shape, parts in VIEWS:
        weight, direction = randn(*shape), randn(*shape, seed=1)
        result = applied(r.Orthogonalize("plain", 30, scale, view=view), weight, direction)
        for factor, part in zip(parts(result), parts(direction), strict=True):
            u, _, vh = np.linalg.svd(exact(part.flatten(1)), full_matrices=False)
            m, n = part.flatten(1).shape
            close(factor.flatten(1), SCALES[scale](m, n) * (u @ vh), 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision(dtype):
    """bfloat16 is off by a few percent; half precision is computed with in float32 by itself."""
    random_matrix = randn(6, 4, dtype=dtype)
    expected = applied(r.Orthogonalize(), random_matrix.double(), random_matrix.double())
    limits = {"weight": (0, 1e-5), "float32": (0, 1e-5), "bfloat16": (1e-4, 0.1)}
    for precision, (smallest_error, largest_error) in limits.items():
        result = applied(r.Orthogonalize(precision=precision), random_matrix, random_matrix)
        assert result.dtype is torch.float32
        assert smallest_error <= (result - expected).norm() / expected.norm() <= largest_error
    # In double precision the iteration in float32 shows.
    double = applied(
        r.Orthogonalize(precision="float32"),
        random_matrix.double(),
        random_matrix.double(),
    )
    assert 0 < (double - expected).norm() <= 1e-5


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6, 1e-9])
def test_the_smallest_norm(size):
    """Below eps = 1e-7 a direction is divided by that; 0 stays 0."""
    matrix, u, vh = of_values([1.0, 0.5, 0.3, 0.1], 6, 4)
    result = (u.T @ applied(r.Orthogonalize("plain", 1), matrix, size * matrix) @ vh.T).diagonal()
    values = size * torch.tensor([1.0, 0.5, 0.3, 0.1], dtype=torch.float64)
    x = values / max(float(values.norm()), 1e-7)
    close(result, 2 * x - 1.5 * x**3 + 0.5 * x**5)
    assert not applied(r.Orthogonalize(), matrix, 0 * matrix).any()
    for shape in ((0, 4), (4, 0)):
        empty = torch.empty(shape)
        assert applied(r.Orthogonalize(scale="aspect"), empty, empty).shape == shape


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2, 2)])
@pytest.mark.parametrize("size", [1e-100, 1e-6, 1.0, 1e6, 1e100])
def test_a_step_starts_on_the_spectral_sphere(shape, size):
    """A weight far outside comes down by a factor of sqrt(eps) a step, and keeps its digits."""
    m, n = shape[0], math.prod(shape[1:])
    weight, step = of_values([1.0, 0.3, 0.2, 0.1], m, n)[0].reshape(shape), randn(*shape, seed=1)
    for radius in (0.5, torch.tensor(0.5, dtype=torch.float64)):
        taken = applied(r.FixedSpectralNorm(radius), size * weight, step) - step
        kept = max(0.5 * math.sqrt(m / n) / size, torch.finfo(torch.float64).eps ** 0.5)
        close(taken / size, (1 - kept) * weight, 1e-12 * max(1, kept, 1 / size), 1.0)
    still = applied(r.FixedSpectralNorm(), torch.zeros(shape).double(), step)
    assert torch.equal(still, step)


STARTS = {
    "identity": torch.eye(6).double(),
    "rank 1": of_values([1, 0, 0, 0, 0], 5, 8)[0],
    "close": of_values(torch.linspace(1, 1.001, 16), 32, 16)[0],
    "close to rounding": of_values(torch.linspace(1, 1 + 1e-6, 16), 16, 16)[0],
    "random": randn(8, 40),
    "one row": randn(1, 7),
}


@pytest.mark.parametrize("start", STARTS)
def test_the_spectral_norm_is_exact_at_each_of_many_steps(start):
    """Diagonal directions keep singular vectors where they are, and change whose is the largest."""
    weight = STARTS[start]
    radius, still = math.sqrt(weight.shape[0] / weight.shape[1]), torch.zeros_like(weight)
    for step in range(60):
        pinned = weight - applied(r.FixedSpectralNorm(), weight, still)
        excess = torch.linalg.matrix_norm(pinned, 2) / radius - 1
        assert -1e-14 <= excess <= math.log(min(weight.shape)) / 2**14 + 1e-14
        noise = randn(*weight.shape, seed=step)
        u, _, v = torch.linalg.svd(noise, full_matrices=False)
        weight = pinned - 0.02 * radius * (
            noise.sign() * torch.eye(*noise.shape) if step % 2 else u @ v
        )


def symmetric(x):
    return (x + x.T) / 2


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (4, 3, 2, 2), (5, 5)])
def test_the_tangent_part_of_a_stiefel_step(shape):
    """D - W sym(W^T D): tangent, the nearest one, and zero for a normal direction."""
    weight, direction = torch.nn.init.orthogonal_(randn(*shape)), randn(*shape, seed=1)
    tangent = applied(r.StiefelProjection(), weight, direction).flatten(1)
    w, d = weight.flatten(1), direction.flatten(1)
    if w.shape[0] < w.shape[1]:
        w, d, tangent = w.T, d.T, tangent.T
    close(symmetric(w.T @ tangent), torch.zeros(w.shape[1], w.shape[1]), 1e-14)
    close(tangent, d - w @ symmetric(w.T @ d), 1e-13)
    ends = r.Retraction(r.Orthogonalize("plain"))
    end = (weight - applied(ends, weight, 0.1 * direction)).flatten(1)
    close(torch.linalg.svdvals(end), np.ones(min(end.shape)))


@pytest.mark.parametrize(
    ("view", "shape"),
    [("channel", (4, 3, 3)), ("dim=1", (4, 3, 2)), ("groups=2", (4, 3)), ("layer", (4, 3))],
)
def test_the_regularization_is_the_gradient_of_its_penalty(view, shape):
    weight = randn(*shape).requires_grad_()
    y = rows(weight, view)
    penalty = 0.3 / 2 * ((y @ y.T - torch.eye(len(y))) ** 2).sum()
    (expected,) = torch.autograd.grad(penalty, weight)
    grad, weight = randn(*shape, seed=1), weight.detach()
    for alpha in (0.3, torch.tensor(0.3, dtype=torch.float64)):
        close(applied(r.OrthogonalityRegularization(alpha, view), weight, grad), grad + expected)
    for untouched in (randn(5), torch.empty(0, 4)):
        assert torch.equal(
            applied(r.OrthogonalityRegularization(1.0), untouched, untouched), untouched
        )
    assert torch.equal(applied(r.OrthogonalityRegularization(0.0), weight, grad), grad)
