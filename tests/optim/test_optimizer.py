"""Param_groups, bad input and checkpoints of the optimizer classes."""

import copy
import inspect
import io
import pickle
import re
import sys
import types
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.harness.rows import ROWS, parameters, set_gradients
from tests.optim.test_refusals import refuse


def weight(*shape):
    return torch.ones(shape or (3, 2), requires_grad=True)


def linear():
    return torch.nn.Linear(3, 2)


def no_rule(lr=0.1):
    return 3


def nested(**entries):
    """Arguments of a param_group of its own."""
    return {"params": [{"params": [weight()], **entries}]}


BAD_VALUES = [
    ("AdamP", {"lr": -1}, r"lr must be in \[0, ∞\), got -1"),
    ("AdamP", {"lr": float("nan")}, "lr must be in"),
    ("AdamP", {"lr": float("inf")}, "lr must be in"),
    ("AdamP", {"lr": torch.tensor(-1.0)}, r"lr must be in \[0, ∞\), got -1.0"),
    ("AdamP", {"lr": torch.ones(2)}, r"lr must be a number or a 0-dim tensor, got shape \(2,\)"),
    ("AdamP", {"betas": (0.9, 1.0)}, r"beta2 must be in \[0, 1\), got 1.0"),
    ("AdamP", {"betas": (0.9,)}, r"betas must be 2 numbers, got \(0.9,\)"),
    ("AdamP", {"betas": 0.9}, "betas must be 2 numbers, got 0.9"),
    ("AdamP", {"delta": 0}, r"delta must be in \(0, ∞\), got 0"),
    ("AdamP", {"wd_ratio": -0.1}, "invariant_ratio must be in"),
    (
        *("AdamP", {"wd_ratio": torch.ones(3)}),
        r"invariant_ratio must be a number or a 0-dim tensor, got shape \(3,\)",
    ),
    ("AdamP", {"per": "row"}, 'per must be "tensor" or "unit"'),
    ("AdamP", {"views": ("chanel",)}, "got 'chanel'"),
    ("AdamP", {"views": ("groups=2",)}, r"parameter 0 of shape \(3, 2\): .*divisible by 2"),
    ("AdamP", {"backend": "x"}, "backend must be one of 'auto', 'rule', 'compiled', got 'x'"),
    ("SGDP", {"momentum": 1.0}, r"beta must be in \[0, 1\), got 1.0"),
    ("SGD", {"momentum": 2}, r"sgd\(momentum=2\): HeavyBall: beta must be in \[0, 1\), got 2"),
    ("SGDP", {"nesterov": True, "project_buffer": True}, "goes with nesterov=False"),
    ("SGD", {"weight_decay": -1e-4}, "weight_decay must be in"),
    ("SGDG", {"nu": 0.0}, "nu must be in"),
    ("SGDG", {"view": "rows"}, "got 'rows'"),
    ("SGDG", {"view": "dim=5"}, r"parameter 0 of shape \(3, 2\): .*with dimension 5"),
    ("RMSprop", {"alpha": 1.5}, "alpha must be in"),
    ("SGD", {"params": []}, "empty parameter list"),
    ("SGD", {"params": [{"lr": 0.1}]}, "a param_group needs params"),
    ("SGD", nested(weight_deccay=0.1), "'weight_deccay': did you mean 'weight_decay'"),
    ("AdamP", nested(learning_rate=0.1), "param_group entry 'learning_rate': did you mean 'lr'"),
    ("AdamP", nested(beta1=0.1), "param_group entry 'beta1': did you mean 'betas'"),
    ("SGD", nested(recipe="sdgp"), "no recipe is named 'sdgp'; did you mean sgdp"),
]
COMPLEX, INTEGERS = torch.ones(2, 3, dtype=torch.complex64), torch.ones(4, dtype=torch.int64)
BAD_TYPES = [
    ("AdamP", {"lr": "0.1"}, "lr must be a number or a tensor, got '0.1'"),
    ("AdamP", {"wd_ratio": "x"}, "invariant_ratio must be a number or a tensor, got 'x'"),
    ("AdamP", {"views": "channel"}, "views must be a sequence of views, got 'channel'"),
    ("AdamP", {"nesterov": "no"}, "nesterov must be True or False, got 'no'"),
    ("AdamP", {"maximize": "no"}, "maximize must be True or False, got 'no'"),
    ("AdamP", {"learning_rate": 0.1}, "'learning_rate'; did you mean 'lr'?"),
    ("AdamP", {"wd": 0.1}, "'wd'; did you mean 'weight_decay'?"),
    ("AdamP", {"weight_decay_rate": 0.1}, "did you mean 'weight_decay'?"),
    ("AdamP", {"lr": 1, "beta1": 0.9}, "'beta1'; did you mean 'betas'?"),
    ("AdamP", {"beta2": 0.9}, "'beta2'; did you mean 'betas'?"),
    ("AdamP", {"momentum": 0.9}, "'momentum'; did you mean 'betas'?"),
    ("AdamP", {"epsilon": 0.9}, "'epsilon'; did you mean 'eps'?"),
    ("AdamP", {"compile": True}, "'compile'; did you mean 'backend'"),
    ("AdamP", {"trace": False}, "'trace'; did you mean 'backend'"),
    ("SGDP", {"mom": 0.9}, "'mom'; did you mean 'momentum'?"),
    ("SGD", {"momentun": 0.9}, "'momentun'; did you mean 'momentum'?"),
    ("SGDP", {"beta1": 0.9}, "'beta1'; did you mean 'momentum'?"),
    ("Adam", {"zzz": 1}, "Adam: .*'zzz'; its hyper-parameters are"),
    ("Adam", {"amsgrad": True}, "this library does not have it"),
    ("Adam", {"fused": True}, "leave it out"),
    ("Adam", {"foreach": True}, "leave it out"),
    ("Adam", {"capturable": True}, "can be captured .* as it is"),
    ("Adam", {"differentiable": True}, "use spherenorm.functional"),
    ("AdamP", {"params": linear()}, r"such as model.parameters\(\), got a Linear"),
    ("AdamP", {"params": linear().parameters}, r"model.parameters\(\), got .*not called"),
    ("AdamP", {"params": [{"params": linear()}]}, r"model.parameters\(\), got a Linear"),
    ("AdamP", {"params": torch.nn.Sequential(linear())}, r"parameters\(\), got a Sequential"),
    ("SGD", {"params": [weight(), COMPLEX]}, r"parameter 1 of shape \(2, 3\) is complex"),
    (
        *("SGD", {"params": [("scale", INTEGERS)]}),
        r"parameter 0 \(scale\) of shape \(4,\) is integer",
    ),
    ("SGD", {"params": weight()}, "params argument"),
    ("SGD", nested(recipe=3), "a recipe is a function, .* got int 3"),
]


