"""Each rule against its formula for one unit, in float64: settings x shapes x views x dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import pairs
from tests.rules.units import LAYOUTS, by_units, close, exact, lay_out, randn, seen

STEPS = 3


def norm(x):
    return math.sqrt(x @ x)


def past(xs, beta):
    """The sum of the x's, each beta times as heavy as the next one."""
    return sum((beta**k * x for k, x in enumerate(xs[::-1])), 0 * xs[0] if len(xs) else 0.0)


def average(xs, beta):
    return (1 - beta) * past(xs, beta)


def scaled(h, lr):
    return lr * h.d[-1]


def sign(h):
    return np.sign(h.d[-1])


def masked(h, least=1e-3):
    agrees = h.d[-1] * h.g[-1] > 0
    return h.d[-1] * agrees / max(agrees.mean() if agrees.size else 0, least)


def clipped(h, nu):
    return h.d[-1] * min(1, nu / norm(h.d[-1]) if h.d[-1].any() else 1)


def floored(h, share):
    d, w = h.d[-1], h.w[-1]
    return d * max(1, share * norm(w) / norm(d)) if d.any() else d


def decayed(h, weight_decay, cautious=False):
    d, w = h.d[-1], h.w[-1]
    return d + weight_decay * w * ((w * d >= 0) if cautious else 1)


def towards(h, weight_decay, radius="initial"):
    target = norm(h.w[0]) if radius == "initial" else radius
    return h.d[-1] + weight_decay * (h.w[-1] - target * h.w[-1] / (norm(h.w[-1]) or 1))


def centered(h):
    return h.d[-1] - h.d[-1].mean() if h.ndim > 1 and h.d[-1].size else h.d[-1]


def normalized(h, length="one", beta=0.0, eps=0.0):
    squares = np.array([d @ d for d in h.d])
    by = math.sqrt(average(squares, beta) / (1 - beta ** len(squares))) + eps
    if length == "weight" and not h.w[-1].any():
        return h.d[-1]
    return (norm(h.w[-1]) if length == "weight" else 1) * h.d[-1] / (by or 1)


def without_radial(h, outward=0.0, inward=0.0, d=None):
    d, w = h.d[-1] if d is None else d, h.w[-1]
    if not w.any():
        return d
    along = w @ d / (w @ w)
    stays = outward if along < 0 else inward
    return stays * d if len(d) == 1 else d - (1 - stays) * along * w


def turned(h):
    q = without_radial(h)
    return q * norm(h.d[-1]) / (norm(q) or 1)


def heavy_ball(h, beta, dampening=0.0, nesterov=False, undamped_start=False):
    shares = np.full(len(h.d), 1 - dampening)
    if undamped_start:  # up to the first direction that is not 0
        shares[: next((i for i, d in enumerate(h.d) if d.any()), len(h.d)) + 1] = 1
    p = past(np.array([share * d for share, d in zip(shares, h.d, strict=True)]), beta)
    return h.d[-1] + beta * p if nesterov else p


def feedback(h, beta, dampening=0.0):
    p = 0 * h.d[0]
    for i in range(len(h.d)):
        entering = beta * p + (1 - dampening) * h.d[i]
        p = without_radial(SimpleNamespace(w=h.w[: i + 1]), d=entering)
    return p


def averaged(h, beta, bias_correction=False):
    return average(h.d, beta) / (1 - beta ** len(h.d) if bias_correction else 1)


def interpolated(h, beta1, beta2):
    return beta1 * average(h.d[:-1], beta2) + (1 - beta1) * h.d[-1]


def adam(h, beta1, beta2, eps=1e-8, nesterov=False, bias_correction=True):
    t, m, v = len(h.d), average(h.d, beta1), average(h.d**2, beta2)
    m = beta1 * m + (1 - beta1) * h.d[-1] if nesterov else m
    if bias_correction:
        return m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return m / (np.sqrt(v) + eps)


def adam_moment(h, beta1, beta2, **_):
    return average(h.d**2, beta2)


def rms_moment(h, alpha=0.99, eps=1e-8, centered=False):
    return average(h.d**2, alpha) - (average(h.d, alpha) ** 2 if centered else 0)


def rms(h, alpha=0.99, eps=1e-8, centered=False):
    return h.d[-1] / (np.sqrt(rms_moment(h, alpha, eps, centered)) + eps)


def unit_moment(h, beta1, beta2, eps=1e-8):
    return average(np.array([d @ d for d in h.d]), beta2)


