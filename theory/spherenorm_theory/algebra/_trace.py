"""A traced step: the record of a recipe, from hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import sympy as sp
import torch

from spherenorm import Interval, Recipe, Rule, View
from spherenorm.record import Record
from spherenorm_theory.algebra._declared import ANY
from spherenorm_theory.algebra._hyper_parameters import (
    enter,
    numbers_by_name,
    parts_of,
    resolve_hyper_parameters,
)

Start: TypeAlias = sp.Expr | tuple[sp.Expr, sp.Expr] | None
"""The first value of a state, as `Trace.starts` has it."""


class TraceError(ValueError):
    """A recipe cannot be traced, or its step has an operation without a meaning on symbols.

    Example:
        >>> class Branching(Rule):
        ...     def update(self, update, state):
        ...         return (update if update.grad.sum() > 0 else update), state
        >>> try:
        ...     norm_growth(lambda lr=0.1: Branching())
        ... except TraceError as error:
        ...     print(str(error).partition(": ")[2][:43])
        the step takes a number out of a tensor (an
    """


@dataclass(frozen=True, eq=False)
class Trace:
    """A traced step.

    Attributes:
        name, recipe: the recipe and its name.
        record: its operations, from `inputs` in order to `outputs`.
        inputs: ("hyper" | "weight" | "grad" | "state", name) of each input.
        outputs: the names of the outputs: "weight", then the states.
        numbers: each hyper-parameter that is an input, as a symbol or as the exact number that was
            given.
        general: the record with c d^p in place of numbers that follow the size d of the weight.
        intervals: for each, the numbers that it may be, as the rules declare them.
        scalar_states: the states of one number per unit or one for all (a counter, a second moment
            per unit).
        counters: those of them that hold one for all.
        starts: for each state its first value: a number, (a, b) for a w + b in every entry, or None
            for one that is neither.
        shape: of the traced weight, which is one unit; no law depends on it.
        views: those that the rules declare.
        hyper_parameters: all of them, as the recipe takes them.

    Example:
        >>> traced = trace("sgd", weight_decay=0.0, dampening=0.0)
        >>> [name for _, name in traced.inputs]
        ['lr', 'momentum', 'w', 'g', 'momentum_buffer']
        >>> traced.values(lr=0.1, momentum=0.9)
        {lr: 0.1, momentum: 0.9}
    """

    name: str
    recipe: Recipe
    record: Record
    general: Record
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, sp.Expr]
    intervals: Mapping[str, Interval]
    scalar_states: tuple[str, ...]
    counters: tuple[str, ...]
    starts: Mapping[str, Start]
    shape: tuple[int, ...]
    views: tuple[View, ...]
    hyper_parameters: Mapping[str, Any]

    def build(self, inputs: Mapping[str, torch.Tensor | float]) -> Rule:
        """The rule with tensors, or plain numbers, in the places of its inputs."""
        return self.recipe(**enter(self.hyper_parameters, inputs))

    @cached_property
    def sized(self) -> str:
        """The line of a number that follows the size of the weight; empty if there is none."""
        pairs = zip(self.record.calls, self.general.calls, strict=True)
        moved = (
            old.line
            for old, new in pairs
            if old is not new and (old.arguments, old.options) != (new.arguments, new.options)
        )
        return next(moved, "")

    @property
    def dimension(self) -> int:
        """The number of entries of the traced weight."""
        return math.prod(self.shape)

    @cached_property
    def symbols(self) -> Mapping[str, sp.Symbol]:
        """The hyper-parameters that are symbols."""
        return {n: x for n, x in self.numbers.items() if isinstance(x, sp.Symbol)}

    @cached_property
    def held(self) -> Mapping[str, Any]:
        """The hyper-parameters that are no symbols, with the values at which they are held."""
        numbers = numbers_by_name(self.hyper_parameters)
        return {name: value for name, value in numbers.items() if name not in self.symbols}

    @cached_property
    def structure(self) -> Mapping[str, Any]:
        """The hyper-parameters of which no part is a symbol: betas as a whole."""
        parts = parts_of(self.hyper_parameters)
        kept = (n for n in parts if self.symbols.keys().isdisjoint(parts[n]))
        return {name: self.hyper_parameters[name] for name in kept}

    def values(self, **given: Any) -> dict[sp.Symbol, float]:
        """Numbers for the symbols: of `given` (betas as a tuple), else the recipe's defaults.

        Raises:
            ValueError: one is unknown, no finite number, outside its interval, or another value
                than the one at which the trace holds it.
        """
        whole = {n: x for n, x in given.items() if n in self.hyper_parameters}
        parts = {n: x for n, x in given.items() if n not in whole and n in self.numbers}
        unknown = {n: x for n, x in given.items() if n not in whole and n not in parts}
        used = resolve_hyper_parameters(self.recipe, {**self.hyper_parameters, **whole, **unknown})
        numbers = {**numbers_by_name(used), **parts}
        for name, value in self.held.items():
            if not _is_same(numbers.get(name), value):
                other = numbers.get(name)
                raise ValueError(
                    f"{self.name}: the law holds {name} at {value!r}, got {other!r}; derive one "
                    f"for it: norm_growth(..., {name}={other!r})"
                )
        return {symbol: self._number(name, numbers[name]) for name, symbol in self.symbols.items()}

    def _number(self, name: str, value: Any) -> float:
        """The number of a symbol, which its interval holds."""
        interval = self.intervals.get(name, ANY)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if number not in interval or not math.isfinite(number):
            raise ValueError(f"{self.name}: {name} must be in {interval}, got {value!r}")
        return number


def _is_same(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except (RuntimeError, ValueError):  # tensors and arrays of several entries
        return False
