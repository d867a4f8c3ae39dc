"""Random chains of the library's rules: each law is the step of its code.

The step that the law says is compared on five shapes, and every claim is decided. A chain that is
refused counts apart, with its cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from spherenorm import Sphere, chain
from spherenorm import rules as r
from spherenorm_theory import norm_growth
from tests.theory.step import assert_is_the_step

SHAPES = ((1, 7), (3, 4), (4, 4), (5, 2), (2, 3, 2, 2))
FLAGS = ("coupled", "clip", "inside", "decoupled", "tested", "nesterov", "undamped", "late")
MOMENTA = ("none", "heavy", "average", "corrected", "feedback", "unit", "both", "adam", "rms")


@dataclass(frozen=True)
class Structure:
    """The choices that make a chain."""

    flags: dict
    momentum: str
    projection: str
    sphere: bool
    orthogonal: bool

    def recipe(self, lr=0.1, beta=0.9, beta2=0.99, tau=0.5, wd=0.01, ratio=0.1, nu=1.0, alpha=0.1):
        flags = self.flags
        tested = self.projection == "test" or flags["tested"]
        view = "layer" if self.projection == "view" else None
        rules = [
            *([r.CoupledDecay(wd)] if flags["coupled"] else []),
            *([r.OrthogonalityRegularization(alpha)] if self.orthogonal else []),
            *([r.UnitClip(nu)] if flags["clip"] and not flags["late"] else []),
            *([r.StepSize(lr)] if flags["inside"] else []),
            *self.momenta(beta, beta2, tau),
            *([r.UnitClip(nu)] if flags["clip"] and flags["late"] else []),
            *([r.ScaleInvarianceTest()] if tested else []),
            *([r.RadialProjection(view)] if self.projection != "none" else []),
            *([r.DecoupledDecay(wd, ratio if tested else None)] if flags["decoupled"] else []),
            *([] if flags["inside"] else [r.StepSize(lr)]),
        ]
        return chain(*rules, manifold=Sphere("channel")) if self.sphere else chain(*rules)

    def momenta(self, beta, beta2, tau):
        nesterov, undamped = self.flags["nesterov"], self.flags["undamped"]
        heavy = r.HeavyBall(beta, tau, nesterov, undamped)
        adam, rms = r.AdaptiveMoments(beta, beta2, nesterov=nesterov), r.RootMeanSquare(beta2)
        return {
            "none": [],
            "heavy": [heavy],
            "average": [r.ExponentialAverage(beta)],
            "corrected": [r.ExponentialAverage(beta, bias_correction=True)],
            "feedback": [r.FeedbackMomentum(r.RadialProjection("channel"), beta, tau)],
            "unit": [r.UnitMoments(beta, beta2)],
            "both": [r.ExponentialAverage(beta2), heavy],
            "adam": [adam],
            "rms": [rms, heavy],
        }[self.momentum]


def random_structure(rng):
    """A random structure, and values for all of its recipe's hyper-parameters."""
    values = {
        "lr": rng.uniform(0.01, 0.5),
        "beta": rng.uniform(0.1, 0.95),
        "beta2": rng.uniform(0.5, 0.99),
        "tau": rng.uniform(0.01, 0.9),
        "wd": rng.uniform(0.01, 0.3),
        "ratio": rng.uniform(0.01, 1.0),
        "nu": rng.uniform(0.1, 3.0),
        "alpha": rng.uniform(0.01, 0.3),
    }
    flags = {name: bool(rng.integers(2)) for name in FLAGS}
    momentum, projection = rng.choice(MOMENTA), rng.choice(["none", "view", "test"])
    sphere, orthogonal = rng.random() < 0.25, rng.random() < 0.25
    return Structure(flags, momentum, projection, sphere, orthogonal), values


def compare_chain(seed: int) -> str:
    """Compare a random chain with its law.

    Returns:
        "same", "one unit" if the law is about a weight of one unit only, or the refusal.
    """
    structure, numbers = random_structure(np.random.default_rng(seed))
    orthogonal = seed % 3 > 0
    try:
        law = norm_growth(structure.recipe, scale_invariant=orthogonal)
    except ValueError as error:
        return f"refused: {error}"
    assert all(claim.holds for claim in law.claims), [c for c in law.claims if not c.holds]
    multi_unit, generator = law.verified_domain.multi_unit, torch.Generator().manual_seed(seed)
    for shape in SHAPES if multi_unit else SHAPES[:1]:
        assert_is_the_step(law, shape, numbers, generator, orthogonal)
    return "same" if multi_unit else "one unit"
