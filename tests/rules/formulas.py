"""The rules as formulas for one unit, written from their documentation in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import spherenorm as sn
from spherenorm import rules as r

# A formula takes the history `h` of a unit and the settings; its defaults are the documented ones.
# h.w, h.d and h.g are weight, direction and gradient; h.ws and h.ds those of all steps so far.


def norm(x):
    return math.sqrt(x @ x)


def average(xs, beta):
    """The sum of the x's, each beta times as heavy as the next one, times 1 - beta."""
    if not len(xs):
        return 0.0
    return (1 - beta) * sum(beta**k * x for k, x in enumerate(xs[::-1]))


def masked(h, min_share=1e-3):
    agrees = h.d * h.g > 0
    return h.d * agrees / max(agrees.mean() if agrees.size else 0, min_share)


def decayed(h, weight_decay, cautious=False):
    return h.d + weight_decay * h.w * ((h.w * h.d >= 0) if cautious else 1)


def towards(h, weight_decay, radius="initial"):
    target = norm(h.ws[0]) if radius == "initial" else radius
    return h.d + weight_decay * (h.w - target * h.w / (norm(h.w) or 1))


def normalized(h, length="one", beta=0.0, eps=0.0):
    squares = np.array([d @ d for d in h.ds])
    by = math.sqrt(average(squares, beta) / (1 - beta ** len(squares))) + eps
    if length == "weight" and not h.w.any():
        return h.d
    return (norm(h.w) if length == "weight" else 1) * h.d / (by or 1)


def tangent(h, outward=0.0, inward=0.0):
    if not h.w.any():
        return h.d
    along = h.w @ h.d / (h.w @ h.w)
    stays = outward if along < 0 else inward
    return stays * h.d if len(h.d) == 1 else h.d - (1 - stays) * along * h.w


def turned(h):
    q = tangent(h)
    return q * norm(h.d) / (norm(q) or 1)


def heavy_ball(h, beta, dampening=0.0, nesterov=False, undamped_start=False):
    shares = np.full((len(h.ds), 1), 1 - dampening)
    if undamped_start:  # up to the first direction that is not 0
        shares[: next((i for i, d in enumerate(h.ds) if d.any()), len(h.ds)) + 1] = 1
    p = average(shares * h.ds, beta) / (1 - beta)
    return h.d + beta * p if nesterov else p


def feedback(h, beta, dampening=0.0):
    p = 0 * h.d
    for w, d in zip(h.ws, h.ds, strict=True):
        p = tangent(SimpleNamespace(w=w, d=beta * p + (1 - dampening) * d))
    return p


def adam(h, beta1, beta2, eps=1e-8, nesterov=False, bias_correction=True):
    t, m, v = len(h.ds), average(h.ds, beta1), average(h.ds**2, beta2)
    m = beta1 * m + (1 - beta1) * h.d if nesterov else m
    if bias_correction:
        return m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return m / (np.sqrt(v) + eps)


def rms_moment(h, alpha=0.99, eps=1e-8, centered=False):
    return average(h.ds**2, alpha) - (average(h.ds, alpha) ** 2 if centered else 0)


def unit_moment(h, beta1, beta2, eps=1e-8):
    return average(np.array([d @ d for d in h.ds]), beta2)


def unit_moments(h, beta1, beta2, eps=1e-8):
    correction = math.sqrt(1 - beta2 ** len(h.ds)) / (1 - beta1 ** len(h.ds))
    return correction * average(h.ds, beta1) / math.sqrt(unit_moment(h, beta1, beta2) + eps)


def pinned(h, radius="initial"):
    intended = abs(norm(h.w) - h.w @ h.d / norm(h.w)) if h.w.any() else norm(h.d)
    radii = {"initial": norm(h.ws[0]), "current": norm(h.w), "intended": intended}
    end = h.w - h.d
    return h.w - radii.get(radius, radius) * end / (norm(end) or 1)


