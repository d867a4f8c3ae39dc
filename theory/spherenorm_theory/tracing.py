"""A traced step: the record of a recipe, from hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Recipe, Rule, View, as_view, bind
from spherenorm import rules as r
from spherenorm.record import Call, Record, RecordError, record
from spherenorm_theory.hyper_parameters import (
    are_numbers,
    is_number,
    resolve_hyper_parameters,
    resolve_recipe,
    scalar_names,
    scalars_by_name,
    substitute_inputs,
)
from spherenorm_theory.opaque_rules import OpaqueRule, replace_opaque_rules, states_of_opaque_rules
from spherenorm_theory.symbols import DIMENSION, exact

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
    exact_values: Mapping[sp.Symbol, sp.Expr]
    intervals: Mapping[str, Interval]
    scalar_states: tuple[str, ...]
    counters: tuple[str, ...]
    starts: Mapping[str, sp.Expr | None]
    opaque_rules: tuple[Rule, ...]
    opaque_states: frozenset[str]
    shape: tuple[int, ...]
    views: tuple[View, ...]
    hyper_parameters: Mapping[str, Any]

    def build(self, inputs: Mapping[str, Any]) -> Rule:
        """The rule with tensors, or plain numbers, in the places of its inputs."""
        return self.recipe(**substitute_inputs(self.hyper_parameters, inputs))

    @cached_property
    def symbolic(self) -> Mapping[str, sp.Symbol]:
        """The symbols that no number was given for."""
        return {name: s for name, s in self.symbols.items() if s not in self.exact_values}

    @cached_property
    def domains(self) -> Mapping[sp.Symbol, Interval]:
        """The intervals, by symbol."""
        return {s: self.intervals[name] for name, s in self.symbols.items()}

    @cached_property
    def fixed_values(self) -> Mapping[str, Any]:
        """The numbers and other values at which the law holds, by the names of inputs."""
        parts = scalars_by_name(self.hyper_parameters)
        return {name: value for name, value in parts.items() if name not in self.symbolic}

    @cached_property
    def structure(self) -> Mapping[str, Any]:
        """The hyper-parameters of which no part is a symbol: betas as a whole."""
        whole, names = self.hyper_parameters, scalar_names(self.hyper_parameters)
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
        numbers = {**scalars_by_name(used), **parts}
        for name, value in self.fixed_values.items():
            if not _is_same(numbers.get(name), value):
                other = numbers.get(name)
                raise ValueError(
                    f"{self.name}: the law holds {name} at {value!r}, got {other!r}; derive one "
                    f"for it: norm_growth(..., {name}={other!r})"
                )
        return {symbol: self._number(name, numbers[name]) for name, symbol in self.symbolic.items()}

    def numbers(self, **given: Any) -> dict[str, float]:
        """The numbers of all symbols by name, of those that the law holds too."""
        values = {**self.values(**given), **self.exact_values}
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


# The weight that a law is about: one unit under all views, of which numbers may hold the size d.


PRODUCTS = 6
"""Matrix products of a step, at most; those of the library's readable rules have three."""
POWERS = [sp.Rational(p, 2) for p in (2, 1, -1, -2, 4, -4)]
"""Of the size of a weight, in a number of a step."""


def declared_views(rule: Rule) -> Iterator[tuple[str, View]]:
    """The views of a rule, of the rules within it and of their manifolds, by their class."""
    # The rules inside the rule of a letter are not looked into.
    is_letter = isinstance(rule, OpaqueRule)
    for holder in [rule.rule] if isinstance(rule, OpaqueRule) else [rule, rule.manifold]:
        view = getattr(holder, "view", None)
        for declared in (*getattr(holder, "views", ()), *(() if view is None else (view,))):
            yield type(holder).__name__, as_view(declared)
    for child in () if is_letter else rule.children:
        yield from declared_views(child)


def views_of(rule: Rule) -> tuple[View, ...]:
    """Each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, view in declared_views(rule)))


def count_units(view: View, shape: tuple[int, ...]) -> int:
    """The number of units of a weight, 0 where the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0


def shape_of_one_unit(views: tuple[View, ...], dimension: int) -> tuple[int, ...]:
    """A shape of `dimension` entries, all on one dimension, that is one unit under each view.

    Raises:
        ValueError: there is none, since a view makes several units of every weight.
    """
    for view in views:
        if view.groups not in (None, 1):
            raise ValueError(
                f"the view {view} makes {view.groups} units of a weight or more, and a law is "
                f"about one; each moves as a weight under {replace(view, groups=1)}: give that "
                "view instead"
            )
    for n in range(2, 6):
        for place in reversed(range(n)):
            shape = (1,) * place + (dimension,) + (1,) * (n - 1 - place)
            if all(count_units(replace(view, groups=None), shape) == 1 for view in views):
                return shape
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{', '.join(map(str, views))}"
    )


# Refusals


