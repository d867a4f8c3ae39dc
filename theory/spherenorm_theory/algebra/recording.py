"""Trace one step of a recipe: a record from its hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Recipe, Rule, View, bind
from spherenorm.record import Record, RecordError, record
from spherenorm_theory.algebra.hyper_parameters import (
    are_numbers,
    enter,
    is_number,
    numbers_by_name,
    parts_of,
    resolve_hyper_parameters,
    resolve_recipe,
)
from spherenorm_theory.algebra.letters import marked, states_of_letters
from spherenorm_theory.algebra.sizes import SizeError, with_sizes
from spherenorm_theory.algebra.symbols import exact
from spherenorm_theory.algebra.trace import ANY, Trace, TraceError
from spherenorm_theory.algebra.units import (
    refuse_blocks,
    refuse_matrices,
    refuse_rules,
    refuse_states,
    shape_of_one_unit,
    views_of,
)

RESERVED = frozenset(
    ["1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "c", "q", "rank", "O", "N", "T", "gamma"]
)
"""The names of symbols that laws have of their own."""

KEPT = 512
_TRACES: dict[tuple[Any, ...], Trace] = {}


def trace(recipe: str | Recipe | Trace, dimension: int = 5, **given: Any) -> Trace:
    """Trace one step of `recipe`, for a weight that is one unit under each of its views.

    A recipe of the library is traced once in a process, and a user's anew, as what it reads may
    have changed.

    (Of shape (1, dimension) for the views channel and layer.) Every numeric hyper-parameter becomes
    a 0-dim tensor input, hence a symbol; a tuple of numbers such as `betas` becomes one symbol per
    entry (beta1, beta2). A float that is given is a symbol too, which its number replaces in the
    finished law. All else that is given is structure, which chooses the code that is traced:
    booleans, strings, None, and numbers such as 0 at which a recipe leaves a rule out.

    Constants of a recipe, as in `StepSize(0.5)`, and numbers that Python computes of them are
    rounded before they are recorded; `spherenorm_theory.algebra.exact` reads them. Values you pass
    are rounded in the same way if the recipe branches on them.

    Args:
        recipe: a recipe, its registered name, or "module:function"; a trace stays as it is.
        dimension: entries of the weight.
        given: hyper-parameters to hold at a value, as in `trace(sgd, weight_decay=0.0,
            nesterov=True)`.

    Raises:
        ValueError: no such recipe, no such hyper-parameter, or one without a default or a value.
        TraceError: the recipe raises, forgets a state, or has a view of several units whatever the
            weight; its step branches on a tensor's value, takes it out of the tensor, or mixes the
            units of a weight.

    Example:
        >>> trace("sgd", nesterov=True).structure["nesterov"], list(trace("sgd").symbols)
        (True, ['lr', 'momentum', 'dampening', 'weight_decay'])
    """
    if isinstance(recipe, Trace):
        return recipe
    function = resolve_recipe(recipe)
    values, defaults = resolve_hyper_parameters(function, given), bind(function).defaults
    # A flag at its default is no other trace; a number is one: it is held.
    given = {
        n: values[n]
        for n in given
        if is_number(values[n]) or are_numbers(values[n]) or values[n] is not defaults[n]
    }
    key = (function, dimension, *((n, repr(values[n])) for n in sorted(given)))  # (1 is not 1.0)
    ours = function.__module__.split(".")[0] == "spherenorm"
    if not ours or any(isinstance(values[n], Tensor) for n in given):
        return _traced(function, values, given, dimension)
    if key not in _TRACES:
        _TRACES[key] = _traced(function, values, given, dimension)
        if len(_TRACES) > KEPT:
            del _TRACES[next(iter(_TRACES))]
    return _TRACES[key]


def _traced(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, Any], dimension: int
) -> Trace:
    numbers: dict[str, sp.Expr | None] = {}  # of the inputs: the exact number that was given
    for name, parts in parts_of(values).items():
        for part, entry in parts.items():
            if is_number(entry) and name not in given:
                numbers[part] = None
            elif isinstance(entry, float) and entry != 0:
                numbers[part] = exact(entry)
    with torch.no_grad():  # as optimizers take their steps
        try:
            return _trace(function, values, numbers, dimension)
        except TraceError:
            symbols = {name: None for name, number in numbers.items() if number is None}
            if len(symbols) == len(numbers):
                raise
            # Code that branches on a given number wants it as a Python number.
            return _trace(function, values, symbols, dimension)


def _trace(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, sp.Expr | None], dimension: int
) -> Trace:
    """The trace whose inputs are `given`; other hyper-parameters are constants."""
    called, entries = bind(function).name, numbers_by_name(values)
    tensors = {part: torch.tensor(float(entries[part]), dtype=torch.float64) for part in given}

    def start(size: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A weight of one unit, and its state before the first step."""
        generator = torch.Generator().manual_seed(0)
        shape = shape_of_one_unit(views, size)
        weight = torch.randn(shape, dtype=torch.float64, generator=generator)
        return weight, rule.init(weight)

    def written(size: int) -> Record:
        """A step: from (hyper-parameters, weight, gradient, states) to (weight, states)."""
        weight, state = start(size)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(weight.shape, dtype=torch.float64, generator=generator)

        def step(*inputs: Tensor) -> list[Tensor]:
            weight, grad, *states = inputs[len(tensors) :]
            present, _ = marked(function(**enter(values, dict(zip(tensors, inputs, strict=False)))))
            new, after = present.step(weight, grad, dict(zip(state, states, strict=True)))
            return [new, *(after[name] for name in state)]

        return record(step, *tensors.values(), weight, grad, *state.values())

    with _named_errors(called):
        # Rules check intervals of Python numbers, and of no tensors.
        refuse_blocks(function(**values))
        rule = function(**enter(values, tensors))
    if not isinstance(rule, Rule):
        raise TypeError(f"{called} must return a rule, got {rule!r}")
    intervals = {name: _interval(rule, function, values, tensors, name) for name in tensors}
    with _named_errors(called):
        exchanged, letters = marked(rule)
        refuse_rules(exchanged, letters)
        views = views_of(exchanged)
        kept = states_of_letters(exchanged).values()
        inside = {outer for keys in kept for outer in keys.values()} - {"step"}
        refuse_states(rule, views or (View(0), View(None)), start(3), inside)
        sizes = (dimension, dimension + 2)
        records = [written(size) for size in sizes]
        refuse_matrices(records[0])
        general = with_sizes(records, sizes)
        (weight, state), (_, other) = map(start, sizes)
    symbols = {name: _symbol(name, intervals[name]) for name in tensors}
    return Trace(
        name=called,
        recipe=function,
        record=general,
        states=tuple(state),
        symbols=symbols,
        given={symbols[n]: x for n, x in given.items() if x is not None},
        intervals=intervals,
        scalar_states=tuple(n for n, x in state.items() if x.numel() == 1 and n not in inside),
        counters=tuple(n for n, x in state.items() if x.ndim == 0 and n not in inside),
        starts={n: _start_of(value, other[n]) for n, value in state.items()},
        letters=letters,
        inside=frozenset(inside),
        shape=tuple(weight.shape),
        views=views,
        hyper_parameters=values,
    )


