"""Tracing and interpreting: symbols, errors that name what they are about, and both readings against float64."""

import inspect
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import sympy as sp
import torch
from torch.nn import functional

from spherenorm import Rule, chain
from spherenorm import rules as r
from spherenorm.registry import defaults, find_recipe, names
from tests.theory.gram import assert_matches_a_float64_step
from theory import TraceError, norm_growth, one_step, trace
from theory.coordinates import step_in_coordinates
from theory.one_step import letters
from theory.symbols import Space, Vector, exact, tidy, upright


def test_hyper_parameters_become_symbols():
    traced = trace("adamp", nesterov=True)
    assert [*traced.symbols] == ["lr", "beta1", "beta2", "eps", "weight_decay", "delta", "wd_ratio"]
    assert traced.structure["nesterov"] is True
    assert traced.intervals["beta1"] == "[0, 1)"
    assert traced.values(betas=(0.8, 0.9))[traced.symbols["beta1"]] == 0.8
    assert "weight_decay" not in trace("adamp", weight_decay=0.0).symbols


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("sgpd", {}, "did you mean"),
        ("sgd", {"rate": 1.0}, "no hyper-parameter 'rate'; it has lr"),
        ("sgd", {"momentum": 1.5}, r"sgd: HeavyBall: beta must be in \[0, 1\)"),
        ("adam", {"betas": 0.9}, r"adam: betas takes 2 numbers, such as \(0.9, 0.999\).* got 0.9"),
        ("adam", {"betas": (0.9,)}, "betas takes 2 numbers"),
        ("adam", {"betas": (0.9, "gamma")}, r"or \(beta1, beta2\) where one stays a symbol"),
        (":", {}, "no recipe is named ':'; known: sgd, "),
        ("sgd:", {}, "no recipe is named 'sgd:'; known: sgd, "),
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
        ("adamp", {"views": ("groups=1", "layer")}, (1, 5)),
        ("adamp", {"views": ("dim=1,groups=1",)}, (5, 1)),
        ("sgdg", {"view": "dim=1"}, (5, 1)),
    ],
)
def test_the_traced_weight_is_one_unit_of_the_views(name, given, shape):
    law = norm_growth(name, **given)
    assert law.step.traced.shape == shape
    assert law.law == norm_growth(name).law


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (
            ("groups=2",),
            "sgdp: the view groups=2 makes 2 units of a weight or more.* under groups=1: give that view instead",
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
            "Forgetful: update returns the state \\[\\], state_names says \\['buf'\\]",
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


@pytest.mark.parametrize("name", ["sgd", "sgdp", "adamw", "adamp"])
def test_numbers_trace_to_fused_operations_with_the_same_meaning(name):
    """A rule may use add(alpha=...) or lerp where a hyper-parameter is a number: same law as with symbols."""
    numbers = {
        "weight_decay": 0.25,
        **({"betas": (0.5, 0.75)} if "betas" in defaults(find_recipe(name)) else {"momentum": 0.5}),
    }
    general = one_step(name)
    free = {n: v for n, v in defaults(find_recipe(name)).items() if n not in numbers}
    values = {
        s: sp.nsimplify(v)
        for s, v in general.traced.values(**numbers).items()
        if s.name not in free
    }
    held = one_step(_with_constants(name, numbers))
    assert (
        held.inner(held.weight, held.weight)
        - general.inner(general.weight, general.weight).subs(values)
    ).simplify() == 0
    if name != "adamp":
        assert any(
            n.target.overloadpacket.__name__ in ("lerp", "add")
            for n in held.traced.graph.graph.nodes
            if n.op == "call_function"
        )


def _with_constants(name, numbers):
    """The recipe with `numbers` written into its code."""

    def recipe(**free):
        return find_recipe(name)(**free, **numbers)

    signature = inspect.signature(find_recipe(name))
    recipe.__signature__ = signature.replace(
        parameters=[p for n, p in signature.parameters.items() if n not in numbers]
    )
    return recipe


@dataclass(frozen=True)
class Scaled(Rule):
    """The direction times what a function of weight and direction gives."""

    function: object

    def update(self, update, state):
        return replace(
            update, direction=update.direction * self.function(update.weight, update.direction)
        ), {}


def scaled(function):
    return lambda lr=0.1, momentum=0.9: chain(
        Scaled(function), r.HeavyBall(momentum), r.StepSize(lr)
    )


NUMBERS = {
    "norm": lambda w, d: 1 / d.norm(),
    "norm of rows": lambda w, d: 1 / d.norm(dim=1, keepdim=True),
    "vector_norm": lambda w, d: torch.linalg.vector_norm(w) / torch.linalg.vector_norm(d),
    "normalize": lambda w, d: functional.normalize(d, dim=1) @ d.T,
    "cosine_similarity": lambda w, d: 2 + functional.cosine_similarity(w, w + d, dim=1),
    "dot": lambda w, d: torch.dot(w.flatten(), (w + d).flatten()),
    "vdot": lambda w, d: torch.vdot(d.flatten(), d.flatten()).rsqrt(),
    "einsum": lambda w, d: torch.einsum("ij,ij->i", d, d)[:, None],
    "a row": lambda w, d: (w @ w[0])[:, None],
    "clamp": lambda w, d: d.norm().clamp(max=1.5),
    "clamp_min": lambda w, d: d.norm().clamp_min(1.5),
    "clamp_max": lambda w, d: d.norm().clamp_max(1.5),
    "maximum": lambda w, d: torch.maximum(d.norm(), w.norm()),
    "full_like": lambda w, d: torch.full_like(d, 0.5),
    "zeros_like": lambda w, d: torch.zeros_like(d) + torch.ones(1, 1, dtype=d.dtype),
    "log": lambda w, d: torch.log(d.norm()),
    "tanh": lambda w, d: torch.tanh(d.norm()),
    "exp": lambda w, d: torch.exp(-d.square().mean()),
    "in place, by a view": lambda w, d: (
        (c := d.clone(), c.view(-1).mul_(2.0)) and (c * c).sum(1, keepdim=True)
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_functions_of_the_norms_match_a_float64_step(name):
    law = assert_matches_a_float64_step(
        scaled(NUMBERS[name]), {"lr": 0.3, "momentum": 0.6}, np.random.default_rng(7)
    )
    assert str(law.recursion[sp.Symbol("<w,m>", real=True)]) == "<w,m>*momentum - |s|^2/lr", (
        "Lemma 2.2, whatever scales the direction"
    )


ENTRIES = {
    "sign": lambda w, d: torch.sign(d),
    "sin": lambda w, d: torch.sin(d),
    "exp": lambda w, d: torch.exp(d),
    "log": lambda w, d: torch.log(d.abs()),
    "tanh": lambda w, d: torch.tanh(d),
    "clamp": lambda w, d: d.clamp(-0.5, 0.5),
    "minimum": lambda w, d: torch.minimum(d, w + d),
    "ge": lambda w, d: torch.where(d >= 0.1, d, -w),
    "le": lambda w, d: torch.where(d <= 0.1, d, w.new_full((), 3.0)),
    "ne": lambda w, d: torch.where((d != 0) & torch.logical_not(d == 1), d, w),
    "full": lambda w, d: d + torch.full((1, 3), 2.0, dtype=d.dtype),
    "zeros_like": lambda w, d: torch.where(d > 0, torch.zeros_like(d), 1 / torch.rsqrt(d**2)),
}


@pytest.mark.parametrize("name", [*NUMBERS, *ENTRIES])
def test_operations_in_coordinates_match_a_float64_step(name):
    rng = np.random.default_rng(7)
    recipe = scaled({**NUMBERS, **ENTRIES}[name])
    w, g, m = rng.normal(size=(3, 3))
    new, after, _ = step_in_coordinates(
        trace(recipe, dimension=3), _exact(w), _exact(g), m=_exact(m), lr=0.1, momentum=0.9
    )
    weight, state = recipe().step(
        torch.tensor(w)[None], torch.tensor(g)[None], {"momentum": torch.tensor(m)[None]}
    )
    np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        np.array(after["m"], dtype=float), state["momentum"], rtol=1e-12, atol=1e-14
    )


def test_other_norms_are_refused():
    with pytest.raises(
        TraceError, match=r"of all norms only the one with ord=2, got ord=1.*test_trace\.py"
    ):
        norm_growth(scaled(lambda w, d: d.norm(p=1)))


class Transposed(Rule):
    """The radial part by way of the transposed weight, whose sum over its first dimension is a sum over all entries."""

    def update(self, update, state):
        column = update.weight.T
        inner = (column * update.direction.T).sum(0) / (column * column).sum(0)
        return type(update)(
            update.weight, update.grad, update.direction - inner * update.weight
        ), {}


class Outer(Rule):
    def update(self, update, state):
        square = update.weight.T * update.weight
        return type(update)(update.weight, update.grad, update.direction @ square), {}


def test_shapes_are_followed():
    law = norm_growth(
        lambda lr=0.1, momentum=0.9: chain(r.HeavyBall(momentum), Transposed(), r.StepSize(lr))
    )
    assert law.cross == 0
    with pytest.raises(TraceError, match="outer product"):
        norm_growth(lambda lr=0.1: chain(Outer(), r.StepSize(lr)))


def test_the_undamped_start():
    past = one_step("sgd", weight_decay=0.0)
    start = one_step("sgd", weight_decay=0.0, first=True)
    tau = sp.Symbol("dampening", positive=True)
    assert tidy(past.states["m"]["g"] - (1 - tau)) == 0
    assert start.states["m"].terms == {"g": 1}


@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("name", names())
def test_coordinates_match_a_float64_step(name, invariant):
    rng = np.random.default_rng(len(name))
    recipe, traced = find_recipe(name), trace(name, dimension=3)
    w, g = rng.normal(size=3), rng.normal(size=3)
    if invariant:
        g -= w * (g @ w) / (w @ w)
    rule = recipe()
    state = {
        n: torch.tensor(rng.random(v.shape)) + 0.5 if v.ndim else v + 3
        for n, v in rule.init(torch.tensor(w)[None]).items()
    }
    letter = letters(traced)
    given = {letter[n]: _exact(v) if v.numel() > 1 else float(v) for n, v in state.items()}
    values = {str(s): v for s, v in traced.values().items()}
    new, after, _ = step_in_coordinates(traced, _exact(w), _exact(g), **values, **given)
    weight, states = rule.step(torch.tensor(w)[None], torch.tensor(g)[None], state)
    np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)
    for n, v in states.items():
        np.testing.assert_allclose(
            np.array(after[letter[n]], dtype=float), v, rtol=1e-12, atol=1e-14
        )


def _exact(x):
    return [sp.Float(float(v), 30) for v in np.ravel(x)]


@pytest.mark.parametrize("dimension", [2, 3])
def test_adamp_in_coordinates_is_orthogonal(dimension):
    traced = trace("adamp", dimension=dimension, weight_decay=0.0)
    w = [*sp.symbols("w1:4", positive=True)][:dimension]
    c = sp.Symbol("c", positive=True)
    g = [-c * w[1], c * w[0], sp.Integer(0)][:dimension]
    new, _, _ = step_in_coordinates(traced, w, g)
    moved = [n - a for n, a in zip(new[0], w, strict=True)]
    assert sp.simplify(sum(a * b for a, b in zip(moved, w, strict=True))) == 0


def test_coordinates_of_another_view_match_a_float64_step():
    rng, recipe = np.random.default_rng(1), find_recipe("sgdg")
    w, g = rng.normal(size=(2, 3, 1))
    new, _, _ = step_in_coordinates(
        trace(recipe, dimension=3, view="dim=1"), _exact(w), _exact(g), **trace_values(recipe)
    )
    rule = recipe(view="dim=1")
    weight, _ = rule.step(torch.tensor(w), torch.tensor(g), rule.init(torch.tensor(w)))
    np.testing.assert_allclose(np.array(new, dtype=float), weight, rtol=1e-12, atol=1e-14)


def trace_values(recipe):
    return {str(s): v for s, v in trace(recipe).values().items()}


def test_wrong_number_of_coordinates():
    with pytest.raises(ValueError, match="traced for dimension 2, the weight has 3"):
        step_in_coordinates(trace("sgd", dimension=2), [1, 2, 3], [0, 0, 0])


def test_defaults_reach_the_symbols():
    assert {str(s) for s in trace("sgd").values()} == {
        n for n, v in defaults(find_recipe("sgd")).items() if not isinstance(v, bool)
    }


def test_space():
    space = Space({("w", "g"): sp.Integer(0)})
    w, g = Vector.atom("w"), Vector.atom("g")
    assert space.inner(w + g, w - g) == space.gram("w", "w") - space.gram("g", "g")
    assert space.gram("m", "w") == space.gram("w", "m")
    assert (w - w).terms == {}
    assert str(w * sp.Integer(2) - g) == "2*w - g"


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.1, sp.Rational(1, 10)),
        (2, 2),
        (3.0, 3),
        (5**0.5, sp.sqrt(5)),
        (math.pi, sp.pi),
        (1 - 0.9, sp.Rational(1, 10)),
        (1 - 0.9999, sp.Rational(1, 10_000)),
        (-1 / 3, -sp.Rational(1, 3)),
        (1e-8, sp.Rational(1, 10**8)),
        (1.5e-17, sp.Rational(15, 10**18)),
        (0.123456789012, sp.Rational(123456789012, 10**12)),
    ],
)
def test_literals_are_exact(number, value):
    assert exact(number) == value


def test_forms():
    x, a = sp.symbols("x a", positive=True)
    assert tidy(sp.cos(a) ** 2 + sp.sin(a) ** 2 - 1) == 0
    assert tidy(2 * sp.sin(a / 2) ** 2 + sp.cos(a) - 1) == 0
    assert tidy(sp.cos(a) ** 2 - sp.sin(a) ** 2) != 0
    assert str(upright((x - 1) / (a - 1))) == "(1 - x)/(1 - a)"
