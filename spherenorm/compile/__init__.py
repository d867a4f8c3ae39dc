"""Compiled steps: a rule's own step, traced, turned into one fused kernel, and run in place.

`graph` traces the step, `cpp` writes it as C++, `build` compiles and caches that, `stepper` runs it on a param_group's
weights and hands to Inductor what the generator has no word for. The rule stays the one definition of its optimizer.
"""

from spherenorm.compile.stepper import step_blocked, step_compiled

__all__ = ["step_blocked", "step_compiled"]
