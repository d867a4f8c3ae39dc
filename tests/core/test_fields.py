"""Fields of rules convert and check their own values, once."""

import copy
import math
import pickle
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses


@dataclass(frozen=True)
class Fields(sn.Rule):
    """A field of each kind."""

    view: sn.View = sn.view()
    other: sn.View = sn.view(None)
    several: tuple[sn.View, ...] = sn.views("channel", "dim=1")
    per: str = sn.choice("tensor", "unit")
    share: sn.Scalar = sn.hyper("[0, 1)", 0.5)
    bound: sn.Scalar | None = sn.hyper("(0, inf)", None)
    flag: bool = True


INTERVALS = ("[0, 1)", "(0, 1]", "[-1, 1]", "(0, inf)", "[0, inf)", "(-inf, 0)")


@pytest.mark.parametrize("text", INTERVALS)
def test_a_number_lies_in_its_interval(text):
    class Numbered(sn.Rule):
        number: sn.Scalar = sn.hyper(text)

    low, high = (float(end) for end in text[1:-1].split(", "))
    for value in (-math.inf, -2.0, -1.0, -1e-9, 0, 0.5, 1, 1 + 1e-9, 7, math.inf, math.nan):
        above = low < value or (value == low and text[0] == "[")
        if above and (value < high or (value == high and text[-1] == "]")):
            assert Numbered(value).number == value
        else:
            with refuses("Numbered", "number", value, text.replace("inf", "∞")):
                Numbered(value)
    interval = sn.Interval.parse(text)
    assert (interval.low, interval.high) == (low, high)
    assert str(interval) == text.replace("inf", "∞")


@pytest.mark.parametrize(("default", "error"), [(1.5, ValueError), (math.nan, ValueError)])
def test_a_default_outside_of_its_interval_is_refused_where_it_is_declared(default, error):
    with refuses("default", default, "[0, 1)", by=error):
        sn.hyper("[0, 1)", default)


@pytest.mark.parametrize("text", ["0, 1", "[0; 1]", "[0, 1", ""])
def test_what_is_no_interval_is_refused(text):
    with refuses(text, "[0, 1)"):
        sn.hyper(text)


def given(**values):
    return lambda: Fields("layer", **values)


