"""The classes: their arguments and defaults, their names, pickling, and wrapped ones."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import pydoc
import sys
from typing import Any, get_type_hints

import adamp
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.optim import unwrap
from spherenorm.optim.optimizer import builtin_class
from spherenorm.registry import is_builtin
from tests.harness import refuses


def halved_step(lr=0.1, share=0.5):
    """A part of a gradient step."""
    return sn.chain(r.StepSize(lr), r.StepSize(share))


HalvedStep = sn.torch_optimizer(halved_step)
Renamed = sn.torch_optimizer(halved_step, "Renamed")


class Plain(optim.AdamP):
    pass


class Subclass(optim.AdamP):
    def __init__(self, params, power=1.0, **hyper_parameters):
        super().__init__(params, **hyper_parameters)
        self.power = power


def weight():
    return torch.ones(3, 2, requires_grad=True)


BUILTIN_CLASSES = [
    getattr(optim, name)
    for name in optim.__all__
    if inspect.isclass(getattr(optim, name)) and name != "RecipeOptimizer"
]


def test_every_recipe_of_the_library_has_a_class():
    recipes = {sn.find_recipe(name) for name in sn.recipe_names() if ":" not in name}
    assert {cls.recipe for cls in BUILTIN_CLASSES} == set(filter(is_builtin, recipes))
    for cls in BUILTIN_CLASSES:
        assert getattr(optim, cls.__name__) is cls is builtin_class(cls.recipe)


@pytest.mark.parametrize("cls", [*BUILTIN_CLASSES, HalvedStep], ids=lambda cls: cls.__name__)
def test_the_source_of_a_class_is_its_recipe(cls):
    assert inspect.getsource(cls) == inspect.getsource(cls.recipe)
    assert inspect.unwrap(cls) is cls.recipe


def test_a_subclass_has_a_source_and_a_signature_of_its_own():
    assert inspect.getsource(Subclass).startswith("class Subclass")
    assert "power" in inspect.signature(Subclass).parameters
    assert inspect.signature(Plain) == inspect.signature(optim.AdamP)
    for missing in (Subclass, Plain, optim.AdamP([weight()])):
        assert not hasattr(missing, "__wrapped__")


@pytest.mark.parametrize("cls", [optim.AdamP, optim.Muon, HalvedStep], ids=lambda c: c.__name__)
def test_help_shows_the_arguments_and_the_text_of_the_recipe(cls):
    text = pydoc.plain(pydoc.render_doc(cls))
    first_line = inspect.getdoc(cls.recipe).partition("\n")[0]
    assert f" {cls.__name__}(params: " in text
    assert first_line in text


def test_two_classes_stand_between_object_and_a_rule():
    assert [cls.__name__ for cls in r.StepSize.__mro__[1:-1]] == ["Rule", "FrozenDataclass"]


@pytest.mark.parametrize("cls", [*BUILTIN_CLASSES, HalvedStep], ids=lambda cls: cls.__name__)
def test_a_class_has_its_recipes_arguments_in_their_order(cls):
    params, *arguments, maximize, backend = inspect.signature(cls).parameters.values()
    assert params.name == "params"
    of_recipe = list(inspect.signature(cls.recipe).parameters.values())
    assert [(p.name, p.kind, p.default) for p in arguments] == [
        (p.name, p.kind, p.default) for p in of_recipe
    ]
    hints = get_type_hints(cls.recipe)
    assert [p.annotation for p in arguments] == [hints.get(p.name, Any) for p in of_recipe]
    assert list(inspect.signature(cls.__init__).parameters) == [
        *("self", "params"),
        *(p.name for p in (*arguments, maximize, backend)),
    ]
    assert [(p.name, p.default) for p in (maximize, backend)] == [
        ("maximize", False),
        ("backend", "auto"),
    ]
    assert {p.kind for p in (params, *arguments)} == {params.POSITIONAL_OR_KEYWORD}
    optimizer = cls([torch.eye(2)])
    group, values = optimizer.param_groups[0], {p.name: p.default for p in arguments}
    assert {name: group[name] for name in values} == values
    assert cls.__name__.lower() == cls.recipe.__name__.replace("_", "")
    assert repr(optimizer).startswith(f"{cls.__name__} (")


@pytest.mark.parametrize(
    "theirs",
    [
        *(getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "RMSprop", "Muon")),
        adamp.AdamP,
        adamp.SGDP,
    ],
)
def test_defaults_are_those_of_torch_and_of_the_release(theirs):
    """Theirs of which this library has no argument are refused, where they are not switched off."""
    weights = [torch.zeros(2, 2)]
    ours = getattr(optim, theirs.__name__)(weights, **({"lr": 0.1} if theirs is adamp.SGDP else {}))
    expected = theirs(weights, **({"lr": 0.1} if theirs is adamp.SGDP else {})).defaults
    known = inspect.signature(type(ours)).parameters.keys() & expected.keys()
    assert len(known) >= 4
    assert {name: ours.defaults[name] for name in known} == {name: expected[name] for name in known}


def test_arguments_of_torch_are_taken_where_they_are_switched_off():
    off = {"amsgrad": False, "foreach": None, "capturable": False, "differentiable": False}
    group = {"params": [weight()], "fused": None}
    assert optim.Adam([group], **off).defaults == optim.Adam([weight()]).defaults


def test_arguments_may_be_positional_and_parameters_in_a_list_that_is_a_module():
    parameters = torch.nn.ParameterList([weight(), weight()])
    optimizer = HalvedStep(parameters, 0.4, 0.25)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert optimizer.param_groups[0]["params"] == list(parameters)
    for parameter in parameters:
        torch.testing.assert_close(parameter.detach(), torch.full((3, 2), 1 - 0.4 * 0.25))
    assert "A part of a gradient step." in HalvedStep.__doc__


def test_a_class_belongs_to_the_module_that_asks_for_it():
    assert (HalvedStep.__module__, HalvedStep.__qualname__) == (__name__, "HalvedStep")
    assert (Renamed.__module__, Renamed.__qualname__) == (__name__, "Renamed")
    assert (optim.AdamP.__module__, optim.AdamP.__qualname__) == ("spherenorm.optim", "AdamP")
    assert sn.torch_optimizer("adamp") is sn.torch_optimizer(sn.recipes.adamp)
    assert sn.torch_optimizer(f"{__name__}:halved_step") is HalvedStep


@pytest.mark.parametrize("cls", [optim.AdamP, HalvedStep, Renamed, Plain, Subclass])
def test_a_class_and_its_optimizers_pickle_by_the_name_in_its_module(cls):
    text = pickle.dumps(cls, protocol=0)
    assert cls.__module__.encode() in text
    assert cls.__qualname__.encode() in text
    assert pickle.loads(text) is cls
    assert pickle.loads(pickle.dumps(functools.partial(cls, lr=0.2))).func is cls
    optimizer = cls([weight()], lr=0.2, backend="rule")
    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert type(twin) is cls
        (group,) = twin.param_groups
        assert (group["lr"], group["backend"]) == (0.2, "rule")
        assert torch.equal(group["params"][0], weight())
        assert group["params"][0] is not optimizer.param_groups[0]["params"][0]


def test_a_class_of_a_recipe_that_cannot_be_imported_pickles_once_its_module_has_it(monkeypatch):
    def local(lr=0.1):
        return sn.chain(r.StepSize(lr))

    cls = sn.torch_optimizer(local, "Held")
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(cls)
    monkeypatch.setattr(sys.modules[__name__], "Held", cls, raising=False)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert type(pickle.loads(pickle.dumps(cls([weight()])))) is cls


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by its class, which was never made as one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_wrapped_optimizers_are_found():
    w = weight()
    optimizer = optim.SGDP([w], lr=0.1, backend="rule")
    wrapped = Wrapper(Wrapper(optimizer))
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert unwrap(wrapped) is unwrap(scheduler) is unwrap(optimizer) is optimizer
    assert str(sn.explain(wrapped)) == str(sn.explain(optimizer))
    w.grad = torch.eye(3)[:, :2].contiguous()
    with sn.probe(wrapped, every=1) as probe:
        wrapped.step()
    assert [each.step for each in probe.measurements] == [1]


def test_what_holds_no_optimizer_is_refused_with_what_to_pass():
    class Empty:
        optimizer = None

    for function in (sn.probe, sn.explain):
        with refuses("Empty", ".optimizer", by=TypeError):
            function(Empty())
    with refuses("explain", "Adam", by=TypeError):
        sn.explain(torch.optim.Adam([torch.ones(2)]))
