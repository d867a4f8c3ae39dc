"""Wrappers turn any recipe into another one, which is a recipe like any."""

import copy
import math
import pickle
import warnings

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses

WRAPPERS = ("hyperball", "rotational", "radial_brake")
FLAT = [name for name in sn.recipes.__all__ if sn.sphere_of(sn.bind(name).rule) is None]
"""The library's recipes that have no manifold, so that a wrapper takes them."""


def mine(lr=0.1, beta=0.9, weight_decay=0.3):
    return sn.chain(r.HeavyBall(beta), r.DecoupledDecay(weight_decay), r.StepSize(lr))


def rateless(beta=0.9):
    return sn.chain(r.HeavyBall(beta))


MineBall = sn.torch_optimizer(sn.wrappers.hyperball(mine), "MineBall")


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_name_finds_the_recipe(wrapper):
    wrapped = getattr(sn.wrappers, wrapper)("lion")
    assert sn.find_recipe(f"{wrapper}(lion)") is wrapped is getattr(sn.wrappers, wrapper)("lion")
    assert wrapped is getattr(sn.wrappers, wrapper)(sn.recipes.lion)
    bound = sn.bind(wrapped, betas=(0.5, 0.6))
    assert bound.name == f"{wrapper}(lion)"
    assert str(bound) == f"{wrapper}(lion)(betas=(0.5, 0.6))"
    assert "weight_decay" not in bound.defaults
    assert sn.bind(f"{wrapper}({__name__}:mine)").name == f"{wrapper}({__name__}:mine)"


@pytest.mark.parametrize("name", [*FLAT, f"{__name__}:mine"])
def test_a_hyperball_takes_the_direction_of_any_recipe(name):
    """w <- |w_0| N(w - lr |w| N(u)), u the recipe's step at a rate of 1 without decay."""
    weight, *grads = draw(4, 4, 3)
    ball, known = sn.bind(f"hyperball({name})", lr=0.1), sn.bind(name).defaults
    alone = {"lr": 1.0, "weight_decay": 0.0}
    inner = sn.bind(name, **{key: x for key, x in alone.items() if key in known}).rule
    assert ball.hyper_parameters["lr"] == 0.1
    expected, radius = weight, weight.norm()
    state, kept = ball.rule.init(weight), inner.init(weight)
    for grad in grads[:2]:
        moved, kept = inner.step(expected, grad, kept)
        step = expected - moved
        expected = expected - 0.1 * expected.norm() * step / step.norm()
        expected = radius * expected / expected.norm()
        weight, state = ball.rule.step(weight, grad, state)
        torch.testing.assert_close(weight, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("zero_mean", [True, False])
def test_a_rotation_turns_each_unit_by_lr(zero_mean):
    """At the first step by arctan of it, whatever the length of the unit and of its step."""
    weight, grad = draw(2, 5, 6)
    weight *= torch.arange(1.0, 6.0)[:, None].double()
    name = f"rotational({__name__}:mine)"
    rule = sn.bind(name, lr=0.02, eps=1e-16, zero_mean=zero_mean).rule
    moved, _ = rule.step(weight, grad, rule.init(weight))
    for w, g, new in zip(weight, grad, moved, strict=True):
        tangent = g - (w @ g) / (w @ w) * w
        step = tangent - tangent.mean() if zero_mean else tangent
        expected = w - 0.02 * w.norm() * step / step.norm()
        expected = w.norm() * expected / expected.norm()
        torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-13)
        if not zero_mean:
            turn = (w @ new / (w @ w)).arccos().item()
            assert turn == pytest.approx(math.atan(0.02), rel=1e-9)


@pytest.mark.parametrize(("along", "share"), [(0.0, 0.0), (-1.0, 0.5), (1.0, 1.0)])
def test_a_radial_brake_shortens_outward_steps(along, share):
    """The radial part of a step counts by half outwards, whole inwards, for |w| alone."""
    weight, grad = draw(2, 3, 4)
    radial = weight / weight.norm()
    tangent = grad - (grad * radial).sum() * radial
    rule = sn.wrappers.radial_brake(mine)(lr=0.1, floor=1e-9)
    moved, _ = rule.step(weight, tangent + along * radial, rule.init(weight))
    intended = weight - 0.1 * (tangent + share * along * radial)
    norm = weight.norm() - 0.1 * share * along
    torch.testing.assert_close(moved, norm * intended / intended.norm(), rtol=1e-13, atol=1e-14)


