"""`trace`: record one step of a recipe, for a weight of one unit.

The record starts from the hyper-parameters, the weight, the gradient and the states, and gives the
new weight and states. It is made for weights of two sizes, so that numbers that follow the size d
of the weight become c d^p. Rules of several units, whose law would not be that of one, are refused.
"""

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
from spherenorm.record import Call, Record, Unsupported, record
from spherenorm.rules.watch import without_watches
from spherenorm_theory.hyper_parameters import (
    are_numbers,
    is_number,
    resolve_hyper_parameters,
    resolve_recipe,
    scalar_names,
    scalars_by_name,
    substitute_inputs,
)
from spherenorm_theory.opaque_rules import (
    OpaqueRule,
    mark_schedules,
    replace_opaque_rules,
    states_of_opaque_rules,
)
from spherenorm_theory.symbols import DIMENSION, exact

ANY = Interval(-math.inf, math.inf, True, True)
"""The interval of a hyper-parameter that no rule declares."""
MAX_MATRIX_PRODUCTS = 6
"""Largest number of matrix products of a step; the library's readable rules have three."""
POWERS_OF_SIZE = [sp.Rational(p, 2) for p in (2, 1, -1, -2, 4, -4)]
"""Powers p of the size d of a weight in a number c d^p of a step."""
RESERVED = frozenset(
    [
        *("1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "c", "q", "rank", "O", "N", "T"),
        *("gamma", "t", "step"),
    ]
)
"""The names of symbols that laws have of their own."""
WIDE_INTEGERS = (torch.int32, torch.int64)
"""Integer types in which no step count wraps around."""
F64 = torch.float64


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
    """A recorded step of a recipe.

    Attributes:
        name: the recipe's name.
        recipe: the recipe, a function.
        record: the operations, from the hyper-parameters, the weight, the gradient and the states
            to the weight and the states, with c d^p in place of numbers that follow the size d of
            the weight.
        states: names of the states.
        symbols: symbol of each hyper-parameter that is an input.
        given_values: the exact numbers of the hyper-parameters that were given; a law is derived
            with symbols, which these replace at last.
        intervals: open interval of each input; 0 is an end, as it selects other code.
        scalar_states: states of one number per unit or one for all (a counter, a second moment per
            unit).
        counters: scalar states of one number for all units.
        starts: first value of each scalar state, if it does not depend on the weight.
        opaque_rules: the rules that are one letter of a law.
        opaque_states: the states of these rules, of which a law says nothing.
        shape: shape of the traced weight, which is one unit; no law depends on it.
        views: the views that the rules declare.
        hyper_parameters: all hyper-parameters, as the recipe takes them.

    Example:
        >>> traced = trace("sgd", weight_decay=0.0, dampening=0.0)
        >>> [*traced.symbols], traced.states
        (['lr', 'momentum'], ('momentum_buffer',))
        >>> traced.free_values(lr=0.1, momentum=0.9)
        {lr: 0.1, momentum: 0.9}
    """

    name: str
    recipe: Recipe
    record: Record
    states: tuple[str, ...]
    symbols: Mapping[str, sp.Symbol]
    given_values: Mapping[sp.Symbol, sp.Expr]
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
        """Return the rule with tensors or plain numbers for its inputs."""
        return without_watches(self.recipe(**substitute_inputs(self.hyper_parameters, inputs)))

    @cached_property
    def symbolic(self) -> Mapping[str, sp.Symbol]:
        """The symbols for which no number was given."""
        return {name: s for name, s in self.symbols.items() if s not in self.given_values}

    @cached_property
    def domains(self) -> Mapping[sp.Symbol, Interval]:
        """The intervals, by symbol."""
        return {s: self.intervals[name] for name, s in self.symbols.items()}

    @cached_property
    def fixed_values(self) -> Mapping[str, Any]:
        """The numbers and other values at which the law holds, by the names of inputs."""
        scalars = scalars_by_name(self.hyper_parameters)
        return {name: value for name, value in scalars.items() if name not in self.symbolic}

    @cached_property
    def static_arguments(self) -> Mapping[str, Any]:
        """The hyper-parameters of which no part is a symbol; a tuple such as betas as a whole."""
        values, names = self.hyper_parameters, scalar_names(self.hyper_parameters)
        return {n: values[n] for n in values if self.symbols.keys().isdisjoint(names[n])}

    def free_values(self, **hyper_parameters: Any) -> dict[sp.Symbol, float]:
        """Return numbers for the free symbols, given or default.

        Args:
            **hyper_parameters: numbers by the names of hyper-parameters, with betas as a tuple, or
                by the names of inputs.

        Raises:
            ValueError: one is unknown, not a finite number, outside its interval, or another value
                than the one at which the law fixes it.
        """
        inputs = {
            name: x
            for name, x in hyper_parameters.items()
            if name in self.symbols and name not in self.hyper_parameters
        }
        arguments = {n: x for n, x in hyper_parameters.items() if n not in inputs}
        used = resolve_hyper_parameters(self.recipe, {**self.hyper_parameters, **arguments})
        scalars = {**scalars_by_name(used), **inputs}
        for name, fixed_value in self.fixed_values.items():
            value = scalars.get(name)
            if not _is_same(value, fixed_value):
                raise ValueError(
                    f"{self.name}: the law fixes {name} at {fixed_value!r}, got {value!r}; derive "
                    f"one for it: norm_growth(..., {name}={value!r})"
                )
        return {s: self._check_number(name, scalars[name]) for name, s in self.symbolic.items()}

    def all_values(self, **hyper_parameters: Any) -> dict[str, float]:
        """Return the numbers of all symbols by name, including those that the law fixes."""
        values = {**self.free_values(**hyper_parameters), **self.given_values}
        return {symbol.name: float(x) for symbol, x in values.items()}

    def _check_number(self, name: str, value: Any) -> float:
        """Return the number of a symbol, if its interval has it."""
        interval = self.intervals.get(name, ANY)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if number not in interval or not math.isfinite(number):
            if number == 0:
                raise ValueError(
                    f"{self.name}: {name} must be in {interval}, got {value!r}; 0 has a law of its "
                    f"own: norm_growth(..., {name}=0.0)"
                )
            raise ValueError(f"{self.name}: {name} must be in {interval}, got {value!r}")
        return number


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    return bool(a is b or a == b)


# Recording


def trace(recipe: str | Recipe | Trace, dimension: int = 5, **hyper_parameters: Any) -> Trace:
    """Record one step of `recipe`, for a weight that is one unit under each of its views.

    The weight has the shape (1, dimension) for the views channel and layer. Each numeric
    hyper-parameter becomes a 0-dim tensor input, and so a symbol; a tuple of numbers such as
    `betas` becomes one symbol per entry (beta1, beta2). A float that is given is a symbol too,
    which its number replaces in the finished law. Any other given value is static, and selects
    the code that is recorded: booleans, strings, None, and numbers such as 0 at which a recipe
    leaves a rule out.

    A recipe of the library is recorded once in a process, and a user's anew at each call, as what
    it reads may have changed. Constants of a recipe, as in `StepSize(0.5)`, and numbers that Python
    computes from them, are rounded before they are recorded; `spherenorm_theory.symbols.exact`
    reads them. Given values are rounded in the same way if the recipe branches on them.

    Args:
        recipe: a recipe, its registered name, or "module:function"; a trace is returned as it is.
        dimension: number of entries of the weight.
        **hyper_parameters: values at which hyper-parameters are fixed, as in
            `trace(sgd, weight_decay=0.0, nesterov=True)`.

    Raises:
        ValueError: no such recipe, no such hyper-parameter, or one without a default or a value.
        TraceError: the recipe raises, forgets a state, or has a view of several units whatever the
            weight; its step branches on a tensor's value, takes it out of the tensor, or mixes the
            units of a weight.

    Example:
        >>> trace("sgd", nesterov=True).static_arguments["nesterov"], list(trace("sgd").symbols)
        (True, ['lr', 'momentum', 'dampening', 'weight_decay'])
    """
    if isinstance(recipe, Trace):
        return recipe
    function = resolve_recipe(recipe)
    values = resolve_hyper_parameters(function, hyper_parameters)
    defaults = bind(function).defaults
    # A flag at its default gives the same trace. A number at its default does not: it is fixed.
    fixed = {
        name: values[name]
        for name in hyper_parameters
        if is_number(values[name])
        or are_numbers(values[name])
        or values[name] is not defaults[name]
    }
    is_builtin = function.__module__.split(".")[0] == "spherenorm"
    if not is_builtin or any(isinstance(x, Tensor) for x in fixed.values()):
        return _trace_with_fallback(function, dimension, fixed)
    # 1 and 1.0 are equal keys, and their representations are not.
    key = tuple((name, x, repr(x)) for name, x in sorted(fixed.items()))
    return _trace_cached(function, dimension, key)


def trace_with_given_numbers_as_constants(traced: Trace) -> Trace:
    """Record a step again, with the given numbers as Python numbers, as code branches on them.

    Raises:
        TraceError: as for `trace`.
    """
    inputs: dict[str, sp.Expr | None] = dict.fromkeys(traced.symbolic)
    with torch.no_grad():
        return _record_trace(
            traced.recipe, traced.hyper_parameters, inputs, math.prod(traced.shape)
        )


@lru_cache(maxsize=512)
def _trace_cached(
    function: Recipe, dimension: int, fixed: tuple[tuple[str, Any, str], ...]
) -> Trace:
    return _trace_with_fallback(function, dimension, {name: x for name, x, _ in fixed})


@torch.no_grad()  # as optimizers take their steps
def _trace_with_fallback(function: Recipe, dimension: int, fixed: Mapping[str, Any]) -> Trace:
    """Record a step; if its code branches on a given number, record it with Python numbers."""
    values = resolve_hyper_parameters(function, fixed)
    scalars, fixed_scalars = scalars_by_name(values), scalars_by_name(fixed, beside=values)
    inputs: dict[str, sp.Expr | None] = {}
    for name, x in scalars.items():
        if not is_number(x):
            continue
        if name not in fixed_scalars:
            inputs[name] = None
        elif isinstance(x, float) and x != 0:
            inputs[name] = exact(x)
    try:
        return _record_trace(function, values, inputs, dimension)
    except TraceError:
        symbolic = {name: None for name, number in inputs.items() if number is None}
        if len(symbolic) == len(inputs):
            raise
        return _record_trace(function, values, symbolic, dimension)


def _record_trace(
    function: Recipe,
    values: Mapping[str, Any],
    inputs: Mapping[str, sp.Expr | None],
    dimension: int,
) -> Trace:
    """Record a step.

    Args:
        function: the recipe.
        values: all hyper-parameters.
        inputs: the scalars that are inputs of the record, with their exact numbers where given; the
            other hyper-parameters are constants.
        dimension: number of entries of the weight.
    """
    name, scalars = bind(function).name, scalars_by_name(values)
    tensors = {key: torch.tensor(float(scalars[key]), dtype=F64) for key in inputs}
    marked = {key: mark_schedules(key, value) for key, value in values.items()}

    def start(size: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return a weight of one unit, and its state before the first step."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(shape_of_one_unit(views, size), dtype=F64, generator=generator)
        return weight, rule.init(weight)

    def record_step(size: int) -> Record:
        weight, state = start(size)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(weight.shape, dtype=F64, generator=generator)

        def step(*arguments: Tensor) -> list[Tensor]:
            weight, grad, *states = arguments[len(tensors) :]
            by_input = dict(zip(tensors, arguments, strict=False))
            current_rule, _ = replace_opaque_rules(function(**substitute_inputs(marked, by_input)))
            new, after = current_rule.step(weight, grad, dict(zip(state, states, strict=True)))
            return [new, *(after[key] for key in state)]

        return record(step, *tensors.values(), weight, grad, *state.values())

    with _as_trace_errors(name):
        # Rules check the intervals of Python numbers, and not of tensors.
        refuse_blocks(function(**values))
        rule = function(**substitute_inputs(values, tensors))
    if not isinstance(rule, Rule):
        raise TypeError(f"{name} must return a rule, got {rule!r}")
    rule = without_watches(rule)
    intervals = {key: _interval(rule, function, values, tensors, key) for key in tensors}
    with _as_trace_errors(name):
        transparent_rule, opaque_rules = replace_opaque_rules(rule)
        refuse_interacting_units(transparent_rule, opaque_rules)
        views = views_of(transparent_rule)
        state_names = states_of_opaque_rules(transparent_rule).values()
        opaque_states = {key for names in state_names for key in names.values()} - {"step"}
        sizes = (dimension, dimension + 2)
        (weight, state), (_, larger_state) = map(start, sizes)
        _refuse_state_types(state)
        refuse_shared_states(
            rule, views or (View(0), View(None)), shape_of_one_unit(views, 3), opaque_states
        )
        records = [record_step(size) for size in sizes]
        refuse_matrix_products(records[0])
        general_record = generalize_over_dimension(records, sizes)
    symbols = _symbols(intervals)
    transparent = {key: x for key, x in state.items() if key not in opaque_states}
    return Trace(
        name=name,
        recipe=function,
        record=general_record,
        states=tuple(state),
        symbols=symbols,
        given_values={symbols[key]: x for key, x in inputs.items() if x is not None},
        intervals=intervals,
        scalar_states=tuple(key for key, x in transparent.items() if x.numel() == 1),
        counters=tuple(key for key, x in transparent.items() if x.ndim == 0),
        starts={key: _start_value(x, larger_state[key]) for key, x in state.items()},
        opaque_rules=opaque_rules,
        opaque_states=frozenset(opaque_states),
        shape=tuple(weight.shape),
        views=views,
        hyper_parameters=values,
    )


def _refuse_state_types(state: Mapping[str, Tensor]) -> None:
    for key, value in state.items():
        if value.dtype not in WIDE_INTEGERS and not value.is_floating_point():
            raise TypeError(
                f"the state {key!r} is of {value.dtype}, which wraps around or is logical, "
                "and a law is about real numbers"
            )


def _symbols(intervals: Mapping[str, Interval]) -> dict[str, sp.Symbol]:
    """Return the symbols of inputs, positive where the interval holds no negative number.

    An input with the name of a symbol of the laws, such as w, has the symbol w_hyper, unless that
    is the name of another one.
    """
    symbols, used_names = dict[str, sp.Symbol](), {*intervals, *RESERVED}
    for name, interval in intervals.items():
        symbol_name = name
        while name in RESERVED and symbol_name in used_names:
            symbol_name += "_hyper"
        used_names.add(symbol_name)
        sign = {"positive": True} if interval.low >= 0 else {"real": True}
        symbols[name] = sp.Symbol(symbol_name, **sign)
    return symbols


def _start_value(value: Tensor, other: Tensor) -> sp.Expr | None:
    """Return the first value of a state, if it is one number for weights of both sizes."""
    if not value.numel():
        return None
    number = value.flatten()[0].item()
    is_constant = bool((value == number).all() and (other == number).all())
    return exact(number) if is_constant else None


def _interval(
    rule: Rule,
    function: Recipe,
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    name: str,
) -> Interval:
    """Return the open interval of an input: the intersection of what its fields declare.

    If it reaches no field unchanged, the interval is what the recipe's rules accept.
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
    # Other inputs are not 0, where a recipe may leave out the rule that would refuse a number.
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

    def find_end(far: float, limit: float, others: Mapping[str, float]) -> float:
        """Return the last accepted number towards `far`; `limit` if all are accepted."""
        inside, outside = default or 0.5, far
        if accepts(far, **others) or not accepts(inside, **others):
            return limit
        while not math.isclose(inside, outside, rel_tol=1e-13):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if accepts(middle, **others) else (inside, middle)
        return float(f"{inside:.9g}")

    def find_ends(others: Mapping[str, float]) -> tuple[float, float]:
        return find_end(1e-9, 0.0, others), find_end(1e9, math.inf, others)

    # An end that moves with the other inputs is not an end of this hyper-parameter.
    ends = find_ends(others)
    low, high = (
        ends if ends == find_ends({n: x / 2 for n, x in others.items()}) else (0.0, math.inf)
    )
    return Interval(low, high, True, True)


@contextlib.contextmanager
def _as_trace_errors(name: str) -> Iterator[None]:
    """Raise each error as a TraceError that names the recipe.

    The message has the line of code, unless the error is a ValueError.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()).removeprefix(f"{name}: ")
        if isinstance(error, Unsupported) or "integer tensors" in reason:
            raise TraceError(
                f"{name}: the step takes a number out of a tensor (an `if` on a tensor, .item(), "
                "float(), range(n)), so that it cannot be traced; use torch.where, or fix the "
                "hyper-parameter that the branch tests, as in norm_growth(..., nesterov=True)"
            ) from error
        if isinstance(error, ValueError):
            raise TraceError(f"{name}: {reason}") from error
        raise TraceError(
            f"{name}: {type(error).__name__}: {reason}{_describe_user_line(error)}"
        ) from error


def _describe_user_line(error: Exception) -> str:
    """Return the last line of code outside of torch and this package, as " (file.py:12)"."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "torch" not in Path(frame.filename).parts
        and Path(frame.filename).parent != Path(__file__).parent
    ]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


# Units


def declared_views(rule: Rule) -> Iterator[tuple[str, View]]:
    """Yield the views of a rule, of its children and of their manifolds, each with its class."""
    # The children of an opaque rule are not looked into.
    is_opaque = isinstance(rule, OpaqueRule)
    holders = [rule.rule] if isinstance(rule, OpaqueRule) else [rule, rule.manifold]
    for holder in holders:
        view = getattr(holder, "view", None)
        for declared in (*getattr(holder, "views", ()), *(() if view is None else (view,))):
            yield type(holder).__name__, as_view(declared)
    for child in () if is_opaque else rule.children:
        yield from declared_views(child)


def views_of(rule: Rule) -> tuple[View, ...]:
    """Return each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, view in declared_views(rule)))