REFUSED = {
    "no view": (lambda: Fields("rows"), ValueError, ("rows", "channel")),
    "a view that is None": (lambda: Fields(None), ValueError, ("None", "channel")),
    "one name for several": (given(several="layer"), TypeError, ("several", "layer")),
    "one of several": (given(several=["rows"]), ValueError, ("rows", "channel")),
    "no choice": (given(per="row"), ValueError, ("Fields: per", "row", "tensor", "unit")),
    "text": (given(share="half"), TypeError, ("Fields", "share", "half")),
    "a truth value as a number": (given(share=True), TypeError, ("share", True)),
    "a complex number": (given(share=0.5j), TypeError, ("share", 0.5j)),
    "None where it is no default": (given(share=None), TypeError, ("share", None)),
    "a vector": (given(share=torch.ones(2)), ValueError, ("share", "0-dim", (2,))),
    "an optional number": (given(bound=0), ValueError, ("bound", 0, "(0, ∞)")),
    "a number as a flag": (given(flag=1), TypeError, ("flag", 1, True, False)),
    "a view of a manifold": (lambda: sn.Sphere("rows"), ValueError, ("rows", "channel")),
    "no value": (Fields, TypeError, ("view",)),
    "after replace": (lambda: replace(Fields("layer"), share=1.5), ValueError, ("share", 1.5)),
    "a counter as a buffer": (
        lambda: r.HeavyBall(0.9, buffer="step"),
        ValueError,
        ("HeavyBall: buffer", "step"),
    ),
    "two states of one name": (
        lambda: (
            r.GainAndDirection(
                r.StepSize(0.1), r.StepSize(0.1), free_norm=True, buffer="length"
            ).state_keys
        ),
        ValueError,
        ("GainAndDirection", "length"),
    ),
    "in a recipe": (
        lambda: sn.bind("sgd", lr=-1).rule,
        ValueError,
        ("sgd(lr=-1)", "StepSize: lr", "[0, ∞)"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_value_of_a_field_is_refused(case):
    """The error names the field, the value and what is allowed."""
    make, error, named = REFUSED[case]
    with refuses(*named, by=error):
        make()


def test_names_become_views():
    rule = Fields("layer")
    assert (rule.view, rule.other) == (sn.View(None), None)
    assert rule.several == (sn.View(0), sn.View(1))
    assert rule == Fields(sn.View(None)) == Fields(view="layer", per="tensor")
    assert Fields("layer", "groups=2", ["layer"]).several == (sn.View(None),)
    assert Fields("layer", "groups=2").other == sn.as_view("groups=2")
    own = type("Own", (sn.View,), {})(0)
    assert Fields(own).view is own


def test_defaults_are_those_of_a_dataclass():
    assert [f.name for f in fields(Fields) if f.default is MISSING] == ["view"]
    rule = Fields("layer")
    assert (rule.per, rule.share, rule.bound, rule.flag) == ("tensor", 0.5, None, True)
    assert Fields("layer", bound=2).bound == 2
    with pytest.raises(FrozenInstanceError):
        rule.share = 0.1


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(-1.0),
        torch.tensor(7),
        torch.ones((), requires_grad=True),
        torch.ones(()).to("meta"),
    ],
    ids=["out of bounds", "integer", "with a gradient", "without a value"],
)
def test_a_tensor_passes_as_it_is(value):
    assert Fields("layer", share=value).share is value
    assert sn.bind("adam", lr=value, betas=(value, 0.9)).rule.rules[-1].lr is value


def test_a_batched_or_symbolic_number_passes():
    batch = torch.tensor([0.1, 5.0])
    doubled = torch.vmap(lambda x: 2 * Fields("layer", share=x).share)(batch)
    assert torch.equal(doubled, 2 * batch)
    slope = torch.func.grad(lambda x: Fields("layer", share=x).share ** 2)(torch.tensor(3.0))
    assert slope == 6


@pytest.mark.parametrize("name", ["lr", "betas"])
def test_a_batched_vector_is_refused_and_shown_by_its_shape(name):
    def make(numbers):
        value = numbers if name == "lr" else (numbers, 0.9)
        return sn.bind("adam", **{name: value}).rule

    with refuses("0-dim", "<tensor of shape (2,)>") as _:
        torch.vmap(make)(torch.ones(2, 2))


@pytest.mark.parametrize("annotation", [bool, "bool"])
def test_truth_values_are_known_by_their_type(annotation):
    unresolvable = {"flag": annotation, "unknown": "NeverDefined"}
    for annotations in ({"flag": annotation}, unresolvable):
        values = dict.fromkeys(annotations, True)
        cls = type("Flagged", (sn.Rule,), {"__annotations__": annotations, **values})
        assert cls(flag=False).flag is False
        with refuses("Flagged", "flag", 0, by=TypeError):
            cls(flag=0)


NUMBERS = {
    "lr": 0.5,
    "momentum": 0.25,
    "betas": (0.5, 0.75),
    "weight_decay": 1.0,
    "wd_ratio": 0.25,
    "dampening": 0.125,
    "nu": 0.5,
    "alpha": 0.5,
    "eps": 0.5,
    "delta": 0.125,
    "max_lr": 1.0,
}


@pytest.mark.parametrize("name", sn.recipes.__all__)
def test_a_number_of_any_type_is_a_double(name):
    """A step by a Fraction or a numpy number is the step by the float of the same value."""
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    known = sn.bind(name).defaults

    def of(kind):
        both = {key: x for key, x in NUMBERS.items() if key in known}
        return {
            k: tuple(map(kind, x)) if isinstance(x, tuple) else kind(x) for k, x in both.items()
        }

    expected = sn.bind(name, **of(float)).rule
    for kind in (Fraction, np.float32, np.float16):
        rule = sn.bind(name, **of(kind)).rule
        assert rule == expected
        steps = [each.step(weight, grad, each.init(weight)) for each in (rule, expected)]
        torch.testing.assert_close(*steps, rtol=0, atol=0)
    assert sn.find_recipe(name)(**of(Fraction)) == expected


def test_copies_of_a_field_hold_the_same():
    for value in (sn.Sphere("groups=2"), Fields("layer", "groups=2", bound=3)):
        for same in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), replace(value)):
            assert same == value
            assert hash(same) == hash(value)
    assert replace(sn.Sphere("groups=2"), view="layer").view == sn.View(None)
    with pytest.raises(FrozenInstanceError):
        sn.Sphere("groups=2").view = "layer"
    assert r.UnitClip(0.1) == r.UnitClip(0.1, sn.View(0)) != r.UnitClip(0.1, "layer")