def test_wrappers_nest():
    rule = sn.bind("hyperball(radial_brake(sgd))").rule
    weight, grad = draw(2, 3, 4)
    moved, _ = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close(moved.norm(), weight.norm())
    assert sn.bind("hyperball(radial_brake(sgd))").name == "hyperball(radial_brake(sgd))"


def test_a_shared_name_is_one_where_the_defaults_agree():
    """hyperball(muon) on a stack: each expert is a matrix, and keeps its norm."""
    stack, grad = draw(2, 3, 4, 5)
    rule = sn.wrappers.hyperball("muon")(view="channel", lr=0.1)
    moved, _ = rule.step(stack, grad, rule.init(stack))
    alone = sn.wrappers.hyperball("muon")(lr=0.1)
    for each, start, g in zip(moved, stack, grad, strict=True):
        torch.testing.assert_close(each, alone.step(start, g, alone.init(start))[0])


def test_a_shared_name_of_two_defaults_is_two():
    defaults = sn.bind("rotational(muon)").defaults
    assert (defaults["view"], defaults["base_view"]) == ("channel", "layer")
    nested = sn.bind("rotational(hyperball(nora))", base_view="dim=1", base_base_view="groups=2")
    given = {name: x for name, x in nested.hyper_parameters.items() if name.endswith("view")}
    assert given == {"view": "channel", "base_view": "dim=1", "base_base_view": "groups=2"}
    base = sn.bind("hyperball(nora)", lr=1.0, view="dim=1", base_view="groups=2").rule
    assert repr(base) in repr(nested.rule)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", FLAT)
def test_no_recipe_of_the_library_keeps_a_decay_in_a_wrapper(wrapper, name):
    assert "weight_decay" not in sn.bind(f"{wrapper}({name})").defaults


@pytest.mark.parametrize("name", ["adamh", *(f"{wrapper}(sgd)" for wrapper in WRAPPERS)])
def test_biases_and_gains_whose_norm_is_held_are_named(name):
    cls, layer = sn.torch_optimizer(name, "Held"), torch.nn.Linear(3, 4)
    with warnings.catch_warnings(record=True) as said:
        cls(layer.named_parameters())
    (message,) = (str(each.message) for each in said)
    assert all(word in message for word in ("Held", "bias", "FixedNorm"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls([layer.weight])


@pytest.mark.parametrize("name", ["adamh", "muonh", "hyperball(sgd)", "rotational(adam)"])
def test_a_radius_of_zero_is_refused_by_name_at_construction(name):
    zero = torch.nn.Parameter(torch.zeros(4, 3))
    with refuses("parameter 0 (weight)", (4, 3), "FixedNorm"):
        sn.torch_optimizer(name)([("weight", zero)])
    with refuses("FixedNorm"):
        sn.functional.init(sn.bind(name).rule, {"weight": zero.detach()})


def test_what_cannot_be_wrapped_is_refused():
    with refuses("hyperball", "rateless", "lr", "beta"):
        sn.find_recipe(f"hyperball({__name__}:rateless)")
    with refuses("manifold"):
        sn.bind("hyperball(sgdg)").rule  # noqa: B018


def test_the_optimizer_of_a_wrapped_recipe_is_one_like_any():
    weights = [torch.nn.Parameter(draw(3, 4).float())]
    optimizer = MineBall([{"params": weights, "beta": 0.5}], lr=0.2)
    assert optimizer.param_groups[0]["recipe"] == f"hyperball({__name__}:mine)"
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), optimizer):
        (group,) = twin.param_groups
        before = group["params"][0].detach().norm()
        group["params"][0].grad = torch.ones(3, 4)
        twin.step()
        torch.testing.assert_close(group["params"][0].detach().norm(), before)
    beside = sn.optim.SGD([{"params": weights, "recipe": "rotational(adamw)", "lr": 0.1}])
    start = weights[0].detach().clone()
    beside.step()
    assert not torch.equal(weights[0], start)