def unit_moments(h, beta1, beta2, eps=1e-8):
    correction = math.sqrt(1 - beta2 ** len(h.d)) / (1 - beta1 ** len(h.d))
    return correction * average(h.d, beta1) / math.sqrt(unit_moment(h, beta1, beta2) + eps)


def pinned(h, radius="initial"):
    d, w = h.d[-1], h.w[-1]
    along = w @ d / (norm(w) or 1)
    radii = {
        "initial": norm(h.w[0]),
        "current": norm(w),
        "intended": abs(norm(w) - along) if w.any() else norm(d),
    }
    return w - radii.get(radius, radius) * (w - d) / norm(w - d) if (w - d).any() else d


def ended(h):
    return w - (w - d) / norm(w - d) if ((w := h.w[-1]) - (d := h.d[-1])).any() else d


def gained(h, lr, gain_lr, start="norm", free=False):
    """w = g v, or g v / |v| with v free, where g, or its softplus, and |v| are remembered."""
    p = math.log(math.e - 1) if start == "one" else norm(h.w[0])
    length = norm(h.w[0])

    def scale():
        return (np.logaddexp(0, p) if start == "one" else p) / (length if free else 1)

    for w, d in zip(h.w, h.d, strict=True):
        v = w / (scale() or 1)
        slope = v @ d / (length if free else 1)
        v = v - lr * scale() * d
        p = p - gain_lr * slope * (np.exp(-np.logaddexp(0, -p)) if start == "one" else 1)
        length = norm(v)
        end = scale() * v
    return w - end


def gain(view, lr, gain_lr, **settings):
    return r.Gain(r.StepSize(lr), r.StepSize(gain_lr), view, **settings)


@dataclass(frozen=True)
class Form:
    """A rule, its settings, and the formula of its direction.

    Attributes:
        make: takes the settings and, if `unit`, the view.
        formula: takes the history `h` of one unit and the settings: `h.w`, `h.d` and `h.g` are
            weights, directions and gradients of all steps so far; its defaults are the documented
            ones.
        unit: the formula is of one unit; False: of the whole weight.
        states: the names of the states.
        second_moment: the formula of the note for rules behind.
        ends: the direction has the rounding of w, such as w minus an end.
        from_zero: a unit may start at 0.
    """

    make: Callable[..., sn.Rule]
    formula: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    unit: bool = True
    states: tuple[str, ...] = ()
    second_moment: Callable[..., Any] | None = None
    ends: bool = False
    from_zero: bool = True

    def __str__(self):
        name = getattr(self.make, "__name__", "")
        return "-".join([name, *(f"{key}={value}" for key, value in self.settings.items())])


def whole(make, formula, settings=None, *states, **more):
    return Form(make, formula, settings or {}, False, states, **more)


def constant_decay(lr, weight_decay):
    return sn.chain(r.StepSize(lr), r.DecoupledDecay(weight_decay))


def same_length(view):
    return r.SameLength(r.RadialProjection(view), view)


def remembered(view, **settings):
    return r.FeedbackMomentum(r.RadialProjection(view), **settings)


def normalized_end(view):
    return r.EndsAt(r.NormalizedUpdate(view))


