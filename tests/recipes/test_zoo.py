"""The zoo: its size, the weights that it reads out, and what its rules refuse."""

import ast
import inspect
import textwrap

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.zoo import rules as z
from tests.harness import ROWS, ZOO, gradient, refuses

LONGEST = 15
"""Lines of a recipe between its docstring and its end."""

NAMES = sorted({*sn.zoo.__all__} - {"rules"})


def test_each_recipe_has_a_row():
    assert {row.recipe for row in [*ROWS, *ZOO]} >= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_short_and_names_its_source(name):
    recipe = getattr(sn.zoo, name)
    function = ast.parse(textwrap.dedent(inspect.getsource(recipe))).body[0]
    docstring, *body = function.body
    assert body[-1].end_lineno - docstring.end_lineno <= LONGEST
    assert "\nSource: " in inspect.getdoc(recipe)


READ = {
    "schedulefree_sgd": "x",
    "schedulefree_adamw": "x",
    "schedulefree_adamc": "x",
    "gpa_adamw": "x",
    "lookahead_adamw": "slow",
    "emanesterov_adamw": "w",
}
"""The variable of its plain loop that each of these recipes reads out."""


@pytest.mark.parametrize("row", [row for row in ZOO if row.rule().has_eval_weight], ids=str)
def test_the_weight_to_evaluate_with_is_the_loops(row):
    name = READ[str(row.recipe)]
    lr = sn.bind(row.recipe, **row.settings).hyper_parameters["lr"]
    settings = {key: value for key, value in row.settings.items() if key != "lr"}
    weights = row.parameters()
    walks = [row.oracle(w.detach().clone(), **settings) for w in weights]
    theirs = [next(walk) for walk in walks]
    optimizer = row.optimizer(weights)
    for step in range(5):
        for weight in weights:
            generator = torch.Generator().manual_seed(step)
            weight.grad = gradient("random", weight.detach(), generator, step)
        optimizer.step()
        both = zip(walks, weights, strict=True)
        theirs = [walk.send((weight.grad, lr)) for walk, weight in both]
        with optimizer.evaluating():
            for walk, weight in zip(walks, weights, strict=True):
                read = walk.gi_frame.f_locals[name]  # where the loop stands now
                torch.testing.assert_close(weight.detach(), read, rtol=1e-12, atol=1e-14)
        for their, weight in zip(theirs, weights, strict=True):
            torch.testing.assert_close(weight.detach(), their, rtol=1e-12, atol=1e-14)


def test_rules_that_do_not_fit_together():
    with refuses("WeightedSum", 1, 2):
        z.WeightedSum((r.Sign(),), (1.0, 2.0))
    with refuses("Alternate", "momentum"):
        z.Alternate((r.HeavyBall(0.9),))