@pytest.mark.parametrize(
    ("error", "name", "arguments", "message"),
    [
        (error, *row)
        for error, rows in ((ValueError, BAD_VALUES), (TypeError, BAD_TYPES))
        for row in rows
    ],
)
def test_bad_input_of_an_optimizer_is_named(error, name, arguments, message):
    with pytest.raises(error, match=message):
        getattr(optim, name)(**{"params": [weight()], **arguments})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: sn.torch_optimizer(no_rule)([weight()]),
            TypeError,
            "recipe 'tests.optim.test_optimizer:no_rule' must return a rule, it returned 3",
        ),
        (lambda: sn.find_recipe(":f"), ValueError, "no recipe is named ':f'"),
        (
            lambda: sn.chain(manifold="sphere"),
            TypeError,
            "manifold must be a Manifold .* got 'sphere'",
        ),
        (
            lambda: sn.recipes.sgd().step(weight(), torch.ones(2), {}),
            ValueError,
            r"grad must be shaped as the weight, \(3, 2\), got \(2,\)",
        ),
    ],
)
def test_bad_input_elsewhere_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_sparse_gradient_is_refused_before_anything_changes():
    first, embedding = weight(), torch.nn.Embedding(5, 3, sparse=True)
    optimizer = optim.AdamP([first, embedding.weight])
    (first.sum() + embedding(torch.tensor([1])).sum()).backward()
    refuse(optimizer, TypeError, r"parameter 1 of shape \(5, 3\) has a sparse gradient")


def test_a_hyper_parameter_that_left_its_interval_is_refused_before_anything_changes():
    optimizer = optim.SGDP([{"params": [weight()]}, {"params": [weight()]}], lr=0.1, momentum=0.9)
    for group in optimizer.param_groups:
        group["params"][0].grad = torch.ones(3, 2)
    optimizer.param_groups[1]["momentum"] = 1.0
    refuse(optimizer, ValueError, "beta must be in")


