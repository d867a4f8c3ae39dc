"""Refusals of rules: numbers outside their interval, other shapes, missing tests, zero units."""

import dataclasses
import math
import re

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses

RULES = sorted(set(r.__all__) - {"InvarianceTest", "UnitSums"})
INNER = {
    "quantity": "turn",
    "rule": r.Sign(),
    "direction": r.Sign(),
    "gain": r.Sign(),
    "rules": (r.Sign(),),
}


def make(name, **given):
    """The rule with these values, and 0.5 or another rule where one is needed."""
    return make_from_class(getattr(r, name), **given)


def make_from_class(cls, **given):
    fields = [f for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    needed = {f.name: INNER.get(f.name, 0.5) for f in fields if f.name != "name"}
    return cls(**{**needed, **given})


@pytest.mark.parametrize("name", RULES)
def test_numbers_lie_in_the_intervals_of_the_documentation(name):
    numbers = [f for f in dataclasses.fields(getattr(r, name)) if "interval" in f.metadata]
    for field in (f.name for f in numbers):
        documented_interval = rf"\b{field}\b[^:]*:[^:]*? in ([\[(])(\d), (\d|inf)([\])])"
        left, low, high, right = re.search(documented_interval, getattr(r, name).__doc__).groups()
        low, high = float(low), float(high)
        within, outside = [low + (1e-9 if left == "(" else 0)], [low - 1e-9, math.nan, math.inf]
        (outside if left == "(" else within).append(low)
        if high < math.inf:
            within += [high - 1e-9, *([high] if right == "]" else [])]
            outside += [high + 1e-9, *([high] if right == ")" else [])]
        for value in within:
            assert getattr(make(name, **{field: value}), field) == value
        for value in outside:
            with refuses(name, field, value):
                make(name, **{field: value})
        for value in (True, "much"):
            with refuses(name, field, value, by=TypeError):
                make(name, **{field: value})
        with refuses(name, field, (2,)):
            make(name, **{field: torch.ones(2)})
        tensor = torch.tensor(-1.0)  # which is taken at its word
        assert getattr(make(name, **{field: tensor}), field) is tensor


@pytest.mark.parametrize("name", RULES)
def test_a_number_that_a_subclass_adds_is_checked(name):
    class More(getattr(r, name)):
        share: float = sn.hyper("[0, 1]", 0.5)

    assert make_from_class(More, share=1).share == 1
    with refuses("More", "share", 1.5):
        make_from_class(More, share=1.5)


@pytest.mark.parametrize("name", ["FixedNorm", "TargetNormDecay"])
def test_a_radius_is_a_positive_number(name):
    for value in (0.0, -1.0, math.inf, math.nan, True):
        with refuses(name, "radius", value):
            make(name, radius=value)
    assert make(name, radius=2).radius == 2


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("Blocks", {"shares": ()}, ["rules", "shares", 0]),
        ("Blocks", {"shares": (0,)}, ["shares", 0]),
        ("Blocks", {"shares": 0.5}, ["shares", 0.5]),
        ("Blocks", {"dims": 0}, ["dims", 0]),
        ("Orthogonalize", {"steps": 0}, ["steps", 0]),
        ("Orthogonalize", {"steps": 2.0}, ["steps", 2.0]),
        ("Orthogonalize", {"coefficients": "new"}, ["coefficients", "new", "polar_express"]),
        ("Orthogonalize", {"scale": "up"}, ["scale", "up", "spectral"]),
        ("Orthogonalize", {"precision": "half"}, ["precision", "half", "bfloat16"]),
        ("NormalizedUpdate", {"length": "two"}, ["length", "two", "weight"]),
        ("ScaleInvarianceTest", {"per": "row"}, ["per", "row", "unit"]),
        ("AccumulatedInvarianceTest", {"per": "row"}, ["per", "row", "unit"]),
        ("FixedNorm", {"radius": "first"}, ["radius", "first", "initial", "shape"]),
        ("TargetNormDecay", {"radius": "current"}, ["radius", "current", "initial"]),
        ("GainAndDirection", {"start": "two"}, ["start", "two", "norm", "one"]),
        (
            "GainAndDirection",
            {"start": "one", "free_norm": True},
            ["free_norm", "start", "one", "norm"],
        ),
    ],
)
def test_names_are_among_the_known_ones(name, given, named):
    with refuses(name, *named):
        make(name, **given)


VIEWED = [name for name in RULES if hasattr(make(name), "view")]


@pytest.mark.parametrize(
    "name", sorted({*VIEWED} - {"KeepNorm"})
)  # which refuses at its first step
def test_a_weight_without_such_units_is_refused_at_its_start(name):
    for view in ("dim=2", "groups=2"):
        with refuses(view, (3, 4)):
            make(name, view=view).init(torch.ones(3, 4))


