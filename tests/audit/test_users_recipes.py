"""Groups for recipes that are the user's own, found as module:recipe, and for tiny units."""

import math

import pytest
import torch
from torch import nn

import spherenorm as sn
from tests.audit.test_param_groups import group_of, places

USERS = "tests.audit.users"


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 49, 2)),
    )


def images():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def one_step(net, recipe, **options):
    """The parameters before and after a step with a recipe's groups, and the gradients."""
    groups = sn.param_groups(net, images(), recipe, **options)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimizer = sn.torch_optimizer(sn.find_recipe(recipe))(groups)
    net(images()).square().mean().backward()
    optimizer.step()
    grads = {name: p.grad.clone() for name, p in net.named_parameters()}
    return groups, before, {name: p.detach() for name, p in net.named_parameters()}, grads


def polar(matrix):
    """M (M^T M)^(-1/2), by the eigenvalues of the smaller Gram matrix."""
    rows = matrix.flatten(1).double()
    if rows.shape[0] > rows.shape[1]:
        return polar(rows.T).T
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    return (vectors * values.rsqrt()) @ vectors.T @ rows


def test_muon_takes_matrices_and_the_rest_takes_what_it_refuses():
    rest = sn.bind("sgd", lr=0.5)
    groups, before, after, grads = one_step(model(), f"{USERS}:muon", rest=rest)
    for each in groups.assignments:
        moved = after[each.name] - before[each.name]
        if len(each.shape) > 1:
            expected = -0.02 * polar(grads[each.name]).reshape(each.shape)
            assert "recipe" not in groups[each.group]
        else:
            expected = -0.5 * grads[each.name]
            assert groups[each.group]["recipe"] == "sgd"
            assert "refuses it: a matrix is needed" in each.reason
        torch.testing.assert_close(moved, expected.float(), rtol=1e-3, atol=2e-6)
    assert places(groups)["0.weight"] == ("euclidean", "channel")
    assert places(groups)["4.weight"] == ("euclidean", None)


def test_a_head_goes_to_the_rest_by_an_override():
    overrides = {"4.weight": "euclidean"}
    groups = sn.param_groups(model(), images(), f"{USERS}:muon", rest="adamw", overrides=overrides)
    assert group_of(groups, "4.weight")["recipe"] == "adamw"
    assert "recipe" not in group_of(groups, "0.weight")


def test_what_all_recipes_refuse_is_named():
    net = model()
    with pytest.raises(
        ValueError, match=r"0.bias: .*users:muon refuses it \(a matrix is needed.* give a rest"
    ):
        sn.param_groups(net, images(), f"{USERS}:muon")


def test_decay_of_a_users_recipe_by_kind():
    kinds = {"invariant": 0.0, "weights": 0.1, "vectors": 0.0}
    rest = sn.bind("adamw", weight_decay=0.3)
    groups = sn.param_groups(model(), images(), f"{USERS}:muon", rest=rest, decay=kinds)
    decays = {each.name: groups[each.group]["weight_decay"] for each in groups.assignments}
    assert {name for name, decay in decays.items() if decay} == {"4.weight"}


def test_a_users_recipe_that_projects_gets_the_invariant_weights_in_their_views():
    groups, before, after, grads = one_step(model(), f"{USERS}:muon_in_view")
    assert places(groups)["0.weight"] == ("projected", "channel")
    assert group_of(groups, "4.weight")["recipe"] == "sgd"
    weight, step = before["0.weight"].flatten(1), -0.02 * polar(grads["0.weight"])
    along = (weight * step).sum(1, True) / weight.square().sum(1, True)
    expected = (step - along * weight).float()
    found = (after["0.weight"] - before["0.weight"]).flatten(1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-6)


def test_a_users_recipe_on_the_sphere_starts_there():
    groups, before, after, _ = one_step(model(), f"{USERS}:spherical_muon")
    assert places(groups)["0.weight"] == ("sphere", "channel")
    for weight in (before["0.weight"], after["0.weight"]):
        torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.ones(4))
    assert not torch.equal(before["0.weight"], after["0.weight"])


def test_a_users_recipe_that_tests_projects_the_invariant_weights_alone():
    groups = sn.param_groups(model(), images(), f"{USERS}:evidence")
    assert places(groups)["0.weight"] == ("projected", "channel")
    assert group_of(groups, "0.weight")["views"] == ("channel",)
    assert {group_of(groups, n)["views"] for n in ("4.weight", "0.bias")} == {()}


def embedding(norm):
    """A table whose rows have this norm, before a LayerNorm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8, eps=1e-12), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight.mul_(norm / net[0].weight.norm(dim=1, keepdim=True))
    return net


TOKENS = torch.arange(7).repeat(3)


@pytest.mark.parametrize(("recipe", "word"), [("sgdp", "projected"), ("sgdg", "sphere")])
def test_tiny_units_are_left_to_plain_steps(recipe, word):
    for norm, own in ((0.099, "euclidean"), (0.101, word)):
        net = embedding(norm)
        found = sn.param_groups(net, TOKENS, recipe).assignments[0]
        assert found.treatment == own
        assert (f"norm {norm}: so small" in found.reason) == (own == "euclidean")
        if own == "euclidean":
            assert torch.equal(net[0].weight, embedding(norm)[0].weight)
    # The user may set the bound, or have a weight treated so.
    for options in ({"smallest_norm": 0}, {"overrides": {"0.weight": "channel"}}):
        found = sn.param_groups(embedding(0.01), TOKENS, recipe, **options).assignments[0]
        assert (found.treatment, found.view) == (word, "channel")
    found = sn.param_groups(embedding(1.0), TOKENS, recipe, smallest_norm=2).assignments[0]
    assert found.treatment == "euclidean"


def test_one_tiny_unit_or_a_recipe_without_geometry_changes_nothing():
    net = embedding(1.0)
    net[0].weight.data[2] *= 1e-4
    assert sn.param_groups(net, TOKENS, "sgdp").assignments[0].treatment == "projected"
    groups = sn.param_groups(embedding(0.01), TOKENS, "sgd")
    assert (len(groups), groups.assignments[0].view) == (1, "channel")


@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_a_smallest_norm_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=rf"smallest_norm must be in \[0, ∞\), got {value}"):
        sn.param_groups(model(), images(), "sgdg", smallest_norm=value)
