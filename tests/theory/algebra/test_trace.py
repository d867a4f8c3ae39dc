"""Traces: symbols, and errors that name what they are about."""

from dataclasses import dataclass, replace

import pytest
import sympy as sp
import torch

from spherenorm import Interval, Rule, bind, chain
from spherenorm import rules as r
from spherenorm_theory import TraceError, norm_growth, trace
from spherenorm_theory.algebra._branches import _is_machinery
from tests.theory.recipes import law_of


def test_hyper_parameters_become_symbols():
    traced = trace("adamp", nesterov=True)
    assert [*traced.symbols] == ["lr", "beta1", "beta2", "eps", "weight_decay", "delta", "wd_ratio"]
    assert traced.structure["nesterov"] is True
    assert traced.intervals["beta1"] == Interval.parse("[0, 1)")
    assert traced.values(betas=(0.8, 0.9))[traced.symbols["beta1"]] == 0.8
    assert "weight_decay" not in trace("adamp", weight_decay=0.0).symbols


def test_defaults_reach_the_symbols():
    assert {str(s) for s in trace("sgd").values()} == {
        n for n, v in bind("sgd").defaults.items() if not isinstance(v, bool)
    }


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("sgpd", {}, "did you mean"),
        ("sgd", {"rate": 1.0}, "no hyper-parameter 'rate'; it has lr"),
        ("sgd", {"momentum": 1.5}, r"sgd: HeavyBall: beta must be in \[0, 1\)"),
        ("adam", {"betas": 0.9}, r"adam: betas takes 2 numbers, such as \(0.9, 0.999\).* got 0.9"),
        ("adam", {"betas": (0.9,)}, "betas takes 2 numbers"),
        ("adam", {"betas": (0.9, "gamma")}, r"or \(beta1, beta2\) where one stays a symbol"),
        (":", {}, "no recipe is named ':'; known: adam, "),
        ("sgd:", {}, "no recipe is named 'sgd:'; did you mean sgd"),
    ],
)
def test_bad_input(name, given, message):
    with pytest.raises(ValueError, match=message):
        trace(name, **given)


@pytest.mark.parametrize(
    ("name", "given", "shape"),
    [
        ("sgdp", {"views": ("dim=1",)}, (5, 1)),
        ("sgdp", {"views": ("channel", "dim=1")}, (1, 1, 5)),
        ("sgdp", {"views": ("groups=1", "layer")}, (1, 5)),
        pytest.param("adamp", {"views": ("dim=1,groups=1",)}, (5, 1), marks=pytest.mark.long),
        ("sgdg", {"view": "dim=1"}, (5, 1)),
    ],
)
def test_the_traced_weight_is_one_unit_of_the_views(name, given, shape):
    law = law_of(name, **given)
    assert law.step.traced.shape == shape
    assert law.law == law_of(name).law


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (
            ("groups=2",),
            "sgdp: the view groups=2 makes 2 units of a weight or more.* "
            "under groups=1: give that view instead",
        ),
        (("dim=1,groups=4",), "under dim=1,groups=1: give"),
        (("channel", "dim=7"), "no shape is one unit under all of the views channel, dim=7"),
    ],
)
def test_views_of_several_units_are_refused(views, message):
    with pytest.raises(TraceError, match=message):
        norm_growth("sgdp", views=views)


def test_a_recipe_without_a_default():
    def needy(lr):
        return chain(r.StepSize(lr))

    with pytest.raises(ValueError, match="'lr' has no default, give a value: lr="):
        trace(needy)
    assert trace(needy, lr=0.1).symbols == {}


def test_a_function_that_is_no_recipe():
    with pytest.raises(TypeError, match="must return a rule"):
        trace(lambda lr=0.1: lr)


class Branching(Rule):
    def update(self, update, state):
        if update.grad.sum() > 0:
            update = type(update)(update.weight, update.grad, -update.direction)
        return update, {}


class Unknown(Rule):
    def update(self, update, state):
        return type(update)(update.weight, update.grad, torch.erfinv(update.direction)), {}


def test_a_branch_on_a_tensor_is_named():
    with pytest.raises(TraceError, match=r"takes a number out of a tensor .*torch\.where"):
        trace(lambda lr=0.1: chain(Branching(), r.StepSize(lr)))


class Forgetful(Rule):
    @property
    def state_names(self):
        return ("buf",)

    def update(self, update, state):
        return update, {}


def broken(lr=0.1):
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            lambda lr=0.1: chain(Forgetful(), r.StepSize(lr)),
            "Forgetful.*: update returns the state \\[\\], its states are \\['buf'\\]",
        ),
        (broken, r"test_trace:broken: RuntimeError: broken \(test_trace\.py:\d+\)"),
        (
            lambda lr=0.1: chain(r.RadialProjection(), r.StepSize(lr)),
            "needs a ScaleInvarianceTest before it",
        ),
        (lambda lr=0.1: chain(r.StepSize(lr / 0.0)), "ZeroDivisionError"),
    ],
)
def test_faults_of_a_recipe_are_named(recipe, message):
    with pytest.raises(TraceError, match=message):
        trace(recipe)


def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "unfinished_recipes.py").write_text("def mine(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match="'unfinished_recipes:mine' cannot be imported: SyntaxError"
    ):
        trace("unfinished_recipes:mine")


def test_a_branch_on_a_given_number_is_taken():
    def recipe(lr=0.1, momentum=0.9):
        return chain(*([r.HeavyBall(momentum)] if momentum > 0.5 else []), r.StepSize(lr))

    assert [*trace(recipe, momentum=0.9).symbols] == ["lr"]
    assert norm_growth(recipe, momentum=0.9).step.states["m"]["m"] == sp.Rational(9, 10)


def test_an_unknown_operation_is_named_with_its_line():
    with pytest.raises(
        TraceError, match=r"aten\.erfinv .*test_trace\.py:\d+: .*torch\.erfinv\(update\.direction\)"
    ):
        norm_growth(lambda lr=0.1: chain(Unknown(), r.StepSize(lr)))


@dataclass(frozen=True)
class Applies(Rule):
    """The direction by a function of it."""

    function: object

    def update(self, update, state):
        return replace(update, direction=self.function(update.direction)), state


def tripled(direction):
    factor = torch.tensor(2.0, dtype=torch.float64)
    factor.mul_(3)
    return direction * factor


def raised(direction):
    factor = torch.tensor(2.0, dtype=torch.float64)
    factor.view(1).add_(4)
    return direction * factor


@pytest.mark.parametrize("function", [tripled, raised])
def test_a_constant_is_written_into_once(function):
    law = norm_growth(lambda lr=0.1: chain(Applies(function), r.StepSize(lr)))
    (lr,) = law.step.traced.symbols.values()
    assert law.step.weight["g"] == -6 * lr


def test_an_operation_of_another_library_has_no_meaning_by_its_name():
    with torch.library._scoped_library("spherenorm_theory", "FRAGMENT") as library:
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", lambda x: x * x.abs(), "CompositeExplicitAutograd")
        square = torch.ops.spherenorm_theory.square
        with pytest.raises(TraceError, match=r"spherenorm_theory\.square has no meaning"):
            norm_growth(lambda lr=0.1: chain(Applies(square), r.StepSize(lr)))


def test_a_users_folder_may_be_called_torch():
    assert _is_machinery(torch.nn.__file__)
    assert not _is_machinery("torch/own.py")
