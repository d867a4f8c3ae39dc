"""The derived laws against float64 trajectories."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy as sp
import torch

from spherenorm.registry import Recipe, defaults
from spherenorm.rule import Rule
from spherenorm.views import View, as_view
from theory.coordinates import Array
from theory.norm_growth import NormGrowth, S, W, norm_growth
from theory.tasks import TASKS, Task
from theory.trace import are_numbers, found, is_number, rules_of

__all__ = ["Check", "Measured", "Trajectory", "check", "predict", "run"]

TOLERANCE = 1e-10
"""Relative, on |w|^2 after hundreds of steps: rounding gives about steps x 1e-16 x |w|^2-terms, a wrong law 1e-6 and more."""

NOT_ORTHOGONAL = 1e-10
"""A cosine of w and g above this is no rounding: float64 gradients of an exactly invariant function stay below 1e-12."""


@dataclass(frozen=True)
class Trajectory:
    """One weight's run, unit by unit: arrays of shape (steps + 1, units) and, for what belongs to a step, (steps, units).

    Attributes:
        squared_norm: |w_t|^2.
        products: measured values of the law's symbols: |s|^2, <w,s>, <m,s> for each buffer m, and counters; "apart" where `_apart` was
            asked for.
        radial: |<w_t, g_t>|.
        scale: |w_t| |g_t|.
    """

    squared_norm: Array
    products: Mapping[str, Array]
    radial: Array
    scale: Array

    @property
    def cosine(self) -> float:
        """The greatest |<w, g>| of the run, relative to its greatest |w| |g| (a gradient of rounding errors has any direction)."""
        return float(
            (
                self.radial.max(axis=0)
                / np.where(self.scale.max(axis=0) > 0, self.scale.max(axis=0), 1)
            ).max()
        )


def _rule(law: NormGrowth, hypers: Mapping[str, Any]) -> Rule:
    return law.step.traced.recipe(**{**law.step.traced.structure, **hypers})


def run(
    law: NormGrowth,
    task: Task,
    steps: int,
    seed: int = 0,
    alone: Collection[str] = (),
    **hypers: Any,
) -> dict[str, Trajectory]:
    """Train on `task` by the recipe's own step, and measure each weight's units; of the weights in `alone`, see `_apart` too."""
    generator = torch.Generator().manual_seed(seed)
    rule = _rule(law, hypers)
    values = law.step.traced.values(**hypers)
    counters = [sp.Symbol(letter, positive=True) for letter in law.step.counters]
    keep, keep_first = (
        sp.lambdify(counters, 1 - stage.kappa.subs(values)) for stage in (law, law.first or law)
    )
    weights = task.start(generator)
    states = {name: rule.init(w) for name, w in weights.items()}
    present, expected = next(iter(states.values())).keys(), law.step.traced.outputs[1:]
    if set(present) != set(expected):
        raise ValueError(
            f"the law was derived for a step with the states {sorted(expected)}, the run's rule has {sorted(present)}: "
            "at the number 0 a recipe may leave a rule out, hold the same hyper-parameters at 0"
        )
    letters = dict(zip(law.step.traced.outputs[1:], law.step.states, strict=True))
    rows: dict[str, dict[str, list[Array]]] = {name: {} for name in weights}

    def note(name: str, what: str, value: torch.Tensor) -> None:
        rows[name].setdefault(what, []).append(_view(task, name).units(value).numpy())

    for time in range(steps):
        leaves = {name: w.clone().requires_grad_() for name, w in weights.items()}
        grads = torch.autograd.grad(task.loss(leaves, generator), [*leaves.values()])
        for (name, w), grad in zip([*weights.items()], grads, strict=True):
            view = _view(task, name)
            new, state = rule.step(w, grad, states[name])
            counts = {
                letter: states[name][key].item()
                for key, letter in letters.items()
                if letter in law.step.counters
            }
            step = (
                new
                - (keep if time else keep_first)(*(counts[str(counter)] for counter in counters))
                * w
            )
            note(name, "|w|^2", view.inner(w, w))
            note(name, "radial", view.inner(w, grad).abs())
            note(name, "scale", view.norm(w) * view.norm(grad))
            note(name, "|s|^2", view.inner(step, step))
            note(name, "<w,s>", view.inner(w, step))
            if name in alone:
                note(name, "apart", _apart(rule, view, w, grad))
            for letter, count in counts.items():
                rows[name].setdefault(letter, []).append(np.array([count]))
            for key, letter in letters.items():
                if letter in law.step.buffers:
                    note(name, f"<{letter},s>", view.inner(states[name][key], step))
            weights[name], states[name] = new, state
    for name, w in weights.items():
        note(name, "|w|^2", _view(task, name).inner(w, w))
    arrays = {
        name: {what: np.stack(values) for what, values in row.items()} for name, row in rows.items()
    }
    return {
        name: Trajectory(a.pop("|w|^2"), a, a["radial"], a["scale"]) for name, a in arrays.items()
    }


def _apart(rule: Rule, view: View, weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """How far each unit's first step, from here, is from the one that it takes as a weight of its own; relative."""

    def moved(w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return rule.step(w, g, rule.init(w))[0] - w

    units = zip(view.rows(weight), view.rows(grad), strict=True)
    single = view.from_rows(torch.cat([moved(w[None], g[None]) for w, g in units]), weight)
    length = view.norm(single)
    return view.norm(moved(weight, grad) - single) / torch.where(length > 0, length, 1)


def _view(task: Task, name: str) -> View:
    return as_view(task.views[name])


def _other_views(rule: Rule, view: View) -> tuple[str, ...]:
    """The rules that have a view, and another one than `view`."""
    views = ((type(part).__name__, getattr(part, "view", None)) for part in rules_of(rule))
    return tuple(
        f"{name} has the view {other}, the weight {view}"
        for name, other in views
        if other is not None and as_view(other) != view
    )


def predict(law: NormGrowth, measured: Trajectory, **hypers: Any) -> Array:
    """|w_t|^2 at every step, from |w_0|^2 and the law alone, fed with |s_t|^2 (and <m_t, s_t> where the law holds it).

    The cross terms start at 0 and follow their own recursion. A law whose cross term is open is fed with <w_t, s_t>, which
    leaves an identity to check.
    """
    values = law.step.traced.values(**hypers)
    unknowns = [] if law.open_because else [*law.recursion]
    generic = _follower(law, unknowns, values)
    follow = generic if law.first is None else _follower(law.first, unknowns, values)
    state = [measured.squared_norm[0], *(np.zeros_like(measured.squared_norm[0]) for _ in unknowns)]
    predicted = [state[0]]
    for time in range(len(measured.squared_norm) - 1):
        state = follow(state, {name: values[time] for name, values in measured.products.items()})
        predicted.append(state[0])
        follow = generic
    return np.stack(predicted)


def _follower(
    law: NormGrowth, unknowns: list[sp.Symbol], values: dict[sp.Symbol, float]
) -> Callable[[list[Array], dict[str, Array]], list[Array]]:
    """The recursion of |w|^2 and `unknowns` as a function of their values and of the measured products."""
    keep = 1 - law.kappa
    cross = sp.Symbol("<w,s>", real=True) if law.open_because else law.cross
    squared = W if law.constant else keep**2 * W + S + 2 * keep * cross
    # What a law that is not open has by name is known: a root of counters.
    equations = [
        e.subs(law.step.algebra.definitions).subs(values)
        for e in (squared, *(law.recursion[u] for u in unknowns))
    ]
    inputs = sorted({s for e in equations for s in e.free_symbols} - {W, *unknowns}, key=str)
    compiled = sp.lambdify([W, *unknowns, *inputs], equations, "numpy")
    return lambda state, products: [
        np.broadcast_to(x, state[0].shape)
        for x in compiled(*state, *(products[str(s)] for s in inputs))
    ]


@dataclass(frozen=True)
class Measured:
    """One weight of a check: the greatest relative residual of |w_t|^2, and what its assumptions came to.

    Attributes:
        apart: how much of a unit's step is due to the other units; measured where nothing else explains the residual.
        other_views: the rules that act on other units than the weight's, which may be why.
    """

    residual: float
    cosine: float
    zero_gradients: int
    growth: float
    apart: float = 0.0
    other_views: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.residual <= TOLERANCE

    @property
    def complaints(self) -> list[str]:
        said = []
        if self.cosine > NOT_ORTHOGONAL:
            said.append(f"<w, g> = 0 fails: |cos(w, g)| up to {self.cosine:.1e}")
        if self.zero_gradients:
            said.append(
                f"the gradient of a unit is exactly 0 in {self.zero_gradients} steps: no evidence of scale invariance there"
            )
        if self.apart > NOT_ORTHOGONAL:
            why = f" ({', '.join(self.other_views)})" if self.other_views else ""
            said.append(
                f"a unit does not move as if it were alone{why}: its step is off by up to {self.apart:.1e}"
            )
        return said


@dataclass(frozen=True)
class Check:
    """A law against a run.

    Attributes:
        recipe, task: their names.
        weights: what was measured, weight by weight.
        identity: whether the cross term had to be measured, so that little is left to check.
        differences: hyper-parameters that the law was derived for and the run did not have.
        spoiled: the assumption that the task is known to break.
    """

    recipe: str
    task: str
    weights: Mapping[str, Measured]
    identity: bool = False
    differences: tuple[str, ...] = ()
    spoiled: str = ""

    @property
    def residual(self) -> float:
        return max(m.residual for m in self.weights.values())

    @property
    def passed(self) -> bool:
        return all(m.passed for m in self.weights.values())

    @property
    def complaints(self) -> list[str]:
        """The assumptions that failed, with numbers."""
        return [
            *self.differences,
            *(f"{name}: {c}" for name, m in self.weights.items() for c in m.complaints),
        ]

    def __str__(self) -> str:
        verdict = (
            f"holds to {self.residual:.1e}"
            if self.passed
            else f"DOES NOT HOLD: residual {self.residual:.1e} > {TOLERANCE:.0e}"
        )
        kind = " (cross term measured)" if self.identity else ""
        lines = [f"law of {self.recipe} on {self.task}{kind}: {verdict}"]
        lines += [
            f"  {name}: residual {m.residual:.1e}, |w|^2 grew {m.growth:.3g}-fold at most"
            for name, m in self.weights.items()
        ]
        lines += [f"  assumption broken on purpose: {self.spoiled}"] if self.spoiled else []
        return "\n".join([*lines, *(f"  {c}" for c in self.complaints)])

    __repr__ = __str__


def check(
    recipe: str | Recipe,
    task: str | Task = "network",
    *,
    steps: int = 200,
    seed: int = 0,
    law: NormGrowth | None = None,
    **hypers: Any,
) -> Check:
    """Train with `recipe` on a small problem in float64, and compare |w_t|^2 at every step with what its law predicts.

    Args:
        recipe: as for `norm_growth`.
        task: a name from `TASKS`, or a task of your own.
        steps: how many.
        seed: of weights and data.
        law: the law to check; by default the recipe's own. (Another one shows how far off it is.)
        hypers: hyper-parameters of the run; the rest have their defaults.

    Raises:
        ValueError: no such task, recipe or hyper-parameter, a number of steps that is none, or a seed that is none.
    """
    if isinstance(task, str) and task not in TASKS:
        near = difflib.get_close_matches(task, TASKS)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(TASKS)}"
        raise ValueError(f"no task is named {task!r}; {hint}")
    if not isinstance(task, (str, Task)):
        raise TypeError(f"task must be a name or a Task, got {task!r}")
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    problem = TASKS[task] if isinstance(task, str) else task
    function = found(recipe)
    unknown = [name for name in hypers if name not in defaults(function)]
    if unknown:
        raise ValueError(
            f"the recipe has no hyper-parameter {unknown[0]!r}; it has {', '.join(defaults(function))}"
        )
    used = {**defaults(function), **hypers}
    # At the Python number 0 a recipe may leave a rule out: 0 belongs to the structure.
    structure = {
        n: v
        for n, v in used.items()
        if v == 0 or (n in hypers and not (is_number(v) or are_numbers(v)))
    }
    differences: list[str] = []
    if law is None:
        law = norm_growth(function, **structure)
    else:
        differences = [
            f"the law was derived for {n} = {v!r}, the run has {used[n]!r}"
            for n, v in law.step.traced.structure.items()
            if n in used and used[n] != v
        ]
    trajectories = run(law, problem, steps, seed, **hypers)
    weights = {}
    for name, measured in trajectories.items():
        off = np.abs(predict(law, measured, **hypers) / measured.squared_norm - 1)
        weights[name] = Measured(
            residual=float(np.nan_to_num(off, nan=np.inf).max()),
            cosine=measured.cosine,
            zero_gradients=int((measured.scale == 0).any(axis=1).sum()),
            growth=float((measured.squared_norm[-1] / measured.squared_norm[0]).max()),
        )
    unexplained = [
        name for name, m in weights.items() if not (m.passed or differences or m.complaints)
    ]
    if unexplained:
        again, rule = (
            run(law, problem, steps, seed, alone=unexplained, **hypers),
            _rule(law, hypers),
        )
        for name in unexplained:
            others = _other_views(rule, _view(problem, name))
            weights[name] = replace(
                weights[name], apart=float(again[name].products["apart"].max()), other_views=others
            )
    label = task if isinstance(task, str) else "task"
    return Check(
        law.name, label, weights, bool(law.open_because), tuple(differences), problem.spoiled
    )
