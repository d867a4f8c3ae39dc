"""Faster steps of a rule, in place, that give the numbers of its own code.

`backend=` chooses, for an optimizer or for one of its param_groups, how a step runs:

    "auto"      takes the recorded step of the library's rules: a C++ kernel on a CPU (a second at
                the first step; kernels are cached on disk), the batched executor on a GPU and for
                sharded weights. Where no kernel can be made the rule's own code runs, as it does
                for a rule class of yours.
    "rule"      runs the rule's own code at every step, for breakpoints and prints.
    "compiled"  takes the recorded step of your rules too, if they are pure functions of their
                fields, the update and the state. What cannot be recorded steps under
                `torch.func.vmap`; what cannot do that either raises `BackendError`.

`spherenorm.explain(optimizer)` shows which path each weight takes, and why.

The stages are `trace`, `graph`, `schedule`, `code`, `verify` and `run`, one file each; README.md
follows AdamP through them. The rule stays the one definition of its optimizer.
"""

from spherenorm.compile.code import read_header
from spherenorm.compile.interface import (
    BACKENDS,
    BackendError,
    GroupStep,
    Path,
    WeightStep,
    require_backend,
)
from spherenorm.compile.kernel import Export, load_function, threads
from spherenorm.compile.memory import why_not_steppable
from spherenorm.compile.paths import BATCHED_DEVICES, CUDA_KERNEL_DEVICES, needs_whole_states
from spherenorm.compile.rule_key import RuleKey
from spherenorm.compile.run import Dispatcher, compare_with_own_code
from spherenorm.compile.sharded.shards import is_distributed, shard_state

__all__ = [
    "BACKENDS",
    "BATCHED_DEVICES",
    "CUDA_KERNEL_DEVICES",
    "BackendError",
    "Dispatcher",
    "Export",
    "GroupStep",
    "Path",
    "RuleKey",
    "WeightStep",
    "compare_with_own_code",
    "is_distributed",
    "load_function",
    "needs_whole_states",
    "read_header",
    "require_backend",
    "shard_state",
    "threads",
    "why_not_steppable",
]