def test_a_refused_group_is_not_added():
    optimizer = optim.SGD([weight()])
    for group in (
        {"params": [weight()], "lr": -1},
        {"params": [torch.ones(2, dtype=torch.int64)]},
        {"params": [weight()], "recipe": "none"},
    ):
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


def test_a_group_may_name_another_recipe():
    """Conv weights on the sphere beside Nesterov SGD for the rest: each by its own recipe."""
    conv, bias = sn.Sphere().normalize(torch.randn(4, 3)), torch.randn(4)
    weights = [conv.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = optim.SGD(
        [{"params": weights[:1], "recipe": "sgdg", "lr": 0.15}, {"params": weights[1:]}],
        lr=0.01,
        momentum=0.8,
        nesterov=True,
        weight_decay=0.1,
    )
    own = ("lr", "momentum", "nu", "alpha", "view")
    assert optimizer.param_groups[0].keys() == {"params", "recipe", "maximize", *own}
    assert optimizer.param_groups[0]["momentum"] == 0.9
    sphere, flat = (
        sn.recipes.sgdg(lr=0.15),
        sn.recipes.sgd(lr=0.01, momentum=0.8, nesterov=True, weight_decay=0.1),
    )
    sphere_state, flat_state = sphere.init(conv), flat.init(bias)
    for _ in range(3):
        for w in weights:
            w.grad = torch.randn_like(w)
        conv, sphere_state = sphere.step(conv, weights[0].grad, sphere_state)
        bias, flat_state = flat.step(bias, weights[1].grad, flat_state)
        optimizer.step()
    torch.testing.assert_close(weights[0].detach(), conv)
    torch.testing.assert_close(weights[1].detach(), bias)
    unit = sn.Sphere().normalize(torch.ones(4, 3))
    fresh = optim.SGD([{"params": [unit], "recipe": "sgdg"}, {"params": [torch.ones(4)]}])
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["lr"] == 0.15
    with pytest.raises(
        ValueError, match="the state_dict is of recipe 'sgdg', the param_group of 'sgd'"
    ):
        optim.SGD([{"params": [torch.ones(4, 3)]}, {"params": [torch.ones(4)]}]).load_state_dict(
            optimizer.state_dict()
        )


def test_a_users_recipe_becomes_an_optimizer_that_pickles(monkeypatch):
    module = types.ModuleType("users_module")

    def half_step(lr=0.1):
        """Half of a gradient step."""
        return sn.chain(r.StepSize(lr), r.StepSize(0.5))

    half_step.__module__, half_step.__qualname__ = "users_module", "half_step"
    module.half_step = half_step
    monkeypatch.setitem(sys.modules, "users_module", module)
    HalfStep = sn.torch_optimizer("users_module:half_step")
    assert HalfStep.__name__ == "HalfStep"
    assert "Half of a gradient step." in HalfStep.__doc__
    assert str(inspect.signature(HalfStep)) == "(params, lr=0.1, *, maximize=False, backend='auto')"
    w = weight()
    w.grad = torch.ones_like(w)
    optimizer = HalfStep([w], 0.4)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full_like(w, 0.8))
    assert optimizer.state_dict()["param_groups"][0]["recipe"] == "users_module:half_step"
    assert type(pickle.loads(pickle.dumps(optimizer))) is HalfStep
    beside = optim.SGD([{"params": [weight()], "recipe": half_step}])
    assert beside.param_groups[0]["recipe"] == "users_module:half_step"


def test_a_recipe_without_a_default_asks_for_the_value():
    def needs(lr):
        return sn.chain(r.StepSize(lr))

    with pytest.raises(TypeError, match="missing a required argument: 'lr'"):
        sn.torch_optimizer(needs)([weight()])


def test_state_names_are_those_of_torch_and_of_the_release():
    expected = {
        "SGD": {"momentum_buffer"},
        "SGDP": {"momentum"},
        "Adam": {"step", "exp_avg", "exp_avg_sq"},
        "AdamW": {"step", "exp_avg", "exp_avg_sq"},
        "AdamP": {"step", "exp_avg", "exp_avg_sq"},
        "RMSprop": {"step", "square_avg"},
    }
    for name, keys in expected.items():
        w = weight()
        w.grad = torch.ones_like(w)
        optimizer = getattr(optim, name)(
            [w], **({"momentum": 0.9} if name in ("SGD", "SGDP") else {})
        )
        optimizer.step()
        assert optimizer.state[w].keys() == keys


