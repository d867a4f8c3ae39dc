"""A traced step: the record of a recipe, from hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp
import torch

from spherenorm import Interval, Recipe, Rule, View
from spherenorm.record import Record
from spherenorm_theory.algebra.hyper_parameters import (
    enter,
    input_names,
    numbers_by_name,
    resolve_hyper_parameters,
)

ANY = Interval(-math.inf, math.inf, True, True)
"""The interval of a hyper-parameter that no rule declares."""


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
        record: its operations, from the hyper-parameters, the weight, the gradient and the states
            to the weight and the states, with c d^p in place of numbers that follow the size d of
            the weight.
        states: the names of the states.
        symbols: of each hyper-parameter that is an input.
        given: the exact numbers of those that were given, which are substituted last.
        intervals: for each, the numbers that it may be: an open interval, as 0 is structure.
        scalar_states: the states of one number per unit or one for all (a counter, a second moment
            per unit).
        counters: those of them that hold one for all.
        starts: for each state of one number its first value, if that does not depend on the weight.
        letters: the rules that are letters, by their places.
        inside: the states of these rules, of which a law says nothing.
        shape: of the traced weight, which is one unit; no law depends on it.
        views: those that the rules declare.
        hyper_parameters: all of them, as the recipe takes them.

    Example:
        >>> traced = trace("sgd", weight_decay=0.0, dampening=0.0)
        >>> [*traced.symbols], traced.states
        (['lr', 'momentum'], ('momentum_buffer',))
        >>> traced.values(lr=0.1, momentum=0.9)
        {lr: 0.1, momentum: 0.9}
    """

    name: str
    recipe: Recipe
    record: Record
    states: tuple[str, ...]
    symbols: Mapping[str, sp.Symbol]
    given: Mapping[sp.Symbol, sp.Expr]
    intervals: Mapping[str, Interval]
    scalar_states: tuple[str, ...]
    counters: tuple[str, ...]
    starts: Mapping[str, sp.Expr | None]
    letters: tuple[Rule, ...]
    inside: frozenset[str]
    shape: tuple[int, ...]
    views: tuple[View, ...]
    hyper_parameters: Mapping[str, Any]

    def build(self, inputs: Mapping[str, Any]) -> Rule:
        """The rule with tensors, or plain numbers, in the places of its inputs."""
        return self.recipe(**enter(self.hyper_parameters, inputs))

    @cached_property
    def free(self) -> Mapping[str, sp.Symbol]:
        """The symbols that no number was given for."""
        return {name: s for name, s in self.symbols.items() if s not in self.given}

    @cached_property
    def domains(self) -> Mapping[sp.Symbol, Interval]:
        """The intervals, by symbol."""
        return {s: self.intervals[name] for name, s in self.symbols.items()}

    @cached_property
    def held(self) -> Mapping[str, Any]:
        """The numbers and other values at which the law holds, by the names of inputs."""
        parts = numbers_by_name(self.hyper_parameters)
        return {name: value for name, value in parts.items() if name not in self.free}

    @cached_property
    def structure(self) -> Mapping[str, Any]:
        """The hyper-parameters of which no part is a symbol: betas as a whole."""
        whole, names = self.hyper_parameters, input_names(self.hyper_parameters)
        return {n: whole[n] for n in whole if self.symbols.keys().isdisjoint(names[n])}

    def values(self, **given: Any) -> dict[sp.Symbol, float]:
        """Numbers for the free symbols: of `given` (betas as a tuple), else the defaults.

        Raises:
            ValueError: one is unknown, no finite number, outside its interval, or another value
                than the one at which the law holds it.
        """
        whole = {n: x for n, x in given.items() if n in self.hyper_parameters}
        parts = {n: x for n, x in given.items() if n not in whole and n in self.symbols}
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
        return {symbol: self._number(name, numbers[name]) for name, symbol in self.free.items()}

    def numbers(self, **given: Any) -> dict[str, float]:
        """The numbers of all symbols by name, of those that the law holds too."""
        values = {**self.values(**given), **self.given}
        return {symbol.name: float(x) for symbol, x in values.items()}

    def _number(self, name: str, value: Any) -> float:
        """The number of a symbol, which its interval holds."""
        interval = self.intervals.get(name, ANY)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if number not in interval or not math.isfinite(number):
            zero = (
                "; 0 has a law of its own, which is derived where it is given"
                if number == 0
                else ""
            )
            raise ValueError(f"{self.name}: {name} must be in {interval}, got {value!r}{zero}")
        return number


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return bool(a is b or a == b)