BETAS = {"beta1": 0.7, "beta2": 0.9}
ADAM = ("exp_avg", "exp_avg_sq")
FORMS = [
    whole(r.StepSize, scaled, {"lr": 0.3}),
    whole(r.StepSize, scaled, {"lr": 0.0}),
    whole(r.Sign, sign),
    whole(r.CautiousMask, masked),
    whole(r.CautiousMask, masked, {"least": 0.8}),
    Form(r.UnitClip, clipped, {"nu": 0.7}),
    Form(r.UpdateFloor, floored, {"share": 0.7}),
    whole(r.CoupledDecay, decayed, {"weight_decay": 0.3}),
    whole(r.CoupledDecay, decayed, {"weight_decay": 0.0}),
    whole(r.DecoupledDecay, decayed, {"weight_decay": 0.3}),
    whole(r.DecoupledDecay, decayed, {"weight_decay": 0.3, "cautious": True}),
    whole(constant_decay, lambda h, lr, weight_decay: lr * h.d[-1] + weight_decay * h.w[-1],
          {"lr": 0.1, "weight_decay": 0.3}),
    Form(r.TargetNormDecay, towards, {"weight_decay": 0.3}, states=("radius",), ends=True,
         from_zero=False),
    Form(r.TargetNormDecay, towards, {"weight_decay": 0.3, "radius": 1.5}, ends=True),
    Form(r.TargetNormDecay, towards, {"weight_decay": 0.0, "radius": 1.5}),
    Form(r.Centralization, centered),
    Form(r.NormalizedUpdate, normalized),
    Form(r.NormalizedUpdate, normalized, {"eps": 0.2}),
    Form(r.NormalizedUpdate, normalized, {"length": "weight"}),
    Form(r.NormalizedUpdate, normalized, {"length": "weight", "beta": 0.8, "eps": 0.1},
         states=("squared_length",)),
    Form(same_length, turned),
    Form(r.RadialProjection, without_radial),
    Form(r.RadialProjection, without_radial, {"outward": 0.5, "inward": 1.0}),
    Form(r.RadialProjection, without_radial, {"inward": 0.3}),
    Form(r.RadialProjection, without_radial, {"outward": 0.3}),
    whole(r.HeavyBall, heavy_ball, {"beta": 0.0}, "momentum"),
    whole(r.HeavyBall, heavy_ball, {"beta": 0.9, "nesterov": True}, "momentum"),
    whole(r.HeavyBall, heavy_ball, {"beta": 0.9, "dampening": 0.4}, "momentum"),
    whole(r.HeavyBall, heavy_ball,
          {"beta": 0.9, "dampening": 0.4, "nesterov": True, "undamped_start": True}, "momentum"),
    Form(remembered, feedback, {"beta": 0.9}, states=("momentum",)),
    Form(remembered, feedback, {"beta": 0.9, "dampening": 0.4}, states=("momentum",)),
    whole(r.ExponentialAverage, averaged, {"beta": 0.9}, "exp_avg"),
    whole(r.ExponentialAverage, averaged, {"beta": 0.9, "bias_correction": True}, "exp_avg"),
    whole(r.InterpolatedAverage, interpolated, BETAS, "exp_avg"),
    whole(r.AdaptiveMoments, adam, BETAS, *ADAM, second_moment=adam_moment),
    whole(r.AdaptiveMoments, adam, {**BETAS, "eps": 0.1, "nesterov": True}, *ADAM,
          second_moment=adam_moment),
    whole(r.AdaptiveMoments, adam, {**BETAS, "eps": 0.1, "bias_correction": False}, *ADAM),
    whole(r.RootMeanSquare, rms, {}, "square_avg", second_moment=rms_moment),
    whole(r.RootMeanSquare, rms, {"alpha": 0.8, "eps": 0.1}, "square_avg"),
    whole(r.RootMeanSquare, rms, {"alpha": 0.8, "eps": 0.1, "centered": True}, "square_avg",
          "grad_avg", second_moment=rms_moment),
    Form(r.UnitMoments, unit_moments, BETAS, states=ADAM, second_moment=unit_moment),
    Form(r.UnitMoments, unit_moments, {**BETAS, "eps": 0.1}, states=ADAM),
    Form(r.RadiusPin, pinned, {}, states=("radius",), ends=True, from_zero=False),
    Form(r.RadiusPin, pinned, {"radius": "current"}, ends=True, from_zero=False),
    Form(r.RadiusPin, pinned, {"radius": "intended"}, ends=True),
    Form(r.RadiusPin, pinned, {"radius": 1.5}, ends=True),
    Form(normalized_end, ended, ends=True),
    Form(gain, gained, {"lr": 0.1, "gain_lr": 0.2}, states=("gain",), ends=True, from_zero=False),
    Form(gain, gained, {"lr": 0.1, "gain_lr": 0.2, "free": True}, states=("gain", "length"),
         ends=True, from_zero=False),
    Form(gain, gained, {"lr": 0.1, "gain_lr": 0.2, "start": "one"}, states=("gain",), ends=True),
]  # fmt: skip

LARGE = (2, 2**14 + 1)
"""From 2^15 entries on, a step reuses the memory of intermediate results."""
WHERE = [
    ((4, 6), "channel"), ((4, 6), "layer"), ((4, 6), "dim=1"), ((3, 4, 2, 2), "dim=1,groups=2"),
    ((4, 3, 2), "dim=-1"), ((4, 3, 2), "groups=2"), (LARGE, "groups=1"), ((5,), "channel"),
    ((5,), "layer"), ((), "channel"), ((0, 3), "layer"), ((4, 0), "channel"),
]  # fmt: skip
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
"""Half precision is computed with in float32."""
CONDITIONS = {
    "where": WHERE,
    "dtype": tuple(TOLERANCE),
    "scale": (1.0, 1e-6, 1e6),
    "zero": ("nothing", "a unit of the weight", "a unit of the gradient", "the first gradient"),
    "number": (float, np.float32, torch.tensor, "vmap"),
    "layout": LAYOUTS,
    "graph": (False, True),
}


