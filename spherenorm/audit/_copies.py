"""A copy of a model that shares nothing with it that a forward pass might change."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["copy_model", "in_dtype"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_KINDS_OF_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def copy_model(model: nn.Module, loss: Any, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """A copy of `model` in `dtype`, in the same mode, and of the loss, which may refer to it.

    Hooks and replaced methods are copied with the variables that they use, so that what they write
    goes to copies. Tensors that a layer keeps from its last forward pass are cut from their graph.

    Raises:
        ValueError: the model cannot be copied.
    """
    memo: dict[int, Any] = {}
    for value in [value for module in model.modules() for value in _kept_by(module)]:
        if id(value) not in memo:
            memo[id(value)] = _copy_tensor(value, dtype)
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(f"the model cannot be copied for the audit: {error}") from error
    for module in copied.modules():
        for hooks in (vars(module).get(name, {}) for name in _HOOKS):
            for key, hook in hooks.items():
                hooks[key] = _apart(hook, memo)
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType | functools.partial):
                object.__setattr__(module, name, _apart(value, memo))
    return copied, _copied(loss, memo)


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of `x`, in `dtype` if it is real, in the complex type of that precision if complex."""
    if x.is_floating_point():
        return x.detach().to(dtype, copy=True)
    if x.is_complex():
        return x.detach().to(dtype.to_complex(), copy=True)
    return x.detach().clone()


def _kept_by(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that a module holds: parameters, buffers, and plain attributes."""
    for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Tensor):
                yield item


def _copy_tensor(x: Tensor, dtype: torch.dtype) -> Tensor:
    copied = in_dtype(x, dtype)
    if isinstance(x, nn.Parameter):
        return nn.Parameter(copied, requires_grad=x.requires_grad)
    return copied.requires_grad_(x.requires_grad and x.is_leaf)


def _apart(hook: Any, memo: dict[int, Any]) -> Any:
    """A hook with copies of the variables that it uses: of its closure, defaults and module.

    `copy.deepcopy` takes methods and callable objects apart, but returns a function as it is.
    """
    if isinstance(hook, functools.partial):
        keywords = {name: _copied(value, memo) for name, value in hook.keywords.items()}
        return functools.partial(
            _apart(hook.func, memo), *(_copied(value, memo) for value in hook.args), **keywords
        )
    if not isinstance(hook, types.FunctionType):
        return hook
    variables = dict(hook.__globals__)
    for name in hook.__code__.co_names:
        if name in variables and not isinstance(variables[name], _KINDS_OF_CODE):
            variables[name] = _copied(variables[name], memo)
    cells = tuple(types.CellType(_copied(c.cell_contents, memo)) for c in hook.__closure__ or ())
    defaults = tuple(_copied(value, memo) for value in hook.__defaults__ or ())
    apart = types.FunctionType(hook.__code__, variables, hook.__name__, defaults, cells or None)
    apart.__kwdefaults__ = hook.__kwdefaults__
    return apart


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, types.FunctionType):
        return _apart(value, memo) if value.__closure__ else value
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # a file, a lock: nothing to copy
        return value
