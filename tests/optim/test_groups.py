"""Param_groups: recipes of their own, and hyper-parameters that change between steps."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.harness import refuses, set_gradients
from tests.harness.rows import parameters
from tests.optim.plain import Plain, assert_same, saved, weights_of


def quarter_step(lr=0.1):
    return sn.chain(r.StepSize(lr), r.StepSize(0.25))


def both(lr=0.1, betas=(0.9, 0.999), momentum=0.5):
    return sn.chain(r.AdaptiveMoments(*betas), r.HeavyBall(momentum), r.StepSize(lr))


def both_step(ours, plain, steps, change=lambda optimizer, step: None):
    for step in steps:
        for optimizer in (ours, plain):
            change(optimizer, step)
            set_gradients(weights_of(optimizer), step)
            optimizer.step()


RECIPES = ["sgdg", sn.recipes.lion, quarter_step, f"{__name__}:quarter_step", "hyperball(lion)"]


@pytest.mark.parametrize("recipe", RECIPES, ids=["name", "own", "users", "module", "wrapped"])
def test_a_group_of_another_recipe_has_that_ones_hyper_parameters_and_defaults(recipe):
    """Not those of the class, though it may share their names."""
    conv, *flat = parameters()
    conv = sn.Sphere().normalize(conv.detach()).requires_grad_()
    settings = {"lr": 0.01, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1}
    group = {"recipe": recipe, "lr": 0.15, "backend": "rule", "name": "head"}
    ours = optim.SGD([{"params": [conv], **group}, {"params": flat}], **settings, backend="rule")
    hypers = {**sn.bind(recipe).defaults, "lr": 0.15}
    assert {name: ours.param_groups[0][name] for name in hypers} == hypers
    assert ours.param_groups[0]["name"] == "head"
    more = ours.param_groups[0].keys() - hypers
    assert more <= {"params", "recipe", "maximize", "backend", "name"}

    twins = [w.detach().clone().requires_grad_() for w in weights_of(ours)]
    groups = [{"params": twins[:1], "recipe": recipe, **hypers}, {"params": twins[1:]}]
    plain = Plain("sgd", groups, **settings)
    both_step(ours, plain, range(3))
    assert_same(ours, plain)

    weights = [w.detach().clone().requires_grad_() for w in weights_of(ours)]
    groups = [{"params": weights[:1], "recipe": recipe}, {"params": weights[1:]}]
    resumed = optim.SGD(groups, backend="rule")
    resumed.load_state_dict(saved(ours.state_dict()))
    both_step(resumed, plain, range(3, 5))
    assert_same(resumed, plain)


def test_a_group_may_maximize_and_run_another_way():
    first, *others = parameters()
    groups = [{"params": [first], "maximize": True, "backend": "rule"}, {"params": others}]
    ours = optim.SGD(groups, lr=0.1, momentum=0.9)
    plain = Plain("sgd", parameters(), lr=0.1, momentum=0.9)
    plain.param_groups[0]["params"], rest = weights_of(plain)[:1], weights_of(plain)[1:]
    plain.add_param_group({"params": rest})
    plain.param_groups[0]["maximize"] = True
    both_step(ours, plain, range(3))
    assert_same(ours, plain, rtol=1e-12, atol=1e-13)
    lines = sn.explain(ours)
    assert {line.backend for line in lines if line.group == 0} == {"rule"}
    assert {line.backend for line in lines if line.group == 1} == {"auto"}


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_changes_of_hyper_parameters_reach_the_next_step(backend):
    """A momentum that begins at 0 has no state; one that becomes 0 keeps its own."""
    values = [(0.1, 0.0), (0.1, 0.9), (0.05, 0.9), (0.05, 0.8), (0.1, 0.0), (0.2, 0.9)]

    def change(optimizer, step):
        optimizer.param_groups[0].update(zip(("lr", "momentum"), values[step], strict=True))

    ours, plain = optim.SGD(parameters(), backend=backend), Plain("sgd", parameters())
    for step in range(6):
        both_step(ours, plain, [step], change)
        torch.testing.assert_close(weights_of(ours), weights_of(plain), rtol=1e-12, atol=1e-13)
        state = ours.state[weights_of(ours)[0]]
        assert ("momentum_buffer" in state) or not values[step][1]


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_hyper_parameters_may_be_tensors_that_change_in_place(backend):
    lr, beta = (torch.tensor(x, dtype=torch.float64) for x in (0.01, 0.8))
    ours = optim.AdamP(parameters(), lr=lr, betas=(beta, 0.99), backend=backend)
    plain = Plain("adamp", parameters(), betas=(0.8, 0.99))
    for step, (rate, decay) in enumerate(((0.01, 0.8), (0.1, 0.8), (0.1, 0.95))):
        lr.fill_(rate)
        beta.fill_(decay)
        plain.param_groups[0].update(lr=rate, betas=(decay, 0.99))
        both_step(ours, plain, [step])
        assert_same(ours, plain, rtol=1e-12, atol=1e-13)


def test_a_recipe_may_have_both_betas_and_momentum():
    ours, plain = sn.torch_optimizer(both)(parameters(), backend="rule"), Plain(both, parameters())

    def change(optimizer, step):
        optimizer.param_groups[0].update(betas=(0.8, 0.9 + step / 100), momentum=0.1 * step)

    both_step(ours, plain, range(3), change)
    assert_same(ours, plain)


def test_a_schedule_of_momentum_asks_for_one():
    """Groups of recipes without any are left to `cycle_momentum=False`."""
    optimizer = optim.AdamW([{"params": parameters(), "recipe": quarter_step}])
    with pytest.raises(KeyError):
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6, cycle_momentum=False)


def both_set(**entries):
    return [{"params": [w], **entries} for w in parameters()[:2]]


@pytest.mark.parametrize(
    ("arguments", "groups", "named"),
    [
        ({"lr": 0.3}, both_set(lr=0.1), "lr=0.3"),
        ({"weight_decay": 0.3}, both_set(weight_decay=0.0), "weight_decay=0.3"),
        ({"betas": (0.5, 0.9)}, both_set(betas=(0.5, 0.8)), "betas="),
        ({"lr": 0.3}, both_set(recipe="lion"), "lr=0.3"),
        ({"lr": torch.tensor(0.3)}, both_set(lr=0.1), "lr="),
        ({"maximize": True}, both_set(maximize=False), "maximize=True"),
    ],
)
def test_an_argument_that_reaches_no_group_is_a_warning(arguments, groups, named):
    with pytest.warns(UserWarning, match=f"AdamW: {named}.*reaches no param_group") as caught:
        optim.AdamW(groups, **arguments)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ({}, both_set(lr=0.1)),
        ({"lr": 0.1, "betas": [0.8, 0.9]}, both_set(lr=0.1, betas=(0.8, 0.9))),
        ({"lr": 0.3}, [*both_set(lr=0.1)[:1], *both_set()[1:]]),
        ({"weight_decay": 0}, [*both_set(weight_decay=0.1)[:1], *both_set(weight_decay=0.0)[1:]]),
    ],
)
def test_an_argument_that_reaches_one_group_or_that_one_has_as_well_is_none(arguments, groups):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.AdamW(groups, **arguments)


class Whole(sn.Rule):
    """Divide by the norm of the gradients of all weights."""

    def global_sum_terms(self, update, state):
        return {"squared": (update.grad**2).sum()}

    def update(self, update, state):
        return replace(update, direction=update.direction / update.notes["squared"].sqrt()), state


def whole(lr=0.1):
    return sn.chain(Whole(), r.StepSize(lr))


def test_sums_over_all_weights_are_of_those_that_have_a_gradient_in_all_groups():
    weights = parameters()
    groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": 0.3}]
    optimizer = sn.torch_optimizer(whole)(groups, lr=0.1)
    set_gradients(weights, 0)
    weights[1].grad = None
    before = [w.detach().clone() for w in weights]
    norm = sum((w.grad**2).sum() for w in weights if w.grad is not None).sqrt()
    optimizer.step()
    for w, start, lr in zip(weights, before, (0.1, 0.1, 0.3, 0.3), strict=True):
        step = 0 if w.grad is None else lr * w.grad / norm
        torch.testing.assert_close(w.detach(), start - step, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_may_require_grad():
    weight = torch.ones(3, 2, requires_grad=True)
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (weight**2).sum().backward(create_graph=True)
        assert weight.grad.requires_grad
        optimizer.step()
    assert weight.is_leaf
    assert not any(value.requires_grad for value in optimizer.state[weight].values())
    expected = 1 - 0.1 * 2 - 0.1 * (0.9 * 2 + 2 * 0.8)
    torch.testing.assert_close(weight.detach(), torch.full((3, 2), expected))
    weight.grad = None


def test_a_rule_is_made_again_when_an_entry_changes_and_only_then():
    optimizer = sn.optim.AdamP([torch.eye(2, requires_grad=True)], lr=0.1)
    (group,) = optimizer.param_groups
    rule = optimizer.rule_of(group)
    assert optimizer.rule_of(group) is rule
    for name, value in (
        ("lr", 0.2),
        ("betas", (0.5, 0.5)),
        ("nesterov", True),
        ("recipe", "adamw"),
        ("lr", 0.1),
    ):
        group[name] = value
        new_rule = optimizer.rule_of(group)
        expected = sn.bind(group["recipe"]).defaults
        assert new_rule == sn.bind(group["recipe"], **{n: group[n] for n in expected}).rule
        assert new_rule is not rule
        rule = new_rule


@pytest.mark.parametrize("mutable", [[0.9, 0.999], (torch.tensor(0.9), 0.999)], ids=["list", "0d"])
def test_a_rule_of_mutable_entries_is_never_stale(mutable):
    optimizer = sn.optim.Adam([torch.eye(2, requires_grad=True)], betas=mutable)
    (group,) = optimizer.param_groups
    assert optimizer.rule_of(group) is not optimizer.rule_of(group)
    if isinstance(group["betas"], list):
        group["betas"][0] = 0.5
        assert optimizer.rule_of(group) == sn.recipes.adam(betas=(0.5, 0.999))


def test_a_recipe_of_the_users_is_called_for_every_step():
    factor = [1.0]

    def follows_a_global(lr=0.1):
        return sn.chain(r.StepSize(lr), r.StepSize(factor[0]))

    weight = torch.ones(2, requires_grad=True)
    optimizer = sn.torch_optimizer(follows_a_global)([weight], lr=1.0)
    weight.grad = torch.ones(2)
    for factor[0], expected in ((1.0, 0.0), (0.5, -0.5), (0.25, -0.75)):
        optimizer.step()
        assert weight.tolist() == [expected, expected]


def test_other_wrong_entries_are_refused_beside_a_rule_that_is_kept():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = sn.optim.SGD([weight], lr=0.1)
    optimizer.step()
    for name, value, error in (("maximize", 1, TypeError), ("backend", "cuda", ValueError)):
        before = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with refuses(name, by=error):
            optimizer.step()
        optimizer.param_groups[0][name] = before
