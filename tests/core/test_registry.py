"""Recipes are found by name, and bound to values."""

import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses

ROOT = Path(sn.__file__).parents[1]
MODULE = """
import spherenorm as sn

@sn.recipe
def {recipe}(lr={lr}):
    return sn.chain(sn.rules.StepSize(lr))

Mine = sn.torch_optimizer({recipe}, "Mine")
"""


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Write a module with a recipe, and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name, recipe, lr):
        (tmp_path / f"{name}.py").write_text(MODULE.format(recipe=recipe, lr=lr))
        written.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    for name in written:
        del sys.modules[name]


def new_names(before):
    return [name for name in sn.recipe_names() if name not in before]


def run(script):
    """The words that a file prints as a script, in its own folder."""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    command = [sys.executable, script.name]
    ended = subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize("home", ["recipes", "zoo"])
def test_the_librarys_recipes_by_name(home):
    module = getattr(sn, home)
    names = {*module.__all__} - {"rules"}
    assert names <= set(sn.recipe_names())
    for name in names:
        recipe = getattr(module, name)
        assert sn.find_recipe(name) is recipe
        assert sn.find_recipe(f"spherenorm.{home}:{name}") is recipe
        assert sn.find_recipe(recipe) is recipe
        assert sn.bind(recipe).name == name


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("adampp", ("recipe", "adampp", "adamp", "module:function")),
        ("zzz", ("zzz", "sn.recipe_names()")),
        ("no_such_module:f", ("recipe", "no_such_module")),
        ("spherenorm.recipes:adamq", ("adamq", "adam", "spherenorm.recipes")),
        ("spherenorm.recipes:__all__", ("function", "__all__")),
        (":f", (":f",)),
        ("hyperbal(lion)", ("wrapper", "hyperbal", "hyperball")),
        ("hyperball(lionn)", ("recipe", "lionn", "lion")),
        ("cautious(hyperball(lion)", ("cautious(hyperball(lion)", "2 '('", "1 ')'")),
        ("cautious(lion))", ("1 '('", "2 ')'")),
        ("cautious()", ("cautious()", "lacks the recipe", "cautious(adamw)")),
    ],
)
def test_nothing_of_that_name(spec, named):
    with refuses(*named):
        sn.find_recipe(spec)


def test_what_is_no_recipe_is_refused():
    with refuses(3, "module:function", by=TypeError):
        sn.find_recipe(3)
    with refuses("loose", "hyper_parameters", by=TypeError):

        @sn.recipe
        def loose(**hyper_parameters):
            return sn.chain()

    with refuses("rates", by=TypeError):
        sn.bind(lambda *rates: sn.chain())


def test_a_function_that_is_defined_again_replaces_the_one_before():
    def define(number):
        @sn.recipe
        def cell(lr=number):
            return sn.chain(r.StepSize(lr))

        return cell

    before = sn.recipe_names()
    first, again = define(0.1), define(0.2)  # a notebook's cell, run again
    assert sn.find_recipe("cell") is again is not first
    assert sn.find_recipe(sn.bind(again).name) is again
    assert new_names(before) == ["cell"]


def test_a_reloaded_module_replaces_its_recipe(write, tmp_path):
    module = write("users_zero", "reloaded", 0.1)
    old = module.reloaded
    (tmp_path / "users_zero.py").write_text(MODULE.format(recipe="reloaded", lr="0.25 + 0.0"))
    importlib.reload(module)
    assert sn.find_recipe("reloaded") is module.reloaded is not old
    assert sn.bind("users_zero:reloaded").defaults == {"lr": 0.25}


def test_two_modules_may_have_a_recipe_of_one_name(write):
    before = sn.recipe_names()
    one = write("users_one", "shared", 0.1).shared
    assert sn.find_recipe("shared") is one
    assert new_names(before) == ["shared"]
    two = write("users_two", "shared", 0.2).shared
    assert new_names(before) == ["users_one:shared", "users_two:shared"]
    for found in (one, two):
        assert sn.find_recipe(sn.bind(found).name) is found
    with refuses("shared", "users_one:shared", "users_two:shared"):
        sn.find_recipe("shared")


def test_the_librarys_names_always_mean_the_librarys_recipes():
    def sgd(lr=0.1):
        return sn.chain(r.StepSize(lr))

    assert sn.recipe(sgd) is sgd
    assert sn.find_recipe("sgd") is sn.recipes.sgd
    assert sn.bind("sgd").name == "sgd" != sn.bind(sgd).name
    assert sn.bind(sgd).name in sn.recipe_names()
    assert sn.find_recipe(sn.bind(sgd).name) is sgd


def test_an_optimizer_goes_on_when_another_module_takes_its_recipes_name(write):
    one = write("users_three", "taken", 0.1)
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]
    own = one.Mine(weights[:1])
    beside = sn.optim.SGD([{"params": weights[1:2], "recipe": "taken"}, {"params": weights[2:]}])
    write("users_four", "taken", 0.2)
    for optimizer in (own, beside):
        twins = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
        for each in (optimizer, *twins):
            each.load_state_dict(optimizer.state_dict())
            for group in each.param_groups:
                for weight in group["params"]:
                    weight.grad = torch.ones_like(weight)
            each.step()
            assert torch.equal(each.param_groups[0]["params"][0], torch.full((2,), 0.9))


