"""Random legal chains: the one-step law that is derived from the trace must match a float64 step, in every Gram entry."""

from dataclasses import dataclass

import numpy as np
import pytest

from spherenorm import Rule, Sphere, chain
from spherenorm import rules as r
from tests.theory.gram import assert_matches_a_float64_step

SEEDS = range(48)


@dataclass(frozen=True)
class Watched(Rule):
    """A preconditioner, and what its entrywise operations were in its last step: the atoms of which the law knows nothing."""

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


def random_recipe(rng):
    """A recipe with every hyper-parameter exposed, values for them, and the atoms of its last step."""
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
    flags = {
        name: bool(rng.integers(2))
        for name in (
            "coupled",
            "clip",
            "inside",
            "decoupled",
            "tested",
            "nesterov",
            "undamped",
            "late",
        )
    }
    momentum = rng.choice(
        ["none", "heavy", "average", "corrected", "feedback", "unit", "both", "adam", "rms"]
    )
    projection = rng.choice(["none", "view", "test"])
    sphere = rng.random() < 0.25
    orthogonal = rng.random() < 0.25
    atoms = {}

    def recipe(lr=0.1, beta=0.9, beta2=0.99, tau=0.5, wd=0.01, ratio=0.1, nu=1.0, alpha=0.1):
        rules = []
        if flags["coupled"]:
            rules.append(r.CoupledDecay(wd))
        if orthogonal:
            rules.append(r.OrthogonalityRegularization(alpha))
        if flags["clip"] and not flags["late"]:
            rules.append(r.UnitClip(nu))
        if flags["inside"]:
            rules.append(r.StepSize(lr))
        heavy = r.HeavyBall(beta, tau, flags["nesterov"], flags["undamped"])
        rules += {
            "none": [],
            "heavy": [heavy],
            "average": [r.ExponentialAverage(beta)],
            "corrected": [r.ExponentialAverage(beta, bias_correction=True)],
            "feedback": [r.FeedbackMomentum(r.RadialProjection("channel"), beta, tau)],
            "unit": [r.UnitMoments(beta, beta2)],
            "both": [r.ExponentialAverage(beta2), heavy],
            "adam": [Watched(r.AdaptiveMoments(beta, beta2, nesterov=flags["nesterov"]), atoms)],
            "rms": [Watched(r.RootMeanSquare(beta2), atoms), heavy],
        }[momentum]
        if flags["clip"] and flags["late"]:
            rules.append(r.UnitClip(nu))
        if projection == "test" or flags["tested"]:
            rules.append(r.ScaleInvarianceTest())
        if projection != "none":
            rules.append(r.RadialProjection("layer" if projection == "view" else None))
        if flags["decoupled"]:
            rules.append(
                r.DecoupledDecay(wd, ratio if projection == "test" or flags["tested"] else None)
            )
        if not flags["inside"]:
            rules.append(r.StepSize(lr))
        return chain(*rules, geometry=Sphere("channel")) if sphere else chain(*rules)

    return recipe, values, atoms


@pytest.mark.parametrize("seed", SEEDS)
def test_derived_step_matches_a_float64_step(seed):
    rng = np.random.default_rng(seed)
    recipe, hypers, atoms = random_recipe(rng)
    assert_matches_a_float64_step(
        recipe,
        hypers,
        rng,
        scale_invariant=seed % 3 > 0,
        atoms=lambda: {name: value.numpy().ravel() for name, value in atoms.items()},
    )
