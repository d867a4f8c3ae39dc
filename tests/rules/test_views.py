"""Views by the numbers of indices; the measurements of each unit."""

import math

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import metrics
from tests.harness import refuses
from tests.rules.units import by_units, close, exact, randn, rows, unit_numbers

NAMES = ("channel", "layer", "dim=1", "dim=-1", "groups=2", "dim=1,groups=3")
SHAPES = ((), (4,), (4, 3), (4, 6, 2), (4, 3, 2, 2), (0, 3), (4, 0))


def has_units(name, shape):
    at = sn.as_view(name)
    if at.dim is None or not shape:
        return at.groups is None
    return at.dim < len(shape) and not (at.groups and shape[at.dim] % at.groups)


@pytest.mark.parametrize(
    ("name", "shape"), [(n, s) for n in NAMES for s in SHAPES if has_units(n, s)], ids=str
)
def test_reductions_go_over_the_units(name, shape):
    view, x, y = sn.as_view(name), randn(*shape), randn(*shape, seed=1)
    assert (str(view), sn.as_view(view)) == (name, view)
    numbers = unit_numbers(shape, name)
    units = int(numbers.max(initial=-1)) + 1
    masks = [torch.as_tensor(numbers == i) for i in range(units)]
    parts = [(x[mask], y[mask]) for mask in masks]
    products = [a @ b for a, b in parts]
    expected = by_units(lambda _, a, b: a @ b, name, exact(x), exact(x), exact(y))
    for found in (view.inner(x, y), view.unit_sums(x * y)):
        assert torch.broadcast_shapes(found.shape, x.shape) == x.shape
        close(found + 0 * x, expected)
    norms = by_units(lambda _, a: np.linalg.norm(a), name, exact(x), exact(x))
    close(view.norm(x) + 0 * x, norms)
    coefficient = by_units(lambda _, a, b: a @ b / (a @ a), name, exact(x), exact(x), exact(y))
    close(view.radial_coefficient(x, y) + 0 * x, coefficient)
    assert not view.radial_coefficient(0 * x, y).any()
    assert torch.equal(view.from_rows(view.rows(x), x), x)
    if x.numel():
        assert view.size(x) == len(parts[0][0])
        close(view.units(view.inner(x, y)), products)
        close(view.rows(x).sort(1).values, rows(x, name).sort(1).values, 0)
        close(view.expand(torch.stack(products), x) + 0 * x, expected)
    if x.numel() and shape:
        along = 0 if view.dim is None else view.dim
        at_each_index = (x * y).movedim(along, 0).flatten(1).sum(1) if x.ndim > 1 else x * y
        for batch in ((), (2,), (3, 2)):  # in front of the indices
            found = view.sums_of_index_groups(at_each_index.expand(*batch, -1))
            close(found, torch.stack(products).expand(*batch, -1))


def test_what_is_no_view_and_weights_without_such_units_are_refused():
    for name in ("chanel", "", "dim=", "dim=x", ",groups=2", 3, None):
        with refuses(name, "dim=1,groups=8"):
            sn.as_view(name)
    for name in ("groups=0", sn.View):
        with refuses("groups", 0):
            sn.as_view(name) if isinstance(name, str) else sn.View(0, 0)
    with refuses("dim", "groups"):
        sn.View(None, 2)
    for name, shape, need in (
        ("dim=2", (4, 3), 2),
        ("dim=-3", (4, 3), -3),
        ("groups=3", (4, 3), 3),
    ):
        for method in ("norm", "size"):
            with refuses(name, shape, need):
                getattr(sn.as_view(name), method)(torch.ones(shape))


VIEWS = ("channel", "layer", "dim=1", "groups=2")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PAIRS = (metrics.effective_step, metrics.angular_update, metrics.cosine)