def gained(h, lr, gain_lr, start="norm", free_norm=False):
    """w = g v, or g v / |v| with v free, where g, or its softplus, and |v| are remembered."""
    p = math.log(math.e - 1) if start == "one" else norm(h.ws[0])
    length = norm(h.ws[0])

    def scale():
        return (np.logaddexp(0, p) if start == "one" else p) / (length if free_norm else 1)

    for w, d in zip(h.ws, h.ds, strict=True):
        v = w / (scale() or 1)
        slope = v @ d / (length if free_norm else 1)
        v = v - lr * scale() * d
        p = p - gain_lr * slope * (np.exp(-np.logaddexp(0, -p)) if start == "one" else 1)
        length = norm(v)
    return h.w - scale() * v


def schedule_free(h, beta, lr, power=0.0):
    x = z = h.ws[0]
    shares = [t**power * lr**2 for t in range(1, len(h.ds) + 1)]
    for t, d in enumerate(h.ds):
        z = z - d
        x = x + (z - x) * shares[t] / sum(shares[: t + 1])
    return h.w - (1 - beta) * z - beta * x


def primal_average(h, beta, gamma):
    zs = h.ws[0] - np.cumsum(h.ds, axis=0)
    x = gamma ** len(zs) * h.ws[0] + average(zs, gamma)
    return h.w - (1 - beta) * zs[-1] - beta * x


def gone_back(h, alpha, every):
    slow = end = h.ws[0]
    for t, (w, d) in enumerate(zip(h.ws, h.ds, strict=True)):
        end = w - d
        if (t + 1) % every == 0:
            end = slow = slow + alpha * (end - slow)
    return h.w - end


def ahead(h, beta, gamma):
    ends = [h.ws[0], *(w - d for w, d in zip(h.ws, h.ds, strict=True))]
    return h.w - ends[-1] - beta * average(np.diff(ends, axis=0), gamma)


@dataclass(frozen=True)
class Form:
    """A rule, its formula, and settings of both.

    Attributes:
        unit: the formula is of one unit, and the rule takes a view; False: of the whole weight.
        noted: the formula of the second moment, for rules behind.
        ends: the direction has the rounding of w, such as w minus an end.
    """

    make: Callable[..., sn.Rule]
    formula: Callable[..., Any]
    settings: tuple[dict[str, Any], ...] = ({},)
    unit: bool = True
    noted: Callable[..., Any] | None = None
    ends: bool = False

    def rule(self, view: str = "channel", **settings: Any) -> sn.Rule:
        return self.make(**settings, **({"view": view} if self.unit else {}))


def whole(make, formula, *settings, **more):
    return Form(make, formula, settings or ({},), False, **more)


def unit(make, formula, *settings, **more):
    return Form(make, formula, settings or ({},), **more)


