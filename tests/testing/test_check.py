"""`check` passes on honest recipes, and names each dishonest rule, its promise and the argument."""

import importlib
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.testing import PROPERTIES, PromiseResult, Report, check
from tests.harness import refuses
from tests.harness.dishonest import DISHONEST, DISHONEST_APART, Honest, Notes
from tests.harness.tables import mostly_long

FAST = (
    "shapes",
    "writes into nothing",
    "pure",
    "dtypes",
    "finite",
    "acts",
    "ends",
    "vmap",
    "resumes",
)


class Factored(sn.Rule):
    """Adafactor's second moment of a matrix: a row and a column; other weights have the whole."""

    beta: float
    state_names = ("rows", "columns")

    def init(self, weight):
        moment = weight.new_zeros(weight.shape)
        moments = (moment.sum(1), moment.sum(0)) if weight.ndim == 2 else (moment, moment.sum())
        return dict(zip(self.state_names, moments, strict=True))

    def update(self, update, state):
        square = update.grad**2 + 1e-30
        moments = (square.sum(1), square.sum(0)) if square.ndim == 2 else (square, square.sum())
        rows, columns = (
            self.beta * old + (1 - self.beta) * now
            for old, now in zip(state.values(), moments, strict=True)
        )
        moment = rows[:, None] * columns / rows.sum() if square.ndim == 2 else rows
        return replace(update, direction=update.direction / moment.sqrt()), {
            "rows": rows,
            "columns": columns,
        }


class Clip(sn.Rule):
    """Directions divided by the norm of all gradients together."""

    def global_sum_terms(self, update, state):
        return {"square": (update.grad**2).sum()}

    def update(self, update, state):
        length = update.notes["square"].sqrt().to(update.direction.dtype)
        return replace(update, direction=update.direction / (1 + length)), {}


class Matrices(sn.Rule):
    def init(self, weight):
        if weight.ndim < 2:
            raise ValueError(f"a matrix is needed, got shape {tuple(weight.shape)}")
        return {}

    def update(self, update, state):
        return update, state


def factored(lr=0.01, betas=(0.8, 0.9)):
    return sn.chain(Factored(betas[0]), r.HeavyBall(betas[1]), r.StepSize(lr))


def clipped(lr=0.1, momentum=0.9, weight_decay=0.01):
    rules = r.HeavyBall(momentum), r.DecoupledDecay(weight_decay)
    return sn.chain(Clip(), *rules, r.StepSize(lr))


def matrices(lr=0.1):
    return sn.chain(Matrices(), r.StepSize(lr))


class Ahead(sn.Rule):
    """The gradient at w + 0.1 g."""

    def evaluate_at(self, update, state):
        return update.weight + 0.1 * update.grad

    def update(self, update, state):
        return update, {}


def ahead(lr=0.1, momentum=0.9):
    return sn.chain(Ahead(), r.HeavyBall(momentum), r.StepSize(lr))


def honest(lr=0.1, beta=0.9):
    """The rule of which all dishonest ones differ in one part."""
    return sn.chain(r.HeavyBall(0.5), Notes(), Honest(beta), r.StepSize(lr))


@pytest.mark.parametrize("recipe", [factored, clipped, matrices, ahead, honest, "adamp", "muonh"])
def test_honest_recipes_pass(recipe):
    report = check(recipe, only=FAST)
    assert report.passed, report
    assert [(result.name, result.verdict) for result in report] == [
        (name, "holds") for name in FAST
    ]


def assert_found(row, promises):
    report = check(row.recipe, only=promises)
    assert [result.name for result in report.failed] == [row.promise], report
    why = report[row.promise].why
    assert row.argument in why, report
    assert row.rule.__name__ in why or not row.named, report


@pytest.mark.parametrize("name", DISHONEST)
def test_a_dishonest_rule_is_found(name):
    """By its promise alone, as far as nothing else rests on that one."""
    assert_found(DISHONEST[name], FAST)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if row.promise == "compiled" else [])
        for name, row in DISHONEST_APART.items()
    ],
)
def test_a_dishonest_rule_is_found_compiled_or_sharded(name):
    row = DISHONEST_APART[name]
    assert_found(row, (*FAST, row.promise))


def test_what_is_compiled_or_sharded_has_the_numbers_of_the_rules_own_code():
    report = check("sgdp", momentum=0.9, only=("compiled", "sharded"))
    assert [result.verdict for result in report] == ["holds", "holds"], report
    (result,) = check(clipped, only=("compiled",))
    assert result.verdict == "refused"
    assert "Clip" in result.why


