"""Trace one step of a recipe: a record from its hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Recipe, Rule, View, bind
from spherenorm.record import Record, Unsupported, record
from spherenorm_theory.algebra.hyper_parameters import (
    are_numbers,
    enter,
    is_number,
    numbers_by_name,
    resolve_hyper_parameters,
    resolve_recipe,
)
from spherenorm_theory.algebra.letters import marked, states_of_letters
from spherenorm_theory.algebra.symbols import exact
from spherenorm_theory.algebra.trace import ANY, Trace, TraceError
from spherenorm_theory.algebra.units import (
    refuse_blocks,
    refuse_matrices,
    refuse_rules,
    refuse_shared_states,
    shape_of_one_unit,
    views_of,
    with_sizes,
)

RESERVED = frozenset(
    [
        *("1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "c", "q", "rank", "O", "N", "T"),
        *("gamma", "t", "turn"),
    ]
)
"""The names of symbols that laws have of their own."""
COUNTS = (torch.int32, torch.int64)
"""Integers in which no count of steps wraps around."""
F64 = torch.float64


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
    rounded before they are recorded; `spherenorm_theory.algebra.symbols.exact` reads them. Values
    you pass are rounded in the same way if the recipe branches on them.

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
    held = {
        n: values[n] for n in given if _holds_numbers(values[n]) or values[n] is not defaults[n]
    }
    ours = function.__module__.split(".")[0] == "spherenorm"
    if not ours or any(isinstance(x, Tensor) for x in held.values()):
        return _traced(function, dimension, held)
    return _traced_once(
        function, dimension, tuple((n, x, repr(x)) for n, x in sorted(held.items()))
    )


def hold_as_constants(traced: Trace) -> Trace:
    """The trace in which the numbers that were given are Python numbers, as code branches on them.

    Raises:
        TraceError: as for `trace`.
    """
    free: dict[str, sp.Expr | None] = dict.fromkeys(traced.free)
    with torch.no_grad():
        return _trace(traced.recipe, traced.hyper_parameters, free, math.prod(traced.shape))


def _holds_numbers(value: Any) -> bool:
    return is_number(value) or are_numbers(value)


@lru_cache(maxsize=512)
def _traced_once(function: Recipe, dimension: int, held: tuple[tuple[str, Any, str], ...]) -> Trace:
    return _traced(function, dimension, {n: x for n, x, _ in held})  # (1 is not 1.0: see repr)


@torch.no_grad()  # as optimizers take their steps
def _traced(function: Recipe, dimension: int, held: Mapping[str, Any]) -> Trace:
    values = resolve_hyper_parameters(function, held)
    named, of_held = numbers_by_name(values), numbers_by_name(held, beside=values)
    # The inputs; of those that are held, the exact number.
    numbers = {
        name: exact(x) if name in of_held else None
        for name, x in named.items()
        if is_number(x) and (name not in of_held or (isinstance(x, float) and x != 0))
    }
    try:
        return _trace(function, values, numbers, dimension)
    except TraceError:
        free = {name: None for name, number in numbers.items() if number is None}
        if len(free) == len(numbers):
            raise
        # Code that branches on a given number wants it as a Python number.
        return _trace(function, values, free, dimension)


def _trace(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, sp.Expr | None], dimension: int
) -> Trace:
    """The trace whose inputs are `given`; other hyper-parameters are constants."""
    called, entries = bind(function).name, numbers_by_name(values)
    tensors = {part: torch.tensor(float(entries[part]), dtype=F64) for part in given}

    def start(size: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A weight of one unit, and its state before the first step."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(shape_of_one_unit(views, size), dtype=F64, generator=generator)
        return weight, rule.init(weight)

    def written(size: int) -> Record:
        """A step: from (hyper-parameters, weight, gradient, states) to (weight, states)."""
        weight, state = start(size)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(weight.shape, dtype=F64, generator=generator)

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
        sizes = (dimension, dimension + 2)
        (weight, state), (_, other) = map(start, sizes)
        for name, value in state.items():
            if value.dtype not in COUNTS and not value.is_floating_point():
                raise TypeError(
                    f"the state {name!r} is of {value.dtype}, which wraps around or is logical, "
                    "and a law is about real numbers"
                )
        refuse_shared_states(
            rule, views or (View(0), View(None)), shape_of_one_unit(views, 3), inside
        )
        records = [written(size) for size in sizes]
        refuse_matrices(records[0])
        general = with_sizes(records, sizes)
    symbols = _symbols(intervals)
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


def _symbols(intervals: Mapping[str, Interval]) -> dict[str, sp.Symbol]:
    """The symbols of hyper-parameters: positive where the interval holds no negative number.

    One that would have a symbol of the laws, such as w, is w_hyper, unless that is another's name.
    """
    symbols, used_names = dict[str, sp.Symbol](), {*intervals, *RESERVED}
    for name, interval in intervals.items():
        free = name
        while name in RESERVED and free in used_names:
            free += "_hyper"
        used_names.add(free)
        sign = {"positive": True} if interval.low >= 0 else {"real": True}
        symbols[name] = sp.Symbol(free, **sign)
    return symbols


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
    declared = [
        field.metadata["interval"]
        for part in rule.walk()
        for field in fields(part)
        if field.metadata.get("interval") and getattr(part, field.name) is tensors[name]
    ]
    if declared:
        low, high = max(x.low for x in declared), min(x.high for x in declared)
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

    def end(far: float, limit: float, others: Mapping[str, float]) -> float:
        """The last number towards `far` that is accepted beside others; `limit` if all are."""
        inside, outside = default or 0.5, far
        if accepts(far, **others) or not accepts(inside, **others):
            return limit
        while not math.isclose(inside, outside, rel_tol=1e-13):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if accepts(middle, **others) else (inside, middle)
        return float(f"{inside:.9g}")

    # An end that moves with the others is none of this hyper-parameter alone.
    beside = (others, {n: x / 2 for n, x in others.items()})
    first, second = ((end(1e-9, 0.0, x), end(1e9, math.inf, x)) for x in beside)
    return Interval(*(first if first == second else (0.0, math.inf)), True, True)


@contextlib.contextmanager
def _named_errors(called: str) -> Iterator[None]:
    """Name the recipe in whatever its code raises, with the place unless it is its own message."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split()).removeprefix(f"{called}: ")
        if isinstance(error, Unsupported) or "integer tensors" in text:
            text = (
                "the step takes a number out of a tensor (an `if` on a tensor, .item(), float(), "
                "range(n)), so that it cannot be traced; use torch.where, or hold the "
                "hyper-parameter that it asks for at a number"
            )
        elif not isinstance(error, ValueError):
            frames = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if "torch" not in Path(frame.filename).parts
                and Path(frame.filename).parent != Path(__file__).parent
            ]
            place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
            text = f"{type(error).__name__}: {text}{place}"
        raise TraceError(f"{called}: {text}") from error