@pytest.mark.parametrize("test", [r.ScaleInvarianceTest, r.AccumulatedInvarianceTest])
def test_nor_does_a_test_take_it(test):
    with refuses("groups=2", (3, 4)):
        test(views=("channel", "groups=2")).init(torch.ones(3, 4))
    with refuses("dim=2", (3, 4)):
        sn.chain(test(), manifold=sn.Sphere("dim=2")).init(torch.ones(3, 4))
    with refuses(test.__name__, "views", "channel", by=TypeError):
        test(views="channel")


@pytest.mark.parametrize("name", ["Orthogonalize", "FixedSpectralNorm", "StiefelProjection"])
def test_a_rule_of_matrices_refuses_a_vector(name):
    with refuses(name, (3,), "param_groups"):
        make(name).init(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("name", "given", "refused"),
    [
        ("FixedNorm", {}, True), ("FixedNorm", {"radius": "current"}, True),
        ("FixedNorm", {"radius": "intended"}, False), ("FixedNorm", {"radius": 1.0}, False),
        ("FixedNorm", {"radius": "shape"}, False),
        ("TargetNormDecay", {}, True), ("TargetNormDecay", {"radius": 1.0}, False),
        ("GainAndDirection", {}, True), ("GainAndDirection", {"start": "one"}, False),
    ],
)  # fmt: skip
def test_a_unit_of_0_is_refused_where_it_would_never_move(name, given, refused, dtype):
    rule, weight = make(name, view="channel", **given), torch.eye(2, dtype=dtype)
    rule.init(weight)
    weight[1] = 0
    if refused:
        with refuses(name, "channel", 0):
            rule.init(weight)
    else:
        rule.init(weight)
    rule.init(torch.zeros(2, 2, device="meta"))
    rule.init(torch.zeros(0, 2))


@pytest.mark.parametrize("views", ["layer channel", "channel layer", "channel dim=1"])
def test_moments_of_other_units_are_refused(views):
    weight, (one, other) = torch.ones(4, 6), views.split()
    state = make("UnitMoments", view=one).init(weight)
    with refuses("UnitMoments", other, tuple(state["exp_avg_sq"].shape)):
        make("UnitMoments", view=other).step(weight, weight, state)


@pytest.mark.parametrize("name", ["FixedNorm", "TargetNormDecay"])
@pytest.mark.parametrize("views", ["layer channel", "channel layer", "channel dim=1"])
def test_a_radius_of_other_units_is_refused(name, views):
    """It would broadcast: rows as long as the whole matrix, without a word."""
    weight, views = torch.ones(4, 6), views.split()
    state = make(name, view=views[0]).init(weight)
    with refuses("radius", views[1], tuple(state["radius"].shape)):
        make(name, view=views[1]).step(weight, weight, state)


def test_projection_and_ratio_need_a_test_before_them():
    weight = torch.ones(2, 2)
    decays = [r.DecoupledDecay(decay, ratio) for decay, ratio in ((0.0, 0.1), (0.1, None))]
    alone = [r.RadialProjection("layer"), *decays]
    for rule in (r.RadialProjection(), r.DecoupledDecay(0.1, invariant_ratio=0.1)):
        with refuses(type(rule).__name__, "ScaleInvarianceTest"):
            sn.chain(rule).step(weight, weight, {})
        alone.append(sn.chain(r.ScaleInvarianceTest(), rule))
    for rule in alone:
        sn.chain(rule).step(weight, weight, {})


def test_a_gain_refuses_rules_with_sums_over_all_weights():
    class Sized(sn.Rule):
        def global_sum_terms(self, update, state):
            return {"size": update.grad.norm()}

    for given in ((Sized(), r.Sign()), (r.Sign(), sn.chain(Sized()))):
        with refuses("GainAndDirection", "sums over all weights"):
            r.GainAndDirection(*given)


@pytest.mark.parametrize("text", ["[0, 1)", "[0, 1]", "(0, inf)", "(-inf, 1]"])
def test_the_ends_of_an_interval_belong_to_it_as_written(text):
    interval, ends = sn.Interval.parse(text), [float(x) for x in text[1:-1].split(", ")]
    assert [end in interval for end in ends] == [text[0] == "[", text[-1] == "]"]
    assert [x in interval for x in (1e-300, 0.5, 1 - 2e-16, math.nan)] == [True] * 3 + [False]
    assert [x in interval for x in (-1e-300, 1.1)] == [ends[0] < 0, ends[1] > 1]
    assert str(interval) == text.replace("inf", "∞")
    assert {interval} == {sn.Interval.parse(text)}
    for wrong, named in (
        ("0, 1", "0, 1"),
        ("[0,1)", "[0,1)"),
        ("[0, 1) ", "[0, 1) "),
        ("[a, b]", "a"),
    ):
        with refuses(named):
            sn.Interval.parse(wrong)
