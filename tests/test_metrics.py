"""The metrics against float64 references, at every scale and in every precision."""

import math

import pytest
import torch

from spherenorm import metrics
from spherenorm._views import as_view

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
VIEWS = ["channel", "layer", "dim=1", "groups=2"]
PAIRS = [metrics.effective_step, metrics.angular_update, metrics.cosine]


def rows_of(view, *tensors):
    return [as_view(view).rows(x.double()) for x in tensors]


def exact_angle(a, b):
    """Of float64 rows, by Kahan's formula: 2 atan2(|u - v|, |u + v|)."""
    u, v = a * b.norm(dim=1, keepdim=True), b * a.norm(dim=1, keepdim=True)
    return 2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_precision_is_measured_in_float64(view, dtype):
    before, after = torch.randn(4, 6, 3).to(dtype), torch.randn(4, 6, 3).to(dtype)
    a, b = rows_of(view, before, after)
    result = torch.float64 if dtype is torch.float64 else torch.float32
    expected = {
        metrics.effective_step: (a / a.norm(dim=1)[:, None] - b / b.norm(dim=1)[:, None]).norm(
            dim=1
        ),
        metrics.angular_update: exact_angle(a, b),
        metrics.cosine: torch.nn.functional.cosine_similarity(a, b),
    }
    for measure, value in expected.items():
        torch.testing.assert_close(measure(before, after, view), value.to(result))
    torch.testing.assert_close(metrics.norm(before, view), a.norm(dim=1).to(result))


def test_a_large_half_precision_weight_has_a_norm_and_moves():
    """Its squared norm, 262144, is beyond float16."""
    before = torch.randn(64, 4096).half()
    after = before + 0.01 * torch.randn(64, 4096).half()
    assert metrics.norm(before, "layer").item() == pytest.approx(512, rel=0.01)
    assert metrics.effective_step(before, after, "layer").item() == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_small_angles_of_float32_weights_are_exact(view, angle, factor):
    before = torch.randn(4, 6, 3)
    after = factor * (before + angle * torch.randn(4, 6, 3))
    a, b = rows_of(view, before, after)
    a, b = a.unbind(), b.unbind()
    exact = []
    for u, v in zip(a, b, strict=True):
        # |u x v|^2 = sum of squared 2 x 2 minors, in which nothing cancels but the last digits
        minors = torch.outer(u, v) - torch.outer(v, u)
        exact.append(math.atan2(math.sqrt(minors.square().sum() / 2), u.dot(v)))
    found = metrics.angular_update(before, after, view)
    assert found.tolist() == pytest.approx(exact, rel=1e-6)
    chords = [2 * math.sin(x / 2) for x in exact]
    assert metrics.effective_step(before, after, view).tolist() == pytest.approx(chords, rel=1e-6)


@pytest.mark.parametrize("angle", [1e-9, 1e-12])
def test_small_angles_of_float64_weights_are_exact(angle):
    before = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    after = torch.tensor([[1.0, angle]], dtype=torch.float64)
    assert metrics.angular_update(before, after).item() == pytest.approx(angle, rel=1e-12)


@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 36), (torch.float64, 300)])
@pytest.mark.parametrize("view", VIEWS)
def test_any_scale_of_either_tensor(view, dtype, power):
    before, after = torch.randn(4, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    for scale in (10.0**-power, 10.0**power):
        torch.testing.assert_close(
            metrics.norm(scale * before, view),
            scale * metrics.norm(before, view),
            atol=0,
            rtol=1e-5,
        )
        for measure in PAIRS:
            expected = measure(before, after, view)
            torch.testing.assert_close(measure(scale * before, scale * after, view), expected)
        for other in (1 / scale, 1.0):
            found = metrics.cosine(scale * before, other * after, view)
            torch.testing.assert_close(found, metrics.cosine(before, after, view))


def test_a_unit_of_another_scale_does_not_hide_a_small_one():
    before = torch.tensor([[1e300, 0.0], [1e-300, 0.0]], dtype=torch.float64)
    after = torch.tensor([[1e300, 1e290], [1e-300, 1e-310]], dtype=torch.float64)
    assert metrics.norm(before).tolist() == pytest.approx([1e300, 1e-300], rel=1e-12)
    assert metrics.angular_update(before, after).tolist() == pytest.approx([1e-10] * 2, rel=1e-9)


def test_the_cosine_stays_in_its_interval():
    for dtype in DTYPES:
        weight = torch.randn(2000, 7).to(dtype)
        for factor in (1, -1, 0.5):
            cosine = metrics.cosine(weight, factor * weight)
            assert cosine.isfinite().all()
            assert (cosine.abs() <= 1).all()


def test_zero_units_have_no_direction():
    before, after = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert metrics.effective_step(before, after).tolist() == [0, 0]
    assert metrics.angular_update(before, after).tolist() == [0, 0]
    assert metrics.cosine(before, after).isnan().all()


def test_half_a_turn():
    weight = torch.randn(5, 6, dtype=torch.float64)
    assert metrics.angular_update(weight, -weight).tolist() == pytest.approx([math.pi] * 5)
    assert metrics.effective_step(weight, -weight).tolist() == pytest.approx([2.0] * 5)


@pytest.mark.parametrize("measure", [metrics.norm, *PAIRS])
def test_results_carry_no_graph(measure):
    weight = torch.randn(3, 4, requires_grad=True)
    arguments = (weight,) if measure is metrics.norm else (weight, 2 * weight)
    assert not measure(*arguments).requires_grad


@pytest.mark.parametrize("measure", PAIRS)
def test_bad_tensors_are_refused(measure):
    weight = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"must have the shape of \w+, \(2, 3\), got \(3, 2\)"):
        measure(weight, torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"got \(3,\)"):
        measure(weight, torch.ones(3))  # which would broadcast
    for wrong in (weight.to(torch.complex64), weight.long()):
        with pytest.raises(TypeError, match=f"must be real and floating-point, got {wrong.dtype}"):
            measure(weight, wrong)
        with pytest.raises(TypeError, match="weight must be real"):
            metrics.norm(wrong)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 4), (4, 0)])
def test_odd_shapes(shape):
    weight = torch.ones(shape)
    for view in ("channel", "layer"):
        units = as_view(view).units(as_view(view).total(weight)).numel()
        assert metrics.norm(weight, view).shape == (units,)
        assert metrics.cosine(weight, weight, view).shape == (units,)
        assert (metrics.angular_update(weight, weight, view) == 0).all()


def test_they_vmap():
    weights, others = torch.randn(5, 4, 6), torch.randn(5, 4, 6)
    for view in VIEWS:
        for measure in PAIRS:
            found = torch.vmap(lambda a, b, f=measure, v=view: f(a, b, v))(weights, others)
            for row, a, b in zip(found, weights, others, strict=True):
                torch.testing.assert_close(row, measure(a, b, view))
