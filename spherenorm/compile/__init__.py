"""Faster steps of a rule, in place, that give the numbers of its own code.

`backend=` chooses, for an optimizer or for one of its param_groups, how a step runs:

    "auto"      takes the recorded step of the library's rules: a C++ kernel on a CPU (a second at
                the first step; kernels are cached on disk), the horizontal executor on a GPU and
                for sharded weights. Where no kernel can be made the rule's own code runs, as it
                does for a rule class of yours.
    "rule"      runs the rule's own code at every step, for breakpoints and prints.
    "compiled"  takes the recorded step of your rules too, if they are pure functions of their
                fields, the update and the state. What cannot be recorded steps under
                `torch.func.vmap`; what cannot do that either raises `BackendError`.

`spherenorm.explain(optimizer)` tells which path each weight takes, and why.

A key divides a rule into its numbers, which are arguments of a record, and the rest. The recorded
step is lowered to a graph of scalars, rows and entries. `cpp` prints the passes that a schedule
makes of it as one kernel; the horizontal executor takes each node by one operation of torch on all
weights. Each is compared with the rule's own code before it steps anything. The rule stays the one
definition of its optimizer.
"""

from spherenorm.compile.backends import BACKENDS, BackendError, Group, Work, require_backend
from spherenorm.compile.dispatch import Dispatcher
from spherenorm.compile.key import RuleKey
from spherenorm.compile.memory import refusal
from spherenorm.compile.paths import HORIZONTAL

__all__ = [
    "BACKENDS",
    "HORIZONTAL",
    "BackendError",
    "Dispatcher",
    "Group",
    "RuleKey",
    "Work",
    "refusal",
    "require_backend",
]