@pytest.mark.parametrize("to_ours", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *[(name, {}) for name in ("SGD", "Adam", "AdamW", "RMSprop")],
        ("SGD", {"momentum": 0.9}),
        ("RMSprop", {"momentum": 0.9, "centered": True, "eps": 1e-3}),
    ],
    ids=str,
)
def test_checkpoints_of_torch_load_and_continue_and_ours_in_torch(name, settings, to_ours):
    weights, others = parameters(), parameters()
    ours, theirs = getattr(optim, name), getattr(torch.optim, name)
    first, second = (theirs, ours) if to_ours else (ours, theirs)
    reference, optimizer = theirs(others, lr=0.01, **settings), first(weights, lr=0.01, **settings)
    for step in range(6):
        if step == 3:
            saved = optimizer.state_dict()
            optimizer = second(weights, lr=0.5)
            optimizer.load_state_dict(saved)
        set_gradients(weights, step)
        set_gradients(others, step)
        optimizer.step()
        reference.step()
    for w, other in zip(weights, others, strict=True):
        torch.testing.assert_close(w, other, rtol=1e-12, atol=1e-13)


def test_arguments_of_torch_are_taken_at_values_that_ask_for_nothing():
    off = {
        "amsgrad": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "fused": False,
    }
    assert optim.Adam([weight()], **off).defaults == optim.Adam([weight()]).defaults
    for name, value in {
        "amsgrad": True,
        "foreach": True,
        "fused": True,
        "capturable": True,
        "differentiable": True,
    }.items():
        for make in (
            lambda given: optim.Adam([weight()], **given),
            lambda given: optim.Adam([{"params": [weight()], **given}]),
        ):
            with pytest.raises(TypeError, match=f"{name}=True is an argument of torch.optim: "):
                make({name: value})


def test_a_state_dict_that_does_not_fit_is_refused_before_anything_changes():
    w = weight()
    w.grad = torch.ones_like(w)
    optimizer = optim.AdamP([w])
    optimizer.step()
    wide = weight(5, 5)
    wide.grad = torch.ones_like(wide)
    other = optim.AdamP([wide])
    other.step()
    for state_dict, message in (
        (
            other.state_dict(),
            r"parameter 0 of shape \(3, 2\): exp_avg has shape \(5, 5\) in the state_dict, "
            r"not \(3, 2\)",
        ),
        (optim.AdamP([weight(), weight()]).state_dict(), "has 2 parameters, the optimizer's 1"),
        (
            optim.AdamP([{"params": [weight()]}, {"params": [weight()]}]).state_dict(),
            "has 2 param_groups, the optimizer 1",
        ),
        (
            optim.SGD([weight()]).state_dict(),
            r"of recipe 'sgd', the param_group of 'adamp': "
            r"their states are \[\] and \['exp_avg', 'exp_avg_sq', 'step'\]",
        ),
        (
            {
                "state": {0: {"momentum_buffer": torch.ones(3, 2)}},
                "param_groups": [{"params": [0], "lr": 0.1}],
            },
            "holds \\['momentum_buffer'\\]",
        ),
        (
            {
                "state": {0: {"step": torch.tensor(500.0), "exp_avg": torch.ones(3, 2)}},
                "param_groups": [{"params": [0]}],
            },
            r"holds \['exp_avg', 'step'\], the recipe's state is "
            r"\['exp_avg', 'exp_avg_sq', 'step'\]",
        ),
        ({"state": {}, "param_groups": [{"params": [0], "lr": -1.0}]}, "lr must be in"),
        (
            {"state": {}, "param_groups": [{"params": [0], "amsgrad": True}]},
            "made with amsgrad=True, which recipe 'adamp' does not have",
        ),
        ({}, "a state_dict has state and param_groups"),
    ):
        refuse(optimizer, ValueError, message, load=state_dict)


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("Adam", {"weight_decay": 0.3, "decoupled_weight_decay": True}, "=True"),
        ("Adam", {"decoupled_weight_decay": True}, ""),
        ("AdamW", {}, ""),
        ("Muon", {}, ""),
        ("Muon", {"adjust_lr_fn": "original"}, ""),
        ("Muon", {"adjust_lr_fn": "match_rms_adamw"}, "='match_rms_adamw'"),
        ("Muon", {"ns_steps": 1}, "=1"),
        ("Muon", {"ns_coefficients": (2.0, -1.5, 0.5)}, r"=\(2.0, -1.5, 0.5\)"),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, "=0.5"),
    ],
)
def test_a_checkpoint_of_torch_with_an_option_that_the_recipe_lacks_is_refused(
    name, options, refused
):
    w, theirs = weight(), weight()
    saved = getattr(torch.optim, name)([theirs], lr=0.1, **options).state_dict()
    optimizer = getattr(optim, name)([w], lr=0.2)
    if not refused or next(reversed(options)) in optimizer.defaults:
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.1
    else:
        message = f"made with {next(reversed(options))}{refused}, which recipe"
        refuse(optimizer, ValueError, message, load=saved)


