"""The weights of an optimizer: their names in messages, and those that no step can be right for."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from torch import Tensor

from spherenorm.compile import why_not_steppable
from spherenorm.numerics import can_never_be_stepped, refuse_unless_real
from spherenorm.rule import Rule, State, trial_state

Named = Iterable[tuple[str, Tensor]]
"""Weights, each with its name in messages: its index, its name if it has one, and its shape."""


def named(param_groups: Sequence[Mapping[str, Any]]) -> Iterator[Named]:
    """The weights of each param_group, with their names in messages."""
    firsts = accumulate((len(group["params"]) for group in param_groups), initial=0)
    return map(_named, param_groups, firsts)


def _named(group: Mapping[str, Any], first: int) -> Named:
    names = group.get("param_names", [None] * len(group["params"]))
    for index, (name, weight) in enumerate(zip(names, group["params"], strict=True), first):
        own = f" ({name})" if name else ""
        yield f"parameter {index}{own} of shape {tuple(weight.shape)}", weight


def check_weights(optimizer: str, weights: Named, rule: Rule) -> None:
    """Refuse weights for which no step of a rule can be right; warn of others that do not suit it.

    Raises:
        TypeError: a weight is complex, integer or of 8 bits, and not frozen.
        ValueError: a weight was flattened by FullyShardedDataParallel, or the rule has no units
            in its shape, or refuses its values.

    Warns:
        UserWarning: in the name of the class `optimizer`.
    """
    warned: dict[str, list[str]] = {}
    for name, weight in weights:
        if can_never_be_stepped(weight):
            continue
        refuse_unless_real(weight, name)
        _refuse_flattened(name, weight)
        first_state(name, weight, rule)
        for warning in rule.weight_warnings(weight):
            warned.setdefault(warning, []).append(name)
    sentences = []
    for warning, names in warned.items():
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        sentences.append(f"{', '.join(names[:5])}{more} {warning}")
    if sentences:
        # The call of the class: behind it are three times __init__, and add_param_group.
        warnings.warn(f"{optimizer}: {'. '.join(sentences)}", stacklevel=6)


def first_state(name: str, weight: Tensor, rule: Rule) -> State:
    """The state of a weight before its first step; an error has the weight's name."""
    try:
        return trial_state(rule, weight.detach())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_gradients(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse weights and gradients that cannot be stepped now.

    Raises:
        TypeError: a gradient is sparse.
        ValueError: a weight is expanded, an inference tensor, or was flattened meanwhile.
    """
    if all(_is_plain(weight) for group in param_groups for weight in group["params"]):
        return  # before any name is made, which takes longer
    for name, weight in chain.from_iterable(named(param_groups)):
        _refuse_flattened(name, weight)
        if weight.grad is not None and (said := why_not_steppable(weight, weight.grad)):
            raise (TypeError if weight.grad.is_sparse else ValueError)(f"{name} {said}")


def _is_plain(weight: Tensor) -> bool:
    """True of nearly all weights; `why_not_steppable` decides on the others."""
    grad = weight.grad
    odd = grad is not None and (grad.is_sparse or grad.shape != weight.shape)
    odd = odd or weight.is_inference() or 0 in weight.stride()
    return not (odd or getattr(weight, "_fsdp_flattened", False))


def refuse_changed_weights(
    param_groups: Sequence[Mapping[str, Any]],
    rules: Sequence[Rule],
    states: Mapping[Tensor, State],
    error: Exception,
) -> None:
    """After an error in a step, refuse a weight whose state is of another dtype or shape."""
    for weights, rule in zip(named(param_groups), rules, strict=True):
        for name, weight in weights:
            state = states.get(weight, {}) if weight.grad is not None else {}
            for key, fresh in first_state(name, weight, rule).items() if state else ():
                held, needed = describe(state.get(key, fresh)), describe(fresh)
                if held != needed:
                    raise ValueError(
                        f"{name}: its state {key!r} is {held}, and the weight needs {needed}. If "
                        f"it has changed, delete its state or make a new optimizer ({error})"
                    ) from error


def describe(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def _refuse_flattened(name: str, weight: Tensor) -> None:
    """Refuse a parameter flattened by FullyShardedDataParallel, which has no rows."""
    if getattr(weight, "_fsdp_flattened", False):
        raise ValueError(
            f"{name} was flattened by FullyShardedDataParallel and has no rows any more; use "
            "torch.distributed.fsdp.fully_shard"
        )
