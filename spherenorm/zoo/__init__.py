"""Zoo: optimizers of other libraries, each a chain of a few rules.

    >>> rule = sn.zoo.adopt(lr=0.01)
    >>> sn.find_recipe("adopt") is sn.zoo.adopt
    True
    >>> optimizer = sn.optim.Adopt([torch.zeros(3, requires_grad=True)], lr=0.01)

Names, wrappers and optimizer classes work as for `spherenorm.recipes`. `spherenorm.zoo.rules` has
the rules that the zoo adds to `spherenorm.rules`; each is defined beside the recipes that need it.
Names of hyper-parameters are those of `spherenorm.recipes`; defaults are those of the paper or of
its release.

The weights of schedule-free and lookahead optimizers are not the ones to evaluate with; those are
`rule.eval_weight(weight, state)`.
"""

from typing import TYPE_CHECKING

import spherenorm.recipes  # noqa: F401  # They register before the zoo's.
from spherenorm.support import unknown_attribute
from spherenorm.zoo import rules
from spherenorm.zoo.averages import (
    ademamix,
    aggmo,
    emanesterov_adamw,
    gpa_adamw,
    grokfast,
    lookahead_adamw,
    qhm,
    schedulefree_adamc,
    schedulefree_adamw,
    schedulefree_sgd,
)
from spherenorm.zoo.distance import dadapt_sgd, prodigy
from spherenorm.zoo.matrices import (
    adamuon,
    dion2,
    hyperp,
    mano,
    muon2,
    muoneq,
    polargrad,
    rmnp,
    rowfloor_muon,
)
from spherenorm.zoo.moments import (
    adabelief,
    adam_mini,
    adan,
    adopt,
    amsgrad,
    cautious_adamw,
    cautious_lion,
    grams,
    laprop,
    mars_adamw,
    mars_lion,
    signum,
    stable_adamw,
)
from spherenorm.zoo.preconditioners import adafactor, came, shampoo, soap
from spherenorm.zoo.sphere import (
    angularmuown,
    fromage,
    hyperspherical,
    layca,
    muonsphere,
    nero,
    oblique_sgd,
    spel,
)

__all__ = [
    "adabelief",
    "adafactor",
    "adam_mini",
    "adamuon",
    "adan",
    "ademamix",
    "adopt",
    "aggmo",
    "amsgrad",
    "angularmuown",
    "came",
    "cautious_adamw",
    "cautious_lion",
    "dadapt_sgd",
    "dion2",
    "emanesterov_adamw",
    "fromage",
    "gpa_adamw",
    "grams",
    "grokfast",
    "hyperp",
    "hyperspherical",
    "laprop",
    "layca",
    "lookahead_adamw",
    "mano",
    "mars_adamw",
    "mars_lion",
    "muon2",
    "muoneq",
    "muonsphere",
    "nero",
    "oblique_sgd",
    "polargrad",
    "prodigy",
    "qhm",
    "rmnp",
    "rowfloor_muon",
    "rules",
    "schedulefree_adamc",
    "schedulefree_adamw",
    "schedulefree_sgd",
    "shampoo",
    "signum",
    "soap",
    "spel",
    "stable_adamw",
]

if not TYPE_CHECKING:  # A type checker would accept any name with a module __getattr__.
    __getattr__ = unknown_attribute(__name__, __all__)
