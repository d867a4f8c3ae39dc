"""Traces: symbols, formal vectors, and errors that name what they are about."""

import pytest
import sympy as sp
import torch

from spherenorm import Interval, Rule, chain
from spherenorm import rules as r
from spherenorm_theory import TraceError, interpreter, norm_growth, trace
from spherenorm_theory.vectors import AtomKind
from tests.harness import refuses
from tests.theory.recipes import By, by, law_of


def test_hyper_parameters_become_symbols():
    traced = trace("adamp", nesterov=True)
    assert [*traced.symbols] == ["lr", "beta1", "beta2", "eps", "weight_decay", "delta", "wd_ratio"]
    assert traced.static_arguments["nesterov"] is True
    assert traced.intervals["beta1"] == Interval.parse("(0, 1)")
    values = traced.free_values(betas=(0.8, 0.9), weight_decay=0.1)
    assert values[traced.symbols["beta1"]] == 0.8
    assert "weight_decay" not in trace("adamp", weight_decay=0.0).symbols


def memory(lr=0.1, n=10.0):
    return chain(r.HeavyBall(1 - 1 / n), r.StepSize(lr))


def double(lr=0.1, n=0.4):
    return chain(r.HeavyBall(2 * n), r.StepSize(lr))


def shared(lr=0.1, n=0.9, b=0.9):
    """Up to where n may go depends on b."""
    return chain(r.HeavyBall(n * b), r.StepSize(lr))


@pytest.mark.parametrize(
    ("recipe", "interval"), [(memory, "(1, inf)"), (double, "(0, 0.5)"), (shared, "(0, inf)")]
)
def test_an_interval_holds_what_the_rules_accept(recipe, interval):
    """The hyper-parameter n reaches no field of a rule unchanged."""
    assert trace(recipe).intervals["n"] == Interval.parse(interval)


def test_zero_is_structure_and_no_number_of_a_law():
    """Intervals are open: -|s|^2 / lr says nothing of a rate of 0."""
    traced = trace("sgd")
    assert all(str(interval).startswith("(") for interval in traced.intervals.values())
    for name in ("lr", "momentum"):
        with refuses(name, "(0", "0.0"):
            traced.free_values(
                **{"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1, name: 0.0}
            )
    assert "in [0" not in str(norm_growth("sgd"))


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("sgpd", {}, ["sgpd", "sgd"]),
        ("sgd", {"rate": 1.0}, ["rate", "lr"]),
        ("sgd", {"momentum": 1.5}, ["sgd: HeavyBall: beta", "[0, 1)"]),
        ("adam", {"betas": 0.9}, ["betas", "(0.9, 0.999)"]),
        ("adam", {"betas": (0.9,)}, ["betas", "2 numbers"]),
        ("adam", {"betas": (0.9, "beta2")}, ["betas", "2 numbers"]),
        ("sgd:", {}, ["'sgd:'", "sgd"]),
    ],
)
def test_bad_input(name, settings, named):
    with refuses(*named):
        trace(name, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "shape"),
    [
        ("sgdp", {"views": ("dim=1",)}, (5, 1)),
        ("sgdp", {"views": ("channel", "dim=1")}, (1, 1, 5)),
        ("sgdp", {"views": ("groups=1", "layer")}, (1, 5)),
        pytest.param("adamp", {"views": ("dim=1,groups=1",)}, (5, 1), marks=pytest.mark.long),
        ("sgdg", {"view": "dim=1"}, (5, 1)),
    ],
)
def test_the_traced_weight_is_one_unit_of_the_views(name, settings, shape):
    law = law_of(name, **settings)
    assert law.step.traced.shape == shape
    assert law.equation == law_of(name).equation


@pytest.mark.parametrize(
    ("views", "named"),
    [
        (("groups=2",), ["sgdp", "groups=2", "2 units", "groups=1"]),
        (("dim=1,groups=4",), ["dim=1,groups=1"]),
        (("channel", "dim=7"), ["channel, dim=7"]),
    ],
)
def test_views_of_several_units_are_refused(views, named):
    with refuses(*named, by=TraceError):
        norm_growth("sgdp", views=views)


def test_a_recipe_without_a_default():
    def needy(lr):
        return chain(r.StepSize(lr))

    with refuses("lr", "lr="):
        trace(needy)
    assert trace(needy, lr=0.1).symbolic == {}
    with refuses("rule", by=TypeError):
        trace(lambda lr=0.1: lr)


def broken(lr=0.1):
    raise RuntimeError("broken")


def ruled(rule):
    return lambda lr=0.1: chain(rule, r.StepSize(lr))


class Forgetful(Rule):
    state_names = ("buf",)

    def update(self, update, state):
        return update, {}


