"""A law against the code that it came from: no law is returned that differs from its step.

NormLaw and rule take one step from the same random inputs, of one unit and of weights of several ones;
the claims are evaluated along a run, as they are printed. A rule is made with plain numbers, as a
user makes it, and with tensors, as it was recorded. The hyper-parameters are

| numbers | drawn |
|---|---|
| usual | at random, not near the ends of their intervals |
| wide | at random, from near the one end to near the other, or far above 1 |
| own | none: the recipe's defaults, and the numbers that were given for the law |

and whoever asks a law for its value at other numbers has them tried first (`verify_numbers`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Interval, Rule, View
from spherenorm import rules as r
from spherenorm_theory.claim import Claim
from spherenorm_theory.evaluate import (
    Inputs,
    OutsideError,
    Values,
    VerifiedDomain,
    check_assumptions,
    evaluate,
    read_step,
)
from spherenorm_theory.hyper_parameters import scalar_names, scalars_by_name
from spherenorm_theory.opaque_rules import scale_of
from spherenorm_theory.printing import show
from spherenorm_theory.step import Step
from spherenorm_theory.symbols import Norm
from spherenorm_theory.tracing import Trace, TraceError, count_units

if TYPE_CHECKING:  # norm_law verifies its laws with this module
    from spherenorm_theory.norm_law import NormLaw

Shape = tuple[int, ...]

TOLERANCE = 1e-10
"""Relative to the largest entry of the result, or to 1."""
ROUNDING = 1e-15
"""A cosine of w and g that rounding leaves where they are orthogonal; a law must not notice it."""
ROUNDED = 1e-14
"""The relative change of a weight that rounding may make in a few operations."""
RADIAL = 2.0
"""The radial part of a gradient that no test takes for an orthogonal one."""
KINDS = {"first": 0, "any": 1, "later": 3}
"""Of steps: from the first state, from any state, from one that steps leave; steps before them."""
EXPLODES = 100.0
"""The norm at which a run ends: large numbers cancel."""
STEPS = 6
"""Of the run on which the printed claims are evaluated."""
OWN_STEPS = 3
"""Of the run at the recipe's own numbers."""
MATRIX: Shape = (3, 5)
"""Of the weight that is one unit, for a law with letters."""
SHAPES: tuple[Shape, ...] = (
    *((7,), (3, 5), (5, 3), (4, 4), (3, 2, 4), (4, 3, 2), (3, 2, 2, 2), (4, 3, 5, 5)),
    (3, 2, 2, 2, 2),
)
"""Of weights of several units, of each number of dimensions."""
SINGLE: tuple[Shape, ...] = ((7,), (1, 9), (9, 1), (1, 3, 2), (3, 1, 2), (1, 3, 2, 2))
"""Of weights of one unit, some of them in one view and some in others."""
SIGNS = np.array([-1.0, 1.0])
COUNTS = (1, 2, 9, 57, 299, 300, 4000, 10**6)
"""Of steps that may have been taken, beside those near a hyper-parameter."""
WIDE_DRAWS = 6
"""Of hyper-parameters far from usual ones, for the step of one unit."""
FAR = (1.0, 1e-2, 4.0)
"""The factors of weights and gradients, so that a decision by a length falls either way."""


class DifferenceError(TraceError):
    """A law is not the step of its code."""


@dataclass(frozen=True)
class Case(Inputs):
    """Inputs of one step, with the rule itself.

    Attributes:
        rule: at the numbers of the case.
        similar_rule: at numbers that rounding would move there, or `rule` itself.
    """

    rule: Rule
    similar_rule: Rule


