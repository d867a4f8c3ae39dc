"""Trace one step of a recipe: a record from its hyper-parameters, weight, gradient and states."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Recipe, Rule, View, as_view, bind
from spherenorm import rules as r
from spherenorm.record import Record, RecordError, record
from spherenorm_theory.algebra.hyper_parameters import (
    enter,
    is_number,
    message,
    numbers_by_name,
    parts_of,
    resolve_hyper_parameters,
    resolve_recipe,
)
from spherenorm_theory.algebra.letters import Letter, marked, states_of_letters
from spherenorm_theory.algebra.sizes import SizeError, with_sizes
from spherenorm_theory.algebra.symbols import exact
from spherenorm_theory.algebra.trace import ANY, Trace, TraceError

RESERVED = frozenset(
    ["1", "w", "g", "s", "u", "e", "d", "k", "j", "a", "c", "q", "rank", "O", "N", "T", "gamma"]
)
"""The names of symbols that laws have of their own."""

PRODUCTS = 6
"""Matrix products of a step, at most; those of the library's readable rules have three."""

COUNTS = (torch.int32, torch.int64)
"""Integers in which no count of steps wraps around."""

MIXING: dict[type[Rule], str] = {
    r.SpectralPin: "divides by the largest singular value, which powers of the weight's Gram "
    "matrix give",
}
"""Rules that multiply matrices made of the weight, and how."""


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
    values = resolve_hyper_parameters(function, given)
    key = (function, dimension, *((n, repr(values[n])) for n in sorted(given)))  # (1 is not 1.0)
    ours = function.__module__.split(".")[0] == "spherenorm"
    if not ours or any(isinstance(values[n], Tensor) for n in given):
        return _traced(function, values, given, dimension)
    if key not in _TRACES:
        _TRACES[key] = _traced(function, values, given, dimension)
        if len(_TRACES) > KEPT:
            del _TRACES[next(iter(_TRACES))]
    return _TRACES[key]


KEPT = 512
_TRACES: dict[tuple[Any, ...], Trace] = {}


def _traced(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, Any], dimension: int
) -> Trace:
    numbers = _inputs_of(values, given)
    with torch.no_grad():  # as optimizers take their steps
        try:
            return _trace(function, values, numbers, dimension)
        except TraceError:
            symbols = {name: None for name, number in numbers.items() if number is None}
            if len(symbols) == len(numbers):
                raise
            # Code that branches on a given number wants it as a Python number.
            return _trace(function, values, symbols, dimension)


def _inputs_of(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, sp.Expr | None]:
    """The inputs among the hyper-parameters: the exact number that was given, None for none."""
    numbers: dict[str, sp.Expr | None] = {}
    for name, parts in parts_of(values).items():
        for part, entry in parts.items():
            if is_number(entry) and name not in given:
                numbers[part] = None
            elif isinstance(entry, float) and entry != 0:
                numbers[part] = exact(entry)
    return numbers


def _trace(
    function: Recipe, values: Mapping[str, Any], given: Mapping[str, sp.Expr | None], dimension: int
) -> Trace:
    """The trace whose inputs are `given`; other hyper-parameters are constants."""
    called, entries = bind(function).name, numbers_by_name(values)
    tensors = {part: torch.tensor(float(entries[part]), dtype=torch.float64) for part in given}
    with _named_errors(called):
        function(**values)  # rules check intervals of Python numbers, and of no tensors
        rule = function(**enter(values, tensors))
    if not isinstance(rule, Rule):
        raise TypeError(f"{called} must return a rule, got {rule!r}")
    build = _Build(called, function, values, tensors, rule)
    intervals = {name: build.interval(name) for name in tensors}
    return build.trace(dimension, given, intervals)


def symbol_of(name: str, interval: Interval) -> sp.Symbol:
    """The symbol of a hyper-parameter: positive where its interval holds no negative number."""
    free = f"{name}_hyper" if name in RESERVED else name
    return sp.Symbol(free, positive=True) if interval.low >= 0 else sp.Symbol(free, real=True)


