"""Each rule against its formula for one unit, in float64: settings x shapes x views x dtypes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import pairs
from tests.rules.formulas import FORMS
from tests.rules.units import LAYOUTS, by_units, close, exact, lay_out, randn, seen

STEPS = 3
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
LAYERS = [at for at in WHERE if at[1] in ("layer", "groups=1")]
BY_WHOLE = pairs({**CONDITIONS, "where": LAYERS}, fits)


class Turned(sn.Rule):
    """Lets the direction differ from the gradient, also in sign."""

    def update(self, update, state):
        return update.replace(direction=update.grad * (0.5 + update.weight)), state


HELD = ("FixedNorm", "TargetNormDecay", "GainAndDirection")
"""Rules that refuse a unit of 0, whose norm they would hold."""


def history(case):
    """The weights and gradients of some steps."""
    (shape, _), silent = case["where"], case["zero"]
    weights, grads = ([randn(*shape, seed=i + t) for t in range(STEPS)] for i in (0, 100))
    for t, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        grad.mul_(case["scale"])
        if silent == "the first gradient" and not t:
            grad.zero_()
        elif silent.startswith("a unit") and shape and shape[0]:
            (weight if silent.endswith("weight") else grad)[0] = 0
    return ([lay_out(x.to(case["dtype"]), case["layout"]) for x in xs] for xs in (weights, grads))


@pytest.mark.parametrize("name", FORMS)
def test_a_direction_is_its_formula(name):
    form = FORMS[name]
    for settings in form.settings:
        held = name in HELD and not {"intended", 1.5, "one"} & {*settings.values()}
        for case in BY_UNITS if form.unit else BY_WHOLE:
            if not (held and case["zero"] == "a unit of the weight"):  # which is refused
                check(form, settings, case)


def check(form, settings, case):
    (_, view), tol, kind = case["where"], TOLERANCE[case["dtype"]], case["number"]
    weights, grads = history(case)
    w, g = (np.stack([exact(x) for x in xs]) for xs in (weights, grads))
    d = g * (0.5 + w)
    if case["graph"]:
        weights = [weight.requires_grad_() for weight in weights]
    numbers = {key: x for key, x in settings.items() if type(x) is float}

    def run(given):
        updates = seen(sn.chain(Turned(), form.rule(view, **{**settings, **given})), weights, grads)
        notes = [each.notes.get("second_moment", each.direction) for each in updates]
        return torch.stack([each.direction for each in updates]), torch.stack(notes)

    if kind == "vmap" and numbers:
        both = {key: torch.tensor([x, x / 2], dtype=torch.float64) for key, x in numbers.items()}
        values = [numbers, {key: x / 2 for key, x in numbers.items()}]
        results = zip(*torch.vmap(run)(both), strict=True)
    else:
        options = {"dtype": torch.float64} if kind is torch.tensor else {}
        given = {k: x if kind == "vmap" else kind(x, **options) for k, x in numbers.items()}
        values, results = [{key: float(x) for key, x in given.items()}], [run(given)]
    for taken, (directions, notes) in zip(values, results, strict=True):
        for t in range(STEPS):

            def of(formula, taken=taken, t=t):
                def of_unit(_, ws, ds, g):
                    h = SimpleNamespace(w=ws[-1], d=ds[-1], g=g, ws=ws, ds=ds, ndim=w.ndim - 1)
                    return formula(h, **{**settings, **taken})

                return by_units(of_unit, view, w[t], w[: t + 1], d[: t + 1], g[t])

            what, expected = (settings, f"step {t + 1}", case), of(form.formula)
            largest = max(abs(x).max(initial=0) for x in (expected, d[t], form.ends * w[t]))
            close(directions[t], expected, tol, largest, what)
            if form.noted:
                square = of(form.noted)
                close(notes[t] + 0 * directions[t], square, tol, abs(square).max(initial=0), what)


def test_every_rule_has_a_formula():
    elsewhere = {"InvarianceTest", "UnitSums", "ScaleInvarianceTest", "AccumulatedInvarianceTest"}
    elsewhere |= {"LowPrecisionState", "StochasticRounding", "Blocks", "Watch"}
    matrices = {
        "Orthogonalize",
        "OrthogonalityRegularization",
        "FixedSpectralNorm",
        "StiefelProjection",
    }
    assert {*FORMS} | elsewhere | matrices >= {*r.__all__}
