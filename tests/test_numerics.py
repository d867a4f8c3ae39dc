"""Shared arithmetic: values, and derivatives of all orders in all modes."""

import itertools
import math

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp
from torch.fx.experimental.proxy_tensor import make_fx

from spherenorm._numerics import LARGE, plus_scaled, power, root, scaled_plus
from spherenorm.record import record

MODES = (jacfwd, jacrev)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def orders(function, x, order):
    """The derivative of that order at `x`, once for each mix of modes."""
    for modes in itertools.product(MODES, repeat=order):
        derived = function
        for mode in modes:
            derived = mode(derived)
        yield derived(x)


def test_a_root_is_one_square_root_where_no_derivative_is_taken():
    x = double(0.0, 1e-300, 2.0, math.inf, math.nan)
    for values in (root(x), torch.no_grad()(root)(x)):
        torch.testing.assert_close(values, x.sqrt(), rtol=0, atol=0, equal_nan=True)
    with torch.no_grad():
        traced = make_fx(root)(x).graph.nodes
    assert [str(node.target) for node in traced if node.op == "call_function"] == [
        "aten.sqrt.default"
    ]
    assert [call.name for call in record(root, x).calls] == ["aten.sqrt.default"]


def test_the_derivatives_of_a_root():
    x = double(0.0, 0.5, 2.0)
    expected = double(0.0, 0.5**0.5, 0.5 / 2**0.5)
    for f in (root, torch.vmap(root)):
        for derived in (
            grad(lambda x, f=f: f(x).sum()),
            lambda x, f=f: jvp(f, (x,), (torch.ones_like(x),))[1],
            torch.no_grad()(lambda x, f=f: jvp(f, (x,), (torch.ones_like(x),))[1]),
        ):
            torch.testing.assert_close(derived(x), expected)
            torch.testing.assert_close(
                torch.compile(derived, fullgraph=True, backend="aot_eager")(x), expected
            )
    for value in (0.0, 0.5, 2.0):
        exact = (
            [0.5 * value**-0.5, -0.25 * value**-1.5, 0.375 * value**-2.5] if value else [0.0] * 3
        )
        for order in (1, 2, 3):
            for found in orders(root, number(value), order):
                torch.testing.assert_close(found, number(exact[order - 1]), rtol=1e-14, atol=0)


@pytest.mark.parametrize("no_grad", [True, False])
def test_a_scale_of_0_leaves_what_it_is_added_to(no_grad):
    x, y = double(1.0, 2.0, 3.0), double(4.0, math.inf, math.nan)
    with torch.set_grad_enabled(not no_grad):
        for scale in (0, number(0.0)):
            assert torch.equal(plus_scaled(x, scale, y), x)
        assert plus_scaled(x, number(0.5), y).tolist()[:2] == [3.0, math.inf]
        # The derivative is y, but for what is not finite.
        one = torch.ones_like(number(0.0))
        forward = jvp(lambda scale: plus_scaled(x, scale, y), (number(0.0),), (one,))[1]
    assert torch.equal(forward, double(4.0, 0.0, 0.0))
    assert torch.equal(jacrev(lambda s: plus_scaled(x, s, y))(number(0.0)), forward)
    # A double of 1e-300 is no 0, though a float32 holds none such.
    assert plus_scaled(x.float(), number(1e-300), y.float()).isnan().tolist() == [False, True, True]


@pytest.mark.parametrize("base", [0.0, 1e-300, 1e-50, 0.5])
@pytest.mark.parametrize("exponent", [1, 2, 3, 7])
def test_the_derivatives_of_a_power(base, exponent):
    assert power(base, number(float(exponent))).item() == base**exponent

    def f(x):
        return power(x, number(float(exponent)))

    torch.testing.assert_close(f(number(base)), number(base**exponent), rtol=1e-15, atol=0)
    for order in (1, 2, 3):
        falls = math.prod(range(exponent - order + 1, exponent + 1)) if order <= exponent else 0
        exact = falls * base ** (exponent - order) if falls else 0.0
        for found in orders(f, number(base), order):
            torch.testing.assert_close(found, number(exact), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (3,), (LARGE,)])
@pytest.mark.parametrize("given", ["numbers", "tensors", "a number and a tensor"])
def test_scale_and_shift_of_an_intermediate_result(given, shape):
    x = torch.rand(shape)
    scale, shift = 3.0, 1e-8
    want = (scale * x.double() + shift).float()
    if given != "numbers":
        shift = torch.tensor(shift, dtype=torch.float64)
    if given == "tensors":
        scale = torch.tensor(scale, dtype=torch.float64)
    for taken in (False, True):
        with torch.set_grad_enabled(taken):
            got = scaled_plus(scale, x.clone(), shift)
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, want)
