"""Recipes: the paper's optimizers, its baselines, and norm control since.

A recipe is a function from hyper-parameters to a rule, and reads like its algorithm:

    >>> rule = sgdp(lr=0.1, momentum=0.9)
    >>> rule.state_keys
    ('momentum',)

Names and defaults of the hyper-parameters are those of torch.optim and of the `adamp` package. A
rule raises ValueError for a number outside its interval, such as a momentum of 1.
`spherenorm.rules.ScaleInvarianceTest` explains views and `per`.

`spherenorm.wrappers` derives recipes from any recipe, such as `hyperball("lion")`, and
`spherenorm.zoo` has the optimizers of other libraries.
"""

from typing import TYPE_CHECKING

from spherenorm.recipes.adam import adam, adamc, adamp, adamw, lamb, lion, rmsprop
from spherenorm.recipes.matrix import mdmuon, muon, muonh, muown, normuon, scion
from spherenorm.recipes.sgd import lars, sgd, sgdp, sgdw
from spherenorm.recipes.sphere import adamg, adamh, ngpt, nora, orthograd, sgdg
from spherenorm.support import unknown_attribute

__all__ = [
    "adam",
    "adamc",
    "adamg",
    "adamh",
    "adamp",
    "adamw",
    "lamb",
    "lars",
    "lion",
    "mdmuon",
    "muon",
    "muonh",
    "muown",
    "ngpt",
    "nora",
    "normuon",
    "orthograd",
    "rmsprop",
    "scion",
    "sgd",
    "sgdg",
    "sgdp",
    "sgdw",
]

if not TYPE_CHECKING:  # A type checker would accept any name with a module __getattr__.
    __getattr__ = unknown_attribute(__name__, __all__)
