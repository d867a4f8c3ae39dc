"""The update rules, one file per kind; a recipe is a chain of these.

See `spherenorm.Rule` to write your own.
"""

from spherenorm.rules._clip import UnitClip
from spherenorm.rules._decay import CoupledDecay, DecoupledDecay, OrthogonalityRegularization
from spherenorm.rules._detector import AccumulatedInvarianceTest
from spherenorm.rules._invariance import InvarianceTest, UnitSums
from spherenorm.rules._momentum import ExponentialAverage, FeedbackMomentum, HeavyBall
from spherenorm.rules._preconditioner import AdaptiveMoments, RootMeanSquare, UnitMoments
from spherenorm.rules._projection import RadialProjection, ScaleInvarianceTest
from spherenorm.rules._step_size import StepSize

__all__ = [
    "AccumulatedInvarianceTest",
    "AdaptiveMoments",
    "CoupledDecay",
    "DecoupledDecay",
    "ExponentialAverage",
    "FeedbackMomentum",
    "HeavyBall",
    "InvarianceTest",
    "OrthogonalityRegularization",
    "RadialProjection",
    "RootMeanSquare",
    "ScaleInvarianceTest",
    "StepSize",
    "UnitClip",
    "UnitMoments",
    "UnitSums",
]
