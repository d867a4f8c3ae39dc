"""A copy of a model that shares nothing with it that a forward pass might change.

`torch.func.functional_call` would not do: it gives the caller's modules other tensors, and runs
their code. Then counters and caches that `forward` keeps, lists that hooks write to, and variables
of closures would change; and it does not reach a weight that a closure, a partial or a loss keeps.
Whether a model has any of these is not known before it runs.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm.audit._nested import tensors_of

_KINDS_OF_CODE = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)


def copy_model(model: nn.Module, loss: Any, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """A copy of `model` in `dtype`, in the same mode, and of the loss, which may refer to it.

    Hooks and replaced methods are copied with the variables that they use, so that what they write
    goes to copies. Tensors that a layer keeps from its last forward pass are cut from their graph.
    Weights that share memory share that of their copies. A lock, a file or another thing that
    cannot be copied is shared with the caller's model.

    Raises:
        ValueError: the model cannot be copied, or its copy shares weights or buffers with it.
    """
    copied, memo = _deep_copied(model, _copies_of_tensors((model, loss), dtype), dtype)
    for made in list(memo.values()):  # what a copy has made is not copied again
        memo.setdefault(id(made), made)
    _check_apart(copied, model)
    seen: set[int] = set()
    for module in copied.modules():
        if isinstance(module, torch.jit.ScriptModule):  # its copy is in its precision, with a graph
            for parameter in [each for each in module.parameters() if each.requires_grad]:
                parameter.detach_().requires_grad_()
            module.to(dtype)
        _take_functions_apart(vars(module), memo, seen)
    return copied, _copied(loss, memo)


def _check_apart(copied: nn.Module, model: nn.Module) -> None:
    """Refuse a copy that shares memory with the model, in which an audit would write.

    Raises:
        ValueError: it does.
    """
    theirs = {memory_of(x) for x in (*model.parameters(), *model.buffers())}
    for name, x in (*copied.named_parameters(), *copied.named_buffers()):
        if memory_of(x) in theirs:
            raise ValueError(
                f"the model cannot be copied for the audit: {name} of the copy is the model's own;"
                " let the __deepcopy__ of the module that has it copy its tensors"
            )


def in_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of `x`, in `dtype` if it is real, in the complex type of that precision if complex."""
    if x.is_floating_point():
        return x.detach().to(dtype, copy=True)
    if x.is_complex():
        return x.detach().to(dtype.to_complex(), copy=True)
    return x.detach().clone()


def memory_of(x: Tensor) -> int:
    """The identity of the memory of a tensor; of the tensor, if it has none of its own."""
    plain = type(x) in (Tensor, nn.Parameter) and x.layout is torch.strided
    plain = plain and not x.is_conj() and not x.is_neg()  # (these are more than their memory)
    return (x.untyped_storage().data_ptr() if plain else 0) or id(x)


def _deep_copied(
    model: nn.Module, tensors: Mapping[int, Tensor], dtype: torch.dtype
) -> tuple[nn.Module, dict[int, Any]]:
    """A deep copy of the model, and all copies by the `id` of their originals."""
    known: dict[int, Any] = dict(tensors)
    while True:
        memo = dict(known)
        try:
            return copy.deepcopy(model, memo), memo
        except Exception as error:
            refused = _refused(error)
            if id(refused) in known or isinstance(refused, nn.Module):
                raise ValueError(f"the model cannot be copied for the audit: {error}") from error
            is_tensor = isinstance(refused, Tensor)
            known[id(refused)] = _copy_tensor(refused, dtype) if is_tensor else refused


def _refused(error: Exception) -> Any:
    """The innermost object that `copy.deepcopy` was at when it failed."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return [f.f_locals["x"] for f in frames if f.f_code is copy.deepcopy.__code__][-1]


def _copies_of_tensors(value: Any, dtype: torch.dtype) -> dict[int, Tensor]:
    """Copies of the tensors that a value holds, by the `id` of these."""
    held = {id(x): x for x in tensors_of(value)}
    copies = {}
    for together in _sharing_memory(held.values()):
        first, *others = together
        if not others or any(x.dtype != first.dtype for x in others):
            copies.update({id(x): _copy_tensor(x, dtype) for x in together})
            continue
        length = (max(map(_end, together)) - first.data_ptr()) // first.element_size()
        memory = in_dtype(first.detach().as_strided((length,), (1,)), dtype)
        for x in together:
            offset = (x.data_ptr() - first.data_ptr()) // x.element_size()
            copies[id(x)] = _in_role_of(x, memory.as_strided(x.shape, x.stride(), offset))
    return copies


def _sharing_memory(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors that overlap in memory, together; each begins with the one at the lowest address."""
    groups: dict[torch.device, list[Tensor]] = {}
    for x in tensors:
        if memory_of(x) != id(x):
            groups.setdefault(x.device, []).append(x)
        else:
            yield [x]
    for group in groups.values():
        together: list[Tensor] = []
        for x in sorted(group, key=Tensor.data_ptr):
            if together and x.data_ptr() >= max(map(_end, together)):
                yield together
                together = []
            together.append(x)
        yield together


def _end(x: Tensor) -> int:
    """The address after the last entry."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr() + (last + 1) * x.element_size()


def _copy_tensor(x: Tensor, dtype: torch.dtype) -> Tensor:
    return _in_role_of(x, in_dtype(x, dtype))


def _in_role_of(x: Tensor, copied: Tensor) -> Tensor:
    """The copy as a parameter if `x` is one, and with a gradient if `x` takes one."""
    if isinstance(x, nn.Parameter):
        return nn.Parameter(copied, requires_grad=x.requires_grad)
    return copied.requires_grad_(x.requires_grad and x.is_leaf)


def _take_functions_apart(container: Any, memo: dict[int, Any], seen: set[int]) -> None:
    """Put copies of the functions in a dict or list of a copy, however deep, in their place."""
    if id(container) in seen:
        return
    seen.add(id(container))
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(pairs):
        if isinstance(value, types.FunctionType | functools.partial):
            container[key] = _apart(value, memo)
        elif isinstance(value, dict | list):
            _take_functions_apart(value, memo, seen)


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
    if id(hook) in memo:
        return memo[id(hook)]
    variables = dict(hook.__globals__)
    for name in hook.__code__.co_names:
        if name in variables and not isinstance(variables[name], _KINDS_OF_CODE):
            variables[name] = _copied(variables[name], memo)
    defaults = tuple(_copied(value, memo) for value in hook.__defaults__ or ())
    cells = tuple(types.CellType() for _ in hook.__closure__ or ())
    apart = types.FunctionType(hook.__code__, variables, hook.__name__, defaults, cells or None)
    apart.__kwdefaults__ = hook.__kwdefaults__
    memo[id(hook)] = apart  # it may refer to itself
    for cell, theirs in zip(cells, hook.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            cell.cell_contents = _copied(theirs.cell_contents, memo)
    return apart


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, types.FunctionType):
        return _apart(value, memo) if value.__closure__ else value
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # a file, a lock: nothing to copy
        return value