def refuse_blocks(rule: object) -> None:
    """Refuse blocks of rows, of which each has a law.

    Raises:
        TraceError: naming the rule.
    """
    if isinstance(rule, Rule) and any(isinstance(each, r.Blocks) for each in rule.walk()):
        raise TraceError(
            "Blocks steps each block of rows as a weight of its own: the law of a block is the law "
            "of its recipe"
        )


def refuse_rules(rule: Rule, letters: tuple[Rule, ...]) -> None:
    """Refuse rules that act on several weights, or on several units, at once.

    Raises:
        TraceError: naming the rule.
    """
    for each in rule.walk():
        name = type(each).__name__
        if type(each).global_sum_terms is not Rule.global_sum_terms:
            raise TraceError(f"{name} measures all weights together, and a law is of one")
        if isinstance(each, r.FixedSpectralNorm):
            raise TraceError(
                f"units interact: {name} divides by the largest singular value, which powers of "
                "the weight's Gram matrix give"
            )
    matrices = [each.view for each in letters if isinstance(each, r.Orthogonalize)]
    for holder, view in declared_views(rule) if matrices else ():
        if count_units(view, (6, 6)) > max(1, *(count_units(x, (6, 6)) for x in matrices)):
            raise TraceError(
                f"units interact: {holder} acts on each unit of its view {view}, and "
                f"Orthogonalize on a matrix of several of them ({matrices[0]})"
            )


def refuse_matrices(written: Record) -> None:
    """Refuse a step that multiplies matrices again and again.

    Raises:
        TraceError: with the line of the first product.
    """
    kinds = ("mm", "bmm", "addmm", "baddbmm")
    calls = [call for call in written.needed if call.packet in kinds]
    if len(calls) > PRODUCTS:
        raise TraceError(
            f"units interact: the step multiplies matrices {len(calls)} times, as an iteration of "
            "Newton and Schulz does, which mixes the rows of a weight; rules.Orthogonalize is one "
            f"letter of a law; it came from {calls[0].line}"
        )


def refuse_shared_states(
    rule: Rule, views: Sequence[View], shape: Sequence[int], inside: set[str]
) -> None:
    """Refuse states of which units share entries, such as a moment of each column.

    Args:
        rule: of the states.
        views: of its units.
        shape: of a weight of one unit.
        inside: the states of letters, of which a law says nothing.

    Raises:
        TraceError: naming the state.
    """
    weight = torch.ones([2 if n == 1 else n for n in shape], dtype=torch.float64)
    try:
        states = {n: x for n, x in rule.init(weight).items() if n not in inside}
    except Exception:  # a rule of one shape alone
        return
    own = {n: x for n, x in states.items() if x.shape != weight.shape and x.numel() != 1}
    splitting = [each for each in views if count_units(each, tuple(weight.shape))]
    if own and not any(
        all(x.shape == view.total(weight).shape for x in own.values()) for view in splitting
    ):
        units = count_units(views[0], tuple(weight.shape))
        name, value = max(own.items(), key=lambda item: item[1].numel() not in (0, units))
        raise TraceError(
            f"units interact: they share the state {name!r}, of shape {tuple(value.shape)} for a "
            f"weight of shape {tuple(weight.shape)}"
        )


# The size of the weight


def generalize_over_dimension(records: Sequence[Record], sizes: Sequence[int]) -> Record:
    """The first record, with c d^p for each number that follows the size d of the weight.

    Args:
        records: of one step, for weights of different sizes.
        sizes: the numbers of entries of the weights.

    Raises:
        TraceError: the records differ in an operation, or in a number that is no c d^p.
    """
    first, calls = records[0], dict[int, Call]()
    names = [[call.name for call in record.needed] for record in records]
    if any(each != names[0] for each in names):
        pairs = zip(first.needed, *names, strict=False)
        other = next((call for call, *each in pairs if len({*each}) > 1), first.needed[-1])
        raise TraceError(
            f"the code does other operations for weights of {' and '.join(map(str, sizes))} "
            f"entries, from {other.line} on"
        )
    for call, *others in zip(*(record.needed for record in records), strict=True):
        similar_shape = (call, *others)
        arguments = zip(*(each.arguments for each in similar_shape), strict=True)
        options = {n: [each.options[n] for each in similar_shape] for n in call.options}
        calls[id(call)] = replace(
            call,
            arguments=tuple(_general(call, each, sizes) for each in arguments),
            options={n: _general(call, each, sizes) for n, each in options.items()},
        )
    return replace(first, calls=tuple(calls.get(id(call), call) for call in first.calls))


def _general(call: Call, entries: Sequence[Any], sizes: Sequence[int]) -> Any:
    """An argument that holds for every size."""
    first = entries[0]
    plain = isinstance(first, (int, float)) and not isinstance(first, bool)
    if not plain or all(entry == first for entry in entries):
        return first
    for power in POWERS:
        factors = [entry / float(size**power) for entry, size in zip(entries, sizes, strict=True)]
        if all(math.isclose(factor, factors[0], rel_tol=1e-13) for factor in factors):
            return exact(factors[0]) * DIMENSION**power
    shown = ", ".join(f"{e:g} for {n} entries" for e, n in zip(entries, sizes, strict=True))
    raise TraceError(f"a number depends on the shape of the weight ({shown}); it is in {call.line}")


