"""Checkpoints of one optimizer in another, hooks, and what is no state."""

import copy
import pickle

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.harness.rows import parameters, train
from tests.optim.test_refusals import refuse

HOW = {"backend": "rule"}


def unnamed(lr=0.1):
    return sn.chain(r.StepSize(lr))


def weights_of(optimizer):
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@pytest.mark.parametrize(
    ("first", "then"),
    [("AdamW", "AdamP"), ("AdamP", "AdamW"), ("Adam", "AdamW")],
)
def test_a_run_goes_on_with_another_recipe_of_the_same_state(first, then):
    """As the second recipe's own rule does from the first one's weights and state."""
    optimizer = getattr(optim, first)(parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-6)
    train(optimizer, range(3))
    expected = [weight.detach().clone() for weight in weights_of(optimizer)]
    states = [dict(optimizer.state[weight]) for weight in weights_of(optimizer)]
    other = getattr(optim, then)(weights_of(optimizer), lr=0.5, weight_decay=0.3)
    present = dict(other.param_groups[0])
    other.load_state_dict(optimizer.state_dict())
    group = other.param_groups[0]
    assert group.keys() == present.keys()  # nothing of the other recipe's own
    assert group["recipe"] == then.lower()
    shared = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-6}
    assert {name: group[name] for name in shared} == shared
    own = group.keys() - optimizer.param_groups[0].keys()
    assert all(group[name] == present[name] for name in own)
    hypers = {name: group[name] for name in sn.bind(then.lower()).defaults}
    rule = sn.find_recipe(then.lower())(**hypers)
    train(other, range(3, 4))
    for weight, start, state in zip(weights_of(other), expected, states, strict=True):
        torch.testing.assert_close(weight.detach(), rule.step(start, weight.grad, state)[0])


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(
    ("saved", "into"),
    [("sgd", "adamp"), ("adamp", "sgd"), ("sgdp", "sgd"), ("rmsprop", "adam")],
)
def test_a_checkpoint_of_a_recipe_of_other_state_is_refused(saved, into, stepped):
    momentum = {"momentum": 0.9} if saved == "sgdp" else {}
    optimizer = sn.torch_optimizer(saved)(parameters(), **momentum)
    other = sn.torch_optimizer(into)(parameters())
    if stepped:
        train(optimizer, range(1))
    train(other, range(1))
    message = f"of recipe '{saved}', the param_group of '{into}'"
    refuse(other, ValueError, message, optimizer.state_dict())


def test_the_recipe_that_a_checkpoint_names_is_not_imported_or_called():
    optimizer = optim.SGD(parameters(), lr=0.1)
    saved = optimizer.state_dict()
    for name in ("os:abort", "no_such_module:f", 3, None):
        saved["param_groups"][0]["recipe"] = name
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["recipe"] == "sgd"


def test_each_group_is_checked_before_anything_changes():
    optimizer = optim.AdamP([{"params": parameters()[:1]}, {"params": parameters()[1:]}])
    train(optimizer, range(1))
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.5
    for name, value, message in (
        ("lr", torch.tensor(-1.0), r"lr must be in \[0, ∞\), got -1.0"),
        ("views", ("groups=4",), r"parameter 1 of shape \(3, 2, 2, 2\): .*divisible by 4"),
    ):
        wrong = copy.deepcopy(saved)
        wrong["param_groups"][1][name] = value
        refuse(optimizer, ValueError, message, wrong)


