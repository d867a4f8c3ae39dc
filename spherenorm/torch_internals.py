"""Every private name of torch that the library uses, so that a new torch is read against one file.

Public functions of torch would do for none of these: they do not exist, import the compiler, or
take longer than the operation that they guard. All were read in torch 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import _LinAlgError as LinAlgError  # type: ignore[attr-defined]
from torch._ops import OpOverload
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as disable_dispatch_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

__all__ = [
    "DeviceContext",
    "LinAlgError",
    "OpOverload",
    "TorchDispatchMode",
    "copy_tensors",
    "count_dispatch_modes",
    "disable_dispatch_modes",
    "dispatch_modes",
    "function_modes",
    "in_forward_mode",
    "in_functorch_transform",
    "is_alias",
    "is_any_autocast_enabled",
    "is_batched",
    "is_dynamo_imported",
    "is_flattened_by_fsdp",
    "is_functorch_tensor",
    "load_state_dict_hooks",
    "pytree",
    "request_graph_break",
    "unwrap_functorch",
    "write_count",
]

# Aliases and not functions of our own: these run several times in every step of every weight.
copy_tensors = torch._foreach_copy_
"""Copy a list of tensors into a list of others, in one operation."""
count_dispatch_modes = torch._C._len_torch_dispatch_stack
"""Return how many `TorchDispatchMode`s are active."""
is_alias = torch._C._is_alias_of  # type: ignore[attr-defined]
"""Return whether two tensors share their storage."""
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Return whether autocast is on for any device."""
is_batched = torch._C._functorch.is_batchedtensor
"""Return whether the outermost transform of a tensor is a vmap."""
is_functorch_tensor = torch._C._functorch.is_functorch_wrapped_tensor
"""Return whether a tensor belongs to a transform of torch.func."""
unwrap_functorch = torch._C._functorch.get_unwrapped
"""Return the tensor inside the outermost transform of torch.func."""


def in_functorch_transform() -> bool:
    """Return whether a transform of torch.func, such as vmap, is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def in_forward_mode() -> bool:
    """Return whether derivatives in forward mode are being taken; they are under `no_grad` too."""
    return torch.autograd.forward_ad._current_level >= 0


def is_dynamo_imported() -> bool:
    """Return whether Dynamo is imported; before that, nothing is compiled. Its import is slow."""
    return "torch._dynamo" in sys.modules


def request_graph_break(reason: str) -> None:
    """End the graph that torch.compile is tracing, or fail with `reason` if it must be whole."""
    torch._dynamo.graph_break(msg=reason)


def write_count(x: Tensor) -> int:
    """Return how often a tensor has been written to in place. Inference tensors do not count."""
    return 0 if x.is_inference() else x._version


def is_flattened_by_fsdp(weight: Tensor) -> bool:
    """Return whether FullyShardedDataParallel has flattened this parameter."""
    return getattr(weight, "_fsdp_flattened", False)


def load_state_dict_hooks(optimizer: Optimizer) -> tuple[Iterable[Any], Iterable[Any]]:
    """Return the hooks to call before and after `load_state_dict`."""
    before = optimizer._optimizer_load_state_dict_pre_hooks.values()
    return before, optimizer._optimizer_load_state_dict_post_hooks.values()