# Trace one step of a recipe: a record from its hyper-parameters, weight, gradient and states.


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
    rounded before they are recorded; `spherenorm_theory.symbols.exact` reads them. Values
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
        return _trace_with_fallback(function, dimension, held)
    return _trace_cached(
        function, dimension, tuple((n, x, repr(x)) for n, x in sorted(held.items()))
    )


def hold_as_constants(traced: Trace) -> Trace:
    """The trace in which the numbers that were given are Python numbers, as code branches on them.

    Raises:
        TraceError: as for `trace`.
    """
    free: dict[str, sp.Expr | None] = dict.fromkeys(traced.symbolic)
    with torch.no_grad():
        return _record(traced.recipe, traced.hyper_parameters, free, math.prod(traced.shape))


def _holds_numbers(value: Any) -> bool:
    return is_number(value) or are_numbers(value)


@lru_cache(maxsize=512)
def _trace_cached(
    function: Recipe, dimension: int, held: tuple[tuple[str, Any, str], ...]
) -> Trace:
    return _trace_with_fallback(
        function, dimension, {n: x for n, x, _ in held}
    )  # (1 is not 1.0: see repr)


@torch.no_grad()  # as optimizers take their steps
def _trace_with_fallback(function: Recipe, dimension: int, held: Mapping[str, Any]) -> Trace:
    values = resolve_hyper_parameters(function, held)
    named, of_held = scalars_by_name(values), scalars_by_name(held, beside=values)
    # The inputs; of those that are held, the exact number.
    numbers = {
        name: exact(x) if name in of_held else None
        for name, x in named.items()
        if is_number(x) and (name not in of_held or (isinstance(x, float) and x != 0))
    }
    try:
        return _record(function, values, numbers, dimension)
    except TraceError:
        free = {name: None for name, number in numbers.items() if number is None}
        if len(free) == len(numbers):
            raise
        # Code that branches on a given number wants it as a Python number.
        return _record(function, values, free, dimension)


def _record(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, sp.Expr | None], dimension: int
) -> Trace:
    """The trace whose inputs are `given`; other hyper-parameters are constants."""
    called, entries = bind(function).name, scalars_by_name(values)
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
            present, _ = replace_opaque_rules(
                function(**substitute_inputs(values, dict(zip(tensors, inputs, strict=False))))
            )
            new, after = present.step(weight, grad, dict(zip(state, states, strict=True)))
            return [new, *(after[name] for name in state)]

        return record(step, *tensors.values(), weight, grad, *state.values())

    with _named_errors(called):
        # Rules check intervals of Python numbers, and of no tensors.
        refuse_blocks(function(**values))
        rule = function(**substitute_inputs(values, tensors))
    if not isinstance(rule, Rule):
        raise TypeError(f"{called} must return a rule, got {rule!r}")
    intervals = {name: _interval(rule, function, values, tensors, name) for name in tensors}
    with _named_errors(called):
        exchanged, opaque_rules = replace_opaque_rules(rule)
        refuse_rules(exchanged, opaque_rules)
        views = views_of(exchanged)
        state_names = states_of_opaque_rules(exchanged).values()
        opaque_states = {outer for keys in state_names for outer in keys.values()} - {"step"}
        sizes = (dimension, dimension + 2)
        (weight, state), (_, other) = map(start, sizes)
        for name, value in state.items():
            if value.dtype not in COUNTS and not value.is_floating_point():
                raise TypeError(
                    f"the state {name!r} is of {value.dtype}, which wraps around or is logical, "
                    "and a law is about real numbers"
                )
        refuse_shared_states(
            rule, views or (View(0), View(None)), shape_of_one_unit(views, 3), opaque_states
        )
        records = [written(size) for size in sizes]
        refuse_matrices(records[0])
        general = generalize_over_dimension(records, sizes)
    symbols = _symbols(intervals)
    return Trace(
        name=called,
        recipe=function,
        record=general,
        states=tuple(state),
        symbols=symbols,
        exact_values={symbols[n]: x for n, x in given.items() if x is not None},
        intervals=intervals,
        scalar_states=tuple(
            n for n, x in state.items() if x.numel() == 1 and n not in opaque_states
        ),
        counters=tuple(n for n, x in state.items() if x.ndim == 0 and n not in opaque_states),
        starts={n: _start_of(value, other[n]) for n, value in state.items()},
        opaque_rules=opaque_rules,
        opaque_states=frozenset(opaque_states),
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
    similar_shape = bool((value == first).all() and (other == first).all())
    return exact(first) if similar_shape else None


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
            function(**substitute_inputs(values, {**others, name: number}))
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
        if isinstance(error, RecordError) or "integer tensors" in text:
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
