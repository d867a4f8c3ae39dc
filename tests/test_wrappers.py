"""Wrappers turn any recipe into another one, which is a recipe like any."""

import copy
import pickle
import warnings

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r

WRAPPERS = ("hyperball", "rotational", "radial_brake")


def mine(lr=0.1, beta=0.9, weight_decay=0.3):
    return sn.chain(r.HeavyBall(beta), r.DecoupledDecay(weight_decay), r.StepSize(lr))


MineBall = sn.torch_optimizer(sn.wrappers.hyperball(mine))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_name_finds_the_recipe(wrapper):
    wrapped = getattr(sn.wrappers, wrapper)("lion")
    assert sn.find_recipe(f"{wrapper}(lion)") is wrapped is getattr(sn.wrappers, wrapper)("lion")
    bound = sn.bind(wrapped, betas=(0.5, 0.6))
    assert bound.name == f"{wrapper}(lion)"
    assert str(bound) == f"{wrapper}(lion)(betas=(0.5, 0.6))"
    assert "weight_decay" not in bound.defaults
    assert sn.bind(f"{wrapper}({__name__}:mine)").name == f"{wrapper}({__name__}:mine)"


def test_wrappers_nest():
    rule = sn.bind("hyperball(radial_brake(sgd))").rule
    weight = torch.randn(3, 4)
    moved, _ = rule.step(weight, torch.randn(3, 4), rule.init(weight))
    torch.testing.assert_close(moved.norm(), weight.norm())


def test_a_shared_name_is_one_where_the_defaults_agree():
    """hyperball(muon) on a stack: each expert is a matrix, and keeps its norm."""
    stack, grad = torch.randn(3, 4, 5).double(), torch.randn(3, 4, 5).double()
    rule = sn.wrappers.hyperball("muon")(view="channel", lr=0.1)
    moved, _ = rule.step(stack, grad, rule.init(stack))
    alone = sn.wrappers.hyperball("muon")(lr=0.1)
    for each, start, g in zip(moved, stack, grad, strict=True):
        torch.testing.assert_close(each, alone.step(start, g, alone.init(start))[0])


def test_a_shared_name_of_two_defaults_is_two():
    defaults = sn.bind("rotational(muon)").defaults
    assert (defaults["view"], defaults["base_view"]) == ("channel", "layer")
    nested = sn.bind("rotational(hyperball(nora))", base_view="dim=1", base_base_view="groups=2")
    views = [str(each.view) for each in nested.rule.tree() if isinstance(each, r.NormalizedUpdate)]
    assert views == ["groups=2", "dim=1", "channel"]


@pytest.mark.parametrize(
    "name", ["adamh", "hyperball(sgd)", "radial_brake(sgd)", "rotational(sgd)"]
)
def test_biases_and_gains_whose_norm_is_held_are_named(name):
    cls, layer = sn.torch_optimizer(name, "Held"), torch.nn.Linear(3, 4)
    with pytest.warns(UserWarning, match="^Held: bias cannot move freely, as RadiusPin holds"):
        cls(layer.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls([layer.weight])


def test_a_pin_that_does_not_come_last_is_named():
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(r.RadiusPin(), r.StepSize(lr)), "Early")
    with pytest.warns(UserWarning, match="RadiusPin does not come last"):
        cls([torch.randn(2, 3, requires_grad=True)])


def test_the_inner_recipe_has_no_decay_and_a_rate_of_one():
    weight = torch.randn(3, 4, dtype=torch.float64)
    rule, grad = sn.wrappers.radial_brake(mine)(lr=1.0, floor=1e-9), torch.randn(3, 4).double()
    grad -= (grad * weight).sum() / (weight * weight).sum() * weight
    moved, _ = rule.step(weight, grad, rule.init(weight))
    assert torch.allclose(moved, weight.norm() * (weight - grad) / (weight - grad).norm())


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_no_recipe_of_the_library_keeps_a_decay_in_a_wrapper(wrapper):
    for name in sn.recipes.__all__:
        if name in ("sgdg", "adamg"):  # on a manifold
            continue
        rules = sn.bind(f"{wrapper}({name})").rule.tree()
        assert not any(getattr(each, "weight_decay", 0) for each in rules), name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hyperbal(lion)", "no wrapper is named 'hyperbal'; did you mean hyperball?"),
        ("hyperball(lionn)", "no recipe is named 'lionn'"),
        (f"hyperball({__name__}:rateless)", "has no lr to take over; it has beta"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        sn.find_recipe(spec)


def rateless(beta=0.9):
    return sn.chain(r.HeavyBall(beta))


def test_a_recipe_on_a_manifold_is_refused():
    with pytest.raises(ValueError, match="an inner chain has manifold"):
        sn.bind("hyperball(sgdg)").rule  # noqa: B018


def test_the_optimizer_of_a_wrapped_recipe_is_one_like_any():
    weights = [torch.randn(3, 4, requires_grad=True)]
    optimizer = MineBall([{"params": weights, "beta": 0.5}], lr=0.2)
    assert optimizer.param_groups[0]["recipe"] == f"hyperball({__name__}:mine)"
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), optimizer):
        (group,) = twin.param_groups
        before = group["params"][0].detach().norm()
        group["params"][0].grad = torch.ones(3, 4)
        twin.step()
        torch.testing.assert_close(group["params"][0].detach().norm(), before)
    beside = sn.optim.SGD([{"params": weights, "recipe": "rotational(adamw)", "lr": 0.1}])
    beside.step()


@pytest.mark.parametrize("name", ["adamh", "muonh", "hyperball(sgd)", "rotational(adam)"])
def test_a_radius_of_zero_is_refused_by_name_at_construction(name):
    layer = torch.nn.Linear(3, 4)
    torch.nn.init.zeros_(layer.weight)
    cls = sn.torch_optimizer(name)
    with pytest.raises(ValueError, match=r"parameter 0 \(weight\) of shape \(4, 3\): RadiusPin: "):
        cls([("weight", layer.weight)])
    rule = sn.bind(name).rule
    with pytest.raises(ValueError, match="a radius of 0 never changes"):
        sn.functional.init(rule, {"weight": layer.weight.detach()})