@dataclass(frozen=True)
class _Build:
    """A recipe and what its hyper-parameters are while its step is recorded."""

    called: str
    function: Recipe
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    rule: Rule

    def trace(
        self,
        dimension: int,
        given: Mapping[str, sp.Expr | None],
        intervals: Mapping[str, Interval],
    ) -> Trace:
        """The trace of a step."""
        symbols = {name: symbol_of(name, intervals[name]) for name in self.tensors}
        with _named_errors(self.called):
            rule, letters = marked(self.rule)
            _refuse_rules(rule, letters)
            views = views_of(rule)
            kept = states_of_letters(rule).values()
            inside = frozenset(outer for keys in kept for outer in keys.values()) - {"step"}
            sizes = (dimension, dimension + 2)
            _refuse_shared(self.rule, views or (View(0), View(None)), self.start(3)[0], inside)
            records = [self.record(size) for size in sizes]
            _refuse_matrices(records[0])
            general = with_sizes(records, sizes)
        (weight, state), (_, other) = map(self.start, sizes)
        hypers = (("hyper", n) for n in self.tensors)
        return Trace(
            name=self.called,
            recipe=self.function,
            record=general,
            inputs=(*hypers, ("weight", "w"), ("grad", "g"), *(("state", n) for n in state)),
            outputs=("weight", *state),
            symbols=symbols,
            given={symbols[n]: x for n, x in given.items() if x is not None},
            intervals=intervals,
            scalar_states=tuple(n for n, x in state.items() if x.numel() == 1 and n not in inside),
            counters=tuple(n for n, x in state.items() if x.ndim == 0 and n not in inside),
            starts={n: _start_of(value, other[n]) for n, value in state.items()},
            letters=letters,
            inside=inside,
            shape=tuple(weight.shape),
            views=views,
            hyper_parameters=self.values,
        )

    def interval(self, name: str) -> Interval:
        """The open interval of a hyper-parameter: declared by a field, or what is accepted."""
        found = _declared(self.rule, self.tensors).get(name) or self._probe(name)
        return Interval(found.low, found.high, True, True)

    def _probe(self, name: str) -> Interval:
        """The interval of a hyper-parameter of which rules take a function: what they accept."""
        # Not at 0, where a recipe may leave out the rule that would refuse a number.
        others = {n: float(x) or 0.5 for n, x in self.tensors.items() if n != name}
        default = float(self.tensors[name])
        others = others if self._builds({**others, name: default}) else {}

        def accepts(number: float) -> bool:
            return self._builds({**others, name: number})

        size = max(abs(default), 1e-3)
        if any(accepts(-x) for x in (1e-6, 0.3, size)):
            return ANY
        below_one = default < 1 and not any(accepts(x) for x in (1.001, 2.0))
        return Interval(0.0, 1.0 if below_one else math.inf, True, True)

    def _builds(self, numbers: Mapping[str, float]) -> bool:
        """Tell if the recipe takes these numbers."""
        try:
            self.function(**enter(self.values, numbers))
        except Exception:
            return False
        return True

    def start(self, dimension: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """A weight of one unit, and its state before the first step."""
        generator = torch.Generator().manual_seed(0)
        with _named_errors(self.called):
            shape = shape_of_one_unit(views_of(marked(self.rule)[0]), dimension)
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

        def step(*inputs: Tensor) -> list[Tensor]:
            weight, grad, *states = inputs[len(self.tensors) :]
            entered = dict(zip(self.tensors, inputs, strict=False))
            rule, _ = marked(self.function(**enter(self.values, entered)))
            new_weight, new_state = rule.step(weight, grad, dict(zip(state, states, strict=True)))
            return [new_weight, *(new_state[name] for name in state)]

        return record(step, *self.tensors.values(), weight, grad, *state.values())


def _start_of(value: Tensor, other: Tensor) -> sp.Expr | None:
    """The first value of a state that is the same number in every entry, whatever the weight."""
    if not value.numel():
        return None
    first = value.flatten()[0].item()
    alike = bool((value == first).all() and (other == first).all())
    return exact(first) if alike else None


def _declared(rule: Rule, tensors: Mapping[str, Tensor]) -> dict[str, Interval]:
    """The interval of each hyper-parameter that reaches a rule's field as it is."""
    intervals: dict[str, Interval] = {}
    for part in rule.tree():
        for field in fields(part):
            if "interval" in field.metadata:
                value, own = getattr(part, field.name), field.metadata["interval"]
                for name in (name for name, tensor in tensors.items() if tensor is value):
                    known = intervals.get(name, ANY)
                    low, high = max(known.low, own.low), min(known.high, own.high)
                    intervals[name] = Interval(low, high, True, True)
    return intervals


# Views


def declared_views(rule: Rule) -> Iterator[tuple[str, str, tuple[View, ...]]]:
    """The views of a rule, of the rules within it and of their manifolds.

    Returns:
        The class, its field, "view" or "views", and the views that this has.
    """
    letters = [each for each in rule.tree() if isinstance(each, Letter)]
    inside = {id(part) for each in letters for part in each.rule.tree()}
    for part in (each for each in rule.tree() if id(each) not in inside):
        for holder in (part, getattr(part, "manifold", None)):
            view = getattr(holder, "view", None)
            own = {"views": getattr(holder, "views", ()), "view": () if view is None else (view,)}
            for field, views in own.items():
                if views:
                    yield type(holder).__name__, field, tuple(map(as_view, views))
    for each in letters:
        view = getattr(each.rule, "view", None)
        if view is not None:
            yield type(each.rule).__name__, "view", (as_view(view),)


def views_of(rule: Rule) -> tuple[View, ...]:
    """Each view that a rule declares, once."""
    return tuple(dict.fromkeys(view for _, _, views in declared_views(rule) for view in views))


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
    shown = ", ".join(map(str, views))
    raise ValueError(
        "a law is about a weight of one unit, and no shape is one unit under all of the views "
        f"{shown}"
    )


# Refusals


def _refuse_rules(rule: Rule, letters: tuple[Rule, ...]) -> None:
    """Refuse rules that act on several weights, or on several units, at once.

    Raises:
        TraceError: naming the rule.
    """
    for each in rule.tree():
        name = type(each).__name__
        if type(each).measure is not Rule.measure:
            raise TraceError(f"{name} measures all weights together, and a law is of one")
        if type(each) in MIXING:
            raise TraceError(f"units interact: {name} {MIXING[type(each)]}")
    matrices = [each.view for each in letters if isinstance(each, r.Orthogonalize)]
    for holder, field, views in declared_views(rule):
        for matrix in matrices:
            for view in views:
                if count_units(view, (6, 6)) > max(count_units(matrix, (6, 6)), 1):
                    raise TraceError(
                        f"units interact: {holder} acts on each unit of its {field} {view}, and "
                        f"Orthogonalize on a matrix of several of them ({matrix})"
                    )


def _refuse_matrices(written: Record) -> None:
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


def _refuse_shared(
    rule: Rule, views: tuple[View, ...], unit: Tensor, inside: frozenset[str]
) -> None:
    """Refuse states of which units share entries, such as a moment of each column.

    Raises:
        TraceError: naming one.
    """
    weight = torch.ones([2 if n == 1 else n for n in unit.shape], dtype=torch.float64)
    try:
        state = {n: x for n, x in rule.init(weight).items() if n not in inside}
    except Exception:  # a rule of one shape alone
        return
    own = {n: x for n, x in state.items() if x.shape != weight.shape and x.numel() != 1}
    for view in (each for each in views if count_units(each, tuple(weight.shape))):
        if all(x.shape == view.total(weight).shape for x in own.values()):
            return
    if own:
        units = count_units(views[0], tuple(weight.shape))
        name, value = max(own.items(), key=lambda item: item[1].numel() not in (0, units))
        raise TraceError(
            f"units interact: they share the state {name!r}, of shape {tuple(value.shape)} for a "
            f"weight of shape {tuple(weight.shape)}"
        )


def _refuse_narrow(state: Mapping[str, Tensor]) -> None:
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
    except (SizeError, TraceError) as error:
        plain = str(error).removeprefix(f"{called}: ")
        raise TraceError(f"{called}: {plain}") from error
    except Exception as error:
        raise TraceError(f"{called}: {message(error)}") from error
