"""Checkpoints: of torch.optim, of the adamp release, of other classes; and those that are refused.

That a class loads its own ones bit for bit is tested in `test_training.py`.
"""

from __future__ import annotations

import copy
import math

import adamp
import pytest
import torch
from torch.distributed.checkpoint import state_dict as distributed

import spherenorm as sn
from spherenorm import optim
from tests.harness import set_gradients, train
from tests.harness.rows import parameters
from tests.optim.plain import (
    Plain,
    assert_same,
    refuses_and_changes_nothing,
    saved,
    weights_of,
)

THEIRS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.Adam, {"betas": (0.8, 0.9)}),
    (torch.optim.AdamW, {"weight_decay": 0.3}),
    (torch.optim.RMSprop, {"alpha": 0.9}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "eps": 1e-3}),
    (adamp.AdamP, {"nesterov": True, "eps": 1e-16}),
    (adamp.SGDP, {"momentum": 0.9, "nesterov": True, "eps": 1e-16}),
]


@pytest.mark.parametrize("to_ours", [True, False])
@pytest.mark.parametrize(("theirs", "settings"), THEIRS)
def test_a_run_goes_on_from_the_checkpoint_of_another_library(theirs, settings, to_ours):
    """Also back: the names of states are theirs."""
    weights, others = parameters()[:3], parameters()[:3]  # the release takes no 0-dim weights
    ours = getattr(optim, theirs.__name__)
    first, then = (theirs, ours) if to_ours else (ours, theirs)
    reference, optimizer = theirs(others, lr=0.01, **settings), first(weights, lr=0.01, **settings)
    for step in range(6):
        if step == 3:
            checkpoint = optimizer.state_dict()
            optimizer = then(weights, lr=0.5)
            optimizer.load_state_dict(saved(checkpoint))
        set_gradients(weights, step)
        set_gradients(others, step)
        optimizer.step()
        reference.step()
    for weight, other in zip(weights, others, strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("first", "then", "own"),
    [("AdamW", "AdamP", {"delta": 0.3}), ("AdamP", "AdamW", {}), ("Adam", "AdamW", {})],
)
def test_a_run_goes_on_with_another_recipe_of_the_same_state(first, then, own):
    """By the saved hyper-parameters that both have, and by the present values of the others."""
    both = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.25}
    optimizer = getattr(optim, first)(parameters(), **both)
    train(optimizer, range(3))
    weights = [weight.detach().clone().requires_grad_() for weight in weights_of(optimizer)]
    other = getattr(optim, then)(weights, lr=0.5, weight_decay=0.1, backend="rule", **own)
    other.load_state_dict(optimizer.state_dict())
    (group,) = other.param_groups
    hypers = {name: group[name] for name in sn.bind(then.lower()).defaults}
    assert hypers == {**sn.bind(then.lower()).defaults, **both, **own}
    assert (group["recipe"], group["backend"]) == (then.lower(), "rule")
    assert set(group) - set(hypers) <= {"params", "recipe", "maximize", "backend"}

    plain = Plain(then.lower(), [w.detach().clone().requires_grad_() for w in weights], **hypers)
    for twin, weight in zip(weights_of(plain), weights_of(optimizer), strict=True):
        plain.state[twin] = dict(optimizer.state[weight])
    for each in (plain, other):
        train(each, range(3, 5))
    assert_same(other, plain)


def stepped(cls=optim.AdamP, **options):
    """An optimizer of two groups, of a matrix and of the other weights, after a step."""
    matrix, *others = parameters()
    optimizer = cls([{"params": [matrix]}, {"params": others}], backend="rule", **options)
    train(optimizer, range(1))
    return optimizer


def put(*place_and_value):
    """A change of a state_dict: the value at a place."""

    def change(checkpoint):
        *places, last, value = place_and_value
        for place in places:
            checkpoint = checkpoint[place]
        checkpoint[last] = value

    return change


def without(*places):
    def change(checkpoint):
        for place in places[:-1]:
            checkpoint = checkpoint[place]
        del checkpoint[places[-1]]

    return change


def second_group_lost(checkpoint):
    checkpoint["param_groups"] = checkpoint["param_groups"][:1]