def test_a_schedule_may_switch_momentum_on():
    w = weight()
    optimizer = optim.SGD([w], lr=0.1)
    for momentum in (0.0, 0.9, 0.9, 0.0):
        optimizer.param_groups[0]["momentum"] = momentum
        w.grad = torch.ones_like(w)
        optimizer.step()
        assert ("momentum_buffer" in optimizer.state[w]) == (momentum > 0)


@pytest.mark.parametrize(
    "make",
    [lambda o: OneCycleLR(o, 0.1, total_steps=6), lambda o: CyclicLR(o, 0.01, 0.1, step_size_up=3)],
)
@pytest.mark.parametrize(("name", "other"), [("AdamW", "sgdg"), ("SGD", "adamw")])
def test_momentum_cycles_in_groups_of_another_recipe(make, name, other):
    """CyclicLR and OneCycleLR ask each group for `momentum` or `betas`, which it may lack."""

    def pair():
        unit = sn.Sphere().normalize(weight().detach()).requires_grad_()
        groups = [{"params": [weight()]}, {"params": [unit], "recipe": other}]
        optimizer = getattr(optim, name)(groups)
        return optimizer, make(optimizer)

    (optimizer, scheduler), seen = pair(), []
    for step in range(5):
        own, theirs = ({"momentum", "betas"} & group.keys() for group in optimizer.param_groups)
        assert (own, theirs) == (
            ({"betas"}, {"momentum"}) if name == "AdamW" else ({"momentum"}, {"betas"})
        )
        momenta = [
            group["momentum"] if "momentum" in group else group["betas"][0]
            for group in optimizer.param_groups
        ]
        assert momenta[0] == momenta[1] != (seen or [None])[-1]
        assert all(
            group["betas"][1] == 0.999 for group in optimizer.param_groups if "betas" in group
        )
        seen.append(momenta[0])
        if step == 2:  # a resumed optimizer goes on alike
            saved = [optimizer.state_dict(), scheduler.state_dict()]
            optimizer, scheduler = pair()
            optimizer.load_state_dict(saved[0])
            scheduler.load_state_dict(saved[1])
        optimizer.step()
        scheduler.step()


def test_a_group_without_momentum_says_so_to_a_cycling_scheduler():
    optimizer = optim.AdamW([{"params": [weight()], "recipe": "tests.optim.test_optimizer:plain"}])
    with pytest.raises(
        KeyError,
        match=r"betas: a param_group of recipe 'tests.optim.test_optimizer:plain' has none",
    ):
        OneCycleLR(optimizer, 0.1, total_steps=6)
    OneCycleLR(optimizer, 0.1, total_steps=6, cycle_momentum=False)


def plain(lr=0.1):
    return sn.chain(r.StepSize(lr))


def both(lr=0.1, betas=(0.9, 0.999), momentum=0.5):
    return sn.chain(r.AdaptiveMoments(*betas), r.HeavyBall(momentum), r.StepSize(lr))


def test_a_recipe_may_have_both_betas_and_momentum():
    optimizer = sn.torch_optimizer(both)([weight()])
    for group in (
        copy.deepcopy(optimizer).param_groups[0],
        pickle.loads(pickle.dumps(optimizer)).param_groups[0],
    ):
        assert (group["betas"], group["momentum"]) == ((0.9, 0.999), 0.5)


def test_views_are_kept_by_name_so_that_checkpoints_load_with_weights_only():
    optimizer = optim.AdamP(
        [
            {"params": [weight()]},
            {"params": [weight()], "views": [sn.View(0, 3), "layer"]},
            {"params": [torch.eye(2)], "recipe": "sgdg", "view": sn.View(1)},
        ],
        views=(sn.View(1), sn.View(None)),
    )
    groups = optimizer.param_groups
    assert (groups[0]["views"], groups[1]["views"], groups[2]["view"]) == (
        ("dim=1", "layer"),
        ["groups=3", "layer"],
        "dim=1",
    )
    saved = io.BytesIO()
    torch.save(optimizer.state_dict(), saved)
    saved.seek(0)
    assert (
        torch.load(saved, weights_only=True)["param_groups"]
        == optimizer.state_dict()["param_groups"]
    )


