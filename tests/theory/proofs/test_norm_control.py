"""Exact facts of norm control, read off the recorded steps."""

import pytest
import sympy as sp

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import one_step
from spherenorm_theory.proofs._notation import squared

lr, weight_decay, radius = (sp.Symbol(n, positive=True) for n in ("lr", "weight_decay", "radius"))


def coefficients(step):
    """Those of w / |w| and of g / |g| in w', and |w'|^2."""
    lengths = [sp.sqrt(squared(n)) for n in "wg"]
    found = [step.weight.terms[n] * length for n, length in zip("wg", lengths, strict=True)]
    return [step.facts.expand(x, True) for x in (*found, step.inner(step.weight, step.weight))]


@pytest.mark.parametrize("orthogonal", [True, False])
def test_a_hyperball_step_turns_by_its_law(orthogonal):
    """w' is along w / |w| - lr u / |u|, so that it turns by atan2(lr sin a, 1 - lr cos a), a the
    angle between the two: by arctan(lr) at a right one. The norm is the radius."""
    held = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
    step = one_step("hyperball(sgd)", scale_invariant=orthogonal, **held)
    along, aside, length = coefficients(step)
    assert sp.simplify(aside / along + lr) == 0
    assert sp.simplify(length - step.scalars["radius"] ** 2) == 0


def pinned(lr=0.1, weight_decay=0.5):
    return sn.chain(r.DecoupledDecay(weight_decay), r.StepSize(lr), r.RadiusPin())


def test_decay_before_a_projection_is_a_change_of_rate():
    """R N((1 - lr wd) w - lr g) is along w - lr / (1 - lr wd) g, and as long."""
    weight, grad = (one_step(pinned, scale_invariant=False).weight.terms[n] for n in "wg")
    assert sp.simplify(grad / weight + lr / (1 - lr * weight_decay)) == 0


def behind_the_factor(name):
    """A recipe of the rules of `name` behind its orthogonalization."""

    def rest(lr=0.1, weight_decay=0.1, radius=2.0):
        own = {"radius": radius} if name == "scion" else {}
        rules = sn.bind(name, lr=lr, weight_decay=weight_decay, **own).rule.rules
        place = [isinstance(each, r.Orthogonalize) for each in rules].index(True)
        return sn.chain(*rules[place + 1 :])

    return rest


@pytest.mark.parametrize(
    ("name", "decay", "ball"), [("scion", 1, radius), ("muon", weight_decay, 1 / weight_decay)]
)
def test_a_ball_that_no_step_leaves(name, decay, ball):
    """Induction: |w| <= ball and |O| <= 1 in any norm give |w'| <= ball, for lr decay <= 1.

    Of the orthogonal factor O, the spectral norm is at most 1: Scion keeps to its radius, and Muon
    with decay to 1 / weight_decay, each times the scale of the shape.
    """
    new = one_step(behind_the_factor(name)).weight
    of_weight, of_factor = (new.terms[n].subs(weight_decay, decay) for n in "wg")
    assert sp.simplify(of_weight - (1 - lr * decay)) == 0  # so it is at least 0
    assert sp.simplify(of_weight * ball - of_factor - ball) == 0
