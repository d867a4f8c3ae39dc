"""The update rules, one file per kind; a recipe is a chain of these. See `spherenorm.rule.Rule` to write your own."""

from spherenorm.rules.clip import UnitClip
from spherenorm.rules.decay import CoupledDecay, DecoupledDecay, OrthogonalityRegularization
from spherenorm.rules.detector import AccumulatedInvarianceTest
from spherenorm.rules.momentum import ExponentialAverage, FeedbackMomentum, HeavyBall
from spherenorm.rules.preconditioner import AdaptiveMoments, RootMeanSquare, UnitMoments
from spherenorm.rules.projection import RadialProjection, ScaleInvarianceTest
from spherenorm.rules.step_size import StepSize

__all__ = [
    "AccumulatedInvarianceTest",
    "AdaptiveMoments",
    "CoupledDecay",
    "DecoupledDecay",
    "ExponentialAverage",
    "FeedbackMomentum",
    "HeavyBall",
    "OrthogonalityRegularization",
    "RadialProjection",
    "RootMeanSquare",
    "ScaleInvarianceTest",
    "StepSize",
    "UnitClip",
    "UnitMoments",
]
