"""Recipes that invite false laws: each must give a true law or a refusal that names the cause."""

import random

import torch

from spherenorm import Rule, chain, hyper
from spherenorm import rules as r
from tests.theory.recipes import By, by, inner, keeps, scaled


class Decay(Rule):
    """A rule of declared numbers: weight decay that is switched by their signs."""

    wd: float = hyper("[0, inf)", 0.1)

    def update(self, update, state):
        wd = torch.as_tensor(self.wd, dtype=torch.float64)
        share = torch.where(wd > 0, wd, 3.0 + 0 * wd)
        return update.changed(direction=update.direction + share * update.weight), {}


def shifted(lr=0.1, shift=0.3):
    return chain(By(lambda w, d, s: d + abs(s) * w, (shift,)), r.StepSize(lr))


def switched(lr=0.1, wd=0.1):
    return chain(Decay(wd), r.StepSize(lr))


def gamma(lr=0.1, gamma=0.9, d=0.2, c1=0.1, r1=0.1):
    return chain(
        r.CoupledDecay(d),
        By(lambda w, x, c, e: x * (c + x.norm()) + e * w, (c1, r1)),
        r.HeavyBall(gamma),
        r.StepSize(lr),
    )


def correlated(w, d, kept):
    kept = 0.9 * kept + 0.1 * (w * (d + w)).sum()
    return d + torch.sign(kept) * 0.1 * w, kept


def gate(w, d, kept):
    kept = torch.clamp(kept + 0.1 - 0.05 * (w * w).sum(), min=0.0)
    return torch.where(kept > 0, d, d + 0.5 * w), kept


def late(w, d, t):
    return torch.where(t + 1 == 300, d + w, d), t + 1


def put_back(lr=0.1, momentum=0.9):
    def to_its_norm(w, d):
        new = w - d
        return w - new * w.norm() / new.norm()

    return chain(r.HeavyBall(momentum), r.StepSize(lr), By(to_its_norm))


def columns_to_a_power(lr=0.1, wd=0.1):
    return chain(By(lambda w, d, wd: d + wd * w.shape[-1] ** 0.3 * w, (wd,)), r.StepSize(lr))


def unit_moments_decayed(lr=0.1, wd=0.1):
    return chain(r.UnitMoments(0.9, 0.99), r.DecoupledDecay(wd), r.StepSize(lr))


def by_moments_over(dims):
    """The direction over the root of its mean squares over dimensions, and where these start."""

    def scale(w, d, moments):
        moments = 0.9 * moments + 0.1 * (d * d).mean(dims(w), keepdim=True)
        return d / moments.sqrt(), moments

    return scale, lambda w: torch.zeros_like(w.mean(dims(w), keepdim=True))


def asks_for_tensors(lr=0.1, wd=0.1):
    decays = isinstance(wd, torch.Tensor)
    return chain(By(lambda w, d: d + wd * w if decays else d), r.StepSize(lr))


def asks_for_an_angle(lr=0.1):
    turns = By(lambda w, d: torch.where(inner(w, d) > 0, d + w, d))
    return chain(turns, r.StepSize(lr))


LAWS = {
    "a second moment per row": keeps(*by_moments_over(lambda w: (*range(1, w.ndim),))),
    "|shift| of any sign": shifted,
    "a branch at wd > 0": switched,
    "names of symbols": gamma,
    "the sign of an average": keeps(correlated),
    "a gate that closes": keeps(gate),
    "step 300": keeps(late, names="step"),
    "a state e": keeps(
        lambda w, d, e: ((e := 0.9 * e + d).abs() * 0.1 + d, e), torch.rand_like, "e"
    ),
    "put back to its norm": put_back,
    "unit moments, decoupled decay": unit_moments_decayed,
}
"""Recipes that have a true law."""

REFUSED = {
    "a second moment per column": (keeps(*by_moments_over(lambda w: (0,))), "not split"),
    "a branch on a parameter": (by(lambda w, d: d + w if w.requires_grad else d), "a parameter"),
    "a recipe that asks for tensors": (asks_for_tensors, "plain numbers"),
    "an int8 count": (
        keeps(lambda w, d, n: (d * (1 + n), n + 1), lambda w: torch.zeros((), dtype=torch.int8)),
        "torch.int8",
    ),
    "in place": (by(lambda w, d: d.mul_(0.5)), "writes into"),
    "round": (by(lambda w, d: d + 0.1 * d.norm().round() * w), "round"),
    "float32": (by(lambda w, d: d.float().double()), "rounds"),
    "<w, g> > 0": (asks_for_an_angle, "aten"),
    "columns^0.3": (columns_to_a_power, "depends on the shape"),
    "all entries of one sign": (by(lambda w, d: d * (w > d).all()), "for all entries"),
    "a random number": (scaled(lambda w, d: 1 + random.random()), "draws a random number"),
}
"""Recipes that have none, and what a refusal says."""
