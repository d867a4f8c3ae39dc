"""A law against the code that it came from: no law is returned that differs from its step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from spherenorm import Rule, Update, View
from spherenorm import rules as r
from spherenorm_theory.algebra import (
    Array,
    Claim,
    Norm,
    Opaque,
    Trace,
    TraceError,
    Values,
    Vector,
    count_units,
    show,
)
from spherenorm_theory.algebra.letters import marked, states_of_letters
from spherenorm_theory.laws.orthogonal import scale_of
from spherenorm_theory.laws.split import Split
from spherenorm_theory.laws.step import Step, draw_from

Shape = tuple[int, ...]

TOLERANCE = 1e-10
"""Relative to the largest entry of the result, or to 1."""
ALMOST = 1e-9
"""<w, g> = 0 up to rounding: a cosine below this."""
ROUNDING = 1e-15
"""A cosine of w and g that rounding leaves where they are orthogonal; a law must not notice it."""
ROUNDED = 1e-14
"""The relative change of a weight that rounding may make in a few operations."""
RADIAL = 2.0
"""The radial part of a gradient that no test takes for an orthogonal one."""
TOGETHER = 0.3
"""The share of gradients whose units are orthogonal to the weight together, and none by itself."""
KINDS = ("first", "later", "any")
"""Of steps: from the first state, from one that steps leave, from any state."""
EXPLODES = 100.0
"""The norm at which that run ends: large numbers cancel."""
STEPS = 6
"""Of the run on which the printed claims are evaluated."""

SHAPES: tuple[Shape, ...] = (
    *((7,), (600,)),
    *((3, 5), (5, 3), (4, 4), (2, 1030), (260, 3), (70, 72)),
    *((3, 2, 4), (4, 3, 2), (70, 2, 67)),
    *((3, 2, 2, 2), (4, 3, 5, 5), (70, 66, 1, 3)),
    (3, 2, 2, 2, 2),
)
"""Of weights of several units: of each number of dimensions; oblong, square, wide."""

SINGLE: tuple[Shape, ...] = (
    *((7,), (1, 5), (5, 1), (1, 1030), (1030, 1), (1, 3, 2), (3, 1, 2), (1, 3, 2, 2)),
)
"""Of weights of one unit, some of them in one view and some in others."""

FAR = (1.0, 1e-2, 4.0)
"""The factors of weights and gradients, so that a decision by a length falls either way."""


class OutsideError(ValueError):
    """An assumption of the law does not hold for the inputs."""


class DifferenceError(TraceError):
    """A law is not the step of its code."""


@dataclass(frozen=True)
class Agreement:
    """The weights for which a law was held against its code, and agrees.

    Attributes:
        view: splits them into the units that the law is about.
        several: the law holds for each unit of a weight of several ones.
        dimensions: the numbers of dimensions of weights at which it does; empty for any.
        from_start: the closed form was held against a run from the first step on.
    """

    view: View = field(default_factory=lambda: View(None))
    several: bool = True
    dimensions: frozenset[int] = frozenset()
    from_start: bool = True

    @property
    def note(self) -> str:
        """The units that the law is about, in text."""
        if not self.several:
            return "the weight is one unit"
        names = {"channel": "each index of dimension 0", "layer": "the whole tensor"}
        unit = names.get(self.view.name, f"those of the view {self.view}")
        counts = ", ".join(map(str, sorted(self.dimensions)))
        return f"units: {unit} of a weight" + (f" of {counts} dimensions" if counts else "")

    def require(self, name: str, weight: Tensor) -> None:
        """Refuse a weight that the law is not about.

        Raises:
            OutsideError: it has several units, or another number of dimensions.
        """
        if self.dimensions and weight.ndim not in self.dimensions:
            raise OutsideError(f"{name}: {self.note}; got one of {weight.ndim} dimensions")
        units = count_units(self.view, tuple(weight.shape))
        if not self.several and units != 1:
            raise OutsideError(f"{name}: {self.note}; got {units} units")


@dataclass(frozen=True)
class Inputs:
    """Inputs of one step.

    Attributes:
        weight, grad: of one shape.
        state: as the rule's `init` or `step` returns it.
        values: numbers for the hyper-parameters, by the names of their symbols.
    """

    weight: Tensor
    grad: Tensor
    state: Mapping[str, Tensor]
    values: Mapping[str, float]


@dataclass(frozen=True)
class Case(Inputs):
    """Inputs of one step, with the rule itself, and its hyper-parameters by their own names."""

    numbers: Mapping[str, float]
    rule: Rule


# The step that a law says, in numbers


def evaluate(step: Step, view: View, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """The new weight and the new state, in float64; the states of letters are left out.

    Args:
        step: the step on symbols.
        view: splits the weight into units.
        inputs: of the step.

    Raises:
        OutsideError: an assumption of the law does not hold for these inputs.
        ValueError: a state is missing, or does not split into units.
    """
    numbers = read_units(step, view, inputs)
    check_assumptions(step, numbers)
    _refuse_projection(step, inputs)
    weight = inputs.weight
    new = view.from_rows(torch.tensor(numbers.vector(step.weight)), weight)
    after = {
        name: _join(name, step.states[letter], numbers, view, weight, inputs.state[name])
        for name, letter in step.letters.items()
        if name not in step.traced.inside
    }
    return new, after


def read_units(step: Step, view: View, inputs: Inputs) -> Values:
    """The numbers of a step for each unit of a weight.

    Raises:
        ValueError: a state is missing, or does not split into units.
    """
    if missing := step.letters.keys() - inputs.state.keys():
        raise ValueError(f"{step.traced.name}: the state has no {', '.join(sorted(missing))}")
    w, g = (view.rows(x.double()).numpy() for x in (inputs.weight, inputs.grad))
    vectors, scalars = {"w": w, "g": g}, dict[str, Any](inputs.values)
    for name, letter in step.letters.items():
        if name in step.traced.inside:
            continue
        entries = _split(name, inputs.state[name], view, inputs.weight)
        if letter in step.scalars:
            scalars[letter] = entries[:, 0]
        else:
            vectors[letter] = np.broadcast_to(entries, w.shape)
    return Values(step.algebra, vectors, scalars, _letters(step.traced, view, inputs))


def _letters(traced: Trace, view: View, inputs: Inputs) -> Any:
    """The function that applies the rules of letters, unit by unit as the rules do."""
    if not traced.letters:
        return None
    numbers = {
        n: torch.tensor(inputs.values[s.name], dtype=torch.float64)
        for n, s in traced.symbols.items()
    }
    rule, found = marked(traced.build(numbers))
    states = states_of_letters(rule)

    def apply(made: Opaque, direction: Array, *_: Array) -> Array:
        letter, weight = found[made.place], inputs.weight.double()
        own: dict[str, Any] = {n: inputs.state[outer] for n, outer in states[made.place].items()}
        own |= {"step": own["step"] + 1} if "step" in own else {}
        given = view.from_rows(torch.tensor(direction), weight)
        update = letter.update(Update(weight, inputs.grad.double(), given), own)[0]
        return view.rows(update.direction).numpy()

    return apply


def _split(name: str, value: Tensor, view: View, weight: Tensor) -> Array:
    """The part of a state that each unit has, one unit per row."""
    value, units = value.double(), len(view.rows(weight))
    if value.shape == weight.shape:
        return view.rows(value).numpy()
    if value.ndim and value.shape == view.total(weight).shape:
        return view.units(value).reshape(units, 1).numpy()
    if value.numel() == weight.numel() and units == 1:
        return value.reshape(1, -1).numpy()
    if value.numel() == 1:
        return np.full((units, 1), value.item())
    raise ValueError(
        f"the state {name!r} of shape {tuple(value.shape)} does not split into the units of a "
        f"weight of shape {tuple(weight.shape)} in the view {view}"
    )


def _join(name: str, x: Any, numbers: Values, view: View, weight: Tensor, like: Tensor) -> Tensor:
    """The state of the whole weight from that of each unit."""
    shape = numbers.vectors["w"].shape
    if like.shape == weight.shape:
        return view.from_rows(torch.tensor(np.broadcast_to(numbers.entries(x), shape)), weight)
    if isinstance(x, Vector) or like.numel() not in (1, shape[0]):
        raise ValueError(
            f"the state {name!r} of shape {tuple(like.shape)} is not one number for each unit of a "
            f"weight of shape {tuple(weight.shape)} in the view {view}"
        )
    values = torch.tensor(np.broadcast_to(numbers.scalar(x), shape[:1]))
    if like.numel() > 1:
        return values.reshape(like.shape)
    if not torch.allclose(values, values[:1], rtol=1e-9):
        raise ValueError(f"the units do not agree on the state {name!r}, of which there is one")
    return values[0].reshape(like.shape)


def check_assumptions(step: Step, numbers: Values) -> None:
    """Refuse inputs that do not meet the hypotheses.

    Raises:
        OutsideError: naming one.
    """
    name, (w, g) = step.traced.name, (numbers.vectors[atom] for atom in "wg")
    lengths = [np.linalg.norm(x, axis=1) for x in (w, g)]
    if not all((length > 0).all() for length in lengths):
        raise OutsideError(f"{name}: the law assumes w, g not 0")
    cosines = (w * g).sum(1) / (lengths[0] * lengths[1])
    cosine = cosines[np.abs(cosines).argmax()]
    if ("w", "g") in step.algebra.known and abs(cosine) > ALMOST:
        raise OutsideError(
            f"{name}: the law assumes <w, g> = 0, cos(w, g) is {cosine:.3g}; "
            "scale_invariant=False gives the law of any gradient"
        )
    for letter, symbol in step.scalars.items():
        least = np.min(numbers.numbers[letter])
        if (symbol.is_positive and not least > 0) or (symbol.is_nonnegative and not least >= 0):
            sign = "positive" if symbol.is_positive else "at least 0"
            raise OutsideError(
                f"{name}: the law has {letter} {sign}, as steps leave it; got {least}"
            )
    for relation in step.facts.hypotheses:
        if not numbers.holds(relation).all():
            raise OutsideError(
                f"{name}: the law assumes {show(relation)}, which these numbers do not meet"
            )


def _refuse_projection(step: Step, inputs: Inputs) -> None:
    """Refuse a scale-invariance test that passes in a view of the rule, which the law says fails.

    A view of the rule may have other units than the law: all rows together may be orthogonal to
    their gradient where no row is.
    """
    weight, state = inputs.weight, inputs.state
    shaped = {step.letters[n]: x for n, x in state.items() if x.shape == weight.shape}
    single = {step.letters[n]: float(x) for n, x in state.items() if x.ndim == 0}
    for view in step.traced.views if step.facts.failed else ():
        whole = {"w": weight, "g": inputs.grad, **shaped}
        vectors = {atom: view.rows(x.double()).numpy() for atom, x in whole.items()}
        numbers = Values(step.algebra, vectors, {**inputs.values, **single})
        if any(numbers.holds(test).any() for test in step.facts.failed):
            raise OutsideError(
                f"{step.traced.name}: the law assumes that no projection acts; the test of the "
                f"view {view} passes for these numbers"
            )


# Random inputs


def draw_cases(
    step: Step,
    view: View,
    shape: Shape,
    kinds: Sequence[str],
    seed: int,
    scales: tuple[float, ...] = (1.0,),
) -> Iterator[Case]:
    """A case of each kind, as `KINDS` has them, and of each scale.

    Hyper-parameters are drawn from their intervals; numbers of the state have both signs where the
    law allows them; counters are early and late.
    """
    traced = step.traced
    for n, (scale, kind) in enumerate(itertools.product(scales, kinds)):
        rng = np.random.default_rng([seed, n])
        numbers = {
            name: float(traced.given.get(s, draw_from(traced.intervals[name], rng)))
            for name, s in traced.symbols.items()
        }
        rule = traced.build(
            {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
        )
        weight = torch.tensor(rng.normal(size=shape) * rng.uniform(0.5, 2) * scale)
        state = rule.init(weight)
        _refuse_other_states(step, state, shape)
        for _ in range({"first": 0, "any": 1}.get(kind, 3)):
            weight, state = rule.step(weight, _gradient(step, view, weight, rng), state)
        if kind == "any":
            state = {k: _draw_state(step, k, x, rng) for k, x in state.items()}
        grad = _gradient(step, view, weight, rng) * rng.choice([1.0, scale])
        values = {s.name: numbers[name] for name, s in traced.symbols.items()}
        yield Case(weight, grad, state, values, numbers, rule)


def _refuse_other_states(step: Step, state: Mapping[str, Tensor], shape: Shape) -> None:
    """Refuse a rule that keeps other states for this shape than the law has."""
    traced = step.traced.outputs[1:]
    if set(state) != set(traced):
        here = f"{sorted(state)} for a weight of shape {shape}"
        raise TraceError(
            f"{step.traced.name}: its states depend on the shape: {here}, {sorted(traced)} for the "
            f"shape {step.traced.shape} of the law"
        )


def _gradient(step: Step, view: View, weight: Tensor, rng: np.random.Generator) -> Tensor:
    """A random gradient, orthogonal to each unit up to rounding where the law assumes that.

    Elsewhere each unit has a radial part of either sign, and now and then all of them together
    have none.
    """
    grad = torch.tensor(rng.normal(size=tuple(weight.shape)))
    radial = view.radial_coefficient(weight, grad)
    orthogonal = ("w", "g") in step.algebra.known
    cosine = torch.tensor(rng.choice([-1.0, 1.0], size=tuple(radial.shape)))
    cosine = cosine * (ROUNDING if orthogonal else RADIAL)
    if not orthogonal and cosine.numel() > 1 and rng.random() < TOGETHER:
        squares = view.inner(weight, weight)
        cosine = cosine - (cosine * squares).sum() / squares.sum()
    return grad - (radial - cosine) * weight


def _draw_state(step: Step, name: str, value: Tensor, rng: np.random.Generator) -> Tensor:
    """A random state of the signs that the law allows, in place of one that steps have left."""
    if name in step.traced.inside:
        return value
    symbol = step.scalars.get(step.letters[name])
    if symbol is None:
        drawn = torch.tensor(rng.normal(size=tuple(value.shape)))
        return drawn.abs() if bool((value >= 0).all()) else drawn
    if value.ndim == 0 and float(value).is_integer():
        late = rng.choice([1, 2, 9, 57, 299, 300, 4000, 10**6])
        return torch.full_like(value, float(late) if float(value) > 0 else float(value))
    drawn = torch.tensor(rng.normal(size=tuple(value.shape)))
    return drawn if symbol.is_nonnegative is None else drawn.abs() + 0.1


# The comparison


@torch.no_grad()  # as optimizers take their steps
def hold(law: Split, claims: Sequence[Claim]) -> Agreement:
    """Hold a law and its claims against the step of its rule, on random inputs.

    Raises:
        DifferenceError: they differ.
    """
    step = law.split_step
    name, views = step.traced.name, step.traced.views or (View(0), View(None))
    _compare_one_unit(step)
    _compare_plain_numbers(step)
    from_start = _hold_claims(law, claims)
    for view in views:
        found = _agreeing(step, view, SHAPES)
        agree = frozenset(count for count, alike in found.items() if alike)
        if agree - {1}:
            everywhere = agree | {1} >= found.keys()
            return Agreement(view, True, frozenset() if everywhere else agree, from_start)
    single = [shape for shape in SINGLE if count_units(views[0], shape) == 1]
    shapes = [step.traced.shape, *single]
    alike = _agreeing(step, views[0], shapes)
    if not alike.get(len(step.traced.shape)):
        shown = ", ".join(map(str, shapes))
        raise DifferenceError(
            f"{name}: the step depends on the shape of the weight: the law is that of "
            f"{step.traced.shape}, and the code takes another step at one of the shapes {shown}"
        )
    counts = frozenset(count for count, agree in alike.items() if agree)
    return Agreement(views[0], False, frozenset() if all(alike.values()) else counts, from_start)


def _agreeing(step: Step, view: View, shapes: Any) -> dict[int, bool]:
    """For each number of dimensions: law and code agree for all shapes that the rule takes.

    One case of each scale that the law is about is enough for a shape.
    """
    results: dict[int, list[bool]] = {}
    scales = FAR if step.algebra.facts.cases else FAR[:1]
    for shape, scale in itertools.product(shapes, scales):
        with contextlib.suppress(Exception):
            kinds = KINDS[::-1] if count_units(view, shape) else ()
            cases = draw_cases(step, view, shape, kinds, 1, (scale,))
            differences = (_difference(step, view, case) for case in cases)
            found = next((each for each in differences if each is not None), None)
            if found is not None:
                results.setdefault(len(shape), []).append(not found)
    return {count: all(agree) for count, agree in results.items()}


def _compare_one_unit(step: Step) -> None:
    compared = 0
    shape = (3, 5) if step.traced.letters else step.traced.shape
    view = next(iter(step.traced.views), View(None))
    for case in draw_cases(step, view, shape, KINDS, 0, (*FAR, 1.0)):
        difference = _difference(step, view, case)
        compared += difference is not None
        if difference:
            given = ", ".join(f"{n}={x:.4g}" for n, x in case.numbers.items())
            raise DifferenceError(
                f"{step.traced.name}: the law differs from the step of the code at {given}, "
                f"weight {case.weight.tolist()}, gradient {case.grad.tolist()}"
            )
    if not compared:
        assumed = "; ".join(map(show, step.facts.hypotheses))
        raise DifferenceError(
            f"{step.traced.name}: no random inputs meet the assumptions of the law, so that it "
            f"cannot be held against its code: {assumed}"
        )


def _difference(step: Step, view: View, case: Case) -> bool | None:
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
    if all(_agree(a, b) for a, b in pairs):
        return False
    # Where rounding of the weight alone changes the step as much, nothing is said.
    moved = case.weight * (1 + ROUNDED * torch.randn_like(case.weight))
    other, states = case.rule.step(moved, case.grad, dict(case.state))
    again = [other, *(states[name] for name in after)]
    slack = [10 * float((x - b).abs().max()) for x, (_, b) in zip(again, pairs, strict=True)]
    return not all(_agree(*pair, each) for pair, each in zip(pairs, slack, strict=True))


def _agree(a: Tensor, b: Tensor, slack: float = 0.0) -> bool:
    if a.shape != b.shape or not b.numel():
        return a.shape == b.shape
    allowed = TOLERANCE * max(1.0, float(b.abs().max())) + slack
    return bool(((a - b.double()).abs() <= allowed).all())


def _compare_plain_numbers(step: Step) -> None:
    """Hold the rule of tensors, which was recorded, against the rule of plain numbers.

    Raises:
        DifferenceError: they take different steps.
    """
    traced, view = step.traced, View(None)
    try:
        (case,) = draw_cases(step, view, traced.shape, KINDS[:1], 3)
    except Exception:
        return
    near = [(name, x) for name in traced.free for x in _ends(traced.intervals[name])]
    for name, number in [("", 0.0), *near]:
        numbers = {**case.numbers, **({name: number} if name else {})}
        tensors = {n: torch.tensor(x, dtype=torch.float64) for n, x in numbers.items()}
        with contextlib.suppress(Exception):  # the recipe refuses these numbers
            plain = traced.build(numbers)
            one, other = (_run(rule, case) for rule in (traced.build(tensors), plain))
            finite = bool((one.isfinite() & other.isfinite()).all())
            if finite and not _agree(one, other):
                shown = ", ".join(f"{n} = {x:g}" for n, x in numbers.items())
                break
    else:
        return
    raise DifferenceError(
        f"{traced.name}: the code does another step where hyper-parameters are plain numbers than "
        f"where they are tensors of float64: it asks for their type or size ({shown})"
    )


def _ends(interval: Any) -> list[float]:
    """Numbers near the ends of an interval, or far from its only end."""
    low, high = interval.low, interval.high
    if np.isfinite([low, high]).all():
        return [low + (high - low) * share for share in (1e-3, 0.999)]
    start = low if np.isfinite(low) else 0.0
    numbers = [start + x for x in (1e-3, 3.0, 1e3)]
    return numbers if np.isfinite(low) else [*numbers, *(-x for x in numbers)]


def _run(rule: Rule, case: Case) -> Tensor:
    weight, grad, state = case.weight, case.grad, dict(case.state)
    for _ in range(2):  # a momentum is seen in the second step
        weight, state = rule.step(weight, grad, state)
        grad = grad.roll(1, -1)
    return weight


# The claims, as they are printed


def _hold_claims(law: Split, claims: Sequence[Claim]) -> bool:
    """Evaluate the relations of a law's claims along a run, as they are printed.

    Returns:
        True if the closed form holds from the first step on.

    Raises:
        DifferenceError: another claim is false of the run.
    """
    step, rng = law.split_step, np.random.default_rng(5)
    traced, view = step.traced, next(iter(law.step.traced.views), View(None))
    shape = (3, 5) if traced.letters else traced.shape
    view = view if count_units(view, shape) == 1 else View(None)
    try:
        (case,) = draw_cases(step, view, shape, KINDS[:1], 7)
    except Exception:
        return False
    weight, state, run = case.weight, case.state, list[Values]()
    for _ in range(STEPS):
        grad = _gradient(step, view, weight, rng)
        now = Inputs(weight, grad, state, case.values)
        numbers = read_units(step, view, now)
        weight, state = case.rule.step(weight, grad, dict(state))
        keep = numbers.scalar(1 - law.kappa)
        numbers.vectors["w'"] = view.rows(weight).numpy()
        numbers.vectors["s"] = numbers.vectors["w'"] - keep[..., None] * numbers.vectors["w"]
        numbers.numbers = {**numbers.numbers, **_measure_letters(step, numbers, shape)}
        run.append(numbers)
        if not float(view.norm(weight).max()) < EXPLODES:
            break
    last = read_units(step, view, Inputs(weight, grad, state, case.values))
    last.vectors["s"] = last.vectors["w"] * np.nan
    run.append(last)
    met = [_meets(step, numbers) for numbers in run[:-1]]
    from_start = True
    for claim in claims:
        summed = claim.relation.has(sp.Sum)
        for time in range(len(met) - 1):
            if not all(met[: time + 2] if summed else met[time : time + 2]):
                from_start = from_start and not (summed and not met[0])
                continue
            left, right = (_on_run(x, run, time) for x in claim.relation.args)
            if not np.isfinite([left, right]).all():
                continue
            if not abs(left - right) <= 1e-8 * max(abs(left), abs(right), 1e-2):
                if summed:
                    from_start = False
                    continue
                raise DifferenceError(
                    f"{traced.name}: the law says {show(claim.relation)}; at t = {time} of a run "
                    f"its sides are {left:.10g} and {right:.10g}"
                )
    return from_start


def _measure_letters(step: Step, numbers: Values, shape: Shape) -> dict[str, float]:
    """c, q and the rank of the last orthogonal factor of a step."""
    made = [n for n, x in step.algebra.opaque.items() if isinstance(x.function, r.Orthogonalize)]
    if not made:
        return {}
    rule = step.algebra.opaque[made[-1]].function
    assert isinstance(rule, r.Orthogonalize)
    scale, rank = scale_of(rule, shape), min(shape[0], shape[1])
    squared = float(numbers.scalar(Norm(made[-1])).item()) ** 2
    return {"c": scale, "rank": rank, "q": squared / (scale**2 * rank)}


def _meets(step: Step, numbers: Values) -> bool:
    try:
        check_assumptions(step, numbers)
    except OutsideError:
        return False
    return True


def _on_run(x: sp.Expr, run: list[Values], time: int) -> float:
    """The value of a printed formula at one time of a run."""
    t = next((s for s in x.free_symbols if s.is_integer and s.name == "t"), None)
    at_time = sp.sympify(x).subs(t, time) if t is not None else sp.sympify(x)
    at_time = at_time.replace(lambda e: isinstance(e, sp.Sum), lambda e: e.doit())
    known = {}
    for indexed in at_time.atoms(sp.Indexed):
        label, index = indexed.base.label, int(indexed.indices[0])
        known[indexed] = sp.Float(float(run[index].scalar(label).item()), 25)
    rest = at_time.xreplace(known)
    for symbol in rest.free_symbols:
        known[symbol] = sp.Float(float(run[time].scalar(symbol).item()), 25)
    try:
        return float(rest.xreplace(known).evalf(25))
    except (TypeError, KeyError):
        return float("nan")
