"""The functions that step the weights of one recipe, for each kind of weight shapes.

Weights are flattened to matrices or vectors. A recipe may step a square, a tall or a one-row matrix
by other operations than a wide one, so each kind of shape (`KINDS`) may have functions of its own.
Kinds with the same steps share functions.
"""

from __future__ import annotations

import ast
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.export.expressions import UnsupportedOpError
from spherenorm.export.functions import FunctionWriter, JointTrace, random_tensor
from spherenorm.fields import Interval
from spherenorm.numerics import safe_divide
from spherenorm.record import Unsupported
from spherenorm.registry import Bound
from spherenorm.rule import Rule
from spherenorm.schedule import (
    Combination,
    Knots,
    OfFunction,
    Schedule,
    is_scheduled,
    schedules_in,
)


class ExportError(ValueError):
    """The step of a recipe cannot be written in plain torch.

    Example:
        >>> class Noisy(sn.Rule):
        ...     def update(self, update, state):
        ...         return update.replace(direction=torch.randn_like(update.weight)), {}
        >>> try:
        ...     sn.export(lambda lr=0.1: sn.chain(Noisy(), rules.StepSize(lr)), "Noise")
        ... except sn.ExportError as error:
        ...     print(str(error).split(": ")[-1])
        randn_like cannot be exported
    """


class Kind(NamedTuple):
    """A kind of weight shapes; a weight is of the first kind in `KINDS` whose condition is true.

    Attributes:
        name: a part of the names of the functions.
        condition: an expression of `weight`, which is flattened to two dimensions or one.
        fallback: the kind whose functions are taken if they step this kind as the rule does.
        shapes: the shapes at which a recipe is recorded.
    """

    name: str
    condition: str
    fallback: str | None
    shapes: tuple[tuple[int, ...], ...]


KINDS = (
    Kind("number", "weight.shape == (1,)", "vector", ((1,),) * 3),
    Kind("vector", "weight.ndim == 1", None, ((7,), (11,), (13,))),
    Kind("entry", "weight.shape == (1, 1)", "row", ((1, 1),) * 3),
    Kind("column", "weight.shape[1] == 1", "tall", ((7, 1), (11, 1), (13, 1))),
    Kind("row", "weight.shape[0] == 1", "matrix", ((1, 7), (1, 11), (1, 13))),
    Kind("square", "weight.shape[0] == weight.shape[1]", "matrix", ((7, 7), (11, 11), (13, 13))),
    Kind("tall", "weight.shape[0] > weight.shape[1]", "matrix", ((11, 7), (13, 5), (17, 3))),
    Kind("matrix", "True", None, ((7, 11), (5, 13), (3, 17))),
)
OTHER_SHAPES = ((4, 4), (), (4, 3, 2, 2), (3, 5, 1, 1))
"""Shapes, beside those of the kinds, on which a file is compared with the rule."""
N_STEPS = 4
"""Steps of each comparison; `sample_gradient` has as many kinds of gradients."""
SHORT_PERIOD = 2
"""Steps of a period in a comparison."""
MAX_STEP = 4**10
"""The largest step at which a schedule without a known end is compared."""
ROUNDING = 1e-12
"""The largest difference in float64 that counts as rounding, relative to the largest entry."""
GRADIENT_SCALES = {torch.float32: (1.0, 0.0, 1e-30, 1e-8, 1e20), torch.bfloat16: (1.0, 0.0)}
"""By dtype, the scales of the gradients of a comparison: squares of 1e20 overflow in float32, those
of 1e-30 underflow, and 1e-8 is about an eps."""
LARGEST_SCALE_OF_EQUAL_STEPS = 1e10
"""Steps at larger gradients need only be finite where those of the rule are."""
N_STEPS_PER_SCALE = 2
ROUNDING_OF_STEP = 1e-3
"""The largest difference in float32 that counts as rounding, relative to the rule's step."""

MATRIX_OF = """\
def matrix_of(x):
    x = x.flatten(1) if x.ndim > 1 else x.reshape(-1)
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
"""
"""The function of all files by which weights and gradients are flattened."""
REFUSAL = 'raise ValueError(f"no step for a weight of shape {tuple(weight.shape)}")'

