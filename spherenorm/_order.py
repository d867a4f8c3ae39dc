"""The order of the rules in a chain, read before the first step."""

from __future__ import annotations

from collections.abc import Iterator

from spherenorm._chain import Combination
from spherenorm._numerics import is_zero
from spherenorm._tree import Node
from spherenorm.rules import DecoupledDecay, InvarianceTest, RadialProjection, StepSize


def refuse_missing_test(rule: Node) -> None:
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


def order_warnings(rule: Node) -> list[str]:
    """Sentences on chains of the library's rules that hardly anyone wants."""
    rules = list(_in_order(rule))
    if not all(map(_is_ours, rules)):
        return []  # a user's rule may scale the step
    sizes = [place for place, each in enumerate(rules) if isinstance(each, StepSize)]
    if not sizes:
        return ["the chain has no StepSize, so weights move by the whole direction"]
    behind = rules[sizes[0] :]
    if any(isinstance(each, DecoupledDecay) and not is_zero(each.weight_decay) for each in behind):
        by = "weights lose weight_decay w at each step, whatever the learning rate is"
        return [f"DecoupledDecay comes behind StepSize: {by}"]
    return []


def _in_order(rule: Node) -> Iterator[Node]:
    """The rules that are no combinations, in the order in which they are applied."""
    for child in rule.children() if isinstance(rule, Combination) else ():
        yield from _in_order(child)
    if not isinstance(rule, Combination):
        yield rule


def _is_ours(rule: Node) -> bool:
    return type(rule).__module__.startswith("spherenorm.rules.")
