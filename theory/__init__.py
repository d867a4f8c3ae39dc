"""What the code of a recipe proves: norm-growth laws derived from its traced step."""

from theory.norm_growth import NormGrowth, norm_growth
from theory.trace import Trace, TraceError, trace

__all__ = ["NormGrowth", "Trace", "TraceError", "norm_growth", "trace"]
