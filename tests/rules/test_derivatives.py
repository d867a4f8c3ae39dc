"""Derivatives of rules where a root, a norm or a power has none at first sight: at 0.

`recipes/` holds first and second derivatives of whole recipes; here are rules that no recipe has at
such a point, third derivatives, and bases near 0.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp

import spherenorm as sn
from spherenorm import rules as r
from tests.rules.formulas import FORMS
from tests.rules.units import applied, close, randn


def number(x):
    return torch.tensor(x, dtype=torch.float64)


def orders(function, x, order):
    """The derivative of that order at `x`, in one mode, in the other, and in both in turn."""
    for modes in ((jacfwd,) * 4, (jacrev,) * 4, (jacrev, jacfwd) * 2):
        derived = function
        for mode in modes[:order]:
            derived = mode(derived)
        yield derived(x)


@pytest.mark.parametrize("value", [0.0, 0.5, 2.0])
def test_the_derivatives_of_a_root(value):
    """RMSprop of an alpha of 1 and a gradient of 1 has the direction 1 / (sqrt(v) + 1)."""
    exact = [0.5 * value**-0.5, -0.25 * value**-1.5, 0.375 * value**-2.5] if value else [0.0] * 3
    rule = sn.chain(r.RootMeanSquare(number(1.0), 1.0))

    def f(v):
        state = {**rule.init(number(1.0)), "square_avg": v}
        new_weight, _ = rule.step(number(0.0), number(1.0), state)
        return -1 / new_weight - 1

    for order in range(4):
        for result in orders(f, number(value), order):
            close(result, [math.sqrt(value), *exact][order], 1e-12)
    with torch.no_grad():  # forward mode is taken here, too
        close(jvp(f, (number(value),), (number(1.0),))[1], exact[0], 1e-12)
    close(torch.vmap(grad(f))(number([value])), [exact[0]], 1e-12)


def test_norms_of_zero_units_have_a_derivative_of_0():
    for view in ("channel", "layer", "dim=1", "groups=2"):
        x = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
        (result,) = torch.autograd.grad(sn.as_view(view).norm(x).sum(), x)
        assert not result.any()


RULES = {
    **{name: form.rule(**form.settings[-1]) for name, form in FORMS.items()},
    "intended": r.FixedNorm("channel", "intended"),
    "one": r.NormalizedUpdate("channel"),
    "Orthogonalize": r.Orthogonalize(),
    "FixedSpectralNorm": r.FixedSpectralNorm(),
    "test": sn.chain(r.ScaleInvarianceTest(0.5, per="unit"), r.RadialProjection()),
    "accumulated": sn.chain(r.AccumulatedInvarianceTest(per="unit"), r.RadialProjection()),
}


@pytest.mark.parametrize("silent", ["grad", "weight", "both", "neither"])
@pytest.mark.parametrize("name", RULES)
def test_derivatives_beside_a_zero_unit_are_those_without_it(name, silent):
    """A unit of 0 gives no nan to the others; theirs are what differences say."""
    weight, direction = randn(4, 3), randn(4, 3, seed=1)
    ahead = randn(4, 3, seed=2), randn(4, 3, seed=3)
    for x in {"grad": [direction], "weight": [weight]}.get(silent, [weight, direction]):
        x[0] *= silent == "neither"
    for x in ahead:
        x[0] *= silent == "neither"
    rule = sn.chain(RULES[name])
    state = rule.init(torch.ones_like(weight))

    def f(t):
        w, d = weight + t * ahead[0], direction + t * ahead[1]
        return (rule.step(w, d, state)[0] ** 3).sum()

    h = 1e-5
    steps = [f(number(k * h)) for k in (-2, -1, 1, 2)]
    expected = (steps[0] - 8 * steps[1] + 8 * steps[2] - steps[3]) / (12 * h)
    for mode in (jacfwd, jacrev):
        close(mode(f)(number(0.0)), expected, 1e-7, max(1.0, abs(float(expected))))
    points = weight.requires_grad_(), direction.requires_grad_()
    new_weight, new = rule.step(*points, state)
    sums = [x.sum() for x in (new_weight, *new.values()) if x.requires_grad]
    for result in torch.autograd.grad(sum(sums), points, allow_unused=True):
        assert result is None or result.isfinite().all()


@pytest.mark.parametrize("base", [0.0, 1e-300, 1e-50, 0.5])
@pytest.mark.parametrize("t", [1, 2, 4, 7])
def test_the_derivatives_of_a_bias_correction(base, t):
    """1 / (1 + b + ... + b^(t - 1)) at the step t of an average that is 1 - b."""

    def corrected(b):
        rule = sn.chain(r.ExponentialAverage(b, bias_correction=True))
        state = {"step": number(t - 1.0), "exp_avg": number(0.0)}
        return -rule.step(number(0.0), number(1.0), state)[0]

    def closed_form(b):
        total, power = number(1.0), number(1.0)
        for _ in range(t - 1):
            power = power * b
            total = total + power
        return 1 / total

    for order in range(4):
        expected = nested(closed_form, base, order)
        for result in orders(corrected, number(base), order):
            close(result, expected, 1e-12, max(1.0, abs(float(expected))))


def nested(function, x, order):
    for _ in range(order):
        function = jacfwd(function)
    return function(number(x))


@pytest.mark.parametrize("no_grad", [True, False])
def test_a_strength_of_0_leaves_the_direction(no_grad):
    """Even where the weight is infinite; its derivative is the weight, where finite."""
    weight = number([4.0, math.inf, math.nan])
    direction = number([1.0, 2.0, 3.0])
    with torch.set_grad_enabled(not no_grad):
        for make in (r.CoupledDecay, r.DecoupledDecay, r.TargetNormDecay):
            more = {"radius": 1.0} if make is r.TargetNormDecay else {}
            for strength in (0, number(0.0)):
                assert torch.equal(applied(make(strength, **more), weight, direction), direction)

        def f(strength):
            return applied(r.CoupledDecay(strength), weight, direction)

        result = jvp(f, (number(0.0),), (number(1.0),))[1]
    close(result, [4.0, 0.0, 0.0])
    close(jacrev(f)(number(0.0)), result)
    # A double of 1e-300 is no 0, though a float32 holds none such; and it is one as a number, too.
    tiny = applied(r.CoupledDecay(number(1e-300)), weight.float(), direction.float())
    assert tiny.isnan().tolist() == [False, True, True]
    decays = [
        sn.chain(
            r.ScaleInvarianceTest(per="unit"),
            r.DecoupledDecay(kind(1e-300), invariant_ratio=kind(0.1)),
        )
        for kind in (float, number)
    ]
    infinite = torch.tensor([[math.inf, 1.0], [2.0, -3.0]])
    both = [applied(rule, infinite, torch.ones(2, 2)) for rule in decays]
    torch.testing.assert_close(*both, rtol=0, atol=0, equal_nan=True)


def test_squares_of_large_float32_gradients_stay_finite():
    """As in torch.optim: (1 - beta) g g, of which the first product is far from g^2."""
    for rule in (r.AdaptiveMoments(0.9, 0.999), r.RootMeanSquare(0.999)):
        for beta in (0.999, number(0.999)):
            field = "beta2" if hasattr(rule, "beta2") else "alpha"
            chained = sn.chain(replace(rule, **{field: beta}))
            _, state = chained.step(
                torch.zeros(2), torch.full((2,), 1e20), chained.init(torch.zeros(2))
            )
            second = state.get("exp_avg_sq", state.get("square_avg"))
            close(second / 1e37, [1.0, 1.0], 1e-3)


@pytest.mark.parametrize("x", [0.0, 1e-9, 0.0316, 0.0317, 0.1, 2.0])
def test_the_derivatives_of_a_turn(x):
    """Also at an angle of 0, and where a series ends and a closed form begins."""
    weight, ahead = number([[1.0, 0.0]]), number([[0.0, 1.0]])

    def path(x):
        new_weight, transported = sn.Sphere().move(weight, x * ahead, {"ahead": ahead})
        return torch.cat([new_weight[0], transported["ahead"][0]])

    cos, sin = math.cos(x), math.sin(x)
    turns = [[cos, -sin, sin, cos], [-sin, -cos, cos, -sin], [-cos, sin, -sin, -cos]]
    for order, expected in enumerate(turns):
        for result in orders(path, number(x), order):
            close(result, expected, 1e-11)
    with torch.no_grad():
        close(path(number(x)), turns[0], 1e-15)
