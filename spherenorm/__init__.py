"""Optimizers as pure compositions of update rules, for weights whose direction alone matters."""

from spherenorm import (
    functional,
    metrics,
    optim,
    probes,
    recipes,
    rules,
    support,
    testing,
    toys,
    wrappers,
)
from spherenorm._chain import Chain, Combination, chain, sphere_of
from spherenorm._explanation import explain
from spherenorm._fields import (
    Interval,
    OptionalViewField,
    ViewField,
    ViewsField,
    choice,
    hyper,
    view,
    views,
)
from spherenorm._hooks import State
from spherenorm._manifold import Euclidean, Manifold, Retraction, Sphere
from spherenorm._numerics import Scalar, when
from spherenorm._registry import Bound, Recipe, bind, find_recipe, recipe, recipe_names
from spherenorm._rule import Rule, scalar_state
from spherenorm._update import Invariance, Update
from spherenorm._views import View, ViewLike, as_view
from spherenorm.audit import audit, param_groups, roles
from spherenorm.compile import BackendError
from spherenorm.optim import torch_optimizer
from spherenorm.probes import probe

__all__ = [
    "BackendError",
    "Bound",
    "Chain",
    "Combination",
    "Euclidean",
    "Interval",
    "Invariance",
    "Manifold",
    "OptionalViewField",
    "Recipe",
    "Retraction",
    "Rule",
    "Scalar",
    "Sphere",
    "State",
    "Update",
    "View",
    "ViewField",
    "ViewLike",
    "ViewsField",
    "as_view",
    "audit",
    "bind",
    "chain",
    "choice",
    "explain",
    "find_recipe",
    "functional",
    "hyper",
    "metrics",
    "optim",
    "param_groups",
    "probe",
    "probes",
    "recipe",
    "recipe_names",
    "recipes",
    "roles",
    "rules",
    "scalar_state",
    "sphere_of",
    "support",
    "testing",
    "torch_optimizer",
    "toys",
    "view",
    "views",
    "when",
    "wrappers",
]
__version__ = "0.1.0"
