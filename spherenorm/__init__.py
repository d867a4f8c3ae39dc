"""Optimizers as pure compositions of update rules, for weights whose direction alone matters."""

from typing import TYPE_CHECKING

from spherenorm import (
    contrib,
    functional,
    metrics,
    optim,
    probes,
    recipes,
    rules,
    schedule,
    support,
    testing,
    wrappers,
    zoo,
)
from spherenorm.audit import audit, coordinate_check, param_groups, roles, transfer
from spherenorm.compile import BackendError
from spherenorm.explain import compare_paths, explain
from spherenorm.export import ExportError, export
from spherenorm.fields import Interval, choice, hyper, view, views
from spherenorm.manifolds import Euclidean, Manifold, Sphere, sphere_of
from spherenorm.numerics import Scalar, when
from spherenorm.optim import torch_optimizer
from spherenorm.partition import Partition, partition
from spherenorm.probes import probe
from spherenorm.registry import Bound, Recipe, bind, find_recipe, recipe, recipe_names
from spherenorm.rule import Chain, Rule, State, Update, chain
from spherenorm.rules.invariance import Invariance
from spherenorm.support import unknown_attribute
from spherenorm.views import View, as_view

__all__ = [
    "BackendError",
    "Bound",
    "Chain",
    "Euclidean",
    "ExportError",
    "Interval",
    "Invariance",
    "Manifold",
    "Partition",
    "Recipe",
    "Rule",
    "Scalar",
    "Sphere",
    "State",
    "Update",
    "View",
    "as_view",
    "audit",
    "bind",
    "chain",
    "choice",
    "compare_paths",
    "contrib",
    "coordinate_check",
    "explain",
    "export",
    "find_recipe",
    "functional",
    "hyper",
    "metrics",
    "optim",
    "param_groups",
    "partition",
    "probe",
    "probes",
    "recipe",
    "recipe_names",
    "recipes",
    "roles",
    "rules",
    "schedule",
    "sphere_of",
    "support",
    "testing",
    "torch_optimizer",
    "transfer",
    "view",
    "views",
    "when",
    "wrappers",
    "zoo",
]
__version__ = "0.2.0"

if not TYPE_CHECKING:  # which would take any name then
    __getattr__ = unknown_attribute(__name__, __all__)