def test_gradients_may_require_grad_and_weights_keep_their_identity():
    w = weight()
    optimizer = optim.SGD([w], lr=0.1)
    (w**2).sum().backward(create_graph=True)
    pointer, version = w.data_ptr(), w._version
    optimizer.step()
    assert w.data_ptr() == pointer
    assert w._version > version
    assert w.is_leaf
    assert all(not value.requires_grad for value in optimizer.state[w].values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_numeric_hyper_parameter_is_in_the_param_group(row):
    group = row.cls([torch.eye(2)], **row.settings).param_groups[0]
    assert set(inspect.signature(row.cls.recipe).parameters) <= group.keys()


def test_a_list_of_parameters_is_taken_though_it_is_a_module():
    parameters = torch.nn.ParameterList([weight(), weight()])
    assert optim.SGD(parameters).param_groups[0]["params"] == list(parameters)


def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


CANNOT_MOVE = (
    "cannot move, as each of their units has one entry: "
    "give them a Euclidean param_group, as spherenorm.param_groups does"
)


@pytest.mark.parametrize("cls", [optim.SGDG, optim.AdamG])
def test_weights_that_do_not_suit_the_sphere_are_named(cls):
    layers = [linear(), *(torch.nn.BatchNorm1d(2) for _ in range(3))]
    model = torch.nn.Sequential(*layers)
    (message,) = warned(lambda: cls(model.named_parameters()))
    still, start = sorted(message.removeprefix(f"{cls.__name__}: ").split(". "))
    assert still == f"0.bias, 1.weight, 1.bias, 2.weight, 2.bias and 2 more {CANNOT_MOVE}"
    assert re.fullmatch("0.weight have units of another norm than 1.*normalize.weight.", start)
    (message,) = warned(lambda: cls([model[0].bias, torch.ones(())]))
    both = "parameter 0 of shape (2,), parameter 1 of shape ()"
    assert message == f"{cls.__name__}: {both} {CANNOT_MOVE}"


def test_what_the_warning_asks_for_silences_it():
    layer = linear()
    with torch.no_grad():
        layer.weight.copy_(sn.Sphere().normalize(layer.weight))
    groups = [{"params": [layer.weight], "recipe": "sgdg"}, {"params": [layer.bias]}]
    assert not warned(lambda: optim.SGD(groups))
    layer.to(torch.bfloat16)
    assert not warned(lambda: optim.SGDG([layer.weight]))
    layer.weight.data.mul_(1.02)
    assert len(warned(lambda: optim.SGDG([layer.weight]))) == 1


def test_a_warning_that_is_an_error_changes_nothing():
    optimizer = optim.SGD([weight()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="another norm than 1"):
            optimizer.add_param_group({"params": [weight()], "recipe": "sgdg"})
    assert len(optimizer.param_groups) == 1


def test_a_manifold_needs_no_weight_warnings():
    class Flat:
        def retract(self, weight, direction):
            return sn.Euclidean().retract(weight, direction)

    w = weight(3)
    w.grad = torch.ones_like(w)
    cls = sn.torch_optimizer(lambda lr=0.5: sn.chain(r.StepSize(lr), manifold=Flat()), "Flat")
    assert not warned(lambda: cls([w]).step())
    assert torch.equal(w, torch.full((3,), 0.5))


def test_an_entry_that_only_other_recipes_have_is_refused_and_the_users_own_are_kept():
    weight = torch.eye(2).requires_grad_()
    for entry in ({"weight_decay": 0.5}, {"nesterov": True}):
        with pytest.raises(ValueError, match="its recipe has no such hyper-parameter, but lr"):
            sn.optim.SGDG([{"params": [weight], **entry}], lr=0.1)
    own = {"params": [weight], "name": "head", "depth": 3, "weight_decay": 0.0, "initial_lr": 0.1}
    (group,) = sn.optim.SGDG([own], lr=0.1).param_groups
    assert (group["name"], group["depth"], group["weight_decay"]) == ("head", 3, 0.0)
