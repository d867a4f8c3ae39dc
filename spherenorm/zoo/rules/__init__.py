"""Update rules that the zoo adds to `spherenorm.rules`, one file per kind.

Rules that end a step define `readout`, the weight to evaluate with.
"""

from typing import TYPE_CHECKING

from spherenorm.support import unknown_attribute
from spherenorm.zoo.rules._averages import Lookahead, ScheduleFree, TrendLookahead
from spherenorm.zoo.rules._combined import InTurn, WeightedSum
from spherenorm.zoo.rules._distance import DAdaptation, ProdigyStep
from spherenorm.zoo.rules._factored import Confidence, FactoredScale, RmsLimit, WeightRms
from spherenorm.zoo.rules._matrices import (
    DecayAfter,
    EigenbasisMoments,
    KroneckerRoots,
    NuclearNorm,
    RmsLength,
)
from spherenorm.zoo.rules._moments import (
    CenteredMoments,
    DifferenceMoments,
    GradientScale,
    GradientSign,
    PastScale,
    SlowGradient,
    SurpriseClip,
    VarianceReduction,
)

__all__ = [
    "CenteredMoments",
    "Confidence",
    "DAdaptation",
    "DecayAfter",
    "DifferenceMoments",
    "EigenbasisMoments",
    "FactoredScale",
    "GradientScale",
    "GradientSign",
    "InTurn",
    "KroneckerRoots",
    "Lookahead",
    "NuclearNorm",
    "PastScale",
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