BETAS = {"beta1": 0.7, "beta2": 0.9}
FORMS = {
    "StepSize": whole(r.StepSize, lambda h, lr: lr * h.d, {"lr": 0.3}, {"lr": 0.0}),
    "WeightAverage": whole(r.WeightAverage, lambda h, decay: h.d, {"decay": 0.9}, {"decay": 1.0}),
    "Sign": whole(r.Sign, lambda h: np.sign(h.d)),
    "CautiousMask": whole(r.CautiousMask, masked, {}, {"min_share": 0.8}),
    "UnitClip": unit(r.UnitClip, lambda h, nu: h.d * min(1, nu / (norm(h.d) or nu)), {"nu": 0.7}),
    "UpdateFloor": unit(
        r.UpdateFloor, lambda h, share: h.d * max(1, share * norm(h.w) / (norm(h.d) or math.inf)),
        {"share": 0.7}),
    "CoupledDecay": whole(r.CoupledDecay, decayed, {"weight_decay": 0.3}, {"weight_decay": 0.0}),
    "DecoupledDecay": whole(
        r.DecoupledDecay, decayed,
        {"weight_decay": 0.3}, {"weight_decay": 0.3, "cautious": True}, {"weight_decay": 0.0}),
    "TargetNormDecay": unit(
        r.TargetNormDecay, towards, {"weight_decay": 0.3},
        {"weight_decay": 0.3, "radius": 1.5}, {"weight_decay": 0.0, "radius": 1.5}, ends=True),
    "Centralization": unit(
        r.Centralization, lambda h: h.d - (h.d.mean() if h.ndim > 1 and h.d.size else 0)),
    "NormalizedUpdate": unit(
        r.NormalizedUpdate, normalized, {}, {"eps": 0.2}, {"length": "weight"},
        {"length": "weight", "beta": 0.8, "eps": 0.1}),
    "KeepNorm": unit(lambda view: r.KeepNorm(r.RadialProjection(view), view), turned),
    "Graft": unit(
        lambda view, lr: r.Graft(r.RadialProjection(view), r.StepSize(lr), view),
        lambda h, lr: lr * turned(h), {"lr": 0.3}),
    "ScheduleFree": whole(
        r.ScheduleFree, schedule_free, {"beta": 0.7, "lr": 0.3},
        {"beta": 0.7, "lr": 0.3, "power": 1.5}, ends=True),
    "PrimalAverage": whole(r.PrimalAverage, primal_average, {"beta": 0.7, "gamma": 0.8}, ends=True),
    "Lookahead": whole(r.Lookahead, gone_back, {"alpha": 0.3, "every": 2}, ends=True),
    "TrendLookahead": whole(r.TrendLookahead, ahead, {"beta": 0.5, "gamma": 0.8}, ends=True),
    "RadialProjection": unit(
        r.RadialProjection, tangent, {}, {"outward": 0.5, "inward": 1.0}, {"inward": 0.3},
        {"outward": 0.3}),
    "HeavyBall": whole(
        r.HeavyBall, heavy_ball, {"beta": 0.0}, {"beta": 0.9, "nesterov": True},
        {"beta": 0.9, "dampening": 0.4},
        {"beta": 0.9, "dampening": 0.4, "nesterov": True, "undamped_start": True}),
    "FeedbackMomentum": unit(
        lambda view, **given: r.FeedbackMomentum(r.RadialProjection(view), **given), feedback,
        {"beta": 0.9}, {"beta": 0.9, "dampening": 0.4}),
    "ExponentialAverage": whole(
        r.ExponentialAverage,
        lambda h, beta, bias_correction=False:
            average(h.ds, beta) / (1 - beta ** len(h.ds) if bias_correction else 1),
        {"beta": 0.9}, {"beta": 0.9, "bias_correction": True}),
    "InterpolatedAverage": whole(
        r.InterpolatedAverage,
        lambda h, beta1, beta2: beta1 * average(h.ds[:-1], beta2) + (1 - beta1) * h.d, BETAS),
    "AdaptiveMoments": whole(
        r.AdaptiveMoments, adam, BETAS, {**BETAS, "eps": 0.1, "nesterov": True},
        {**BETAS, "eps": 0.1, "bias_correction": False},
        noted=lambda h, beta2, **_: average(h.ds**2, beta2)),
    "RootMeanSquare": whole(
        r.RootMeanSquare,
        lambda h, eps=1e-8, **given: h.d / (np.sqrt(rms_moment(h, **given)) + eps),
        {}, {"alpha": 0.8, "eps": 0.1}, {"alpha": 0.8, "eps": 0.1, "centered": True},
        noted=rms_moment),
    "UnitMoments": unit(
        r.UnitMoments, unit_moments, BETAS, {**BETAS, "eps": 0.1}, noted=unit_moment),
    "FixedNorm": unit(
        r.FixedNorm, pinned, {}, {"radius": "current"}, {"radius": "intended"}, {"radius": 1.5},
        ends=True),
    "Retraction": unit(
        lambda view: r.Retraction(r.NormalizedUpdate(view)), lambda h: pinned(h, 1.0), ends=True),
    "GainAndDirection": unit(
        lambda view, lr, gain_lr, **given:
            r.GainAndDirection(r.StepSize(lr), r.StepSize(gain_lr), view, **given),
        gained, {"lr": 0.1, "gain_lr": 0.2}, {"lr": 0.1, "gain_lr": 0.2, "free_norm": True},
        {"lr": 0.1, "gain_lr": 0.2, "start": "one"}, ends=True),
    "a chain": whole(
        lambda lr, weight_decay: sn.chain(r.StepSize(lr), r.DecoupledDecay(weight_decay)),
        lambda h, lr, weight_decay: lr * h.d + weight_decay * h.w,
        {"lr": 0.1, "weight_decay": 0.3}),
}  # fmt: skip
