"""Eq. 4 fails for functions that are not scale-invariant."""

import pytest

from spherenorm_theory.proofs._normalized import FUNCTIONS, equation_4, radial_part


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equation_4_holds_in_every_dimension(name):
    assert radial_part(FUNCTIONS[name]) == 0


def centred(z, entries):
    return z - z.sum() / entries


def with_eps(z, entries):
    return centred(z, entries) / ((centred(z, entries) ** 2).sum() / entries + 1).sqrt()


def of_the_variance(z, entries):
    return centred(z, entries) / ((centred(z, entries) ** 2).sum() / entries)


FAULTS = {
    "only centred": lambda z, x, c, n: (x * centred(z, n)).sum(),
    "with eps": lambda z, x, c, n: (x * with_eps(z, n)).sum(),
    "over the variance": lambda z, x, c, n: (x * of_the_variance(z, n)).sum(),
    "not normalized": lambda w, x, c, n: (c * w * x).sum(),
    "over the square": lambda w, x, c, n: (c * w / (w * w).sum(1, keepdim=True) * x).sum(),
}


@pytest.mark.parametrize("name", FAULTS)
def test_equation_4_fails_for_a_fault(name):
    proof = equation_4({name: FAULTS[name]})
    assert not proof.proved
    assert [claim.about for claim in proof.failures] == [name]
