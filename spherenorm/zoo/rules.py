"""The update rules that the zoo adds to `spherenorm.rules`."""

from typing import TYPE_CHECKING

from spherenorm.rules.momentum import Lookahead, ScheduleFree, TrendLookahead
from spherenorm.support import unknown_attribute
from spherenorm.zoo.averages import AddSlowAverage, WeightedSum
from spherenorm.zoo.distance import DAdaptation, ProdigyStep
from spherenorm.zoo.matrices import (
    Alternate,
    NuclearNorm,
    PostStepDecay,
    RmsLength,
    SelectedMomentum,
)
from spherenorm.zoo.moments import (
    AdoptScale,
    CenteredMoments,
    DifferenceMoments,
    GradientSign,
    SecondMomentScale,
    UpdateClip,
    VarianceReduction,
)
from spherenorm.zoo.preconditioners import (
    Confidence,
    EigenbasisMoments,
    FactoredScale,
    KroneckerRoots,
    RmsLimit,
    WeightRms,
)

__all__ = [
    "AddSlowAverage",
    "AdoptScale",
    "Alternate",
    "CenteredMoments",
    "Confidence",
    "DAdaptation",
    "DifferenceMoments",
    "EigenbasisMoments",
    "FactoredScale",
    "GradientSign",
    "KroneckerRoots",
    "Lookahead",
    "NuclearNorm",
    "PostStepDecay",
    "ProdigyStep",
    "RmsLength",
    "RmsLimit",
    "ScheduleFree",
    "SecondMomentScale",
    "SelectedMomentum",
    "TrendLookahead",
    "UpdateClip",
    "VarianceReduction",
    "WeightRms",
    "WeightedSum",
]

if not TYPE_CHECKING:  # A type checker would accept any name with a module __getattr__.
    __getattr__ = unknown_attribute(__name__, __all__)
