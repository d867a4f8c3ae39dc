"""Growth ratios in closed form."""

import pytest
import sympy as sp

from spherenorm_theory import growth_ratio
from spherenorm_theory.laws import S, W

lr, beta, wd, gamma = (
    sp.Symbol(n, positive=True) for n in ("lr", "momentum", "weight_decay", "gamma")
)


@pytest.mark.parametrize(("name", "value"), [("sgd", 19), ("sgdp", 1), ("sgdg", 0)])
def test_growth_ratio(name, value):
    plain = {} if name == "sgdg" else {"weight_decay": 0.0, "dampening": 0.0}
    assert growth_ratio(name, **plain).subs(beta, sp.Rational(9, 10)) == value


def test_coupled_decay_has_no_one_growth_ratio():
    coupled = growth_ratio("sgd", dampening=0.0)
    assert {W, S} <= coupled.free_symbols
    assert sp.simplify(coupled.subs(wd, 0) - (1 + beta) / (1 - beta)) == 0
