"""Orthogonalized steps: letters, lengths, equilibria and turns, against runs of their code."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import (
    NoEquilibriumError,
    check_equilibrium,
    check_turn,
    equilibrium,
    equilibrium_turn,
    norm_growth,
    rotational_rate,
    trace,
)
from spherenorm_theory.opaque_rules import Overlap, factor, scale_of, squared_singular_range
from spherenorm_theory.printing import show
from tests.harness import refuses
from tests.theory.recipes import law_of

SHAPE = (24, 40)


def test_an_orthogonal_factor_is_one_operation():
    assert len(trace("muon").record.live_calls) < 15
    law = law_of("muon")
    assert [*law.drive] == ["O"]
    assert any(show(c.relation) == "|s_t|^2 = c^2 lr^2 q rank" for c in law.claims)
    assert "linear" in law.open_because


def test_the_length_of_each_factor_is_printed_by_its_name():
    def two_scales(lr=0.1, momentum=0.9):
        unscaled, spectral = (r.Orthogonalize(scale=scale) for scale in ("none", "spectral"))
        return sn.chain(unscaled, r.HeavyBall(momentum), spectral, r.StepSize(lr))

    text = " ".join(str(law_of(two_scales)).split())
    assert "|O|^2 = c^2 q rank, where c depends on the shape (scale='none')" in text
    assert "|O2|^2 = c^2 q rank, where c depends on the shape (scale='spectral')" in text


@pytest.mark.parametrize("scale", ["none", "original", "match_rms_adamw", "spectral", "aspect"])
def test_the_length_of_a_factor(scale):
    """c by the shape, and q in the interval that is printed."""
    rule = r.Orthogonalize(scale=scale)
    low, high = squared_singular_range(rule)
    for shape in ((12, 20), (20, 12), (16, 16), (4, 3, 2, 2)):
        c, rank = scale_of(rule, shape), min(shape[0], math.prod(shape[1:]))
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            matrix = torch.randn(*shape, dtype=torch.float64, generator=generator)
            q = float(factor(rule, matrix).square().sum()) / (c**2 * rank)
            assert low <= q <= high


def test_the_overlap_of_factors_is_odd_and_rises():
    overlap = Overlap.of(r.Orthogonalize(), SHAPE)
    rho = np.linspace(-1, 1, 21)
    values = overlap(rho)
    assert (np.diff(values) > 0).all()
    np.testing.assert_allclose(values, -overlap(-rho), atol=1e-12)


RUNS = [
    ("muon", {"lr": 0.02, "weight_decay": 0.5}, SHAPE),
    ("normuon", {"lr": 0.02, "weight_decay": 0.5}, SHAPE),
    ("scion", {"lr": 0.02, "weight_decay": 0.5}, SHAPE),
    pytest.param("muon", {"lr": 0.02, "weight_decay": 0.5}, (40, 24), marks=pytest.mark.long),
    pytest.param("normuon", {"lr": 0.02, "weight_decay": 0.5}, (40, 24), marks=pytest.mark.long),
    pytest.param("muon", {"lr": 0.02, "weight_decay": 0.5}, (32, 32), marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "values", "shape"), RUNS)
def test_equilibria_are_those_of_runs(name, values, shape):
    check = check_equilibrium(name, shape=shape, steps=600, warm_up=500, **values)
    assert check.error < 0.02, check


def test_a_wrong_overlap_would_be_noticed():
    """The overlap of signs, 2 asin(rho) / pi, is off by more than the tolerance."""
    law = equilibrium("muon")
    values = law.traced.free_values(lr=0.02, weight_decay=0.5)
    right = law.effective_step(values, SHAPE)
    overlap = Overlap.of(law.orthogonal_factor_step.direction.rule, SHAPE)
    static, overlap._table = overlap._table, 2 / np.pi * np.arcsin(overlap._grid)
    try:
        # (of another instance: stationary numbers are computed once)
        assert abs(replace(law).effective_step(values, SHAPE) / right - 1) > 0.02
    finally:
        overlap._table = static


@pytest.mark.parametrize(
    ("name", "values"),
    [("muonh", {"lr": 0.05}), ("hyperball(muon)", {"lr": 0.05}), ("hyperball(lion)", {"lr": 0.05})],
)
def test_turns_of_held_norms_are_those_of_runs(name, values):
    check = check_turn(name, shape=SHAPE, view="layer", steps=300, warm_up=300, **values)
    assert check.error < 0.02, check


def test_the_equilibrium_turn_is_that_of_the_formula():
    law = equilibrium("muon")
    values = law.traced.free_values(lr=0.02, weight_decay=0.5)
    chord = law.effective_step(values, SHAPE)
    turn = equilibrium_turn("muon", shape=SHAPE, lr=0.02, weight_decay=0.5)
    assert turn == pytest.approx(2 * math.asin(chord / 2), rel=1e-6)
    rate = rotational_rate("muon", shape=SHAPE, weight_decay=0.5)(0.02)
    assert rate == pytest.approx(math.tan(turn), rel=1e-6)


def test_a_shape_is_needed():
    law = equilibrium("muon")
    with refuses("shape of the matrix"):
        law.squared_norm(law.traced.free_values(), 960)


def projected(lr=0.02, momentum=0.9, weight_decay=0.5):
    """The radial part of the factor is taken away: the norm has no cross term."""
    return sn.chain(
        r.ExponentialAverage(momentum),
        r.Orthogonalize(),
        r.RadialProjection("layer"),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def test_a_projection_behind_a_factor():
    law = norm_growth(projected)
    assert law.cross == 0
    assert law.closed_form() is not None
    check = check_turn(projected, shape=SHAPE, view="layer", steps=800, warm_up=600,
                       lr=0.02, weight_decay=0.5)  # fmt: skip
    assert check.error < 0.02, check


def two_factors(lr=0.02, momentum=0.9, weight_decay=0.5):
    """A factor of a momentum that a factor enters."""
    rules = r.Orthogonalize(), r.ExponentialAverage(momentum), r.Orthogonalize()
    return sn.chain(*rules, r.DecoupledDecay(weight_decay), r.StepSize(lr))


def test_a_momentum_of_factors_has_no_equilibrium():
    assert norm_growth(two_factors).open_because
    with refuses("enters", by=NoEquilibriumError):
        equilibrium(two_factors)


def test_heads_are_matrices_of_their_own():
    """A view of several matrices for every weight is refused, with the view that means one."""
    with refuses("groups=2", "groups=1"):
        norm_growth("muon", view="groups=2")
