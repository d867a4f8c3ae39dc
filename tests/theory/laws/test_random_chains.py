"""Random legal chains: the derived law of one step matches a float64 step, in every Gram entry."""

from dataclasses import dataclass

import numpy as np
import pytest

from spherenorm import Rule, Sphere, chain
from spherenorm import rules as r
from tests.theory.gram import assert_matches_a_float64_step

SEEDS = [seed if 0 < seed < 9 else pytest.param(seed, marks=pytest.mark.long) for seed in range(48)]


@dataclass(frozen=True)
class Watched(Rule):
    """A preconditioner that notes the results of its entrywise operations.

    They are the atoms of which a law knows nothing.
    """

    rule: Rule
    atoms: dict

    @property
    def state_names(self):
        return self.rule.state_names

    @property
    def tangent_names(self):
        return self.rule.tangent_names

    def init(self, weight):
        return self.rule.init(weight)

    def update(self, update, state):
        moved, new = self.rule.update(update, state)
        self.atoms.update(e=update.direction.square(), u=moved.direction)
        return moved, new


FLAGS = ("coupled", "clip", "inside", "decoupled", "tested", "nesterov", "undamped", "late")
MOMENTA = ("none", "heavy", "average", "corrected", "feedback", "unit", "both", "adam", "rms")


@dataclass(frozen=True)
class Structure:
    """The choices that make a chain, and the atoms of its last step."""

    flags: dict
    momentum: str
    projection: str
    sphere: bool
    orthogonal: bool
    atoms: dict

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
            "adam": [Watched(adam, self.atoms)],
            "rms": [Watched(rms, self.atoms), heavy],
        }[self.momentum]


def random_structure(rng):
    """A random structure, and values for all of its recipe's hyper-parameters."""
    values = {
        "lr": rng.uniform(0.01, 0.5),
        "beta": rng.uniform(0.1, 0.95),
        "beta2": rng.uniform(0.5, 0.99),
        "tau": rng.uniform(0.0, 0.9),
        "wd": rng.uniform(0.0, 0.3),
        "ratio": rng.uniform(0.0, 1.0),
        "nu": rng.uniform(0.1, 3.0),
        "alpha": rng.uniform(0.0, 0.3),
    }
    flags = {name: bool(rng.integers(2)) for name in FLAGS}
    momentum, projection = rng.choice(MOMENTA), rng.choice(["none", "view", "test"])
    sphere, orthogonal = rng.random() < 0.25, rng.random() < 0.25
    return Structure(flags, momentum, projection, sphere, orthogonal, {}), values


@pytest.mark.parametrize("seed", SEEDS)
def test_derived_step_matches_a_float64_step(seed):
    rng = np.random.default_rng(seed)
    structure, hypers = random_structure(rng)
    assert_matches_a_float64_step(
        structure.recipe,
        hypers,
        rng,
        scale_invariant=seed % 3 > 0,
        atoms=lambda: {name: v.numpy().ravel() for name, v in structure.atoms.items()},
    )