SECOND = ("param_groups", 1)
DAMAGED = [
    (without("state"), ["state", "param_groups"], ValueError),
    (without("param_groups"), ["state", "param_groups"], ValueError),
    (second_group_lost, [1, 2, "param_groups"], ValueError),
    (put(*SECOND, "params", [1, 2]), [2, 3, "param"], ValueError),
    (
        put("state", 1, "exp_avg", torch.ones(5, 5)),
        [1, "exp_avg", (5, 5), (3, 2, 2, 2)],
        ValueError,
    ),
    (put("state", 1, "step", torch.ones(3)), [1, "step", (3,), ()], ValueError),
    (
        put("state", 1, "exp_avg", torch.ones(3, 2, 2, 2) + 1j),
        [1, "exp_avg", "complex"],
        ValueError,
    ),
    (without("state", 2, "exp_avg_sq"), [2, "exp_avg_sq"], ValueError),
    (put("state", 1, {"momentum_buffer": torch.ones(3, 2, 2, 2)}), [1, "exp_avg"], ValueError),
    (put("state", 1, "step", torch.tensor(-3.0)), [1, "step", -3], ValueError),
    (put("state", 1, "step", math.nan), [1, "step", "nan"], ValueError),
    (put(*SECOND, "lr", -1.0), ["lr", -1.0], ValueError),
    (put(*SECOND, "lr", torch.tensor(-1.0)), ["lr", -1.0], ValueError),
    (put(*SECOND, "views", ("groups=4",)), [1, "(3, 2, 2, 2)", 4], ValueError),
    (put(*SECOND, "maximize", "no"), ["maximize", "no"], TypeError),
    (put(*SECOND, "amsgrad", True), ["amsgrad", True, "adamp"], ValueError),
    (put(*SECOND, "recipe", "sgd"), ["sgd", "adamp"], ValueError),
]


@pytest.mark.parametrize(("change", "named", "error"), DAMAGED)
def test_a_damaged_checkpoint_is_refused(change, named, error):
    """Also one whose first group would fit."""
    optimizer = stepped()
    checkpoint = copy.deepcopy(optimizer.state_dict())
    checkpoint["param_groups"][0]["lr"] = 0.5
    change(checkpoint)
    with refuses_and_changes_nothing(optimizer, *named, by=error):
        optimizer.load_state_dict(checkpoint)


def test_entries_that_are_absent_keep_their_present_values():
    """An empty state is that before the first step."""
    optimizer = stepped(lr=0.3)
    groups = [{"params": [0]}, {"params": [1, 2, 3], "eps": 0.5, "mine": "kept"}]
    optimizer.load_state_dict({"state": {}, "param_groups": groups})
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]
    assert [group["eps"] for group in optimizer.param_groups] == [1e-8, 0.5]
    assert optimizer.param_groups[1]["mine"] == "kept"
    assert not any(optimizer.state.get(weight) for weight in weights_of(optimizer))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("first", "then"), [("SGD", "AdamP"), ("AdamP", "SGD"), ("SGDP", "SGD"), ("RMSprop", "Adam")]
)
def test_a_checkpoint_of_a_recipe_of_other_state_is_refused(first, then, trained):
    momentum = {"momentum": 0.9} if first == "SGDP" else {}
    saver = getattr(optim, first)(parameters(), **momentum, backend="rule")
    train(saver, range(trained))
    optimizer = getattr(optim, then)(parameters(), backend="rule")
    train(optimizer, range(1))
    with refuses_and_changes_nothing(optimizer, first.lower(), then.lower()):
        optimizer.load_state_dict(saver.state_dict())


def check_loading(theirs, options, ours, named):
    """Load a checkpoint of torch's optimizer, or check that the error names these values."""
    checkpoint = getattr(torch.optim, theirs)([torch.ones(3, 2)], lr=0.1, **options).state_dict()
    optimizer = getattr(optim, ours)([torch.ones(3, 2)], lr=0.2)
    if named is None:
        optimizer.load_state_dict(checkpoint)
        assert optimizer.param_groups[0]["lr"] == 0.1
    else:
        with refuses_and_changes_nothing(optimizer, *named, ours.lower()):
            optimizer.load_state_dict(checkpoint)


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("Adam", {"weight_decay": 0.3, "decoupled_weight_decay": True}, "decoupled_weight_decay"),
        ("Adam", {"decoupled_weight_decay": True}, None),
        ("Adam", {"amsgrad": True}, "amsgrad"),
        ("AdamW", {}, None),
        ("Muon", {"adjust_lr_fn": "original"}, None),
        ("Muon", {"adjust_lr_fn": "match_rms_adamw"}, "adjust_lr_fn"),
        ("Muon", {"ns_steps": 1}, "ns_steps"),
        ("Muon", {"eps": 5.0}, "eps"),
        ("Muon", {"ns_coefficients": (2.0, -1.5, 0.5)}, "ns_coefficients"),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, None),
    ],
)
def test_an_option_of_torch_that_changes_its_steps_and_that_the_recipe_lacks_is_refused(
    name, options, refused
):
    named = None if refused is None else (refused, options[refused])
    check_loading(name, options, name, named)


