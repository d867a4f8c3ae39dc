"""The weights of an optimizer: refused before anything changes if no step can be right for them."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm._chain import Chain, Combination
from spherenorm._hooks import State
from spherenorm._numerics import is_zero
from spherenorm._rule import Rule
from spherenorm._step import refuse_unless_real
from spherenorm._tree import Node, Part, init_apart
from spherenorm._watch import called
from spherenorm.compile import refusal
from spherenorm.rules import DecoupledDecay, InvarianceTest, RadialProjection, RadiusPin, StepSize


def check_weights(params: Any, rule: Rule, first: int) -> None:
    """Refuse weights that are to be added to an optimizer, if no step can be right for them.

    Args:
        params: a tensor, tensors, or (name, tensor) pairs.
        rule: is to step them.
        first: the index of the first of them in the optimizer.

    Raises:
        TypeError: a weight is complex or integer.
        ValueError: a weight was flattened by FullyShardedDataParallel, or the rule has no units
            in its shape, or refuses its values; a rule needs a test that does not come before it.
    """
    _refuse_missing_test(rule)
    entries = list(_entries(params, first))
    for index, name, weight in entries:
        refuse_unless_real(weight, describe(index, weight, name))
    for index, name, weight in entries:
        _refuse_flattened(index, weight, name)
    for index, name, weight in entries:
        try:
            empty = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
            with contextlib.suppress(RuntimeError, NotImplementedError):
                # (a rule that reads a value of the weight is asked again by the first step)
                called(Part(rule, {}), rule.init, empty)
            for each in rule.tree():
                each.check_weight(weight)
        except ValueError as error:
            raise ValueError(f"{describe(index, weight, name)}: {error}") from error


def warn_of_weights(optimizer: str, params: Any, rule: Rule, first: int) -> None:
    """Warn of weights that do not suit the rule, and of an unusual order of its rules.

    Args:
        optimizer: the name of the class, for the message.
        params, first: as for `check_weights`.
        rule: is to step them.
    """
    warned: dict[str, list[str]] = {}
    sentences = _order_warnings(rule)
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


def _refuse_missing_test(rule: Node) -> None:
    """Refuse a chain in which a rule needs the decision of a test that does not come before it.

    A user's rule may decide, too: behind one nothing is refused.

    Raises:
        ValueError: naming the rule and its need.
    """
    for each in _in_order(rule):
        if isinstance(each, InvarianceTest) or not _is_ours(each):
            return
        if isinstance(each, RadialProjection | DecoupledDecay) and each.need is not None:
            raise ValueError(each.need)


def _order_warnings(rule: Node) -> list[str]:
    """Sentences on chains of the library's rules that hardly anyone wants."""
    rules = list(_in_order(rule))
    if not all(map(_is_ours, rules)):
        return []  # a user's rule may scale the step
    sizes = [place for place, each in enumerate(rules) if isinstance(each, StepSize)]
    if not sizes:
        return ["the chain has no StepSize, so weights move by the whole direction"]
    behind = rules[sizes[-1] :]
    if any(isinstance(each, DecoupledDecay) and not is_zero(each.weight_decay) for each in behind):
        by = "weights lose weight_decay w at each step, whatever the learning rate is"
        return [f"DecoupledDecay comes behind StepSize: {by}"]
    chains = (each.rules for each in rule.tree() if isinstance(each, Chain))
    if any(isinstance(each, RadiusPin) for rules in chains for each in rules[:-1]):
        return ["RadiusPin does not come last: what follows moves the weight off its sphere"]
    return []


def _in_order(rule: Node) -> Iterator[Node]:
    """The rules that are no combinations, in the order in which they are applied."""
    for child in rule.children() if isinstance(rule, Combination) else ():
        yield from _in_order(child)
    if not isinstance(rule, Combination):
        yield rule


def _is_ours(rule: Node) -> bool:
    return type(rule).__module__.startswith("spherenorm.rules.")
