"""Recipes as a user writes them, for groups by `module:recipe`."""

from dataclasses import dataclass, replace

import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.rules import AccumulatedInvarianceTest


@dataclass(frozen=True)
class Orthogonalized(sn.Rule):
    """The nearest matrix with orthonormal rows or columns: U V^T of the direction U S V^T.

    Muon finds it by Newton and Schulz's iteration.
    """

    def init(self, weight):
        if weight.ndim < 2:
            raise ValueError(f"a matrix is needed, got shape {tuple(weight.shape)}")
        return super().init(weight)

    def update(self, update, state):
        u, _, v = torch.linalg.svd(update.direction.flatten(1), full_matrices=False)
        direction = (u @ v).reshape(update.weight.shape)
        return replace(update, direction=direction), dict(state)


def muon(lr=0.02, momentum=0.95, weight_decay=0.0):
    return sn.chain(
        r.HeavyBall(momentum, nesterov=True),
        Orthogonalized(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def muon_in_view(lr=0.02, momentum=0.95, view="channel"):
    """Muon whose step has no radial part."""
    return sn.chain(
        r.HeavyBall(momentum, nesterov=True),
        Orthogonalized(),
        r.RadialProjection(view),
        r.StepSize(lr),
    )


def spherical_muon(lr=0.02, view="channel"):
    """Muon on the sphere."""
    return sn.chain(
        r.RadialProjection(view), Orthogonalized(), r.StepSize(lr), manifold=sn.Sphere(view)
    )


def evidence(lr=0.1, views=("channel", "layer")):
    """A recipe with the accumulating test."""
    return sn.chain(AccumulatedInvarianceTest(views=views), r.RadialProjection(), r.StepSize(lr))
