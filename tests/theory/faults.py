"""Recipes with one fault each: the proofs must notice every one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spherenorm import Rule, Scalar, State, Update, as_view, chain
from spherenorm import rules as r


@dataclass(frozen=True)
class Reflection(Rule):
    """The projection with a wrong sign: it adds the radial part."""

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        radial = (
            as_view("channel").radial_coefficient(update.weight, update.direction) * update.weight
        )
        return replace(update, direction=update.direction + radial), {}


def no_projection(
    lr: Scalar = 0.1, momentum: Scalar = 0.9, dampening: Scalar = 0.0, weight_decay: Scalar = 0.0
) -> Rule:
    return chain(
        r.HeavyBall(momentum, dampening),
        r.ScaleInvarianceTest(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def wrong_sign(
    lr: Scalar = 0.1, momentum: Scalar = 0.9, dampening: Scalar = 0.0, weight_decay: Scalar = 0.0
) -> Rule:
    return chain(
        r.HeavyBall(momentum, dampening),
        Reflection(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def projected_gradient(
    lr: Scalar = 0.1, momentum: Scalar = 0.9, dampening: Scalar = 0.0, weight_decay: Scalar = 0.0
) -> Rule:
    """The projection before the momentum, where it does nothing."""
    return chain(
        r.RadialProjection("channel"),
        r.HeavyBall(momentum, dampening),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


def beta_squared(
    lr: Scalar = 0.1,
    momentum: Scalar = 0.9,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
) -> Rule:
    return chain(
        r.CoupledDecay(weight_decay), r.HeavyBall(momentum**2, dampening, nesterov), r.StepSize(lr)
    )


def ascent(
    lr: Scalar = 0.1,
    momentum: Scalar = 0.9,
    dampening: Scalar = 0.0,
    weight_decay: Scalar = 0.0,
    nesterov: bool = False,
) -> Rule:
    """A decay of the wrong sign that hyper-parameters do not switch off."""
    return chain(r.HeavyBall(momentum, dampening, nesterov), r.CoupledDecay(0.01), r.StepSize(lr))
