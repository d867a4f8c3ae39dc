"""Muon with AdamP's projection: in a module of its own, which alone decides what its runs are."""

from __future__ import annotations

from spherenorm import Chain, Scalar, chain
from spherenorm import rules as r


def muonp(
    lr: Scalar = 0.02,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.0,
    delta: Scalar = 0.1,
    wd_ratio: Scalar = 0.1,
) -> Chain:
    """Muon whose step loses its radial part where the weight is scale-invariant, as AdamP's does.

    Source: Jordan et al. 2024 (Muon); Heo et al. 2021 (AdamP), Eq. 12.
    """
    return chain(
        r.InterpolatedAverage(momentum**2, momentum, buffer="momentum_buffer"),
        r.Orthogonalize(),
        r.ScaleInvarianceTest(delta),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )
