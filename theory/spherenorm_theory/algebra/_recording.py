"""Trace one step of a recipe: a record from its hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp
import torch

from spherenorm import Interval, Recipe, Rule, bind
from spherenorm.record import Record, RecordError, record
from spherenorm_theory.algebra._declared import (
    intervals_of,
    probe,
    shape_of_one_unit,
    symbol_of,
    views_of,
)
from spherenorm_theory.algebra._hyper_parameters import (
    enter,
    is_number,
    message,
    numbers_by_name,
    parts_of,
    resolve_hyper_parameters,
    resolve_recipe,
)
from spherenorm_theory.algebra._sizes import SizeError, refuse_chance, with_sizes
from spherenorm_theory.algebra._symbols import exact
from spherenorm_theory.algebra._trace import Start, Trace, TraceError

COUNTS = (torch.int32, torch.int64)
"""Integers in which no count of steps wraps around."""


def trace(recipe: str | Recipe, dimension: int = 5, **given: Any) -> Trace:
    """Trace one step of `recipe`, for a weight that is one unit under each of its views.

    (Of shape (1, dimension) for the views channel and layer.) Every numeric hyper-parameter becomes
    a 0-dim tensor input, hence a symbol; a tuple of numbers such as `betas` becomes one symbol per
    entry (beta1, beta2). A float that is given is an input too, so that the algebra which reads the
    record computes 1 - momentum exactly. All else that is given is structure, which chooses the
    code that is traced: booleans, strings, None, and numbers such as 0 at which a recipe leaves a
    rule out.

    Constants of a recipe, as in `StepSize(0.5)`, and numbers that Python computes of them are
    rounded before they are recorded; `spherenorm_theory.algebra.exact` reads them. Values you pass
    are rounded in the same way if the recipe branches on them.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        dimension: entries of the weight.
        given: hyper-parameters to hold at a value, as in `trace(sgd, weight_decay=0.0,
            nesterov=True)`; an entry of a tuple stays a symbol if it is its own name:
            `trace(adam, betas=(0.9, "beta2"))`.

    Raises:
        ValueError: no such recipe, no such hyper-parameter, or one without a default or a value.
        TraceError: the recipe raises, forgets a state, or has a view of several units whatever the
            weight; or its step branches on a tensor's value, or takes it out of the tensor.

    Example:
        >>> trace("sgd", nesterov=True).structure["nesterov"], list(trace("sgd").symbols)
        (True, ['lr', 'momentum', 'dampening', 'weight_decay'])
    """
    function = resolve_recipe(recipe)
    values = resolve_hyper_parameters(function, given)
    exact_numbers = _given_numbers(values, given)
    with torch.no_grad():  # as optimizers take their steps
        try:
            return _trace(function, values, exact_numbers, dimension)
        except TraceError:
            if all(number is None for number in exact_numbers.values()):
                raise
            # Code that branches on a given number wants it as a Python number.
            symbols = {name: None for name, number in exact_numbers.items() if number is None}
            return _trace(function, values, symbols, dimension)


def _given_numbers(
    values: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, sp.Expr | None]:
    """The inputs among the hyper-parameters: the exact number that was given, None for a symbol."""
    numbers: dict[str, sp.Expr | None] = {}
    for name, parts in parts_of(values).items():
        kept = given.get(name, ())
        for n, (part, entry) in enumerate(parts.items()):
            if not is_number(entry):
                continue
            if name not in given or (isinstance(kept, (tuple, list)) and kept[n] == part):
                numbers[part] = None
            elif isinstance(entry, float) and entry != 0:
                numbers[part] = exact(entry)
    return numbers


def _trace(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, sp.Expr | None], dimension: int
) -> Trace:
    """The trace whose inputs are `given`; other hyper-parameters are constants."""
    called = bind(function).name
    entries = numbers_by_name(values)
    tensors = {part: torch.tensor(float(entries[part]), dtype=torch.float64) for part in given}
    with _named_errors(called):
        function(**values)  # rules check intervals of Python numbers, and of no tensors
        rule = function(**enter(values, tensors))
    if not isinstance(rule, Rule):
        raise TypeError(f"{called} must return a rule, got {rule!r}")
    build = _Build(called, function, values, tensors, rule)
    intervals = {name: build.interval(name) for name in tensors}
    symbols = {name: symbol_of(name, intervals[name]) for name in tensors}
    numbers = {name: symbols[name] if n is None else n for name, n in given.items()}
    return build.trace(dimension, numbers, intervals)


def _start_of(*pairs: tuple[torch.Tensor, torch.Tensor]) -> Start:
    """The first value of a state, from two weights and the states that `init` gives for them."""
    if pairs[0][1].numel() == 1:
        first, second = (value.item() for _, value in pairs)
        return exact(first) if first == second else None
    fits = []
    for weight, value in pairs:
        if value.numel() != weight.numel():
            return None
        w, x = weight.flatten(), value.flatten().double()
        a = float((x[0] - x[1]) / (w[0] - w[1]))
        fits.append((a, float(x[0] - a * w[0])))
        if not torch.allclose(a * w + fits[-1][1], x, rtol=1e-12, atol=1e-14):
            return None
    (a, b), other = fits
    alike = all(abs(x - y) < 1e-12 for x, y in zip((a, b), other, strict=True))
    return (exact(round(a, 12)), exact(round(b, 12))) if alike else None


@dataclass(frozen=True)
class _Build:
    """A recipe and what its hyper-parameters are while its step is recorded."""

    called: str
    function: Recipe
    values: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    rule: Rule

    def trace(
        self, dimension: int, numbers: Mapping[str, sp.Expr], intervals: Mapping[str, Interval]
    ) -> Trace:
        """The trace of a step, with the hyper-parameters as numbers or symbols."""
        sizes = (dimension, dimension + 2)
        records = [self.record(size) for size in sizes]
        with _named_errors(self.called):
            try:
                general = with_sizes(records, sizes)
            except SizeError:
                refuse_chance(records[0], self.record(dimension))
                raise
        (weight, state), other = map(self.start, sizes)
        hypers = (("hyper", n) for n in self.tensors)
        return Trace(
            name=self.called,
            recipe=self.function,
            record=records[0],
            general=general,
            inputs=(*hypers, ("weight", "w"), ("grad", "g"), *(("state", n) for n in state)),
            outputs=("weight", *state),
            numbers=numbers,
            intervals=intervals,
            scalar_states=tuple(n for n, value in state.items() if value.numel() == 1),
            counters=tuple(n for n, value in state.items() if value.ndim == 0),
            starts={
                name: _start_of((weight, value), (other[0], other[1][name]))
                for name, value in state.items()
            },
            shape=tuple(weight.shape),
            views=views_of(self.rule),
            hyper_parameters=self.values,
        )

    def interval(self, name: str) -> Interval:
        """The interval of a hyper-parameter: declared by a field, or what the recipe accepts."""
        declared = intervals_of(self.rule, self.tensors)
        if name in declared:
            return declared[name]

        # Not at 0, where a recipe may leave out the rule that would refuse a number.
        others = {n: float(x) or 0.5 for n, x in self.tensors.items() if n != name}

        def accepts(number: float) -> bool:
            return self._builds({**others, name: number})

        default = float(self.tensors[name])
        others = others if accepts(default) else {}
        return probe(accepts, default)

    def _builds(self, numbers: Mapping[str, float]) -> bool:
        """Tell if the recipe takes these numbers."""
        try:
            self.function(**enter(self.values, numbers))
        except Exception:
            return False
        return True

    def start(self, dimension: int) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """A weight of one unit, and its state before the first step."""
        generator = torch.Generator().manual_seed(0)
        with _named_errors(self.called):
            _refuse_more_than_a_step(self.rule)
            shape = shape_of_one_unit(self.rule, dimension)
            weight = torch.randn(shape, dtype=torch.float64, generator=generator)
            state = self.rule.init(weight)
            _refuse_narrow(state)
            return weight, state

    def record(self, dimension: int) -> Record:
        """A step: from (hyper-parameters, weight, gradient, states) to (weight, states)."""
        weight, state = self.start(dimension)
        grad = torch.randn(
            weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )

        def step(*inputs: torch.Tensor) -> list[torch.Tensor]:
            weight, grad, *states = inputs[len(self.tensors) :]
            entered = dict(zip(self.tensors, inputs, strict=False))
            rule = self.function(**enter(self.values, entered))
            new_weight, new_state = rule.step(weight, grad, dict(zip(state, states, strict=True)))
            return [new_weight, *(new_state[name] for name in state)]

        with _named_errors(self.called):
            return record(step, *self.tensors.values(), weight, grad, *state.values())


def _refuse_more_than_a_step(rule: Rule) -> None:
    """Refuse rules whose steps are of more than one weight.

    Raises:
        TraceError: naming the rule.
    """
    for each in rule.tree():
        if type(each).measure is not Rule.measure:
            why = "measures all weights together, and a law is of one"
            raise TraceError(f"{type(each).__name__} {why}")


def _refuse_narrow(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse states of small integers and truth values, which are no real numbers."""
    for name, value in state.items():
        if value.dtype not in COUNTS and not value.is_floating_point():
            raise TypeError(
                f"the state {name!r} is of {value.dtype}, which wraps around or is logical, and a "
                "law is about real numbers"
            )


@contextlib.contextmanager
def _named_errors(called: str) -> Iterator[None]:
    """Name the recipe in whatever its code raises."""
    try:
        yield
    except (RecordError, TypeError) as error:
        if isinstance(error, TypeError) and "integer tensors" not in str(error):
            raise TraceError(f"{called}: {message(error)}") from error
        raise TraceError(
            f"{called}: the step takes a number out of a tensor (an `if` on a tensor, .item(), "
            "float(), range(n)), so that it cannot be traced; use torch.where, or hold the "
            "hyper-parameter that it asks for at a number"
        ) from error
    except SizeError as error:
        raise TraceError(f"{called}: {error}") from error
    except Exception as error:
        raise TraceError(f"{called}: {message(error)}") from error
