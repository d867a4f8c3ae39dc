"""Update rules, one file per kind; a recipe is a chain of rules.

See `spherenorm.Rule` to write your own.
"""

from typing import TYPE_CHECKING

from spherenorm.rules.adaptive import AdaptiveMoments, RootMeanSquare, UnitMoments
from spherenorm.rules.basic import CautiousMask, Sign, StepSize, UnitClip, UpdateFloor
from spherenorm.rules.decay import (
    CoupledDecay,
    DecoupledDecay,
    OrthogonalityRegularization,
    TargetNormDecay,
)
from spherenorm.rules.invariance import (
    AccumulatedInvarianceTest,
    InvarianceTest,
    ScaleInvarianceTest,
    UnitSums,
)
from spherenorm.rules.momentum import (
    ExponentialAverage,
    FeedbackMomentum,
    HeavyBall,
    InterpolatedAverage,
    Lookahead,
    PrimalAverage,
    ScheduleFree,
    TrendLookahead,
    WeightAverage,
)
from spherenorm.rules.norm import (
    FixedNorm,
    FixedSpectralNorm,
    GainAndDirection,
    Graft,
    KeepNorm,
    NormalizedUpdate,
)
from spherenorm.rules.orthogonalize import Orthogonalize, StiefelProjection
from spherenorm.rules.precision import LowPrecisionState, StochasticRounding
from spherenorm.rules.projection import Centralization, RadialProjection
from spherenorm.rules.structure import Blocks, Retraction
from spherenorm.rules.watch import Watch
from spherenorm.support import unknown_attribute

__all__ = [
    "AccumulatedInvarianceTest",
    "AdaptiveMoments",
    "Blocks",
    "CautiousMask",
    "Centralization",
    "CoupledDecay",
    "DecoupledDecay",
    "ExponentialAverage",
    "FeedbackMomentum",
    "FixedNorm",
    "FixedSpectralNorm",
    "GainAndDirection",
    "Graft",
    "HeavyBall",
    "InterpolatedAverage",
    "InvarianceTest",
    "KeepNorm",
    "Lookahead",
    "LowPrecisionState",
    "NormalizedUpdate",
    "OrthogonalityRegularization",
    "Orthogonalize",
    "PrimalAverage",
    "RadialProjection",
    "Retraction",
    "RootMeanSquare",
    "ScaleInvarianceTest",
    "ScheduleFree",
    "Sign",
    "StepSize",
    "StiefelProjection",
    "StochasticRounding",
    "TargetNormDecay",
    "TrendLookahead",
    "UnitClip",
    "UnitMoments",
    "UnitSums",
    "UpdateFloor",
    "Watch",
    "WeightAverage",
]

if not TYPE_CHECKING:  # A type checker would accept any name with a module __getattr__.
    __getattr__ = unknown_attribute(__name__, __all__)
