"""The weights of an optimizer: refused before anything changes if no step can be right for them."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from spherenorm._numerics import refuse_unless_real
from spherenorm._steps import init_apart
from spherenorm.compile import refusal
from spherenorm.core import Rule, State


def check_weights(params: Any, rule: Rule, first: int) -> None:
    """Refuse weights that are to be added to an optimizer, if no step can be right for them.

    Args:
        params: a tensor, tensors, or (name, tensor) pairs.
        rule: is to step them.
        first: the index of the first of them in the optimizer.

    Raises:
        TypeError: a weight is complex or integer.
        ValueError: a weight was flattened by FullyShardedDataParallel, or the rule has no units
            in its shape, or refuses its values.
    """
    entries = list(_entries(params, first))
    for index, name, weight in entries:
        refuse_unless_real(weight, describe(index, weight, name))
    for index, name, weight in entries:
        _refuse_flattened(index, weight, name)
    for index, name, weight in entries:
        try:
            init_apart(rule, weight.detach())
        except ValueError as error:
            raise ValueError(f"{describe(index, weight, name)}: {error}") from error


def warn_of_weights(optimizer: str, params: Any, rule: Rule, first: int) -> None:
    """Warn of weights that do not suit the rule.

    Args:
        optimizer: the name of the class, for the message.
        params, first: as for `check_weights`.
        rule: is to step them.
    """
    warned: dict[str, list[str]] = {}
    sentences: list[str] = []
    for index, name, weight in _entries(params, first):
        for warning in rule.weight_warnings(weight):
            warned.setdefault(warning, []).append(name or describe(index, weight))
    for warning, those in warned.items():
        more = f" and {len(those) - 5} more" if len(those) > 5 else ""
        sentences.append(f"{', '.join(those[:5])}{more} {warning}")
    if sentences:
        warnings.warn(f"{optimizer}: {'. '.join(sentences)}", stacklevel=5)


def check_gradients(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse weights and gradients that cannot be stepped now.

    Raises:
        TypeError: a gradient is sparse.
        ValueError: a weight is expanded, an inference tensor, or was flattened meanwhile.
    """
    weights = [weight for group in param_groups for weight in group["params"]]
    if _may_all_step(weights):
        return
    names = [
        name
        for group in param_groups
        for name in group.get("param_names", [None] * len(group["params"]))
    ]
    for index, (weight, name) in enumerate(zip(weights, names, strict=True)):
        _refuse_flattened(index, weight, name)  # after it came to this optimizer
        if weight.grad is not None and (said := refusal(weight, weight.grad)):
            error = TypeError if weight.grad.is_sparse else ValueError
            raise error(f"{describe(index, weight, name)} {said}")


def _may_all_step(weights: Sequence[Tensor]) -> bool:
    """True if nothing is refused: a fast check of all weights together."""
    if any(getattr(weight, "_fsdp_flattened", False) for weight in weights):
        return False
    stepped = [weight for weight in weights if weight.grad is not None]
    odd = any(map(_IS_SPARSE, stepped)) or any(map(Tensor.is_inference, stepped))
    if odd or list(map(_SHAPE, stepped)) != list(map(_GRAD_SHAPE, stepped)):
        return False
    return not any(0 in stride for stride in map(Tensor.stride, stepped))


_IS_SPARSE = operator.attrgetter("grad.is_sparse")
_SHAPE, _GRAD_SHAPE = operator.attrgetter("shape"), operator.attrgetter("grad.shape")


@contextlib.contextmanager
def naming_changed_weights(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule], states: Mapping[Tensor, State]
) -> Iterator[None]:
    """If a step fails, say which weight has a state that was made for another dtype or shape.

    Args:
        param_groups, rules: of the optimizer.
        states: of its weights.

    Raises:
        ValueError: the step has failed, and a state is not what the rule makes for its weight.
    """
    try:
        yield
    except Exception as error:
        for index, name, rule, weight in _stepped(param_groups, rules):
            state = states.get(weight, {})
            for entry, needed in init_apart(rule, weight).items() if state else ():
                held = state.get(entry, needed)
                if (held.dtype, held.shape) != (needed.dtype, needed.shape):
                    raise ValueError(
                        f"{describe(index, weight, name)}: its state {entry!r} is {_kind(held)}, "
                        f"and the weight needs {_kind(needed)}. If the weight has changed, delete "
                        f"its state or make a new optimizer ({error})"
                    ) from error
        raise


def _stepped(
    param_groups: Sequence[Mapping[str, Any]], rules: Sequence[Rule]
) -> Iterator[tuple[int, str | None, Rule, Tensor]]:
    """Index, name if it has one, and rule, of each weight that has a gradient."""
    index = 0
    for group, rule in zip(param_groups, rules, strict=True):
        names = group.get("param_names", [None] * len(group["params"]))
        for weight, name in zip(group["params"], names, strict=True):
            if weight.grad is not None:
                yield index, name, rule, weight
            index += 1


def _kind(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def describe(index: int, weight: Tensor, name: str | None = None) -> str:
    """The name of a weight in messages: its index, its name if it has one, and its shape."""
    return f"parameter {index}{f' ({name})' if name else ''} of shape {tuple(weight.shape)}"


def _entries(params: Any, first: int) -> Iterator[tuple[int, str | None, Tensor]]:
    """Index, name if it has one, and weight, of each parameter that is to be added."""
    for index, entry in enumerate([params] if isinstance(params, Tensor) else params, first):
        name, weight = entry if isinstance(entry, tuple) else (None, entry)
        if isinstance(weight, Tensor):
            yield index, name, weight


def _refuse_flattened(index: int, weight: Tensor, name: str | None) -> None:
    """Refuse a parameter flattened by FullyShardedDataParallel, which has no rows."""
    if getattr(weight, "_fsdp_flattened", False):
        raise ValueError(
            f"{describe(index, weight, name)} was flattened by FullyShardedDataParallel"
            " and has no rows any more; use torch.distributed.fsdp.fully_shard"
        )
