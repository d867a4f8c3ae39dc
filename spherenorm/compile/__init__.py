"""Faster steps of a rule, in place, that give the numbers of its own code.

`guard` divides a rule into its numbers, which are arguments, and the rest, which is the key of a
record. `graph` records the step and `schedule` divides it into passes over a weight. From these,
`cpp` writes one fused C++ kernel that `build` compiles and caches; `gpu` writes a few Triton kernels
that `launch` loads and launches; and `blocked` calls torch's own operations on cache-sized blocks.
`paths` wraps each of these and Inductor, `check` compares a path with the rule's own code before it
steps anything, and `dispatch` chooses for each weight. The rule stays the one definition of its
optimizer.
"""

from spherenorm.compile.dispatch import (
    BACKENDS,
    BackendError,
    Dispatcher,
    Group,
    Work,
    require_backend,
)

__all__ = ["BACKENDS", "BackendError", "Dispatcher", "Group", "Work", "require_backend"]