Step = Callable[[Tensor, int], Tensor]
"""Takes a gradient and the number of the step, and returns the new weight."""


class ExportedRecipe:
    """The functions of one recipe, as text.

    Args:
        bound: the recipe with its hyper-parameters.

    Attributes:
        numeric: the hyper-parameters that are entries of a param_group.
        settings: the hyper-parameters at which functions are compared with the rule.
        intervals: the interval of each number, such as "lr" or "betas[0]", for which a rule asks.
        has_clock: a hyper-parameter is a schedule, whose clock is the count of the group's steps.
        functions: the text of the functions, by the kind for which they were written.
        functions_of: by kind, the kind whose functions step it; None if the rule refuses it.
        flattens: weights of more than two dimensions are stepped as matrices, and not refused.

    Raises:
        ExportError: an operation of the step cannot be printed.
    """

    def __init__(self, bound: Bound) -> None:
        self.bound = bound
        self.numeric, self._traced_arguments = _numbers_as_tensors(bound)
        self.settings = [bound, *_with_other_numbers(bound, self.numeric)]
        self.intervals = _intervals_of(
            bound.recipe(**self._traced_arguments),
            {name: self._traced_arguments[name] for name in self.numeric},
        )
        self.has_sums = bound.rule.needs_global_sums
        self.has_clock = bound.rule.is_scheduled or is_scheduled([*bound.hyper_parameters.values()])
        self.shared_numbers = self._shared_hyper_parameters()
        self.shared_keys = [key for keys in bound.rule.shared_keys.values() for key in keys]
        self.functions: dict[str, str] = {}
        self.functions_of: dict[str, str | None] = {}
        for kind in reversed(KINDS):  # a fallback comes after the kinds that name it
            self.functions_of[kind.name] = self._choose_functions(kind)
        if not self.functions:
            shape = KINDS[-1].shapes[0]
            raise ExportError(f"{bound.name} refuses all recorded shapes, such as {shape}")
        choice = f"def functions_for(weight):\n{self.choice_of_functions()}\n"
        code = "\n".join([choice, *self.functions.values()])
        many_dims = [x for x in OTHER_SHAPES if len(x) > 2 and self._rule_accepts(x)]
        self.flattens = self._code_takes_steps(code, many_dims)

    @property
    def defaults(self) -> dict[str, Any]:
        """The numeric hyper-parameters with their defaults."""
        return self.numbers(self.bound)

    def numbers(self, bound: Bound) -> dict[str, Any]:
        """Return the numeric hyper-parameters of a setting, as entries of a param_group."""
        return {name: _to_python(bound.hyper_parameters[name]) for name in self.numeric}

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether the file and the rule step a weight of this shape."""
        if not self._rule_accepts(shape) or (len(shape) > 2 and not self.flattens):
            return False
        # The file steps a scalar as a vector, which the rule may refuse.
        return shape != () or self.functions_of["number"] is not None

    def shapes_of_functions(self) -> list[tuple[int, ...]]:
        """Return one shape for each kind that has functions of its own."""
        return [kind.shapes[0] for kind in KINDS if kind.name in self.functions]

    def choice_of_functions(self) -> str:
        """Return the body of `functions_for(weight)`."""
        branches = []
        for kind in KINDS:
            owner = self.functions_of[kind.name]
            if kind.fallback is None or owner != self.functions_of[kind.fallback]:
                names = ["init", "step", *(["terms"] if self.has_sums else [])]
                functions = ", ".join(f"{name}_{owner}" for name in names)
                action = f"return {functions}" if owner else REFUSAL
                branches.append((kind.condition, action))
        # The last kind takes all weights: equal actions before it need no branch.
        *branches, (_, last_action) = branches
        while branches and branches[-1][1] == last_action:
            branches.pop()
        lines = []
        for condition, action in branches:
            lines += [f"    if {condition}:", f"        {action}"]
        return "\n".join([*lines, f"    {last_action}"])

    def steps_to_compare(self, bound: Bound) -> list[int]:
        """Return the numbers of steps that together take all branches of the schedules.

        They lie around each knot, between the knots, around each number of the code with which a
        function of the step count may be compared, and far behind.
        """
        first_steps = range(1, N_STEPS + 1)
        if not self.has_clock:
            return [*first_steps]
        knots = sorted(_knots_in(_fields_of_all(bound.rule)))
        middles = [(x + y) / 2 for x, y in itertools.pairwise(knots)]
        constants = _constants_of("\n".join(self.functions.values()))
        entries = _flatten(self.numbers(bound).values())
        powers = [4**i for i in range(int(math.log(MAX_STEP, 4)) + 1)]
        steps = {*first_steps, *powers}
        for x in [*knots, *middles, *constants, *entries]:
            if 1 <= x <= MAX_STEP or x in knots:
                steps |= {int(x) - 1, int(x), int(x) + 1}
        return sorted(step for step in steps if step >= 1)

    def _shared_hyper_parameters(self) -> list[str]:
        """Return the numbers on which shared states depend; a weight with a 0 takes no part."""
        names = []
        for rule in self.bound.recipe(**self._traced_arguments).walk():
            for field in rule.shared_fields:
                value = getattr(rule, field)
                is_fixed = isinstance(value, Schedule) and not _holds_tensor(value)
                if is_fixed or (not isinstance(value, Tensor | Schedule) and value != 0):
                    continue  # the same in all groups
                same = [name for name in self.numeric if self._traced_arguments[name] is value]
                if not same:
                    raise ExportError(
                        f"{self.bound.name}: {type(rule).__name__}.{field}, on which a state of "
                        "all weights depends, is no hyper-parameter of the recipe; let the recipe "
                        f"pass one to {field} as it is, and give schedules to `export`, such as "
                        "lr=sn.schedule.cosine(1.0, steps=100)"
                    )
                names += same
        return names

    def _rule_accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether the rule steps a weight of this shape."""
        try:
            self.bound.rule.at_step(1).init(random_tensor(shape, 0))
        except ValueError:
            return False
        return True

    def _choose_functions(self, kind: Kind) -> str | None:
        """Return the kind whose functions step `kind`; they are written if there are none."""
        if not self._rule_accepts(kind.shapes[0]):
            return None
        fallback = self.functions_of[kind.fallback] if kind.fallback else None
        # Functions for wide matrices may be right for tall ones but slow: rules that
        # orthogonalize transpose a tall matrix, for smaller products.
        if fallback and kind.name != "tall":
            terms = f", terms_{fallback}" if self.has_sums else ""
            functions = f"init_{fallback}, step_{fallback}{terms}"
            choice = f"def functions_for(weight):\n    return {functions}\n"
            code = f"{choice}\n{self.functions[fallback]}"
            if self._code_takes_steps(code, kind.shapes):
                return fallback
        text = self._write_functions(kind)
        for other_kind, other_text in self.functions.items():
            if text == other_text.replace(f"_{other_kind}(", f"_{kind.name}("):
                return other_kind
        self.functions[kind.name] = text
        return kind.name

    def _write_functions(self, kind: Kind) -> str:
        """Return the text of the functions: the initial state, the terms of sums, and a step."""
        recipe, arguments = self.bound.recipe, self._traced_arguments
        step_arguments = "weight, grad, state, group"
        try:
            traces = [JointTrace(recipe, arguments, self.numeric, shape) for shape in kind.shapes]
            functions = {f"init_{kind.name}(weight, group)": FunctionWriter(traces, "init").body()}
            if self.has_sums:
                terms = FunctionWriter(traces, "terms").body()
                functions[f"terms_{kind.name}({step_arguments})"] = terms
                step_arguments += ", sums"
            step = FunctionWriter(traces, "step").body()
            functions[f"step_{kind.name}({step_arguments})"] = step
        except UnsupportedOpError as error:
            raise ExportError(f"{self.bound.name}: {error} cannot be exported") from error
        except Unsupported as error:
            hint = ""
            if any(
                isinstance(x, OfFunction) for x in schedules_in(_fields_of_all(self.bound.rule))
            ):
                hint = "; a function of `sn.schedule.of` decides by torch.where(t < 100, x, y)"
            raise ExportError(f"{self.bound.name} cannot be exported: {error}{hint}") from error
        texts = []
        for head, lines in functions.items():
            body = textwrap.indent("\n".join(lines), " " * 4)
            texts.append(f"\n\ndef {head}:\n{body}")
        return "\n".join(texts)

    def _code_takes_steps(self, code: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return True if functions take the rule's steps of weights of some shapes.

        Args:
            code: the text of `functions_for` and of the functions that it returns.
            shapes: the shapes; at equal ones the weights differ.
        """
        namespace: dict[str, Any] = {"torch": torch, "math": math}
        exec(f"{MATRIX_OF}\n\n{code}", namespace)
        for bound, (seed, shape) in itertools.product(self.settings, enumerate(shapes)):
            start = random_tensor(shape, seed)
            step = self._step_of_functions(namespace, start, dict(bound.hyper_parameters))
            if find_difference(step, bound.rule, start, range(1, N_STEPS + 1)):
                return False
        return True

    def _step_of_functions(
        self, namespace: dict[str, Any], start: Tensor, group: dict[str, Any]
    ) -> Step:
        """Return a function that steps one weight by exported functions."""
        matrix_of, functions_for = namespace["matrix_of"], namespace["functions_for"]
        weight: Tensor = matrix_of(start)
        state: dict[str, Any] = {}

        def step(grad: Tensor, t: int) -> Tensor:
            nonlocal weight
            group["clock"] = t - 1
            init, step_weight, *terms = functions_for(weight)
            if not state:
                state.update(init(weight, group))
            arguments = weight, matrix_of(grad), state, group
            sums = [function(*arguments) for function in terms]
            weight, new_state = step_weight(*arguments, *sums)
            state.update(new_state)
            new_weight: Tensor = weight.reshape(start.shape)
            return new_weight

        return step


# Schedules


def _fields_of_all(rule: Rule) -> list[Any]:
    """Return the hyper-parameters of a rule and of all rules inside it."""
    return [getattr(inner, field.name) for inner in rule.walk() for field in fields(inner)]


def _knots_in(value: Any) -> set[float]:
    """Return the steps of all knots of the schedules in a hyper-parameter."""
    knots = (schedule for schedule in schedules_in(value) if isinstance(schedule, Knots))
    return {float(time) for schedule in knots for time in schedule.times}


def _holds_tensor(schedule: Schedule) -> bool:
    """Return True if a number of a schedule is a tensor, such as a hyper-parameter."""
    if isinstance(schedule, Combination):
        sides = schedule.first, schedule.second
        return any(isinstance(x, Tensor) or _holds_tensor(x) for x in sides)
    numbers = (*schedule.times, *schedule.values) if isinstance(schedule, Knots) else ()
    return any(isinstance(x, Tensor) for x in numbers)


def _constants_of(code: str) -> list[float]:
    """Return the numbers in Python code."""
    nodes = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    values = (node.value for node in nodes)
    return [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]


def _flatten(values: Iterable[Any]) -> list[float]:
    """Return the numbers in values that are numbers or tuples of them."""
    return [
        number for value in values for number in (value if isinstance(value, tuple) else (value,))
    ]


# Hyper-parameters


def _to_python(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(map(_to_python, value)) if isinstance(value, tuple | list) else value


def _to_tensor(value: Any) -> Any:
    """Return a 0-dim tensor for a number, a tuple of them for several, None for other values."""
    if isinstance(value, tuple | list):
        tensors = tuple(_to_tensor(item) for item in value)
        return tensors if tensors and None not in tensors else None
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        return None
    return torch.as_tensor(value, dtype=torch.float64).clone()


def _numbers_as_tensors(bound: Bound) -> tuple[list[str], dict[str, Any]]:
    """Return the names of numeric hyper-parameters, and all of them with tensors for numbers."""
    names, arguments = [], dict(bound.hyper_parameters)
    for name, value in bound.hyper_parameters.items():
        tensor = _to_tensor(value)
        if tensor is None:
            continue
        try:
            bound.replace(**{name: tensor}).rule.at_step(1).init(torch.ones(3, 4))
        except (TypeError, ValueError, RuntimeError):
            continue  # the recipe counts or branches by the number, which is then fixed
        names.append(name)
        arguments[name] = tensor
    return names, arguments


def _intervals_of(rule: Rule, arguments: Mapping[str, Any]) -> dict[str, Interval]:
    """Return the intervals of the fields that hold an argument as it is, or as a knot's value.

    Args:
        rule: a rule that a recipe has made of the arguments.
        arguments: 0-dim tensors by name, or tuples of them.

    Returns:
        Intervals by name; an element of a tuple has its index in the name. A number that several
        fields hold has the narrowest of their intervals.
    """
    entries: dict[str, Any] = {}
    for name, value in arguments.items():
        if isinstance(value, tuple | list):
            entries |= {f"{name}[{i}]": element for i, element in enumerate(value)}
        else:
            entries[name] = value
    intervals: dict[str, Interval] = {}
    for part in rule.walk():
        for field in fields(part):
            interval, content = field.metadata.get("interval"), getattr(part, field.name)
            if interval is None:
                continue
            numbers = _values_reached(content) if isinstance(content, Knots) else [content]
            for name, value in entries.items():
                if any(number is value for number in numbers):
                    intervals[name] = interval.intersect(intervals.get(name, interval))
    return {name: intervals[name] for name in entries if name in intervals}


def _values_reached(knots: Knots) -> list[Any]:
    """Return the values of the knots that a step may be at: the first one is step 1."""
    pairs = zip(knots.times, knots.values, strict=True)
    return [value for time, value in pairs if isinstance(time, Tensor) or time >= 1]


def _with_other_numbers(bound: Bound, names: Sequence[str]) -> list[Bound]:
    """Return the recipe with other numbers, none of them 0; [] if it accepts no others.

    A whole number may be a period, such as that of a refresh at each tenth step. It becomes 2, so
    that a few steps take each branch.
    """

    def other_number(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(other_number, value))
        if isinstance(value, int) and value >= 1:
            return SHORT_PERIOD
        return 0.9 * _to_python(value) if value else 0.01

    result = bound
    for name in names:
        try:
            candidate = result.replace(**{name: other_number(result.hyper_parameters[name])})
            candidate.rule  # noqa: B018  # builds the rule, which checks the number
        except (TypeError, ValueError):
            continue  # also a bound that a schedule exceeds at some steps
        result = candidate
    return [result] if result is not bound else []


# Comparisons


def find_difference(step: Step, rule: Rule, start: Tensor, steps: Sequence[int]) -> str:
    """Return where steps of exported code differ from those of a rule; "" if nowhere.

    Args:
        step: takes a step of the exported code.
        rule: the rule, with its schedules.
        start: the weight before the first step.
        steps: the numbers of the steps to take.
    """
    rule_weight = start
    state = _rule_at(rule, steps[0]).init(start)
    for i, t in enumerate(steps):
        grad = sample_gradient(rule_weight, i)
        try:
            weight = step(grad, t)
        except Exception as error:  # code that was written for other shapes may raise anything
            return f"its step {t} raises {type(error).__name__}: {error}"
        rule_weight, state = _rule_at(rule, t).step(rule_weight, grad, state)
        scale = max(start.abs().max().item(), rule_weight.abs().max().item(), 1.0)
        difference = (weight - rule_weight).abs().max().item()
        if not difference <= ROUNDING * scale:
            return f"its step {t} differs by {difference:.2g}"
    return ""


def find_difference_at_scale(step: Step, rule: Rule, start: Tensor, scale: float) -> str:
    """Return where steps in float32 or bfloat16 differ from those of a rule; "" if nowhere.

    Args:
        step: takes a step of the exported code.
        rule: the rule, with its schedules.
        start: the weight before the first step, in the dtype.
        scale: the scale of the gradients.
    """
    grads = [
        (scale * sample_gradient(start.double(), t)).to(start.dtype)
        for t in range(1, N_STEPS_PER_SCALE + 1)
    ]
    rule_weights = _weights_of_rule(rule, start, grads)
    where = f"{str(start.dtype).removeprefix('torch.')} at gradients of {scale:g}"
    for i, rule_weight in enumerate(rule_weights):
        try:
            weight = step(grads[i], i + 1).clone()
        except Exception as error:  # anything that float64 allows and another dtype does not
            return f"its step {i + 1} in {where} raises {type(error).__name__}: {error}"
        if not torch.equal(weight.isfinite(), rule_weight.isfinite()):
            return f"its step {i + 1} in {where} is not finite where the rule is, or the reverse"
        if not rule_weight.isfinite().all():
            return ""
        if scale > LARGEST_SCALE_OF_EQUAL_STEPS:
            continue  # which squares overflow depends on the order of their factors
        rounding = 4 * torch.finfo(start.dtype).eps * max(start.abs().max().item(), 1.0)
        allowed = rounding + ROUNDING_OF_STEP * (rule_weight - start).abs().max().item()
        difference = (weight - rule_weight).abs().max().item()
        if difference <= allowed:
            continue
        if not difference <= allowed + _effect_of_rounding(rule, start, grads, i):
            return f"its step {i + 1} in {where} differs by {difference:.2g}"
    return ""


def _weights_of_rule(rule: Rule, start: Tensor, grads: Sequence[Tensor]) -> list[Tensor]:
    """Return the weight after each step, up to one that raises or overflows in a state.

    After an overflow, inf - m^2 is nan if m^2 is inf, and inf if the product is fused.
    """
    weight, weights = start, []
    state = _rule_at(rule, 1).init(start)
    for t, grad in enumerate(grads, 1):
        try:
            weight, state = _rule_at(rule, t).step(weight, grad, state)
        except (ValueError, RuntimeError):  # such as no eigenvectors of a matrix that overflowed
            break
        if not all(value.isfinite().all() for value in state.values()):
            break
        weights.append(weight)
    return weights


def _effect_of_rounding(rule: Rule, start: Tensor, grads: Sequence[Tensor], i: int) -> float:
    """Return how far a rule's weight after step i moves if its gradients are rounded otherwise."""
    noise = [random_tensor(tuple(grad.shape), seed).clamp(-2, 2) for seed, grad in enumerate(grads)]
    eps = torch.finfo(start.dtype).eps
    rounded_grads = [
        (grad * (1 + eps * x)).to(grad.dtype) for grad, x in zip(grads, noise, strict=True)
    ]
    weights, moved_weights = (
        _weights_of_rule(rule, start, x[: i + 1]) for x in (grads, rounded_grads)
    )
    if len(moved_weights) <= i or not moved_weights[i].isfinite().all():
        return math.inf
    return 4 * (weights[i] - moved_weights[i]).abs().max().item()


def _rule_at(rule: Rule, t: int) -> Rule:
    # A tensor of float64 gives schedules of float32 tensors the precision of the exported code.
    return rule.at_step(torch.tensor(float(t), dtype=torch.float64))


def sample_gradient(weight: Tensor, step: int) -> Tensor:
    """Return a gradient that scale-invariance tests pass at some steps and fail at others.

    Its radial part vanishes in each row at step 1, and in the whole weight at step 2.
    """
    grad = random_tensor(tuple(weight.shape), 100 + step)
    dims = tuple(range(1, weight.ndim))
    if step % 4 == 1 and dims:
        inner = (grad * weight).sum(dims, keepdim=True)
        return grad - weight * safe_divide(inner, weight.square().sum(dims, keepdim=True))
    if step % 4 == 2 and dims and weight.numel() > 1:
        return grad - weight * safe_divide((grad * weight).sum(), weight.square().sum())
    return grad + weight / 2
