import pytest
import torch

from spherenorm._views import View, as_view

SHAPES = [(), (4,), (4, 3), (4, 6, 2), (4, 3, 2, 2), (0, 3), (4, 0)]


@pytest.mark.parametrize(
    "view", ["channel", "layer", "dim=1", "dim=-1", "groups=2", "dim=1,groups=3"]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_reductions_agree_with_rows(view, shape):
    v = as_view(view)
    if len(shape) < 2 and v.dim not in (0, None, -1):
        return
    if v.groups and (not shape or shape[v.dim] % v.groups or 0 in shape):
        return
    x, y = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    assert torch.equal(v.from_rows(v.rows(x), x), x)
    inner = v.inner(x, y)
    assert torch.broadcast_shapes(inner.shape, x.shape) == x.shape
    rows = (v.rows(x) * v.rows(y)).sum(1)
    torch.testing.assert_close(v.units(inner), rows)
    # Broadcast against the weight, each entry meets the value of its own unit.
    expanded = v.rows((inner + 0 * x) if shape else inner)
    torch.testing.assert_close(expanded, rows[:, None].expand_as(expanded))
    torch.testing.assert_close(v.expand(rows, x) + 0 * x, inner + 0 * x)
    if shape:
        along = 0 if v.dim is None else v.dim % x.ndim
        others = [d for d in range(x.ndim) if d != along]
        at_each_index = (x * y).sum(others) if others else x * y
        torch.testing.assert_close(v.of_indices(at_each_index), rows)
    if x.numel():
        assert v.size(x) == v.rows(x).shape[1]


@pytest.mark.parametrize("name", ["channel", "layer", "dim=1", "groups=8", "dim=1,groups=8"])
def test_names_round_trip(name):
    assert str(as_view(name)) == name


@pytest.mark.parametrize(
    "name", ["chanel", "", "dim=", "groups=0", "groups=-1", "dim=x", ",groups=2", 3, None]
)
def test_bad_names(name):
    with pytest.raises(ValueError, match=r"a view is|groups must be"):
        as_view(name)


def test_a_view_that_does_not_fit_the_weight():
    with pytest.raises(ValueError, match=r"dimension 2, got shape \(4, 3\)"):
        View(2).norm(torch.ones(4, 3))
    with pytest.raises(ValueError, match=r"divisible by 3, got shape \(4, 3\)"):
        View(0, 3).norm(torch.ones(4, 3))
