"""Fields of rules convert and check their own values, once."""

import copy
import pickle
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields, replace
from fractions import Fraction

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r


@dataclass(frozen=True)
class Viewed(sn.Rule):
    view: sn.ViewField = sn.view()
    other: sn.OptionalViewField = sn.view(None)
    several: sn.ViewsField = sn.views("channel", "dim=1")
    per: str = sn.choice("tensor", "unit")


def test_names_become_views():
    rule = Viewed("layer")
    assert rule.view == sn.View(None)
    assert rule.other is None
    assert rule.several == (sn.View(0), sn.View(1))
    assert rule == Viewed(sn.View(None))
    assert Viewed("layer", "groups=2", ["layer"]).several == (sn.View(None),)
    assert r.UnitClip(0.1) == r.UnitClip(0.1, sn.View(0))


def test_a_view_of_a_subclass_stays_what_it_is():
    class Own(sn.View):
        pass

    view = Own(0)
    assert Viewed(view).view is view


def test_a_field_without_a_default_needs_a_value():
    assert [f.name for f in fields(Viewed) if f.default is MISSING] == ["view"]
    with pytest.raises(TypeError, match="view"):
        Viewed()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Viewed("rows"), ValueError, "a view is \"channel\", .* got 'rows'"),
        (lambda: Viewed(None), ValueError, "got None"),
        (lambda: Viewed("layer", several="layer"), TypeError, "Viewed: several must be a sequence"),
        (lambda: Viewed("layer", per="row"), ValueError, 'per must be "tensor" or "unit", got'),
        (lambda: sn.Sphere("rows"), ValueError, "got 'rows'"),
        (lambda: r.ScaleInvarianceTest(views="channel"), TypeError, "a sequence of views"),
        (
            lambda: r.AccumulatedInvarianceTest(per="row"),
            ValueError,
            "Test: per must be",
        ),
    ],
)
def test_what_is_no_value_of_a_field_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_copies_and_pickles_hold_the_same():
    sphere = sn.Sphere("groups=2")
    for same in (copy.deepcopy(sphere), pickle.loads(pickle.dumps(sphere)), replace(sphere)):
        assert same == sphere
        assert hash(same) == hash(sphere)
    assert replace(sphere, view="layer").view == sn.View(None)
    with pytest.raises(FrozenInstanceError):
        sphere.view = "layer"


@pytest.mark.parametrize("name", sn.recipe_names())
def test_a_number_of_any_type_is_a_double(name):
    """A step by a Fraction or a numpy number is the step by the float of the same value."""
    weight = torch.randn(3, 4, dtype=torch.float64)
    grad = torch.randn(3, 4, dtype=torch.float64)
    known = sn.bind(name).defaults

    def of(kind):
        values = {"lr": kind(0.5), "momentum": kind(0.25), "betas": (kind(0.5), kind(0.75))}
        values |= {"weight_decay": kind(1), "wd_ratio": kind(0.25), "dampening": kind(0.125)}
        values |= {"nu": kind(0.5), "alpha": kind(0.5), "eps": kind(0.5), "delta": kind(0.125)}
        values |= {"max_lr": kind(1)}
        return {key: value for key, value in values.items() if key in known}

    def bound(**numbers):
        return sn.bind(name, **numbers).rule

    for kind in (Fraction, np.float32, np.float16):
        # A recipe that is called with numpy's numbers computes with them as numpy does.
        for make in (bound, sn.find_recipe(name)) if kind is Fraction else (bound,):
            rule, expected = make(**of(kind)), make(**of(float))
            assert rule == expected
            steps = [each.step(weight, grad, each.init(weight)) for each in (rule, expected)]
            torch.testing.assert_close(*steps, rtol=0, atol=0)


@dataclass(frozen=True)
class Composite(sn.Rule):
    """Two momenta, one after the other; of the states it only names them."""

    first: sn.Rule
    second: sn.Rule

    @property
    def state_names(self):
        return (*self.first.state_names, *self.second.state_names)

    def update(self, update, state):
        own = {name: state[name] for name in self.first.state_names}
        update, first = self.first.update(update, own)
        rest = {name: state[name] for name in self.second.state_names}
        update, second = self.second.update(update, rest)
        return update, {**first, **second}


def test_a_rule_transports_the_tangent_vectors_of_the_rules_within_it():
    rules = r.HeavyBall(0.9, buffer="a"), r.ExponentialAverage(0.5)
    assert [type(each) for each in Composite(*rules).tree()] == [Composite, *map(type, rules)]

    class Doubling:
        weight = torch.zeros(2)

        def transport(self, vector):
            return 2 * vector

    state = {"a": 1.0, "exp_avg": 2.0}
    expected = {"a": 2.0, "exp_avg": 4.0}
    assert Composite(*rules).transport(state, Doubling()) == expected
    assert sn.chain(Composite(*rules), r.StepSize(0.1)).transport(state, Doubling()) == expected
