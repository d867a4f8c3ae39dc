import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spherenorm as sn
from spherenorm import _registry as registry

ROOT = Path(__file__).parent.parent
COUNT = len(sn.recipes.__all__)
"""Of the library's recipes, which are registered first."""

MODULE = """
import spherenorm as sn

@sn.recipe
def mine(lr={lr}):
    return sn.chain(sn.rules.StepSize(lr))

Mine = sn.torch_optimizer(mine)
"""


@pytest.fixture
def recipes(monkeypatch):
    """A registry of the library's recipes alone."""
    library = dict(list(registry._registered.items())[:COUNT])
    monkeypatch.setattr(registry, "_registered", library)


@pytest.fixture
def write(recipes, monkeypatch, tmp_path):
    """Write a module with a recipe `mine`, and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, lr):
        (tmp_path / f"{name}.py").write_text(MODULE.format(lr=lr))
        written.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in written:
        del sys.modules[name]


def run(script, *arguments):
    """Run a file as a script, in its own folder."""
    ended = subprocess.run(
        [sys.executable, script.name, *arguments],
        cwd=script.parent,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_names():
    assert sorted(sn.recipe_names()[:COUNT]) == sn.recipes.__all__
    assert sn.find_recipe("adamp") is sn.recipes.adamp
    assert sn.find_recipe("spherenorm.recipes:adamp") is sn.recipes.adamp
    assert sn.bind(sn.recipes.adamp).name == "adamp"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adampp", r"no recipe is named 'adampp'; did you mean adamp"),
        ("zzz", "known: adam, adamc, adamg"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("spherenorm.recipes:adamq", "has no function 'adamq'; did you mean adam"),
    ],
)
def test_nothing_of_that_name(spec, message):
    with pytest.raises(ValueError, match=message):
        sn.find_recipe(spec)


def test_a_function_that_is_defined_again_replaces_the_one_before(recipes):
    def define():
        @sn.recipe
        def mine(lr=0.1):
            return sn.chain(sn.rules.StepSize(lr))

        return mine

    define()
    count = len(sn.recipe_names())
    again = define()  # a notebook cell run again
    assert sn.find_recipe("mine") is again
    assert sn.find_recipe(sn.bind(again).name) is again
    assert len(sn.recipe_names()) == count


def test_a_reloaded_module_replaces_its_recipe(write, tmp_path):
    module = write("users_one", 0.1)
    old = module.mine
    (tmp_path / "users_one.py").write_text(MODULE.format(lr="0.25 + 0.0"))
    importlib.reload(module)
    assert sn.find_recipe("mine") is module.mine is not old
    assert sn.bind("users_one:mine").defaults == {"lr": 0.25}


def test_two_modules_may_have_a_recipe_of_one_name(write):
    one = write("users_one", 0.1).mine
    assert sn.find_recipe("mine") is one
    assert sn.recipe_names()[COUNT:] == ["mine"]
    two = write("users_two", 0.2).mine
    assert sn.recipe_names()[COUNT:] == ["users_one:mine", "users_two:mine"]
    for found in (one, two):
        assert sn.find_recipe(sn.bind(found).name) is found
    assert [sn.find_recipe(name) for name in sn.recipe_names()[COUNT:]] == [one, two]
    with pytest.raises(ValueError, match="recipe 'mine' may be users_one:mine or users_two:mine"):
        sn.find_recipe("mine")


def test_the_librarys_names_always_mean_the_librarys_recipes(recipes):
    def sgd(lr=0.1):
        return sn.chain(sn.rules.StepSize(lr))

    library = sn.find_recipe("sgd")
    assert sn.recipe(sgd) is sgd
    assert sn.find_recipe("sgd") is library is sn.recipes.sgd
    assert (sn.bind(library).name, "sgd" in sn.recipe_names()[:COUNT]) == ("sgd", True)
    assert sn.bind(sgd).name == sn.recipe_names()[-1] != "sgd"
    assert sn.find_recipe(sn.bind(sgd).name) is sgd


def test_an_optimizer_goes_on_when_another_module_takes_its_recipes_name(write):
    def step(optimizer):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.ones_like(weight)
        optimizer.step()

    one = write("users_one", 0.1)
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]
    own = one.Mine(weights[:1])
    beside = sn.optim.SGD([{"params": weights[1:2], "recipe": "mine"}, {"params": weights[2:]}])
    write("users_two", 0.2)
    for optimizer in (own, beside):
        twins = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
        for each in (optimizer, *twins):
            each.load_state_dict(optimizer.state_dict())
            step(each)
            assert torch.equal(each.param_groups[0]["params"][0], torch.full((2,), 0.9))


@pytest.mark.parametrize("also_imported", [False, True])
def test_the_module_that_runs_is_not_a_second_one_under_its_own_name(tmp_path, also_imported):
    script = tmp_path / "f.py"
    script.write_text(
        MODULE.format(lr=0.1)
        + f"""
