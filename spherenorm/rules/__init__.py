"""The update rules, one file per kind; a recipe is a chain of these.

See `spherenorm.Rule` to write your own.
"""

from typing import TYPE_CHECKING

from spherenorm.rules.blocks import Blocks
from spherenorm.rules.clip import UnitClip, UpdateFloor
from spherenorm.rules.decay import (
    CoupledDecay,
    DecoupledDecay,
    OrthogonalityRegularization,
    TargetNormDecay,
)
from spherenorm.rules.detector import AccumulatedInvarianceTest
from spherenorm.rules.entrywise import CautiousMask, Sign
from spherenorm.rules.invariance import InvarianceTest, UnitSums
from spherenorm.rules.length import Graft, NormalizedUpdate
from spherenorm.rules.magnitude import Gain
from spherenorm.rules.momentum import (
    ExponentialAverage,
    FeedbackMomentum,
    HeavyBall,
    InterpolatedAverage,
)
from spherenorm.rules.orthogonalize import Orthogonalize
from spherenorm.rules.precision import LowPrecisionState, StochasticRounding
from spherenorm.rules.preconditioner import AdaptiveMoments, RootMeanSquare, UnitMoments
from spherenorm.rules.projection import Centralization, RadialProjection, ScaleInvarianceTest
from spherenorm.rules.radius import FixedNorm
from spherenorm.rules.spectral import FixedSpectralNorm
from spherenorm.rules.step_size import StepSize
from spherenorm.rules.stiefel import Retraction, StiefelProjection
from spherenorm.rules.weight_average import WeightAverage
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
    "Gain",
    "Graft",
    "HeavyBall",
    "InterpolatedAverage",
    "InvarianceTest",
    "LowPrecisionState",
    "NormalizedUpdate",
    "OrthogonalityRegularization",
    "Orthogonalize",
    "RadialProjection",
    "Retraction",
    "RootMeanSquare",
    "ScaleInvarianceTest",
    "Sign",
    "StepSize",
    "StiefelProjection",
    "StochasticRounding",
    "TargetNormDecay",
    "UnitClip",
    "UnitMoments",
    "UnitSums",
    "UpdateFloor",
    "WeightAverage",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__ = unknown_attribute(__name__, __all__)