@torch.no_grad()  # as optimizers take their steps
def verify_against_code(law: NormLaw, claims: Sequence[Claim]) -> VerifiedDomain:
    """Hold a law and its claims against the step of its rule, on random inputs.

    Raises:
        DifferenceError: they differ.
    """
    step, traced = law.split_step, law.step.traced
    views = traced.views or (View(0), View(None))
    _refuse_defaults_outside(step)
    _verify_one_unit(step, _view_of_one_unit(traced), _shape_of_one_unit(traced))
    closed_form_verified = verify_claims_on_run(law, claims)
    for view in views:
        if _agrees_at_shapes(step, view, SHAPES):
            return VerifiedDomain(view, True, 0, closed_form_verified)
    dimensions = len(traced.shape)
    single = [x for x in SINGLE if len(x) == dimensions and count_units(views[0], x) == 1]
    if not _agrees_at_shapes(step, views[0], [traced.shape, *single]):
        raise DifferenceError(
            f"{step.traced.name}: the step depends on the shape of the weight: the law is that of "
            f"{traced.shape}, and the code takes another step at one of the shapes "
            f"{', '.join(map(str, single))}"
        )
    return VerifiedDomain(views[0], False, dimensions, closed_form_verified)


def verify_numbers(law: NormLaw, values: Mapping[sp.Symbol, float]) -> None:
    """Try a law at numbers for its free hyper-parameters, before anybody believes it there.

    Args:
        law: which was held against its code at other numbers.
        values: by symbol, as `Trace.values` returns them.

    Raises:
        DifferenceError: the code takes another step at these numbers.
    """
    _verify_numbers(law, tuple(values.items()))


@lru_cache(maxsize=4096)  # a run asks for each of its weights
@torch.no_grad()
def _verify_numbers(law: NormLaw, values: tuple[tuple[sp.Symbol, float], ...]) -> None:
    step, traced = law.split_step, law.step.traced
    numbers, known = _default_numbers(traced, np.random.default_rng(3)), dict(values)
    numbers |= {name: known[s] for name, s in traced.symbols.items() if s in known}
    view, shape = _view_of_one_unit(traced), _shape_of_one_unit(traced)
    for n, kind in enumerate(("later", "any", "any")):
        _agrees_in_case(step, view, shape, kind, 4, n, plain=True, numbers=numbers)


def _view_of_one_unit(traced: Trace) -> View:
    return traced.views[0] if traced.views else View(None)


def _shape_of_one_unit(traced: Trace) -> Shape:
    return MATRIX if traced.opaque_rules else traced.shape


def _refuse_defaults_outside(step: Step) -> None:
    """Refuse a law that assumes of hyper-parameters what the recipe's own numbers do not meet.

    Raises:
        DifferenceError: naming the assumption.
    """
    traced = step.traced
    own = {traced.symbols[n]: sp.Float(float(x), 25) for n, x in _inside_intervals(traced).items()}
    for relation in step.facts.hypotheses:
        decidable = relation.free_symbols and relation.free_symbols <= own.keys()
        if decidable and relation.xreplace(own) == sp.false:
            names = [n for n, s in traced.symbols.items() if s in relation.free_symbols]
            raise DifferenceError(
                f"{traced.name}: the law assumes {show(relation)}, which the recipe's own numbers "
                f"do not meet; {_advice(traced, names)}"
            )


# Random inputs


def _usual_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Random hyper-parameters by the names of inputs; those that were given stay."""
    return {
        name: float(traced.exact_values.get(s, _draw_from(traced.intervals[name], rng)))
        for name, s in traced.symbols.items()
    }


def _wide_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Random hyper-parameters that may be tiny, large, or near the ends of their intervals."""
    return {
        name: float(traced.exact_values.get(s, _draw_wide(traced.intervals[name], rng)))
        for name, s in traced.symbols.items()
    }