def fits(case):
    """An infinite gradient in float16 is none of these cases."""
    return not (case.get("dtype") is torch.float16 and case.get("scale") == 1e6)


BY_UNITS = pairs(CONDITIONS, fits)
BY_WHOLE = pairs(
    {**CONDITIONS, "where": [at for at in WHERE if at[1] in ("layer", "groups=1")]}, fits
)


class Turned(sn.Rule):
    """Lets the direction differ from the gradient, also in sign."""

    def update(self, update, state):
        return update.changed(direction=update.grad * (0.5 + update.weight)), state


def history(case):
    """The weights and gradients of some steps."""
    (shape, _), dtype = case["where"], case["dtype"]
    weights, grads = ([randn(*shape, seed=i + step) for step in range(STEPS)] for i in (0, 100))
    for i, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        grad.mul_(case["scale"])
        if case["zero"] == "the first gradient" and not i:
            grad.zero_()
        silent = {"a unit of the weight": weight, "a unit of the gradient": grad}
        if shape and shape[0] and case["zero"] in silent:
            silent[case["zero"]][0] = 0
    return ([lay_out(x.to(dtype), case["layout"]) for x in xs] for xs in (weights, grads))


def values(form, case):
    """The settings as the rule gets them, and as the formula gets them, once for each batch."""
    numbers = {key: x for key, x in form.settings.items() if type(x) is float}
    if case["number"] == "vmap":
        both = {key: torch.tensor([x, x / 2], dtype=torch.float64) for key, x in numbers.items()}
        return both, [numbers, {key: x / 2 for key, x in numbers.items()}]
    kind = case["number"]
    options = {"dtype": torch.float64} if kind is torch.tensor else {}
    given = {key: kind(x, **options) for key, x in numbers.items()}
    return given, [{key: float(x) for key, x in given.items()}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_direction_is_its_formula(form):
    for case in BY_UNITS if form.unit else BY_WHOLE:
        if case["zero"] == "a unit of the weight" and not form.from_zero:
            continue
        check(form, case)


def check(form, case):
    (_, view), tol = case["where"], TOLERANCE[case["dtype"]]
    weights, grads = history(case)
    if case["graph"]:
        weights = [weight.requires_grad_() for weight in weights]
    given, expected_of = values(form, case)

    def run(**numbers):
        rule = form.make(**{**form.settings, **numbers}, **({"view": view} if form.unit else {}))
        assert set(rule.state_names) == set(form.states)
        updates = seen(sn.chain(Turned(), rule), weights, grads)
        assert all(each.direction.shape == weights[0].shape for each in updates)
        notes = [each.notes.get("second_moment", each.grad.new_zeros(1)) for each in updates]
        return torch.stack([each.direction for each in updates]), torch.stack(notes)

    batched = case["number"] == "vmap" and given
    found, notes = torch.vmap(lambda numbers: run(**numbers))(given) if batched else run(**given)
    w, g = (np.stack([exact(x) for x in xs]) for xs in (weights, grads))
    d = g * (0.5 + w)
    for i, numbers in enumerate(expected_of):
        settings = {**form.settings, **numbers}
        for t in range(STEPS):

            def formula(_, w, d, g, of=form.formula, settings=settings):
                return of(SimpleNamespace(w=w, d=d, g=g, ndim=weights[0].ndim), **settings)

            until = (w[t], w[: t + 1], d[: t + 1], g[: t + 1])
            expected = by_units(formula, view, *until)
            largest = max(abs(x).max(initial=0) for x in (expected, d[t], form.ends * w[t]))
            of = f"{form} in step {t + 1} of {case}"
            close((found[i] if batched else found)[t], expected, tol, largest, of)
            if form.second_moment:
                square = by_units(lambda *a: formula(*a, of=form.second_moment), view, *until)
                note = exact((notes[i] if batched else notes)[t]) + 0 * w[t]
                close(note, square, tol, abs(square).max(initial=0), of)


HELD_ELSEWHERE = {
    "InvarianceTest", "UnitSums", "ScaleInvarianceTest", "AccumulatedInvarianceTest",
    "Orthogonalize", "OrthogonalityRegularization", "SpectralPin", "StiefelProjection",
}  # fmt: skip
"""By `test_invariance` and `test_matrices`."""


def test_every_rule_has_a_formula():
    made = (
        form.make(**form.settings, **({"view": "layer"} if form.unit else {})) for form in FORMS
    )
    named = {type(each).__name__ for rule in made for each in rule.tree()}
    assert named | HELD_ELSEWHERE >= set(r.__all__)
