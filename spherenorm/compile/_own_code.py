"""Steps by a rule's own code, which may not write into its arguments."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spherenorm._rule import Rule, State
from spherenorm._step import Measured
from spherenorm.compile._backends import Work
from spherenorm.compile._guard import Guard, UnsupportedRuleError

__all__ = ["OwnSteps", "identity_of"]

MOST_KINDS = 1024
"""Kinds of weights of which it is remembered that a rule did not write into its arguments."""


class OwnSteps:
    """Steps weights by their rules' own code, and refuses a rule that writes into its arguments."""

    def __init__(self) -> None:
        self._proven: set[Any] = set()
        """Kinds of weights that a rule has stepped without writing into its arguments."""

    def step(
        self, rule: Rule, identity: Any, work: Work, measured: Measured | None
    ) -> tuple[Tensor, State]:
        """The new weight and state. A write at the first weight of a kind is undone.

        Args:
            rule: steps the weight.
            identity: of the rule; see `identity_of`.
            work: the weight, its gradient and its state.
            measured: of all weights; see `Rule.step`.

        Raises:
            ValueError: the rule writes into its arguments.
            Exception: of any type, which the rule raises.
        """
        given = {"the weight": work.weight, "the gradient": work.grad}
        given |= {f"the state {name!r}": value for name, value in work.state.items()}
        given = {what: x for what, x in given.items() if not x.is_inference()}
        kind = identity, work.weight.shape, work.weight.dtype
        backups = {} if kind in self._proven else {what: x.clone() for what, x in given.items()}
        versions = [x._version for x in given.values()]
        written: list[str] = []
        try:
            moved, new = rule.step(work.weight, work.grad, work.state, measured)
        finally:
            for (what, x), version in zip(given.items(), versions, strict=True):
                if x._version != version:
                    written.append(what)
                    if what in backups:
                        x.copy_(backups[what])
        if written:
            names = ", ".join(type(each).__name__ for each in rule.tree())
            raise ValueError(
                f"{names}: the rule writes into {written[0]}; return new tensors instead"
            )
        if kind not in self._proven:
            if len(self._proven) >= MOST_KINDS:  # a rule keeps changing
                self._proven.clear()
            self._proven.add(kind)
        return moved, new


def identity_of(rule: Rule) -> Any:
    """A key that tells apart rules of other settings: one may write into its arguments."""
    try:
        return Guard.of(rule).key
    except UnsupportedRuleError:
        return tuple(type(each) for each in rule.tree())
