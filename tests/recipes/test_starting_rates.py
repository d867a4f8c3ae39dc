"""Each recipe's docstring has a learning rate to start from, and training from it goes well."""

import inspect
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn
from spherenorm.registry import is_builtin

BUILTIN_RECIPES = [
    name for name in sn.recipe_names() if ":" not in name and is_builtin(sn.find_recipe(name))
]
RATE = re.compile(r"^Start with lr = ([\d.]+)(, .*)? \(.+\)\.$", re.MULTILINE)
ON_SPHERES = ("sgdg", "adamg")
STEPS = 100
CLASSES = 10
CHANCE = 2.3
"""The loss of a guess: log(10)."""


def starting_values(recipe):
    """Return the hyper-parameters that a recipe's docstring says to start with."""
    matches = RATE.findall(inspect.getdoc(sn.find_recipe(recipe)))
    assert len(matches) == 1
    ((lr, others),) = matches
    values = {"lr": float(lr)}
    for name, value in re.findall(r", ([a-z]\w*) (\([^)]*\)|[\d.]+)", others):
        several = [float(x) for x in re.findall(r"[\d.]+", value)]
        values[name] = tuple(several) if value.startswith("(") else several[0]
    return values


@pytest.mark.parametrize("recipe", BUILTIN_RECIPES)
def test_a_docstring_has_a_rate_to_start_from(recipe):
    values = starting_values(recipe)
    defaults = sn.bind(recipe).defaults
    memory = [name for name in ("momentum", "betas") if name in defaults]
    assert not memory or set(memory) & set(values)
    assert sn.bind(recipe, **values).rule


def trained(recipe, values):
    """Return the loss on data that were held back."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, CLASSES)
    teacher = nn.Sequential(*layers)
    for weight in teacher.parameters():
        weight.data *= 3
    inputs = torch.randn(3072, 16)
    labels = teacher(inputs).argmax(1)
    net = nn.Sequential(
        *(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
    )
    optimizer_class = sn.torch_optimizer(recipe)
    hidden_weights = [net[2].weight, net[4].weight]
    others = [weight for weight in net.parameters() if not any(weight is x for x in hidden_weights)]
    if recipe in ON_SPHERES:
        for weight in hidden_weights:
            weight.data = sn.Sphere("channel").normalize(weight.data)
    groups = [{"params": hidden_weights}, {"params": others}]
    if recipe in ON_SPHERES or not_for_vectors(recipe):
        groups[1] |= {"recipe": "adamw", "lr": 1e-3}
    optimizer = optimizer_class(groups, **values)
    for _ in range(STEPS):
        rows = torch.randint(2304, (128,))
        optimizer.zero_grad()
        cross_entropy(net(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    optimizer.eval()
    return cross_entropy(net(inputs[2304:]), labels[2304:]).item()


def not_for_vectors(recipe):
    """True if a recipe refuses a bias, or holds its norm."""
    rule = sn.bind(recipe).rule
    holds = (sn.rules.FixedNorm, sn.rules.NormalizedUpdate, sn.rules.Orthogonalize)
    if any(isinstance(each, holds) for each in rule.walk()) and recipe not in ("lars", "lamb"):
        return True
    try:
        rule.init(torch.zeros(3))
    except ValueError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("recipe", BUILTIN_RECIPES)
def test_training_from_this_rate_goes_well(recipe):
    assert trained(recipe, starting_values(recipe)) < 0.75 * CHANCE
