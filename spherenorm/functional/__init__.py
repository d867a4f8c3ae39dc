"""Pure functions: steps of a dict of parameters, and whole sweeps as one batched computation."""

from spherenorm.functional.parameters import Params, init, step
from spherenorm.functional.sweep import Sweep, sweep

__all__ = ["Params", "Sweep", "init", "step", "sweep"]
