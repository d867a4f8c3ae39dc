"""Update rules that the zoo adds to `spherenorm.rules`, one file per kind.

Rules that end a step define `eval_weight`, the weight to evaluate with.
"""

from typing import TYPE_CHECKING

from spherenorm.support import unknown_attribute
from spherenorm.zoo.rules.averages import Lookahead, ScheduleFree, TrendLookahead
from spherenorm.zoo.rules.combined import Alternate, WeightedSum
from spherenorm.zoo.rules.distance import DAdaptation, ProdigyStep
from spherenorm.zoo.rules.factored import Confidence, FactoredScale, RmsLimit, WeightRms
from spherenorm.zoo.rules.matrices import (
    EigenbasisMoments,
    KroneckerRoots,
    NuclearNorm,
    PostStepDecay,
    RmsLength,
)
from spherenorm.zoo.rules.moments import (
    AdoptScale,
    CenteredMoments,
    DifferenceMoments,
    GradientScale,
    GradientSign,
    SlowGradient,
    SurpriseClip,
    VarianceReduction,
)

__all__ = [
    "AdoptScale",
    "Alternate",
    "CenteredMoments",
    "Confidence",
    "DAdaptation",
    "DifferenceMoments",
    "EigenbasisMoments",
    "FactoredScale",
    "GradientScale",
    "GradientSign",
    "KroneckerRoots",
    "Lookahead",
    "NuclearNorm",
    "PostStepDecay",
    "ProdigyStep",
    "RmsLength",
    "RmsLimit",
    "ScheduleFree",
    "SlowGradient",
    "SurpriseClip",
    "TrendLookahead",
    "VarianceReduction",
    "WeightRms",
    "WeightedSum",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__ = unknown_attribute(__name__, __all__)