def test_refused_shapes_are_named():
    why = check(matrices, only=("shapes",))["shapes"].why
    for shape in ((5,), ()):
        assert f"a matrix is needed, got shape {shape}" in why
    assert "(4, 3)" in why

    class Nothing(sn.Rule):
        def init(self, weight):
            raise ValueError("no weight is right")

    (result,) = check(lambda lr=0.1: sn.chain(Nothing(), r.StepSize(lr)), only=("shapes",))
    assert result.verdict == "fails"
    assert "no weight is right" in result.why


@pytest.mark.parametrize("kind", [tuple, list])
def test_every_number_is_swept(kind):
    swept = check(factored, only=("vmap",), betas=kind((0.8, 0.9)))["vmap"].why
    assert swept.split(", ") == ["weights", "lr", "betas[0]", "betas[1]"]
    bare = check(lambda: sn.chain(r.StepSize(0.1)), only=("vmap",))["vmap"]
    assert bare.why == "weights"


@pytest.mark.parametrize("promise", ["shapes", "writes into nothing", "pure"])
def test_nothing_is_compared_once_a_foundation_fails(promise):
    broken = next(row for row in DISHONEST.values() if row.promise == promise)
    report = check(broken.recipe, only=(promise, "vmap", "resumes"))
    assert [result.verdict for result in report] == ["fails", "not run", "not run"]
    assert promise in report["vmap"].why


def test_a_check_that_takes_long_names_what_it_tries(monkeypatch, capsys):
    check(honest, only=("pure", "finite"))
    assert capsys.readouterr().err == ""
    module = importlib.import_module("spherenorm.testing.check")  # the package has the function
    monkeypatch.setattr(module, "QUIET_S", -1.0)
    check(honest, only=("pure", "finite"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["pure ...", "finite ..."]


def test_a_report_is_a_table_of_promises():
    report = check(honest, beta=0.5, only=("finite", "pure"))
    assert isinstance(report, Report)
    assert [result.name for result in report] == ["pure", "finite"], "in the order of PROPERTIES"
    assert report["finite"] == report.results[1]
    assert report.recipe.endswith(":honest")
    head, columns, *lines = str(report).splitlines()
    assert head == report.recipe
    assert columns.split() == ["promise", "verdict", "why"]
    assert [line.split()[:2] for line in lines] == [["pure", "holds"], ["finite", "holds"]]
    failed = PromiseResult("pure", "fails", "because")
    mixed = Report("mine", (failed, PromiseResult("law", "refused", "no law")))
    assert not mixed.passed
    assert mixed.failed == (failed,)
    assert Report("mine", mixed.results[1:]).passed


def test_wrong_requests_are_refused():
    with refuses("only", "purity", "pure"):
        check("sgd", only=("purity",))
    with refuses("adampp", "adamp"):
        check("adampp")
    with refuses("rate"):
        check("sgd", rate=0.1)
    with refuses("lr", -1.0):
        check("sgd", lr=-1.0)


def test_a_promise_of_ones_own(monkeypatch):
    def small(under_test):
        weight = under_test.make_weight((4, 3))
        new_weight, _ = under_test.run(under_test.make_rule(), weight, 1)
        assert torch.equal(new_weight, weight), "a step is large"
        return "steps of 0"

    monkeypatch.setitem(PROPERTIES, "small", small)
    holds = check("sgd", lr=0.0, only=("small",))["small"]
    assert holds == PromiseResult("small", "holds", "steps of 0")
    fails = check("sgd", only=("small",))["small"]
    assert fails == PromiseResult("small", "fails", "a step is large")


def undecayed(lr=0.1, weight_decay=0.1):
    return sn.chain(r.DecoupledDecay(weight_decay))


def decayed_behind(lr=0.1, weight_decay=0.0):
    return sn.chain(r.StepSize(lr), r.DecoupledDecay(weight_decay))


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [(undecayed, "lr acts nowhere"), (decayed_behind, "lr = 0 (and {'weight_decay': 0.5}) moves")],
)
def test_a_chain_without_a_step_size_or_with_decay_behind_it_is_found(recipe, sentence):
    (result,) = check(recipe, only=("acts",))
    assert result.verdict == "fails"
    assert sentence in result.why


def test_a_number_that_another_switches_on_acts():
    assert check("sgd", only=("acts",))["acts"].why.split(", ") == [
        *("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    ]


WRAPPED = (
    *("averaged(adamw)", "hyperball(lion)", "rotational(sgd)", "radial_brake(sgdp)"),
    *("low_precision(adamw)", "blocks(muon)", "hyperball(muon)", "rotational(adamw)"),
)


@pytest.mark.parametrize("name", mostly_long([*sn.recipe_names(), *WRAPPED], kept=12))
def test_every_number_of_a_recipe_acts_and_a_rate_of_zero_moves_nothing(name):
    (result,) = check(name, only=("acts",))
    assert result.verdict == "holds", result.why
