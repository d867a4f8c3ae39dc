"""The trajectory that every path must give: the rule's own code in a plain loop.

Rounding errors for runs of it: in inputs, in the order of sums, in operations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.cases import STEPS, Case, Place

State = dict[str, Tensor]
Moment = dict[Place, tuple[Tensor, State | None]]
"""All weights with their states after a step; None where a path does not show them."""
Gradients = list[dict[Place, Tensor | None]]
Nudge = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Trajectory:
    """Attributes:
    rounding_errors: by how many of them the inputs of a nudged run moved.
    """

    moments: list[Moment]
    gradients: Gradients
    rounding_errors: int = 1


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision that rules compute in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def reference(
    case: Case,
    given: Gradients | None = None,
    path: Sequence[Moment] | None = None,
    nudge: Nudge = lambda x: x,
    only: Collection[tuple[int, Place]] | None = None,
) -> Trajectory:
    """Eight steps of the case.

    Args:
        given: the gradients; by default those that the case draws at the weights of this very run.
        path: the moments of a path, from each of which the next step starts here; by default it
            starts from this very run's.
        nudge: moves weights, gradients, states and numbers by a rounding error before each step:
            weights in the precision of the rule, or in their own where this very run rounded them.
        only: the steps of weights that are taken, where they start from a path; None: all.
    """
    weights = {place: weight.first() for place, weight in case.weights.items()}
    states: dict[Place, State] = {place: {} for place in weights}
    moments: list[Moment] = []
    gradients: Gradients = given or [_Drawn(case, step, weights) for step in range(STEPS)]
    for step, grads in enumerate(gradients):
        if path is not None and step:
            for place, (weight, state) in path[step - 1].items():
                weights[place], states[place] = weight, dict(state or {})
        for place, weight in weights.items():
            grad, group = grads[place], case.groups[place[0]]
            asked = path is None or only is None or (step, place) in only
            if asked and grad is not None and group.since <= step:
                start = nudge(weight if path is None else weight.to(working_dtype(weight.dtype)))
                moved = _step(case, group.numbers[step], start, grad, states[place], nudge)
                weights[place], states[place] = moved[0].to(weight.dtype), moved[1]
        moments.append({p: (weight.clone(), dict(states[p])) for p, weight in weights.items()})
    return Trajectory(moments, gradients)


class _Drawn(dict[Place, Tensor | None]):
    """The gradients of one step, drawn at the weights when they are asked for."""

    def __init__(self, case: Case, step: int, weights: dict[Place, Tensor]) -> None:
        self.case, self.step, self.weights = case, step, weights

    def __missing__(self, place: Place) -> Tensor | None:
        if self.case.factors and place[0]:  # the points of a sweep have the first one's
            self[place] = self[0, place[1]]
        else:
            self[place] = self.case.weights[place].gradient(self.weights[place], self.step)
        return self[place]


def _step(
    case: Case, numbers: dict[str, Any], weight: Tensor, grad: Tensor, state: State, nudge: Nudge
) -> tuple[Tensor, State]:
    precision = working_dtype(weight.dtype)
    # Of a number below 1 a rule takes 1 - beta in double precision; the others scale entries.
    moved = {
        name: _nudged(numbers[name], torch.float64 if interval.high == 1 else precision, nudge)
        for name, interval in case.structure.numbers
    }
    rule = _rule_with(case, moved, set(state))
    if state.keys() != set(rule.state_keys):  # at a first step, and when a rule is switched on
        state = {name: state.get(name, fresh) for name, fresh in rule.init(weight).items()}
    state = {name: value if name == "step" else nudge(value) for name, value in state.items()}
    grad = nudge((-grad if case.maximize else grad).to(precision))
    return rule.step(weight, grad.clone(), state)


def _rule_with(case: Case, numbers: dict[str, Any], keys: set[str]) -> Any:
    """The rule that goes on with the states of earlier steps.

    A recipe leaves rules, or their states, out at the number 0, and nothing at a tensor of it.
    """
    rule = case.structure.recipe(**numbers)
    zeros = [n for n, x in numbers.items() if not isinstance(x, Tensor) and x == 0]
    for count in range(len(zeros) + 1):
        for names in itertools.combinations(zeros, count):
            as_tensors = dict.fromkeys(names, torch.zeros((), dtype=torch.float64))
            candidate = case.structure.recipe(**{**numbers, **as_tensors})
            if keys <= set(candidate.state_keys):
                return candidate
    return rule


def _nudged(value: Any, precision: torch.dtype, nudge: Nudge) -> Any:
    """0 and 1 are exact, and may be ends of an interval. Numbers of numpy count as Python's."""
    value = float(value) if isinstance(value, np.generic) else value
    if isinstance(value, int) or value in (0, 1):
        return value
    return value * nudge(torch.ones((), dtype=precision)).item()