def _symbol(name: str, interval: Interval) -> sp.Symbol:
    """The symbol of a hyper-parameter: positive where its interval holds no negative number."""
    free = f"{name}_hyper" if name in RESERVED else name
    return sp.Symbol(free, positive=True) if interval.low >= 0 else sp.Symbol(free, real=True)


def _start_of(value: Tensor, other: Tensor) -> sp.Expr | None:
    """The first value of a state that is the same number in every entry, whatever the weight."""
    if not value.numel():
        return None
    first = value.flatten()[0].item()
    alike = bool((value == first).all() and (other == first).all())
    return exact(first) if alike else None


def _interval(
    rule: Rule,
    function: Recipe,
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    name: str,
) -> Interval:
    """The open interval of a hyper-parameter: what the fields that it reaches declare together.

    Of one that reaches no field as it is, the interval is what the recipe's rules accept.
    """
    low, high, declared = -math.inf, math.inf, False
    for part in rule.tree():
        for field in fields(part):
            own = field.metadata.get("interval")
            if own is not None and getattr(part, field.name) is tensors[name]:
                low, high, declared = max(low, own.low), min(high, own.high), True
    if declared:
        return Interval(low, high, True, True)
    default = float(tensors[name])
    # Not at 0, where a recipe may leave out the rule that would refuse a number.
    others = {n: float(x) or 0.5 for n, x in tensors.items() if n != name}

    def accepts(number: float, **others: float) -> bool:
        try:
            function(**enter(values, {**others, name: number}))
        except Exception:
            return False
        return True

    others = others if accepts(default, **others) else {}
    if any(accepts(-x, **others) for x in (1e-6, 0.3, max(abs(default), 1e-3))):
        return ANY
    below_one = default < 1 and not any(accepts(x, **others) for x in (1.001, 2.0))
    return Interval(0.0, 1.0 if below_one else math.inf, True, True)


@contextlib.contextmanager
def _named_errors(called: str) -> Iterator[None]:
    """Name the recipe in whatever its code raises."""
    try:
        yield
    except (SizeError, TraceError) as error:
        raise TraceError(f"{called}: {str(error).removeprefix(f'{called}: ')}") from error
    except Exception as error:
        text = _message(error)
        if isinstance(error, RecordError) or "integer tensors" in text:
            text = (
                "the step takes a number out of a tensor (an `if` on a tensor, .item(), float(), "
                "range(n)), so that it cannot be traced; use torch.where, or hold the "
                "hyper-parameter that it asks for at a number"
            )
        raise TraceError(f"{called}: {text}") from error


def _message(error: Exception) -> str:
    """A recipe's error in one line, with its place unless the message is the recipe's own."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError):
        return text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "torch" not in Path(frame.filename).parts
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"
