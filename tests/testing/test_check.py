"""`check` reports rightly on users' recipes, and names each planted fault."""

import re

import pytest

import spherenorm as sn
from spherenorm.testing import PROPERTIES, check
from tests.testing.planted import BARE_FAULTS, FAULTS, SLOW_FAULTS, recipe_of
from tests.testing.users import RECIPES

FAST = ("shapes", "writes into nothing", "pure", "dtypes", "finite", "vmap", "resumes")
SLOW = ("compiled", "sharded")

MATRICES = ("shampoo", "soap", "muon")
"""Those whose rule takes no vectors and numbers."""

REFUSED = {
    ("prodigy", "compiled"): "Prodigy measures all weights together",
    ("dadapt_sgd", "compiled"): "DAdaptation measures all weights together",
    ("clipped_adamw", "compiled"): "GlobalClip measures all weights together",
    ("sam_sgd", "compiled"): "Sam measures all weights together",
    ("sam_sgd", "sharded"): "the closure's gradients are the model's to shard",
}
"""By recipe and promise: the reason. All other promises of all recipes hold."""


def assert_as_in_the_table(name, promises):
    for finding in check(RECIPES[name], only=promises):
        reason = REFUSED.get((name, finding.name))
        assert finding.verdict == ("refused" if reason else "holds"), finding
        assert (reason or "") in finding.why


@pytest.mark.parametrize("name", RECIPES)
def test_users_recipes_keep_their_promises(name):
    assert_as_in_the_table(name, FAST)


@pytest.mark.long
@pytest.mark.parametrize("promise", SLOW)
@pytest.mark.parametrize("name", RECIPES)
def test_users_recipes_compiled_and_sharded(name, promise):
    assert_as_in_the_table(name, (promise,))


@pytest.mark.parametrize("name", MATRICES)
def test_a_refused_shape_is_named(name):
    why = check(RECIPES[name], only=("shapes",))["shapes"].why
    assert why.startswith("(4, 3), (3, 5), (3, 2, 2, 2), (1, 4), (0, 3); (5,) refused: ")
    assert "a matrix is needed, got shape (5,)" in why


@pytest.mark.parametrize("name", ["came", "prodigy", "adamc"])
def test_every_number_is_swept(name):
    swept = check(RECIPES[name], only=("vmap",))["vmap"].why.split(", ")
    given = sn.bind(RECIPES[name]).hyper_parameters.items()
    numbers = {key: len(value) if isinstance(value, tuple) else 0 for key, value in given}
    names = [[f"{key}[{i}]" for i in range(n)] if n else [key] for key, n in numbers.items()]
    assert swept == [each for one in names for each in one]


def assert_named(recipe, promises, promise, message):
    report = check(recipe, only=promises)
    assert [each.name for each in report.failed] == [promise], report
    assert re.search(message, report[promise].why), report
    return report


@pytest.mark.parametrize("rule", FAULTS, ids=lambda rule: rule.__name__)
def test_a_planted_fault_is_named_by_its_promise_alone(rule):
    assert_named(recipe_of(rule), FAST, *FAULTS[rule])


@pytest.mark.parametrize("rule", BARE_FAULTS, ids=lambda rule: rule.__name__)
def test_a_planted_fault_of_a_rule_in_no_chain(rule):
    assert_named(recipe_of(rule, alone=True), FAST, *BARE_FAULTS[rule])


@pytest.mark.long
@pytest.mark.parametrize("rule", SLOW_FAULTS, ids=lambda rule: rule.__name__)
def test_a_planted_fault_of_a_compiled_or_sharded_step(rule):
    assert_named(recipe_of(rule), tuple(PROPERTIES), *SLOW_FAULTS[rule])


def test_nothing_is_compared_once_a_foundation_fails():
    broken = next(rule for rule, (promise, _) in FAULTS.items() if promise == "pure")
    report = check(recipe_of(broken), only=("pure", "vmap", "resumes"))
    assert [each.verdict for each in report] == ["fails", "refused", "refused"]
    assert report["vmap"].why == "not tried, since 'pure' fails"
