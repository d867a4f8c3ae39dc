"""Recipes with one fault each: the proofs must notice every one."""

from spherenorm import as_view, chain
from spherenorm import rules as r
from tests.theory.recipes import By


def _reflected(w, d):
    """The projection with a wrong sign: it adds the radial part."""
    return d + as_view("channel").radial_coefficient(w, d) * w


def no_projection(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0):
    last = r.ScaleInvarianceTest(), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(r.HeavyBall(momentum, dampening), *last)


def wrong_sign(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0):
    last = By(_reflected), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(r.HeavyBall(momentum, dampening), *last)


def projected_gradient(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0):
    """The projection before the momentum, where it does nothing."""
    momenta = r.RadialProjection("channel"), r.HeavyBall(momentum, dampening)
    return chain(*momenta, r.DecoupledDecay(weight_decay), r.StepSize(lr))


def heavy_ball(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False):
    """No fault: the recipe that `beta_squared` changes."""
    momenta = r.CoupledDecay(weight_decay), r.HeavyBall(momentum, dampening, nesterov)
    return chain(*momenta, r.StepSize(lr))


def beta_squared(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False):
    return heavy_ball(lr, momentum**2, dampening, weight_decay, nesterov)


def ascent(lr=0.1, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False):
    """A decay of the wrong sign that hyper-parameters do not switch off."""
    return chain(r.HeavyBall(momentum, dampening, nesterov), r.CoupledDecay(0.01), r.StepSize(lr))
