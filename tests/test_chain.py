import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r


def test_only_rules_chain():
    with pytest.raises(TypeError, match=r"chain takes rules, got 0\.1"):
        sn.chain(r.HeavyBall(0.9), 0.1)


def test_what_init_returns_is_what_is_declared():
    class Undeclared(sn.Rule):
        state_names = ("other",)

        def init(self, weight):
            return {"memory": torch.zeros_like(weight)}

    with pytest.raises(
        TypeError, match=r"Undeclared.*: init returns \['memory'\], state_names says \['other'\]"
    ):
        sn.chain(Undeclared()).init(torch.ones(2))


def test_nesting_and_order():
    weight, grad = torch.ones(3, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64)
    nested = sn.chain(sn.chain(r.HeavyBall(0.9)), sn.chain(r.StepSize(0.1)))
    flat = sn.chain(r.HeavyBall(0.9), r.StepSize(0.1))
    inside = sn.chain(r.StepSize(0.1), r.HeavyBall(0.9))
    for rule in (nested, flat, inside):
        state, w = rule.init(weight), weight
        for _ in range(3):
            w, state = rule.step(w, grad, state)
        torch.testing.assert_close(w, weight - 0.1 * (3 + 2 * 0.9 + 0.81) * grad)
    assert nested.state_names == ("momentum",)


def test_exponential_average_alone():
    rule = sn.chain(r.ExponentialAverage(0.9, bias_correction=True), r.StepSize(1.0))
    w = torch.zeros(2, dtype=torch.float64)
    state = rule.init(w)
    constant = torch.tensor([1.0, -2.0], dtype=torch.float64)
    for t in range(1, 4):  # a corrected average of a constant is the constant
        w, state = rule.step(w, constant, state)
        torch.testing.assert_close(w, -t * constant, rtol=1e-14, atol=0)


def test_unit_clip():
    direction = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    moved, _ = sn.chain(r.UnitClip(1.0)).step(torch.zeros(3, 2, dtype=torch.float64), direction, {})
    torch.testing.assert_close(
        -moved, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    )


def test_momentum_is_transported_by_any_rule_that_holds_it():
    """After a quarter turn, a momentum along the path has turned by the same quarter."""
    w = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    grad = torch.tensor([[0.0, -torch.pi / 2]], dtype=torch.float64)
    expected = torch.tensor(
        [[torch.pi / 2, 0.0]], dtype=torch.float64
    )  # minus the velocity, at (0, 1)
    inner = r.FeedbackMomentum(r.RadialProjection("channel"), 0.5, buffer="fed")
    for rule, name, scale in (
        (r.HeavyBall(0.5), "momentum", 1.0),
        (inner, "fed", 1.0),
        (r.ExponentialAverage(0.5), "exp_avg", 0.5),
    ):
        chain = sn.chain(rule, r.StepSize(1 / scale), manifold=sn.Sphere())
        moved, state = chain.step(w, grad, chain.init(w))
        torch.testing.assert_close(
            moved, torch.tensor([[0.0, 1.0]], dtype=torch.float64), rtol=0, atol=1e-15
        )
        torch.testing.assert_close(state[name], scale * expected, rtol=0, atol=1e-15)


def test_an_inner_manifold_is_not_lost():
    inner = sn.chain(r.HeavyBall(0.9), manifold=sn.Sphere("channel"))
    with pytest.raises(
        ValueError, match=r"inner chain has manifold=Sphere.*give it to the outermost"
    ):
        sn.chain(inner, r.StepSize(0.1))
    with pytest.raises(ValueError, match="inner chain has manifold"):
        sn.chain(r.FeedbackMomentum(inner, 0.5, buffer="other"), r.StepSize(0.1))
    with pytest.raises(ValueError, match="inner chain has manifold"):
        sn.chain(inner, r.StepSize(0.1), manifold=sn.Sphere("layer"))
    same = sn.chain(inner, r.StepSize(0.1), manifold=sn.Sphere("channel"))
    flat = sn.chain(r.HeavyBall(0.9), r.StepSize(0.1), manifold=sn.Sphere("channel"))
    weight, grad = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(
        same.step(weight, grad, same.init(weight))[0], flat.step(weight, grad, flat.init(weight))[0]
    )


def test_a_manifold_without_such_units_is_refused_before_anything_moves():
    rule = sn.chain(r.StepSize(0.1), manifold=sn.Sphere("groups=3"))
    with pytest.raises(
        ValueError, match=r"view groups=3 needs dimension 0 divisible by 3, got shape \(4, 2\)"
    ):
        rule.init(torch.ones(4, 2))
    cls = sn.torch_optimizer(lambda lr=0.1: rule, "Grouped")
    with pytest.raises(ValueError, match=r"parameter 1 of shape \(4, 2\): view groups=3"):
        cls([torch.ones(6, 2), torch.ones(4, 2)])


def test_children_are_the_rules_among_the_fields():
    feedback = r.FeedbackMomentum(sn.chain(r.StepSize(0.5)), 0.9)
    outer = sn.chain(feedback, r.StepSize(0.1))
    assert list(outer.children()) == [feedback, r.StepSize(0.1)]
    assert list(feedback.children()) == [sn.chain(r.StepSize(0.5))]
    assert list(r.StepSize(0.1).children()) == []
