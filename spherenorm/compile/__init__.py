"""Compiled steps: a rule's own step, traced, turned into one fused kernel, and run in place.

`graph` traces the step and `schedule` divides it into passes. For a CPU `cpp` writes them as C++, which `build` compiles
and caches; for a GPU `gpu` writes them in Triton, which `launch` loads and launches. `stepper` runs all that on a
param_group's weights and hands to Inductor what the generators have no word for. The rule stays the one definition of its
optimizer.
"""

from spherenorm.compile.stepper import step_compiled

__all__ = ["step_compiled"]