if __name__ == "__main__":
    if {also_imported}:
        import f
    found, named = sn.find_recipe("f:mine"), sn.find_recipe("mine")
    print(found is named, found is (f.mine if {also_imported} else mine), found.__module__)
    print(sn.find_recipe(sn.bind(mine).name) is mine, sn.recipe_names()[-1:] == ["mine"])
"""
    )
    assert run(script) == ["True", "True", "f" if also_imported else "__main__", "True", "True"]


def test_a_run_is_the_same_from_the_script_that_has_the_recipe_and_from_elsewhere(tmp_path):
    (tmp_path / "f.py").write_text(
        MODULE.format(lr=0.1)
        + """
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine.door import resolve
from spherenorm_experiments.engine import Store

if __name__ == "__main__":
    print(resolve(Spec("rosenbrock", "f:mine"), Store(".")).id)
"""
    )
    (tmp_path / "other.py").write_text(
        """
from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine.door import resolve
from spherenorm_experiments.engine import Store

print(resolve(Spec("rosenbrock", "f:mine"), Store(".")).id)
"""
    )
    assert run(tmp_path / "f.py") == run(tmp_path / "other.py")


def test_hyper_parameters_need_names():
    def loose(**hyper_parameters):
        return sn.chain()

    with pytest.raises(TypeError, match="hyper-parameters need names"):
        sn.recipe(loose)


def test_a_bound_recipe_has_all_its_hyper_parameters(recipes):
    bound = sn.bind("sgdp", lr=0.1)
    assert bound.recipe is sn.recipes.sgdp
    assert bound.hyper_parameters["lr"] == 0.1
    assert bound.hyper_parameters.keys() == bound.defaults.keys()
    assert bound.rule == sn.recipes.sgdp(lr=0.1)
    assert bound.rule is bound.rule
    assert str(bound) == "sgdp(lr=0.1)"
    other = bound.replace(momentum=0.9)
    assert (other.hyper_parameters["lr"], other.hyper_parameters["momentum"]) == (0.1, 0.9)
    assert bound.hyper_parameters["momentum"] == 0
    with pytest.raises(TypeError):
        bound.hyper_parameters["lr"] = 0.2


def test_what_cannot_be_bound_is_refused(recipes):
    def needs(lr, momentum=0.9):
        return sn.chain(sn.rules.HeavyBall(momentum), sn.rules.StepSize(lr))

    assert sn.bind(needs).hyper_parameters == {"momentum": 0.9}
    with pytest.raises(TypeError, match=r"needs\(\): .* missing 1 required"):
        sn.bind(needs).rule  # noqa: B018
    with pytest.raises(ValueError, match="no hyper-parameter 'momentun'; did you mean momentum"):
        sn.bind("sgd", momentun=0.9)
    with pytest.raises(ValueError, match=r"sgd\(lr=-1\): StepSize: lr must be in \[0, ∞\)"):
        sn.bind("sgd", lr=-1).rule  # noqa: B018
    with pytest.raises(TypeError, match="must return a rule, it returned 3"):
        sn.bind(lambda: 3).rule  # noqa: B018


@pytest.mark.parametrize("name", ["lr", "betas"])
def test_a_batched_number_is_shown_by_its_shape(name):
    def make(numbers):
        value = numbers if name == "lr" else (numbers, 0.9)
        return sn.bind("adam", **{name: value}).rule

    with pytest.raises(ValueError, match="0-dim tensor, got shape") as caught:
        torch.vmap(make)(torch.ones(2, 2))
    assert "<tensor of shape (2,)>" in str(caught.value)
    assert "Batched" not in str(caught.value)
    assert "lr=tensor(-1.)" in str(sn.bind("adam", lr=torch.tensor(-1.0)))
