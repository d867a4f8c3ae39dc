"""Faster steps of a rule, in place, that give the numbers of its own code.

`backend=` chooses, for an optimizer or for one of its param_groups, how a step runs:

    "auto"      makes kernels of the library's rules: of C++ on a CPU, of Triton on a GPU (seconds
                at the first step; kernels are cached on disk). Where that is not possible, and for
                a rule class of yours, the rule's own code runs.
    "rule"      runs the rule's own code at every step, for breakpoints and prints.
    "compiled"  makes kernels of your rules too, if they are pure functions of their fields, the
                update and the state, or uses Inductor; what cannot be compiled raises
                `BackendError`.

`spherenorm.explain(optimizer)` tells which path each weight takes, and why.

A guard divides a rule into its numbers, which are arguments, and the rest, which is the key of a
record. The recorded step is lowered to a graph, and the schedule divides it into passes over a
weight. From these, `cpp` makes one fused C++ kernel, and `gpu` a few Triton kernels. Each path is
compared with the rule's own code before it steps anything. The rule stays the one definition of its
optimizer.
"""

from spherenorm.compile._backends import BACKENDS, BackendError, Group, Work, require_backend
from spherenorm.compile._dispatch import Dispatcher
from spherenorm.compile._guard import Guard
from spherenorm.compile._memory import refusal

__all__ = [
    "BACKENDS",
    "BackendError",
    "Dispatcher",
    "Group",
    "Guard",
    "Work",
    "refusal",
    "require_backend",
]
