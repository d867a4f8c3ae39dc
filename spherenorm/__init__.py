"""spherenorm: optimizers as pure compositions of update rules, for weights of which only the direction matters."""

from spherenorm import functional, invariance, metrics, optim, recipes, rules
from spherenorm.chain import chain
from spherenorm.compile import BackendError
from spherenorm.explanation import explain
from spherenorm.geometry import Euclidean, Sphere
from spherenorm.optim import torch_optimizer
from spherenorm.registry import find_recipe, recipe
from spherenorm.rule import Rule, hyper
from spherenorm.update import Update
from spherenorm.views import View

__all__ = [
    "BackendError",
    "Euclidean",
    "Rule",
    "Sphere",
    "Update",
    "View",
    "chain",
    "explain",
    "find_recipe",
    "functional",
    "hyper",
    "invariance",
    "metrics",
    "optim",
    "recipe",
    "recipes",
    "rules",
    "torch_optimizer",
]
__version__ = "0.1.0"