@pytest.mark.parametrize("also_imported", [False, True])
def test_the_module_that_runs_is_not_a_second_one_under_its_own_name(tmp_path, also_imported):
    script = tmp_path / "f.py"
    script.write_text(
        MODULE.format(recipe="mine", lr=0.1)
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


# Bound to values.


def test_a_bound_recipe_has_all_its_hyper_parameters():
    bound = sn.bind("sgdp", lr=0.1)
    assert bound.recipe is sn.recipes.sgdp
    assert bound.hyper_parameters["lr"] == 0.1
    assert bound.hyper_parameters.keys() == bound.defaults.keys()
    assert bound.rule == sn.recipes.sgdp(lr=0.1)
    assert bound.rule is bound.rule
    assert str(bound) == "sgdp(lr=0.1)"
    other = bound.replace(momentum=0.9)
    assert (other.hyper_parameters["lr"], other.hyper_parameters["momentum"]) == (0.1, 0.9)
    assert (bound.hyper_parameters["momentum"], str(sn.bind("sgdp"))) == (0, "sgdp()")
    assert "lr=tensor(-1.)" in str(sn.bind("adam", lr=torch.tensor(-1.0)))
    assert str(sn.bind("adam", betas=(0.5, 0.75))) == "adam(betas=(0.5, 0.75))"
    with pytest.raises(TypeError):
        bound.hyper_parameters["lr"] = 0.2


def test_what_cannot_be_bound_is_refused():
    def needs(lr, momentum=0.9):
        return sn.chain(r.HeavyBall(momentum), r.StepSize(lr))

    assert sn.bind(needs).hyper_parameters == {"momentum": 0.9}
    assert sn.bind(needs, lr=0.1).rule == needs(0.1)
    for bound, error, named in (
        (lambda: sn.bind(needs).rule, TypeError, ("needs()", "lr")),
        (lambda: sn.bind("sgd", momentun=0.9), ValueError, ("sgd", "momentun", "momentum")),
        (lambda: sn.bind("sgd", zzzzz=0.9), ValueError, ("zzzzz", *sn.bind("sgd").defaults)),
        (lambda: sn.bind("sgd").replace(momentun=0.9), ValueError, ("momentun", "momentum")),
        (lambda: sn.bind("adam", betas=(0.9,)).rule, ValueError, ("adam", "betas", 2, (0.9,))),
        (lambda: sn.bind("adam", betas=0.9).rule, ValueError, ("betas", 2, 0.9)),
        (lambda: sn.bind(lambda: 3).rule, TypeError, ("rule", 3)),
    ):
        with refuses(*named, by=error):
            bound()
    assert sn.bind("adam", betas=[0.5, 0.75]).rule == sn.recipes.adam(betas=(0.5, 0.75))


@pytest.mark.parametrize("name", ["AdamP", "Prodigy", "Muon"])
def test_an_optimizer_class_stands_for_its_recipe(name):
    cls = getattr(sn.optim, name)
    assert sn.find_recipe(cls) is cls.recipe
    assert sn.bind(cls).rule == sn.bind(cls.recipe).rule
    assert sn.wrappers.blocks(cls) is sn.wrappers.blocks(cls.recipe)
    assert sn.torch_optimizer(cls).recipe is cls.recipe


def test_an_exported_optimizer_class_is_its_recipe():
    assert str(sn.export(sn.optim.AdamP)) == str(sn.export("adamp"))


def test_the_class_of_a_rule_makes_one():
    assert sn.find_recipe(r.StepSize) is r.StepSize


def test_a_class_of_something_else_is_no_recipe():
    optimizer = sn.optim.SGD([torch.ones(2)])
    for other, named in (
        (torch.optim.AdamW, ("torch.optim.adamw.AdamW", "'adamw'")),
        (torch.nn.Linear, ("torch.nn.modules.linear.Linear",)),
        (sn.optim.RecipeOptimizer, ("RecipeOptimizer",)),
        (optimizer, ("SGD", "give its class")),
    ):
        with refuses(*named, by=TypeError):
            sn.find_recipe(other)


@pytest.mark.parametrize("number", [10**400, -(10**400), 10**5000], ids=["400", "-400", "5000"])
def test_a_number_beyond_all_floats_is_refused_by_name(number):
    for make in (
        lambda: sn.optim.SGD([torch.ones(2)], lr=number),
        lambda: sn.bind("lars", trust=number).rule,
        lambda: sn.bind("adamw", betas=(number, 0.9)).rule,
        lambda: r.StepSize(number),
    ):
        with refuses("larger than a float"):
            make()
    with refuses("sgd", "lr"):
        sn.optim.SGD([torch.ones(2)], lr=number)
    with refuses("StepSize", "lr"):
        r.StepSize(number)


@pytest.mark.parametrize(
    ("wrapped", "remedy"),
    [
        ("averaged(averaged(adamw))", "leave averaged(...) out"),
        ("averaged(schedulefree_sgd)", "leave averaged(...) out"),
        ("hyperball(averaged(adamw))", "averaged(hyperball(...))"),
        ("hyperball(schedulefree_adamw)", "take a recipe without one"),
    ],
)
def test_two_averages_are_refused_with_what_helps(wrapped, remedy):
    with refuses(remedy):
        sn.bind(wrapped).rule  # noqa: B018


@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        (sn, "expln", "explain"),
        (sn.optim, "AdmaP", "AdamP"),
        (sn.rules, "RadialProjecton", "RadialProjection"),
        (sn.recipes, "sgdpp", "sgdp"),
        (sn.zoo, "prodgy", "prodigy"),
        (sn.zoo.rules, "ScheduleFre", "ScheduleFree"),
    ],
)
def test_an_unknown_name_of_a_public_module_has_a_suggestion(module, name, near):
    with refuses(module.__name__, name, "did you mean", near, by=AttributeError):
        getattr(module, name)
    assert not hasattr(module, "__wrapped__")