@pytest.mark.parametrize(
    ("recipe", "named"),
    [
        (
            ruled(By(lambda w, d: -d if d.sum() > 0 else d)),
            ["number out of a tensor", "torch.where"],
        ),
        (broken, ["test_tracing:broken", "RuntimeError: broken", "test_tracing.py:"]),
        (ruled(Forgetful()), ["Forgetful", "buf"]),
        (ruled(r.RadialProjection()), ["ScaleInvarianceTest"]),
        (lambda lr=0.1: chain(r.StepSize(lr / 0.0)), ["ZeroDivisionError"]),
        (
            ruled(By(lambda w, d: torch.erfinv(d))),
            ["aten.erfinv", "test_tracing.py:", "torch.erfinv(d)"],
        ),
    ],
)
def test_faults_of_a_recipe_are_named(recipe, named):
    with refuses(*named, by=TraceError):
        norm_growth(recipe)


def test_a_branch_on_a_given_number_is_taken():
    def recipe(lr=0.1, momentum=0.9):
        return chain(*([r.HeavyBall(momentum)] if momentum > 0.5 else []), r.StepSize(lr))

    assert [*trace(recipe, momentum=0.9).symbolic] == ["lr"]
    assert norm_growth(recipe, momentum=0.9).step.states["m"]["m"] == sp.Rational(9, 10)


def raised(w, direction):
    factor = torch.tensor(2.0, dtype=torch.float64)
    factor.mul_(1).view(1).add_(4)
    return direction * factor


def test_a_constant_is_written_into_once():
    law = norm_growth(ruled(By(raised)))
    (lr,) = law.step.traced.symbols.values()
    assert law.step.weight["g"] == -6 * lr


def test_an_operation_of_another_library_has_no_meaning_by_its_name():
    with torch.library._scoped_library("spherenorm_theory", "FRAGMENT") as library:
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", lambda x: x * x.abs(), "CompositeExplicitAutograd")
        square = torch.ops.spherenorm_theory.square
        with refuses("spherenorm_theory.square", by=TraceError):
            norm_growth(ruled(By(lambda w, d: square(d))))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda w, d: d * torch.tensor(float(d.numel())), ["depends on the shape"]),
        (lambda w, d: d * (2.0 if d.numel() > 6 else 1.0), ["1 for 5 entries, 2 for 7"]),
        (lambda w, d: d + d if d.numel() > 6 else d, ["other operations", "5 and 7 entries"]),
        (lambda w, d: d * torch.rand(()), ["aten.rand"]),
    ],
)
def test_a_size_or_chance_that_no_law_can_hold_is_refused(function, named):
    with refuses(*named, by=TraceError):
        norm_growth(ruled(By(function)))


def test_a_law_may_hold_the_size_of_the_unit():
    law = norm_growth(ruled(By(lambda w, d: d * d.numel() ** 0.5)))
    assert sp.Symbol("d", positive=True) in law.drive["g"].free_symbols


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda w, d: d * d.norm(p=1), ["ord=2", "ord=1", "test_tracing.py"]),
        (lambda w, d: d @ (w.T * w), ["entries of a unit are paired with other ones"]),
    ],
)
def test_what_is_of_no_inner_product_is_refused(function, named):
    with refuses(*named, by=TraceError):
        norm_growth(by(function))


def test_shapes_are_followed():
    """The radial part by way of the transposed weight, whose sums are those of all entries."""

    def transposed(lr=0.1, momentum=0.9):
        def tangent(w, d):
            return d - (w.T * d.T).sum(0) / (w.T * w.T).sum(0) * w

        return chain(r.HeavyBall(momentum), By(tangent), r.StepSize(lr))

    law = norm_growth(transposed)
    assert law.cross == 0
    assert not law.verified_domain.multi_unit


def test_an_operation_has_one_rule_in_the_registry(monkeypatch):
    """An operation without a rule is refused by its name; one rule gives it a meaning."""
    monkeypatch.setattr(interpreter, "HANDLERS", dict(interpreter.HANDLERS))
    arctangent = by(lambda w, d: torch.atan(d))
    with refuses("aten.atan has no meaning on formal vectors (no recipe", by=TraceError):
        norm_growth(arctangent)

    @interpreter.register(torch.ops.aten.atan)
    def atan(ops, x):
        return ops.apply(AtomKind.DIRECTION, sp.atan, x)

    assert "atan(g_t)" in str(norm_growth(arctangent))


def test_a_rule_that_is_wrong_gives_no_law(monkeypatch):
    monkeypatch.setattr(interpreter, "HANDLERS", dict(interpreter.HANDLERS))

    @interpreter.register(torch.ops.aten.atan)
    def atan(ops, x):
        return ops.apply(AtomKind.DIRECTION, sp.tanh, x)

    with refuses("differs from the step of the code", by=TraceError):
        norm_growth(by(lambda w, d: torch.atan(d)))
