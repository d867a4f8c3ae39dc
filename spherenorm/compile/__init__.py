"""Faster steps of a rule, in place: its own step, traced once for each shape of weight, and run in fewer or larger pieces.

`graph` traces the step and `schedule` divides it into passes over a weight. From these, `cpp` writes one fused C++ kernel
that `build` compiles and caches; `gpu` writes a few Triton kernels that `launch` loads and launches; and `blocked` calls
torch's own operations on cache-sized blocks. `stepper` chooses for each weight, and hands to Inductor or to the rule's own
code what none of them has a word for. The rule stays the one definition of its optimizer.
"""

from spherenorm.compile.stepper import step_compiled, step_eager

__all__ = ["step_compiled", "step_eager"]