def test_hooks_before_and_after_loading_have_their_effect():
    source = optim.AdamP(parameters(), lr=0.1)
    train(source, range(2))
    optimizer, seen = optim.AdamP(parameters()), []

    def double(_, state_dict):
        state = state_dict["state"].items()
        doubled = {key: {**held, "exp_avg": 2 * held["exp_avg"]} for key, held in state}
        return {**state_dict, "state": doubled}

    def in_place(_, state_dict):
        state_dict["param_groups"] = [{**g, "lr": 0.7} for g in state_dict["param_groups"]]

    def after(loaded):
        seen.append(loaded.param_groups[0]["lr"])
        loaded.state[weights_of(loaded)[0]]["exp_avg_sq"].fill_(3)
        loaded.param_groups[0]["eps"] = 0.25

    optimizer.register_load_state_dict_pre_hook(double)
    optimizer.register_load_state_dict_pre_hook(in_place)
    optimizer.register_load_state_dict_post_hook(after)
    saved = source.state_dict()
    optimizer.load_state_dict(saved)
    assert (seen, optimizer.param_groups[0]["eps"]) == ([0.7], 0.25)
    first, *others = zip(weights_of(source), weights_of(optimizer), strict=True)
    assert torch.equal(optimizer.state[first[1]]["exp_avg_sq"], torch.full_like(first[1], 3))
    for theirs, ours in (first, *others):
        assert torch.equal(optimizer.state[ours]["exp_avg"], 2 * source.state[theirs]["exp_avg"])
    assert saved["param_groups"][0]["lr"] == 0.1  # what was passed is left alone


def test_a_hook_may_mend_what_would_not_fit():
    optimizer = optim.SGD(parameters(), lr=0.1)
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: saved["mine"])
    optimizer.load_state_dict({"mine": optim.SGD(parameters(), lr=0.3).state_dict()})
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_how_a_step_runs_is_no_state():
    plain, chosen = optim.AdamP(parameters()), optim.AdamP(parameters(), **HOW)
    for optimizer in (plain, chosen):
        saved = optimizer.state_dict()["param_groups"][0]
        assert not saved.keys() & HOW.keys()
    chosen.load_state_dict(plain.state_dict())
    assert {name: chosen.param_groups[0][name] for name in HOW} == HOW
    old = plain.state_dict()
    old["param_groups"][0].update(HOW, compile=True, trace=False)  # as once was saved
    plain.load_state_dict(old)
    assert {name: plain.param_groups[0][name] for name in HOW} == {"backend": "auto"}
    assert not plain.state_dict()["param_groups"][0].keys() & HOW.keys()


def test_copies_keep_how_a_step_runs():
    optimizer = optim.AdamP(parameters(), **HOW)
    optimizer.add_param_group({"params": [torch.ones(2)], "backend": "rule"})
    optimizer.param_groups[0]["backend"] = "compiled"
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        hows = [{name: group[name] for name in HOW} for group in twin.param_groups]
        assert hows == [{"backend": "compiled"}, {"backend": "rule"}]


@pytest.mark.parametrize("flatten", [False, True])
def test_distributed_checkpoints_round_trip(flatten):
    """`torch.distributed.checkpoint` expects every entry of a group in what was saved of it."""
    model = torch.nn.Linear(3, 2)
    optimizer, other = (optim.AdamP(model.parameters(), lr=lr) for lr in (0.1, 0.2))
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    saved = get_optimizer_state_dict(model, optimizer, options=options)
    set_optimizer_state_dict(model, other, saved, options=options)
    assert other.param_groups[0]["lr"] == 0.1
    for weight in model.parameters():
        for name, value in optimizer.state[weight].items():
            assert torch.equal(other.state[weight][name], value)


class Counted(list):
    """A list that counts how many of its entries are walked over."""

    walked = 0

    def __iter__(self):
        for entry in super().__iter__():
            self.walked += 1
            yield entry


def test_loading_walks_over_the_parameters_a_fixed_number_of_times():
    def walked(count):
        weights = [torch.ones(1, requires_grad=True) for _ in range(count)]
        optimizer = optim.SGD(weights, momentum=0.9)
        train(optimizer, range(1))
        saved = optimizer.state_dict()
        optimizer.param_groups[0]["params"] = Counted(weights_of(optimizer))
        optimizer.load_state_dict(saved)
        return optimizer.param_groups[0]["params"].walked

    assert walked(60) == 2 * walked(30)