def exact_measures(a, b):
    """Of rows in float64; the angle by Kahan's formula."""
    a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
    angle = 2 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1))
    return (a - b).norm(dim=1), angle, (a * b).sum(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("distance", [1e-7, 1e-5, 1e-3, 1.0])
def test_every_precision_is_measured_in_float64(view, dtype, distance):
    before = randn(4, 6, 3, dtype=dtype).requires_grad_()
    after = (3 * before + distance * randn(4, 6, 3, seed=1)).to(dtype)
    a, b = rows(before.detach().double(), view), rows(after.detach().double(), view)
    result = torch.float64 if dtype is torch.float64 else torch.float32
    norm = metrics.norm(before, view)
    assert (norm.dtype, norm.requires_grad) == (result, False)
    close(norm, a.norm(dim=1), 1e-6 if dtype is not torch.float64 else 1e-14, 10)
    for measure, expected in zip(PAIRS, exact_measures(a, b), strict=True):
        found = measure(before, after, view)
        assert (found.dtype, found.requires_grad) == (result, False)
        # Kahan's formula has the rounding of unit vectors, which is 1e-9 of the smallest angle.
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 36), (torch.float64, 150)])
@pytest.mark.parametrize("view", VIEWS)
def test_any_scale_of_either_tensor(view, dtype, power):
    before, after = randn(4, 6, dtype=dtype), randn(4, 6, seed=1, dtype=dtype)
    for scale in (10.0**-power, 10.0**power):
        close(metrics.norm(scale * before, view) / scale, metrics.norm(before, view), 1e-5)
        for measure in PAIRS:
            close(measure(scale * before, scale * after, view), measure(before, after, view), 1e-5)
        for other in (1 / scale, 1.0):
            found = metrics.cosine(scale * before, other * after, view)
            close(found, metrics.cosine(before, after, view), 1e-5)


def test_special_angles():
    before = torch.tensor([[1e150, 0.0], [1e-140, 0.0], [1.0, 0.0]], dtype=torch.float64)
    after = torch.tensor([[1e150, 1e140], [1e-140, 1e-150], [1.0, 1e-12]], dtype=torch.float64)
    angles = metrics.angular_update(before, after).tolist()
    assert angles == pytest.approx([1e-10, 1e-10, 1e-12], rel=1e-9)
    weight = randn(5, 6)
    close(metrics.angular_update(weight, -weight), [math.pi] * 5)
    close(metrics.effective_step(weight, -weight), [2.0] * 5)
    # Zero units have no direction.
    some, other = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    for measure in PAIRS[:2]:
        assert measure(some, other).tolist() == [0, 0]
    assert metrics.cosine(some, other).isnan().all()
    for dtype in DTYPES:
        many = randn(2000, 7, dtype=dtype)
        assert all((metrics.cosine(many, f * many).abs() <= 1).all() for f in (1, -1, 0.5))
    large = randn(64, 4096).half()  # of which the squared norm is beyond float16
    assert metrics.norm(large, "layer").item() == pytest.approx(512, rel=0.01)


@pytest.mark.parametrize("measure", PAIRS)
def test_measurements_take_odd_shapes_and_batches_and_refuse_others(measure):
    weight = torch.ones(2, 3)
    for other in (torch.ones(3, 2), torch.ones(3)):  # of which the second would broadcast
        with refuses((2, 3), tuple(other.shape)):
            measure(weight, other)
    for wrong in (weight.to(torch.complex64), weight.long()):
        with refuses(wrong.dtype, by=TypeError):
            measure(weight, wrong)
        with refuses("weight", wrong.dtype, by=TypeError):
            metrics.norm(wrong)
    for shape in ((), (0,), (3,), (0, 4), (4, 0)):
        for view, units in (("channel", shape[0] if shape else 1), ("layer", 1)):
            assert metrics.norm(torch.ones(shape), view).shape == (units,)
            assert measure(torch.ones(shape), torch.ones(shape), view).shape == (units,)
    a, b = randn(5, 4, 6), randn(5, 4, 6, seed=1)
    for view in VIEWS:
        found = torch.vmap(lambda x, y, view=view: measure(x, y, view))(a, b)
        close(found, torch.stack([measure(x, y, view) for x, y in zip(a, b, strict=True)]))