def nudge_of(run: int, case: Case, errors: int = 1) -> Nudge:
    generator = generator_of(run, case)

    def nudge(x: Tensor) -> Tensor:
        """x (1 + k eps), x or x (1 - k eps), with k = `errors`; a subnormal by k smallest ones.

        Entry by entry, or in every other run all entries of a tensor alike: signs that differ
        average out in a sum, of which they are not the worst rounding.
        """
        info = torch.finfo(x.dtype)
        shape = x.shape if run % 2 else ()
        sign = torch.randint(-1, 2, shape, generator=generator).to(x.dtype)
        by = errors * sign * (x.abs() * info.eps + info.smallest_normal * info.eps)
        return torch.where((x == 0) | ~x.isfinite(), x, x + by)

    return nudge


def generator_of(run: int, case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(1000003 * case.number + run)


class Reordered(TorchDispatchMode):
    """Each sum takes its entries in a random order, one dimension after the other.

    In every other run it adds them one by one, as Inductor does, and not pair by pair, as torch
    does: equal entries then round to the same side.

    This changes more than low bits where a partial sum overflows: 1e38 + 1e38 + ... - 1e38 - 1e38
    is 0, inf or nan.
    """

    def __init__(self, run: int, case: Case) -> None:
        super().__init__()
        self.generator, self.one_by_one = generator_of(run, case), run % 2 == 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ != "sum" or not args[0].ndim:
            return function(*args, **kwargs)
        x, dims, keepdim = (*args, None, False)[:3] if len(args) < 3 else args
        dims = [d % x.ndim for d in dims] if dims else list(range(x.ndim))
        for i in torch.randperm(len(dims), generator=self.generator).tolist():
            order = torch.randperm(x.shape[dims[i]], generator=self.generator)
            x = x.index_select(dims[i], order)
            if self.one_by_one and x.shape[dims[i]] and not kwargs:
                x = functools.reduce(torch.add, x.split(1, dims[i]))
            else:
                x = x.sum(dims[i], keepdim=True, **kwargs)
        return x if keepdim else x.squeeze(dims)


class Rounded(TorchDispatchMode):
    """Each operation that computes has its result moved by a rounding error.

    The product of an `addcmul` is a result of its own: a machine may add it with or without
    rounding it first.
    """

    COMPUTES = (
        "add", "sub", "rsub", "mul", "div", "sqrt", "pow", "square", "lerp", "addcmul", "sum", "mm",
        "cos", "sinc",
    )  # fmt: skip

    def __init__(self, nudge: Nudge) -> None:
        super().__init__()
        self.nudge = nudge

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        compute = self._addcmul if name == "addcmul" else function
        result = compute(*args, **(kwargs or {}))
        rounds = name in self.COMPUTES and result.is_floating_point()
        return self.nudge(result) if rounds else result

    def _addcmul(self, x: Tensor, y: Tensor, z: Tensor, value: float = 1) -> Tensor:
        return x + self.nudge((y if value == 1 else value * y) * z)