def _default_numbers(traced: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """The recipe's numbers, as they are; usual ones in place of those that no law is about."""
    return {**_usual_numbers(traced, rng), **_inside_intervals(traced)}


def default_values(traced: Trace) -> dict[sp.Symbol, float]:
    """Return the recipe's own numbers that its law is about, by the free symbols."""
    own = _inside_intervals(traced)
    return {s: float(own[name]) for name, s in traced.symbolic.items() if name in own}


def _inside_intervals(traced: Trace) -> dict[str, Any]:
    """The numbers of the recipe, default or given, that its law is about, by input."""
    numbers = scalars_by_name(traced.hyper_parameters)
    own = {name: numbers[name] for name in traced.symbols}
    return {
        name: x
        for name, x in own.items()
        if traced.symbols[name] in traced.exact_values or float(x) in traced.intervals[name]
    }


def draw_case(
    step: Step, view: View, shape: Shape, kind: str, *seed: int, scale: float = 1.0,
    plain: bool = False, numbers: Mapping[str, Any] | None = None, rounded: bool = False,
    counts: Sequence[int] | None = None,
) -> Case:  # fmt: skip
    """A case of a kind, as `KINDS` has them.

    Numbers of the state have both signs where the law allows them; counters are early and late.

    Args:
        step: of the law.
        view, shape: of the weight.
        kind: of the step.
        seed: of the inputs.
        scale: factor of the weight and of the gradient.
        plain: make the rule with plain numbers; else with tensors, as it was recorded.
        numbers: hyper-parameters by the names of inputs; usual ones are drawn by default.
        rounded: allow for the rounding of the hyper-parameters.
        counts: of steps that may have been taken; some early and late ones by default.
    """
    traced, rng = step.traced, np.random.default_rng(seed)
    numbers = _usual_numbers(traced, rng) if numbers is None else numbers

    def build(numbers: Mapping[str, Any]) -> Rule:
        if plain:
            return traced.build(numbers)
        tensors = {n: torch.tensor(float(x), dtype=torch.float64) for n, x in numbers.items()}
        return traced.build(tensors)

    rule = build(numbers)
    weight = torch.tensor(rng.normal(size=shape) * rng.uniform(0.5, 2) * scale)
    state = rule.init(weight)
    if set(state) != set(traced.states):
        same_shape = len(shape) == len(traced.shape) and count_units(view, shape) == 1
        kind_of_error = DifferenceError if same_shape else TraceError
        raise kind_of_error(
            f"{traced.name}: its states depend on the {'numbers' if same_shape else 'shape'}: "
            f"{sorted(state)} for a weight of shape {shape}, {sorted(traced.states)} for the shape "
            f"{traced.shape} of the law; {_advice(traced, [*traced.symbolic])}"
        )
    for _ in range(KINDS[kind]):
        weight, state = rule.step(weight, _gradient(step, view, weight, rng), state)
    if kind == "any":
        counts = [*COUNTS, *_counts_near(numbers)] if counts is None else counts
        state = {k: _draw_state(step, k, x, rng, counts) for k, x in state.items()}
    grad = _gradient(step, view, weight, rng) * rng.choice([1.0, scale])
    values = {s.name: float(numbers[name]) for name, s in traced.symbols.items()}
    if not rounded:
        return Case(weight, grad, state, values, rule, rule)
    similar = {n: float(x) * (1 + ROUNDED * rng.choice([-1, 1])) for n, x in numbers.items()}
    return Case(weight, grad, state, values, rule, build(similar))


def _draw_from(interval: Interval, rng: np.random.Generator) -> float:
    """A usual number of an interval, not near its ends."""
    low, high = interval.low, interval.high
    if np.isinf(low) and np.isinf(high):
        return float(rng.uniform(0.05, 1.5) * rng.choice([-1, 1]))
    if np.isinf(high):
        return float(low + rng.uniform(0.02, 0.9))
    if np.isinf(low):
        return float(high - rng.uniform(0.02, 0.9))
    return float(low + (high - low) * rng.uniform(0.05, 0.95))


def _draw_wide(interval: Interval, rng: np.random.Generator) -> float:
    """A number of an interval on a logarithmic scale, from either end or from 0."""
    low, high, distance = interval.low, interval.high, float(10 ** rng.uniform(-3, 3))
    if np.isinf(low) and np.isinf(high):
        return distance * float(rng.choice([-1, 1]))
    if np.isinf(high):
        return low + distance
    if np.isinf(low):
        return high - distance
    share = distance / (1 + distance)
    return low + (high - low) * share


def _gradient(step: Step, view: View, weight: Tensor, rng: np.random.Generator) -> Tensor:
    """A random gradient, orthogonal to each unit up to rounding where the law assumes that."""
    grad = torch.from_numpy(rng.normal(size=tuple(weight.shape)))
    radial = view.radial_coefficient(weight, grad)
    cosine = ROUNDING if ("w", "g") in step.algebra.given_products else RADIAL
    signs = torch.from_numpy(rng.choice(SIGNS, radial.shape))
    return grad - (radial - cosine * signs) * weight


def _draw_state(
    step: Step, name: str, value: Tensor, rng: np.random.Generator, counts: Sequence[int]
) -> Tensor:
    """A random state of the signs that the law allows, in place of one that steps have left."""
    if name in step.traced.opaque_states:
        return value
    symbol = step.scalars.get(step.state_atoms[name])
    drawn = torch.tensor(rng.normal(size=tuple(value.shape)))
    if symbol is None:
        return drawn.abs() if bool((value >= 0).all()) else drawn
    if value.ndim == 0 and float(value).is_integer():
        late = rng.choice(counts)
        return torch.full_like(value, float(late) if float(value) > 0 else float(value))
    return drawn if symbol.is_nonnegative is None else drawn.abs() + 0.1


# The comparison


def _verify_one_unit(step: Step, view: View, shape: Shape) -> None:
    """Hold the step of one unit against its rule, at usual numbers, wide ones and its own.

    Raises:
        DifferenceError: they differ, or no inputs meet the assumptions.
    """
    traced, met = step.traced, 0
    for n, (scale, kind) in enumerate(itertools.product((*FAR, 1.0), KINDS)):
        met += _agrees_in_case(step, view, shape, kind, 0, n, scale=scale)
    met += _agrees_in_case(step, view, shape, "first", 0, 12, plain=True)
    for n, kind in zip(range(WIDE_DRAWS), itertools.cycle(["any", "later"]), strict=False):
        numbers = _wide_numbers(traced, np.random.default_rng([8, n]))
        met += _agrees_in_case(
            step, view, shape, kind, 9, n, plain=True, numbers=numbers, rounded=True
        )
    own = _default_numbers(traced, np.random.default_rng(10))
    plain, near = _accepts(traced, own), _counts_near(own) if step.counters else []
    met_own = 0
    for n, kind in enumerate(("first", "later")):
        met_own += _agrees_in_case(step, view, shape, kind, 11, n, plain=plain, numbers=own)
    for n, count in enumerate((9, *near)):
        _agrees_in_case(step, view, shape, "any", 12, n, plain=plain, numbers=own, counts=[count])
    _agrees_in_case(step, view, shape, "later", 13, numbers=own)
    for met_there, which in (
        (met, "random inputs meet"),
        (met_own, "inputs at its own numbers meet"),
    ):
        if not met_there:
            assumed = "; ".join(map(show, step.facts.hypotheses))
            raise DifferenceError(
                f"{traced.name}: no {which} the assumptions of the law, so that it cannot be held "
                f"against its code: {assumed}"
            )


def _accepts(traced: Trace, numbers: Mapping[str, Any]) -> bool:
    """Tell if the recipe takes plain numbers, of which some may be drawn, beside each other."""
    try:
        traced.build(numbers)
    except ValueError:
        return False
    return True


def _counts_near(numbers: Mapping[str, Any]) -> list[int]:
    """Return the counts of steps next to each of some numbers above 1."""
    above_one = [int(x) for x in map(float, numbers.values()) if 1 < x < 1e9]
    return sorted({x + n for x in above_one for n in (-1, 0, 1)})


def _agrees_in_case(
    step: Step, view: View, shape: Shape, kind: str, *seed: int, **options: Any
) -> bool:
    """Tell if the inputs of a case are within the law, with which the code agrees there.

    Args:
        step: of the law.
        view, shape, kind, seed, options: as for `draw_case`.

    Raises:
        DifferenceError: law and code differ.
    """
    try:
        case = draw_case(step, view, shape, kind, *seed, **options)
    except ValueError as error:
        # A recipe may refuse plain numbers that it takes as tensors.
        if options.get("plain") and not isinstance(error, TraceError):
            return False
        raise
    differs = _differs(step, view, case)
    if not differs:
        return differs is not None
    traced = step.traced
    shown = ", ".join(f"{n}={x:.4g}" for n, x in case.values.items())
    raise DifferenceError(
        f"{traced.name}: the law differs from the step of the code at {shown} "
        f"({'plain numbers' if options.get('plain') else 'tensors'}), weight "
        f"{case.weight.tolist()}, gradient {case.grad.tolist()}; "
        f"{_advice(traced, [*traced.symbolic])}"
    )


def _advice(traced: Trace, names: Sequence[str]) -> str:
    """The way to a law of code that takes some numbers otherwise than others."""
    whole = traced.hyper_parameters
    inputs = scalar_names(whole)
    held = [n for n in whole if not set(names).isdisjoint(inputs[n])]
    shown = ", ".join(f"{n}={whole[n]!r}" for n in held)
    return (
        "the code may take some numbers otherwise than others: a law for given ones is "
        f"norm_growth(..., {shown}), or fewer of them"
    )


def _agrees_at_shapes(step: Step, view: View, shapes: Iterable[Shape]) -> bool:
    """Tell if law and code agree at all shapes that the rule takes, and not at vectors alone.

    One case of a shape is enough, unless the law leaves cases open.
    """
    cases, met, tried = bool(step.algebra.facts.open_branches), set[int](), set[int]()
    own = _default_numbers(step.traced, np.random.default_rng(2))
    for shape, scale in itertools.product(shapes, FAR if cases else FAR[:1]):
        for kind in ("any", "later", "first") if count_units(view, shape) else ():
            differs = None
            with contextlib.suppress(Exception):  # of a rule that takes no such weight
                differs = _differs(step, view, draw_case(step, view, shape, kind, 1, scale=scale))
            if differs:
                return False
            if differs is not None:
                met.add(len(shape))
                if not cases:
                    break
        if scale != 1.0 or len(shape) in tried:
            continue
        tried.add(len(shape))  # at the recipe's own numbers, one shape of each number of dimensions
        with contextlib.suppress(Exception):
            if _differs(
                step, view, draw_case(step, view, shape, "any", 2, plain=True, numbers=own)
            ):
                return False
    return bool(met - {1})


def _differs(step: Step, view: View, case: Case) -> bool | None:
    """Tell if law and rule differ in a case; None if the case is outside of the law."""
    weight, state = case.rule.step(case.weight, case.grad, dict(case.state))
    if not all(bool(x.isfinite().all()) for x in (weight, *state.values())):
        return None
    try:
        new, after = evaluate(step, view, case)
    except OutsideError:
        return None
    except ValueError:
        return True
    pairs = [(new, weight), *((value, state[name]) for name, value in after.items())]
    if not all(bool(a.isfinite().all()) for a, _ in pairs):
        return None
    if all(_values_agree(a, b) for a, b in pairs):
        return False
    # Where rounding of the inputs alone changes the step as much, nothing is said.
    moved = case.weight * (1 + ROUNDED * torch.randn_like(case.weight))
    other, states = case.similar_rule.step(moved, case.grad, dict(case.state))
    again = [other, *(states[name] for name in after)]
    slack = [10 * float((x - b).abs().max()) for x, (_, b) in zip(again, pairs, strict=True)]
    return not all(_values_agree(*pair, each) for pair, each in zip(pairs, slack, strict=True))


def _values_agree(a: Tensor, b: Tensor, slack: float = 0.0) -> bool:
    if a.shape != b.shape or not b.numel():
        return a.shape == b.shape
    allowed = TOLERANCE * max(1.0, float(b.abs().max())) + slack
    return bool(((a - b.double()).abs() <= allowed).all())


# The claims, as they are printed


@torch.no_grad()
def verify_claims_on_run(
    law: NormLaw, claims: Sequence[Claim], steps: int = STEPS, own: bool = False
) -> bool:
    """Evaluate the relations of a law's claims along a run, as they are printed.

    Args:
        law: the law.
        claims: what it says.
        steps: of the run.
        own: run with the recipe's own numbers, plain ones; else with usual ones, as tensors.

    Returns:
        True if the closed form holds from the first step on.

    Raises:
        DifferenceError: another claim is false of the run.
    """
    try:
        run = [*_run(law, steps, own)]
    except Exception:  # of a rule that takes no such weight
        return False
    met, closed_form_verified = (
        [_satisfies_assumptions(law.split_step, numbers) for numbers in run[:-1]],
        True,
    )
    for claim, time in itertools.product(claims, range(len(met) - 1)):
        summed = claim.relation.has(sp.Sum)
        if not all(met[: time + 2] if summed else met[time : time + 2]):
            closed_form_verified = closed_form_verified and not (summed and not met[0])
            continue
        left, right = (_on_run(x, run, time) for x in claim.relation.args)
        differ = abs(left - right) > 1e-8 * max(abs(left), abs(right), 1e-2)
        if differ and not summed:  # (nan where a side has no value differs from nothing)
            raise DifferenceError(
                f"{law.name}: the law says {show(claim.relation)}; at t = {time} of a run "
                f"its sides are {left:.10g} and {right:.10g}"
            )
        closed_form_verified = closed_form_verified and not differ
    return closed_form_verified


def _run(law: NormLaw, steps: int, own: bool) -> Iterator[Values]:
    """The numbers of each step of a run from its start, with w' and s; of the last, w alone."""
    step, rng = law.split_step, np.random.default_rng(5)
    shape = _shape_of_one_unit(step.traced)
    view = next(iter(step.traced.views), View(None))
    view = view if count_units(view, shape) == 1 else View(None)
    own_numbers = _default_numbers(step.traced, np.random.default_rng(6)) if own else None
    case = draw_case(step, view, shape, "first", 7, plain=own, numbers=own_numbers)
    weight, state = case.weight, case.state
    for _ in range(steps):
        inputs = Inputs(weight, _gradient(step, view, weight, rng), state, case.values)
        weight, state = case.rule.step(weight, inputs.grad, dict(state))
        numbers = read_step(law, view, inputs, weight)
        for name, made in step.algebra.opaque_vectors.items():
            if isinstance(made.rule, r.Orthogonalize):
                c, rank = scale_of(made.rule, shape), min(shape[0], shape[1])
                q = float(numbers.scalar(Norm(name)).item()) ** 2 / (c**2 * rank)
                numbers.numbers = {**numbers.numbers, "c": c, "q": q, "rank": rank}
        yield numbers
        if not float(view.norm(weight).max()) < EXPLODES:
            break
    nothing = torch.full_like(weight, torch.nan)
    yield read_step(law, view, Inputs(weight, inputs.grad, state, case.values), nothing)


def _satisfies_assumptions(step: Step, numbers: Values) -> bool:
    with contextlib.suppress(OutsideError):
        check_assumptions(step, numbers)
        return True
    return False


@lru_cache(maxsize=1024)  # sides of claims repeat, and so do the times of two runs
def _at_time(x: sp.Expr, time: int) -> tuple[sp.Expr, frozenset[sp.Indexed]]:
    """Return a printed formula at one time, its sums written out, and its indexed symbols."""
    t = sp.Symbol("t", integer=True, nonnegative=True)
    now = x.subs(t, time)
    if now.has(sp.Sum):
        now = now.replace(lambda e: isinstance(e, sp.Sum), lambda e: e.doit())
    return now, frozenset(now.atoms(sp.Indexed))


def _on_run(x: sp.Expr, run: list[Values], time: int) -> float:
    """The value of a printed formula at one time of a run; nan where it has none."""
    now, indexed = _at_time(sp.sympify(x), time)
    inside = {s for i in indexed for s in i.free_symbols}
    known = {i: run[int(i.indices[0])].scalar(i.base.label) for i in indexed}
    known |= {s: run[time].scalar(s) for s in now.free_symbols - inside}
    try:
        digits = {symbol: sp.Float(float(value.item()), 25) for symbol, value in known.items()}
        return float(now.xreplace(digits).evalf(25))
    except (TypeError, KeyError):
        return float("nan")