def count_units(view: View, shape: tuple[int, ...]) -> int:
    """Return the number of units of a weight; 0 if the view takes no weight of this shape."""
    try:
        return len(view.rows(torch.empty(shape)))
    except ValueError:
        return 0


def shape_of_one_unit(views: tuple[View, ...], dimension: int) -> tuple[int, ...]:
    """Return a shape that is one unit under each view, with all entries on one dimension.

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
        for index in reversed(range(n)):
            shape = (1,) * index + (dimension,) + (1,) * (n - 1 - index)
            if all(count_units(replace(view, groups=None), shape) == 1 for view in views):
                return shape
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{', '.join(map(str, views))}"
    )


# Refusals


def refuse_blocks(rule: object) -> None:
    """Refuse blocks of rows, each of which has a law of its own.

    Raises:
        TraceError: naming the rule.
    """
    if isinstance(rule, Rule) and any(isinstance(part, r.Blocks) for part in rule.walk()):
        raise TraceError(
            "Blocks steps each block of rows as a weight of its own: the law of a block is the law "
            "of its recipe"
        )


def refuse_interacting_units(rule: Rule, opaque_rules: tuple[Rule, ...]) -> None:
    """Refuse rules whose units, or whose weights, interact.

    Raises:
        TraceError: naming the rule.
    """
    for part in rule.walk():
        name = type(part).__name__
        if type(part).global_sum_terms is not Rule.global_sum_terms:
            raise TraceError(f"{name} needs sums over all weights, and a law is about one weight")
        if isinstance(part, r.FixedSpectralNorm):
            raise TraceError(
                f"units interact: {name} divides by the largest singular value, which powers of "
                "the weight's Gram matrix give"
            )
    matrix_views = [part.view for part in opaque_rules if isinstance(part, r.Orthogonalize)]
    if not matrix_views:
        return
    n_matrices = max(1, *(count_units(view, (6, 6)) for view in matrix_views))
    for holder, view in declared_views(rule):
        if count_units(view, (6, 6)) > n_matrices:
            raise TraceError(
                f"units interact: {holder} acts on each unit of its view {view}, and "
                f"Orthogonalize on a matrix of several of them ({matrix_views[0]})"
            )


def refuse_matrix_products(recorded: Record) -> None:
    """Refuse a step that multiplies matrices again and again.

    Raises:
        TraceError: with the line of the first product.
    """
    packets = ("mm", "bmm", "addmm", "baddbmm")
    calls = [call for call in recorded.live_calls if call.packet in packets]
    if len(calls) > MAX_MATRIX_PRODUCTS:
        raise TraceError(
            f"units interact: the step multiplies matrices {len(calls)} times, as an iteration of "
            "Newton and Schulz does, which mixes the rows of a weight; rules.Orthogonalize is one "
            f"letter of a law; it came from {calls[0].line}"
        )


def refuse_shared_states(
    rule: Rule, views: Sequence[View], shape: Sequence[int], opaque_states: set[str]
) -> None:
    """Refuse states of which units share entries, such as a moment of each column.

    Args:
        rule: the rule with the states.
        views: views of its units.
        shape: shape of a weight of one unit.
        opaque_states: the states of opaque rules, of which a law says nothing.

    Raises:
        TraceError: naming the state.
    """
    weight = torch.ones([2 if n == 1 else n for n in shape], dtype=F64)
    try:
        states = {n: x for n, x in rule.init(weight).items() if n not in opaque_states}
    except Exception:  # the rule takes one shape only
        return
    partial_states = {
        name: x for name, x in states.items() if x.shape != weight.shape and x.numel() != 1
    }
    if not partial_states:
        return
    for view in views:
        if count_units(view, tuple(weight.shape)):
            unit_shape = view.unit_sums(weight).shape
            if all(x.shape == unit_shape for x in partial_states.values()):
                return
    n_units = count_units(views[0], tuple(weight.shape))
    name, value = max(partial_states.items(), key=lambda item: item[1].numel() not in (0, n_units))
    raise TraceError(
        f"units interact, so that one unit has no law of its own: they share the state {name!r}, "
        f"of shape {tuple(value.shape)} for a weight of shape {tuple(weight.shape)}"
    )


# The size of the weight


def generalize_over_dimension(records: Sequence[Record], sizes: Sequence[int]) -> Record:
    """Return a record with c d^p for each number that follows the size d of the weight.

    Args:
        records: records of one step, for weights of different sizes.
        sizes: numbers of entries of the weights.

    Raises:
        TraceError: the records differ in an operation, or in a number that is no c d^p.
    """
    first, general_calls = records[0], dict[int, Call]()
    names = [[call.name for call in recorded.live_calls] for recorded in records]
    if any(x != names[0] for x in names):
        pairs = zip(first.live_calls, *names, strict=False)
        call = next((x for x, *call_names in pairs if len({*call_names}) > 1), first.live_calls[-1])
        raise TraceError(
            f"the code does other operations for weights of {' and '.join(map(str, sizes))} "
            f"entries, from {call.line} on"
        )
    for calls in zip(*(recorded.live_calls for recorded in records), strict=True):
        call = calls[0]
        arguments = zip(*(x.arguments for x in calls), strict=True)
        general_calls[id(call)] = replace(
            call,
            arguments=tuple(_generalize(call, values, sizes) for values in arguments),
            options={
                key: _generalize(call, [x.options[key] for x in calls], sizes)
                for key in call.options
            },
        )
    return replace(first, calls=tuple(general_calls.get(id(call), call) for call in first.calls))


def _generalize(call: Call, values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return an argument that holds for every size.

    Args:
        call: the call that it is an argument of.
        values: the argument for weights of each of the sizes.
        sizes: numbers of entries of the weights.
    """
    first = values[0]
    is_plain_number = isinstance(first, (int, float)) and not isinstance(first, bool)
    if not is_plain_number or all(value == first for value in values):
        return first
    for power in POWERS_OF_SIZE:
        factors = [x / float(size**power) for x, size in zip(values, sizes, strict=True)]
        if all(math.isclose(factor, factors[0], rel_tol=1e-13) for factor in factors):
            return exact(factors[0]) * DIMENSION**power
    numbers = ", ".join(f"{x:g} for {n} entries" for x, n in zip(values, sizes, strict=True))
    raise TraceError(
        f"a number depends on the shape of the weight ({numbers}); it is in {call.line}"
    )