@pytest.mark.parametrize(
    ("theirs", "options", "ours", "named"),
    [
        ("SGD", {}, "AdamP", ["momentum", 0]),
        ("NAdam", {}, "AdamP", ["momentum_decay", 0.004]),
        ("ASGD", {}, "SGD", ["lambd", 0.0001]),
        ("Rprop", {}, "AdamW", ["etas", (0.5, 1.2)]),
        ("Adagrad", {}, "SGD", ["lr_decay", 0]),
        ("Adadelta", {}, "AdamW", ["rho", 0.9]),
        ("LBFGS", {}, "SGD", ["history_size", 100]),
        ("Adam", {"weight_decay": 0.3}, "AdamP", ["weight_decay", 0.3, "decoupled"]),
        ("AdamW", {"weight_decay": 0.3}, "Adam", ["weight_decay", 0.3, "coupled"]),
        ("Adam", {}, "AdamP", None),
        ("AdamW", {"weight_decay": 0.3}, "AdamP", None),
        ("SGD", {"momentum": 0.9}, "SGDP", None),
        ("SGD", {}, "SGDW", None),
    ],
)
def test_a_checkpoint_of_an_optimizer_of_torch_that_the_recipe_does_not_replace_is_refused(
    theirs, options, ours, named
):
    """Refuse it even where the state fits or is empty: the rate and the decay would go on."""
    check_loading(theirs, options, ours, named)


@pytest.mark.parametrize("no_checkpoint", [None, 3, "checkpoint.pt"])
def test_what_is_no_checkpoint_is_refused_by_its_value(no_checkpoint):
    with refuses_and_changes_nothing(stepped(), "AdamP", no_checkpoint, by=TypeError):
        stepped().load_state_dict(no_checkpoint)


def test_hooks_before_and_after_loading_have_their_effect():
    source, optimizer = (optim.AdamP(parameters(), lr=0.1, backend="rule") for _ in range(2))
    train(source, range(2))
    seen = []

    def doubled(_, checkpoint):
        state = checkpoint["state"].items()
        state = {key: {**held, "exp_avg": 2 * held["exp_avg"]} for key, held in state}
        return {**checkpoint, "state": state}

    def in_place(_, checkpoint):
        checkpoint["param_groups"] = [{**g, "lr": 0.7} for g in checkpoint["param_groups"]]

    optimizer.register_load_state_dict_pre_hook(doubled)
    optimizer.register_load_state_dict_pre_hook(in_place)
    optimizer.register_load_state_dict_post_hook(
        lambda loaded: seen.append(loaded.param_groups[0]["lr"])
    )
    checkpoint = source.state_dict()
    optimizer.load_state_dict(checkpoint)
    assert seen == [0.7]
    assert checkpoint["param_groups"][0]["lr"] == 0.1  # what is passed is left alone
    for theirs, ours in zip(weights_of(source), weights_of(optimizer), strict=True):
        assert torch.equal(optimizer.state[ours]["exp_avg"], 2 * source.state[theirs]["exp_avg"])


def test_the_recipe_that_a_checkpoint_names_is_not_imported_or_called():
    optimizer = optim.SGD(parameters(), lr=0.1)
    for name in ("os:abort", "no_such_module:f", 3, None):
        checkpoint = optimizer.state_dict()
        checkpoint["param_groups"][0]["recipe"] = name
        optimizer.load_state_dict(checkpoint)
        assert optimizer.param_groups[0]["recipe"] == "sgd"


def test_a_checkpoint_does_not_choose_how_steps_run():
    chosen, plain = optim.SGD(parameters(), backend="rule"), optim.SGD(parameters())
    chosen.load_state_dict(plain.state_dict())
    plain.load_state_dict(chosen.state_dict())
    assert [each.param_groups[0]["backend"] for each in (chosen, plain)] == ["rule", "auto"]
    older = plain.state_dict()
    del older["param_groups"][0]["backend"]  # as checkpoints were that did not hold it
    chosen.load_state_dict(older)
    assert chosen.param_groups[0]["backend"] == "rule"
    assert copy.deepcopy(chosen).param_groups[0]["backend"] == "rule"


def test_views_are_saved_by_name():
    """An object of a class would not load with `weights_only=True`."""
    groups = [
        {"params": [torch.eye(3)]},
        {"params": [torch.eye(3)], "views": [sn.View(0, 3), "layer"]},
        {"params": [torch.eye(2)], "recipe": "sgdg", "view": sn.View(1)},
    ]
    optimizer = optim.AdamP(groups, views=(sn.View(1), sn.View(None)))
    first, second, third = saved(optimizer.state_dict())["param_groups"]
    assert tuple(first["views"]) == ("dim=1", "layer")
    assert tuple(second["views"]) == ("groups=3", "layer")
    assert third["view"] == "dim=1"


@pytest.mark.parametrize("flatten", [False, True])
def test_distributed_checkpoints_round_trip(flatten):
    """`torch.distributed.checkpoint` expects every entry of a group in what was saved of it."""
    model = torch.nn.Linear(3, 2)
    optimizer, other = (optim.AdamP(model.parameters(), lr=lr) for lr in (0.1, 0.2))
    train(optimizer, range(1))
    optimizer.zero_grad()
    options = distributed.StateDictOptions(flatten_optimizer_state_dict=flatten)
    checkpoint = distributed.get_optimizer_state_dict(model, optimizer, options=options)
    distributed.set_optimizer_state_dict(model, other, checkpoint, options=options)
    assert other.param_groups[0]["lr"] == 0.1
    assert_same(other, optimizer)
