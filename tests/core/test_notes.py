"""Rules tell the rules behind them: notes by name, and the units found scale-invariant."""

import itertools
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import gradient


class SecondMoment(sn.Rule):
    """Notes v / (1 - beta^t), v = beta v + (1 - beta) g^2, and leaves the direction alone."""

    beta: sn.Scalar = sn.hyper("[0, 1)")

    state_names = ("step", "exp_avg_sq")

    def update(self, update, state):
        t = state["step"]
        square = self.beta * state["exp_avg_sq"] + (1 - self.beta) * update.grad**2
        return update.replace(notes={"second": square / (1 - self.beta**t)}), {"exp_avg_sq": square}


class DividedByItsRoot(sn.Rule):
    def update(self, update, state):
        second = update.notes.get("second", torch.ones(()))
        return replace(update, direction=update.direction / second.sqrt()), {}


def test_a_note_reaches_all_rules_behind():
    """AdamW in parts, with torch.optim.AdamW as the oracle."""
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    oracle = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), eps=0.0, weight_decay=0.1)
    rule = sn.chain(
        sn.chain(SecondMoment(0.99)),
        r.ExponentialAverage(0.9, bias_correction=True),
        sn.chain(DividedByItsRoot()),
        r.DecoupledDecay(0.1),
        r.StepSize(0.01),
    )
    state = rule.init(ours)
    for step in range(6):
        theirs.grad = gradient("alternating", ours, generator, step)
        ours, state = rule.step(ours, theirs.grad, state)
        oracle.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-13)


def test_a_note_ends_with_its_step_and_changes_no_update():
    weight = torch.ones(2)
    alone = sn.chain(DividedByItsRoot())
    sn.chain(sn.chain(SecondMoment(0.5)), DividedByItsRoot()).step(
        weight, 5 * weight, {"exp_avg_sq": weight, "step": torch.zeros(())}
    )
    assert torch.equal(alone.step(weight, weight, {})[0], weight - 1)
    update = sn.Update(weight, weight, weight)
    noted = update.replace(notes={"first": 1})
    assert (dict(update.notes), dict(noted.notes)) == ({}, {"first": 1})
    assert noted.direction is update.direction


# Scale invariance, by a test, and as a user's rule says it.

WEIGHT = torch.diag(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64))
RADIAL, TANGENT = WEIGHT, WEIGHT.roll(1, 1)
DIRECTION = RADIAL + TANGENT
GRADIENTS = {"passes": TANGENT, "fails": RADIAL, "is silent": 0 * RADIAL}
"""By its verdict, the gradient of a row."""


def moved_by(*rules, grad):
    """Minus the step of rules that take `DIRECTION` instead of the gradient."""

    class Directed(sn.Rule):
        def update(self, update, state):
            return replace(update, direction=DIRECTION), {}

    rule = sn.chain(Directed(), *rules)
    return WEIGHT - rule.step(WEIGHT, grad, rule.init(WEIGHT))[0]


def claimed(channel, layer):
    """The direction without its radial part, row by row or as a whole, where that is claimed."""
    whole = DIRECTION - (WEIGHT * DIRECTION).sum() / (WEIGHT**2).sum() * WEIGHT
    found = torch.where(torch.tensor(layer)[:, None], whole, DIRECTION)
    return torch.where(torch.tensor(channel)[:, None], TANGENT, found)


@pytest.mark.parametrize("per", ["tensor", "unit"])
@pytest.mark.parametrize("verdicts", list(itertools.product(GRADIENTS, repeat=3)), ids="-".join)
def test_a_view_gets_its_turn_where_no_unit_passed_an_earlier_one(verdicts, per):
    """All verdicts of three rows: the projection and the decay behind do as the definition says."""
    rows = [GRADIENTS[verdict][i] for i, verdict in enumerate(verdicts)]
    passes = [verdict == "passes" for verdict in verdicts]
    channel = passes
    if per == "tensor":
        channel = [any(passes) and "fails" not in verdicts] * 3
    grad = torch.stack(rows)
    along = (WEIGHT * grad).sum() / (WEIGHT.norm() * grad.norm()) if grad.any() else 1.0
    layer = [not any(channel) and bool(along < 0.1 / 3)] * 3
    test = r.ScaleInvarianceTest(0.1, per=per)
    found = moved_by(test, r.RadialProjection(), grad=grad)
    torch.testing.assert_close(found, claimed(channel, layer), rtol=1e-14, atol=1e-15)
    decay = r.DecoupledDecay(0.5, invariant_ratio=0.1)
    share = torch.where(
        torch.tensor([x or y for x, y in zip(channel, layer, strict=True)]), 0.05, 0.5
    )
    decayed = DIRECTION + share[:, None].double() * WEIGHT
    torch.testing.assert_close(moved_by(test, decay, grad=grad), decayed, rtol=1e-7, atol=1e-8)


class Says(sn.Rule):
    """Declares rows scale-invariant, or all of the weight."""

    rows: tuple
    layer: bool

    def update(self, update, state):
        views = sn.as_view("channel"), sn.as_view("layer")
        flags = torch.tensor(self.rows)[:, None], torch.tensor(self.layer)
        norms = (update.weight**2).sum(1, keepdim=True), (update.weight**2).sum()
        return replace(update, invariance=sn.Invariance(views, flags, norms)), {}


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ((True, False, True), False),
        ((False,) * 3, True),
        ((False,) * 3, False),
        ((True,) * 3, False),
    ],
)
def test_a_users_rule_may_say_what_is_invariant(rows, whole):
    expected = claimed(list(rows), [whole] * 3)
    found = moved_by(Says(rows, whole), r.RadialProjection(), grad=RADIAL)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)


def test_no_view_claims_nothing():
    class Nothing(sn.Rule):
        def update(self, update, state):
            return replace(update, invariance=sn.Invariance()), {}

    decay = r.DecoupledDecay(0.5, invariant_ratio=0.1)
    for rule, expected in ((r.RadialProjection(), DIRECTION), (decay, DIRECTION + 0.5 * WEIGHT)):
        assert torch.equal(moved_by(Nothing(), rule, grad=TANGENT), expected)
