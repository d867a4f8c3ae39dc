"""The update rules, one file per kind; a recipe is a chain of these.

See `spherenorm.Rule` to write your own.
"""

from typing import TYPE_CHECKING

from spherenorm.rules._blocks import Blocks
from spherenorm.rules._clip import UnitClip, UpdateFloor
from spherenorm.rules._decay import (
    CoupledDecay,
    DecoupledDecay,
    OrthogonalityRegularization,
    TargetNormDecay,
)
from spherenorm.rules._detector import AccumulatedInvarianceTest
from spherenorm.rules._entrywise import CautiousMask, Sign
from spherenorm.rules._invariance import InvarianceTest, UnitSums
from spherenorm.rules._length import NormalizedUpdate, SameLength
from spherenorm.rules._magnitude import Gain
from spherenorm.rules._momentum import (
    ExponentialAverage,
    FeedbackMomentum,
    HeavyBall,
    InterpolatedAverage,
)
from spherenorm.rules._orthogonalize import Orthogonalize
from spherenorm.rules._precision import StochasticRounding, Stored
from spherenorm.rules._preconditioner import AdaptiveMoments, RootMeanSquare, UnitMoments
from spherenorm.rules._projection import Centralization, RadialProjection, ScaleInvarianceTest
from spherenorm.rules._radius import RadiusPin
from spherenorm.rules._readout import WeightAverage
from spherenorm.rules._spectral import SpectralPin
from spherenorm.rules._step_size import StepSize
from spherenorm.rules._stiefel import EndsAt, StiefelProjection
from spherenorm.support import unknown_attribute

__all__ = [
    "AccumulatedInvarianceTest",
    "AdaptiveMoments",
    "Blocks",
    "CautiousMask",
    "Centralization",
    "CoupledDecay",
    "DecoupledDecay",
    "EndsAt",
    "ExponentialAverage",
    "FeedbackMomentum",
    "Gain",
    "HeavyBall",
    "InterpolatedAverage",
    "InvarianceTest",
    "NormalizedUpdate",
    "OrthogonalityRegularization",
    "Orthogonalize",
    "RadialProjection",
    "RadiusPin",
    "RootMeanSquare",
    "SameLength",
    "ScaleInvarianceTest",
    "Sign",
    "SpectralPin",
    "StepSize",
    "StiefelProjection",
    "StochasticRounding",
    "Stored",
    "TargetNormDecay",
    "UnitClip",
    "UnitMoments",
    "UnitSums",
    "UpdateFloor",
    "WeightAverage",
]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__ = unknown_attribute(__name__, __all__)
