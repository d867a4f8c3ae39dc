"""A chain moves its weight on a manifold, and its tangent states along with it."""

import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import gradient, refuses

DOUBLE = torch.float64


def trained(rule, weight, steps=3):
    state = rule.init(weight)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        weight, state = rule.step(weight, gradient("random", weight, generator, step), state)
    return weight, state


def test_momentum_is_transported_by_any_rule_that_holds_it():
    """After a quarter turn, a momentum along the path has turned by the same quarter."""
    weight = torch.tensor([[1.0, 0.0]], dtype=DOUBLE)
    grad = torch.tensor([[0.0, -torch.pi / 2]], dtype=DOUBLE)
    expected = torch.tensor([[torch.pi / 2, 0.0]], dtype=DOUBLE)  # minus the velocity, at (0, 1)
    feedback = r.FeedbackMomentum(r.RadialProjection("channel"), 0.5, buffer="fed")
    within = r.FeedbackMomentum(r.HeavyBall(0.0), 0.5)
    for rule, names, scale in (
        (r.HeavyBall(0.5), ["momentum"], 1.0),
        (sn.chain(r.HeavyBall(0.5)), ["momentum"], 1.0),
        (feedback, ["fed"], 1.0),
        (within, ["momentum", "momentum_2"], 1.0),
        (r.ExponentialAverage(0.5), ["exp_avg"], 0.5),
    ):
        chain = sn.chain(rule, r.StepSize(1 / scale), manifold=sn.Sphere())
        moved, state = chain.step(weight, grad, chain.init(weight))
        quarter = torch.tensor([[0.0, 1.0]], dtype=DOUBLE)
        torch.testing.assert_close(moved, quarter, rtol=0, atol=1e-15)
        for name in names:
            torch.testing.assert_close(state[name], scale * expected, rtol=0, atol=1e-15)


def test_momenta_of_one_name_are_transported_each_on_its_own():
    weight = sn.Sphere().normalize(torch.randn(4, 3, dtype=DOUBLE))
    rules = r.RadialProjection("channel"), r.HeavyBall(0.9), r.HeavyBall(0.5), r.StepSize(0.1)
    rule = sn.chain(*rules, manifold=sn.Sphere())
    assert rule.tangent_keys == ("momentum", "momentum_2")
    moved, state = trained(rule, weight)
    torch.testing.assert_close(moved.norm(dim=1), torch.ones(4, dtype=DOUBLE))
    for name in rule.tangent_keys:
        assert (moved * state[name]).sum(1).abs().max() <= 1e-14
    flat, still = trained(sn.chain(*rules), weight)
    assert any(not torch.allclose(still[name], state[name]) for name in rule.tangent_keys)
    assert not torch.allclose(flat, moved)


def test_a_second_moment_is_no_tangent_vector():
    rule = sn.chain(r.AdaptiveMoments(0.9, 0.9), r.StepSize(0.1), manifold=sn.Sphere())
    assert "exp_avg_sq" not in rule.tangent_keys
    weight = sn.Sphere().normalize(torch.randn(4, 3, dtype=DOUBLE))
    grad = torch.randn(4, 3, dtype=DOUBLE)
    _, state = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close(state["exp_avg_sq"], 0.1 * grad**2, rtol=1e-14, atol=0)


class Positive:
    """A user's manifold: w' = w exp(-d)."""

    def move(self, weight, direction, tangents):
        return weight * torch.exp(-direction), tangents


def test_a_users_manifold_moves_the_weight():
    weight, grad = torch.rand(2, 3, 2, dtype=DOUBLE)
    rule = sn.chain(r.StepSize(0.1), manifold=Positive())
    torch.testing.assert_close(rule.step(weight, grad, {})[0], weight * torch.exp(-0.1 * grad))


def test_the_manifold_is_the_outermost_chains():
    inner = sn.chain(r.HeavyBall(0.9), manifold=sn.Sphere())
    for lost in (
        lambda: sn.chain(inner, r.StepSize(0.1)),
        lambda: sn.chain(r.FeedbackMomentum(inner, 0.5, buffer="other"), r.StepSize(0.1)),
        lambda: sn.chain(inner, r.StepSize(0.1), manifold=sn.Sphere("layer")),
        lambda: sn.bind(lambda lr=0.1: r.FeedbackMomentum(inner, 0.5)).rule,
    ):
        with refuses("manifold", sn.Sphere()):
            lost()
    same = sn.chain(inner, r.StepSize(0.1), manifold=sn.Sphere())
    flat = sn.chain(r.HeavyBall(0.9), r.StepSize(0.1), manifold=sn.Sphere())
    weight = torch.randn(3, 4)
    assert torch.equal(trained(same, weight)[0], trained(flat, weight)[0])
    assert sn.sphere_of(same).view == sn.as_view("channel")
    assert sn.sphere_of(sn.chain(r.StepSize(0.1))) is sn.sphere_of(None) is None


def test_a_manifold_without_such_units_is_refused_before_anything_moves():
    rule = sn.chain(r.StepSize(0.1), manifold=sn.Sphere("groups=3"))
    with refuses("groups=3", (4, 2)):
        rule.init(torch.ones(4, 2))
    with refuses("parameter 1", "groups=3", (4, 2)):
        sn.torch_optimizer(lambda lr=0.1: rule, "Grouped")([torch.ones(6, 2), torch.ones(4, 2)])
