"""The file that `export` returns: a class, and functions for each kind of weight shapes.

Weights are flattened to matrices or vectors. A recipe may step a square, a tall or a one-row matrix
by other operations than a wide one, so each kind of shape (`KINDS`) may have functions of its own.
Kinds with the same steps share functions.
"""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spherenorm.export.expressions import UnsupportedOpError
from spherenorm.export.functions import FunctionWriter, Trace, random_tensor
from spherenorm.export.text import join_items
from spherenorm.numerics import safe_divide
from spherenorm.record import Unsupported
from spherenorm.registry import Bound


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
"""Shapes, beside those of the kinds, on which the whole file is compared with the rule."""
N_STEPS = 4
"""Steps of each comparison; `sample_gradient` has as many kinds of gradients."""
SHORT_PERIOD = 2
"""Steps of a period in a comparison."""
ROUNDING = 1e-12
"""The largest difference in float64 that counts as rounding, relative to the largest entry."""
STEP_ERRORS = (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError)
"""What functions raise that were written for another kind of shapes."""


class ExportedFile:
    """The file of one recipe.

    Args:
        bound: the recipe with its hyper-parameters.
        name: the name of the class.

    Raises:
        ExportError: an operation of the step cannot be printed.
    """

    def __init__(self, bound: Bound, name: str) -> None:
        self.bound, self.name = bound, name
        self.numeric, self._traced_arguments = _numbers_as_tensors(bound)
        self.shared_numbers = self._shared_hyper_parameters()
        self.settings = [bound, *_with_other_numbers(bound, self.numeric)]
        """The hyper-parameters at which functions are compared with the rule."""
        self.has_sums = bound.rule.needs_global_sums
        self.shared_keys = [key for keys in bound.rule.shared_keys.values() for key in keys]
        self.functions: dict[str, str] = {}
        """The text of the functions, by the kind for which they were written."""
        self.functions_of: dict[str, str | None] = {}
        """By kind, the kind whose functions step it; None if the rule refuses its weights."""
        for kind in reversed(KINDS):  # a fallback comes after the kinds that name it
            self.functions_of[kind.name] = self._choose_functions(kind)
        if not self.functions:
            shape = KINDS[-1].shapes[0]
            raise ExportError(f"{bound.name} refuses all recorded shapes, such as {shape}")
        self.flattens = True
        """Weights of more than two dimensions are stepped as matrices, and not refused."""
        self.flattens = all(
            self._file_takes_steps(self.text(), shape)
            for shape in OTHER_SHAPES
            if len(shape) > 2 and self.rule_accepts(shape)
        )

    def _shared_hyper_parameters(self) -> list[str]:
        """Return the numbers on which shared states depend; a weight with a 0 takes no part."""
        names = []
        for rule in self.bound.recipe(**self._traced_arguments).walk():
            for field in rule.shared_fields:
                value = getattr(rule, field)
                if not isinstance(value, Tensor) and value != 0:
                    continue  # the same in all groups
                same = [name for name in self.numeric if self._traced_arguments[name] is value]
                if not same:
                    raise ExportError(
                        f"{self.bound.name}: {type(rule).__name__}.{field}, on which a state of "
                        "all weights depends, is no hyper-parameter of the recipe"
                    )
                names += same
        return names

    def rule_accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether the rule steps a weight of this shape."""
        try:
            self.bound.rule.init(random_tensor(shape, 0))
        except ValueError:
            return False
        return True

    def _choose_functions(self, kind: Kind) -> str | None:
        """Return the kind whose functions step `kind`; they are written if there are none."""
        if not self.rule_accepts(kind.shapes[0]):
            return None
        fallback = self.functions_of[kind.fallback] if kind.fallback else None
        # Functions for wide matrices may be right for tall ones but slow: rules that
        # orthogonalize transpose a tall matrix, for smaller products.
        if fallback and kind.name != "tall" and self._functions_take_steps(fallback, kind):
            return fallback
        text = self._write_functions(kind)
        for other_kind, other_text in self.functions.items():
            if text == other_text.replace(f"_{other_kind}(", f"_{kind.name}("):
                return other_kind
        self.functions[kind.name] = text
        return kind.name

    def _write_functions(self, kind: Kind) -> str:
        """Return the text of two functions, one for the initial state and one for a step."""
        recipe, arguments = self.bound.recipe, self._traced_arguments
        try:
            traces = [Trace(recipe, arguments, self.numeric, shape) for shape in kind.shapes]
            init = FunctionWriter(traces, "init").body()
            terms = FunctionWriter(traces, "terms").body() if self.has_sums else []
            step = FunctionWriter(traces, "step").body()
        except UnsupportedOpError as error:
            raise ExportError(f"{self.bound.name}: {error} cannot be exported") from error
        except Unsupported as error:
            raise ExportError(f"{self.bound.name} cannot be exported: {error}") from error
        init_body = textwrap.indent("\n".join(init), " " * 4)
        step_body = textwrap.indent("\n".join(step), " " * 4)
        sums_function = ""
        if self.has_sums:
            sums_body = textwrap.indent("\n".join(terms), " " * 4)
            sums_function = f"\n\ndef terms_{kind.name}(weight, grad, state, group):\n{sums_body}\n"
        step_arguments = "weight, grad, state, group, sums" if self.has_sums else STEP_ARGUMENTS
        return (
            f"\n\ndef init_{kind.name}(weight, group):\n{init_body}\n{sums_function}"
            f"\n\ndef step_{kind.name}({step_arguments}):\n{step_body}"
        )

    def _functions_take_steps(self, functions: str, kind: Kind) -> bool:
        """Return True if the functions of one kind take the rule's steps for another kind."""
        namespace: dict[str, Any] = {"torch": torch, "math": math}
        exec(self.functions[functions], namespace)
        init, step = namespace[f"init_{functions}"], namespace[f"step_{functions}"]
        for bound, (seed, shape) in itertools.product(self.settings, enumerate(kind.shapes)):
            weight = rule_weight = start = random_tensor(shape, seed)
            group, rule = dict(bound.hyper_parameters), bound.rule
            try:
                state, rule_state = init(weight, group), rule.init(weight)
                for t in range(N_STEPS):
                    grad = sample_gradient(rule_weight, t)
                    sums: tuple[Any, ...] = ()
                    if self.has_sums:
                        sums = (namespace[f"terms_{functions}"](weight, grad, state, group),)
                    weight, new_state = step(weight, grad, state, group, *sums)
                    state = {**state, **new_state}
                    rule_weight, rule_state = rule.step(rule_weight, grad, rule_state)
            except STEP_ERRORS:
                return False
            if not equal_up_to_rounding(weight, rule_weight, start):
                return False
        return True

    def verify(self) -> None:
        """Compare the whole file with the rule, at shapes of every kind.

        Raises:
            ExportError: the file takes other steps than the rule.
        """
        text = self.text()
        for shape in [*OTHER_SHAPES, *(shape for kind in KINDS for shape in kind.shapes)]:
            if self.accepts(shape) and not self._file_takes_steps(text, shape):
                raise ExportError(f"{self.bound.name}: the file differs for a weight of {shape}")

    def _file_takes_steps(self, text: str, shape: tuple[int, ...]) -> bool:
        """Return True if the optimizer class of a file takes the rule's steps."""
        namespace: dict[str, Any] = {"__name__": self.name}
        exec(compile(text, f"<export of {self.bound.name}>", "exec"), namespace)
        for bound in self.settings:
            weight = random_tensor(shape, 3).requires_grad_()
            numbers = {key: _to_python(bound.hyper_parameters[key]) for key in self.numeric}
            optimizer, rule = namespace[self.name]([weight], **numbers), bound.rule
            rule_weight = start = weight.detach().clone()
            state = rule.init(rule_weight)
            for t in range(N_STEPS):
                weight.grad = sample_gradient(rule_weight, t)
                try:
                    optimizer.step()
                except STEP_ERRORS:
                    return False
                rule_weight, state = rule.step(rule_weight, weight.grad, state)
            if not equal_up_to_rounding(weight.detach(), rule_weight, start):
                return False
        return True

    @property
    def defaults(self) -> dict[str, Any]:
        """The numeric hyper-parameters with their defaults."""
        return {key: _to_python(self.bound.hyper_parameters[key]) for key in self.numeric}

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether the file and the rule step a weight of this shape."""
        if not self.rule_accepts(shape) or (len(shape) > 2 and not self.flattens):
            return False
        # The file steps a scalar as a vector, which the rule may refuse.
        return shape != () or self.functions_of["number"] is not None

    def text(self) -> str:
        """Return the source of the file."""
        settings = self.bound.hyper_parameters
        functions = "\n".join(self.functions.values()) + "\n"
        summary = (inspect.getdoc(self.bound.recipe) or "").partition("\n")[0]
        written = f"Written from the recipe {self.bound.name} of spherenorm."
        # The first line of a docstring may announce a formula, which is not here.
        origin = f"{summary.rstrip(':.')}. {written}" if summary else written
        shapes = "Weights of more than two dimensions are matrices of len(weight) rows."
        if not self.flattens:
            shapes = "Weights of more than two dimensions are refused."
        paragraphs = [origin, f"{shapes} Half precision is computed in float32."]
        fixed = [f"{key}={value!r}" for key, value in settings.items() if key not in self.numeric]
        if fixed:
            paragraphs.append(f"Fixed: {', '.join(fixed)}.")
        arguments = [f"{key}={value!r}" for key, value in self.defaults.items()]
        entries = [f'"{key}": {key}' for key in self.defaults]
        template = TEMPLATE
        if self.has_sums:
            for one_pass, two_passes in TWO_PASSES:
                assert template.count(one_pass) == 1
                template = template.replace(one_pass, two_passes)
        return template.format(
            load_state_dict=LOAD_STATE_DICT,
            matrix_of=MATRIX_OF,
            shared_keys=tuple(self.shared_keys),
            shared_numbers=tuple(self.shared_numbers),
            name=self.name,
            description="\n\n".join(textwrap.fill(text, 100) for text in paragraphs),
            imports="import math\n\n" if "math." in functions else "",
            init=join_items("    def __init__(", ["self", "params", *arguments], "):"),
            defaults=join_items("        defaults = {", entries, "}"),
            refusal="" if self.flattens else REFUSAL_OF_MANY_DIMENSIONS,
            choice=self.choice_of_functions(),
            functions=functions,
        )

    def choice_of_functions(self) -> str:
        """Return the body of `functions_for(weight)`."""
        branches = []
        for kind in KINDS:
            owner = self.functions_of[kind.name]
            if kind.fallback is None or owner != self.functions_of[kind.fallback]:
                action = f"return init_{owner}, step_{owner}" if owner else REFUSAL
                if owner and self.has_sums:
                    action += f", terms_{owner}"
                branches.append((kind.condition, action))
        *branches, (_, last_action) = branches
        while branches and branches[-1][1] == last_action:
            branches.pop()
        lines = [f"if {condition}:\n    {action}" for condition, action in branches]
        return textwrap.indent("\n".join([*lines, last_action]), " " * 4)


LOAD_STATE_DICT = """\
    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        # torch casts states to the dtype of the weight: restore the saved ones.
        indices = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(indices, params):
            for key, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[p][key] = value.to(p.device, copy=True)
"""
"""The method of all exported classes."""
MATRIX_OF = """\
def matrix_of(x):
    x = x.flatten(1) if x.ndim > 1 else x.reshape(-1)
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
"""
"""The function of all exported files that see several weights at once."""

TEMPLATE = '''"""{name}, an optimizer of plain torch.

{description}
"""

{imports}import torch


class {name}(torch.optim.Optimizer):
{init}
{defaults}
        super().__init__(params, defaults)

{load_state_dict}
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    step_weight(p, self.state[p], group)
        return loss


def step_weight(p, state, group):
    if p.is_complex():
        raise TypeError("no step for a complex weight")
    weight, grad = (x.flatten(1) if x.ndim > 1 else x.reshape(-1) for x in (p, p.grad)){refusal}
    if p.dtype in (torch.bfloat16, torch.float16):
        weight, grad = weight.float(), grad.float()
    init, step = functions_for(weight)
    if not state:
        state.update(init(weight, group))
    new_weight, new_state = step(weight, grad, state, group)
    state.update(new_state)
    p.copy_(new_weight.reshape(p.shape))


def functions_for(weight):
{choice}
{functions}'''

STEP_ARGUMENTS = "weight, grad, state, group"
TWO_PASSES = (
    (
        """        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    step_weight(p, self.state[p], group)
        return loss
""",
        """        todo = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    todo.append((p, self.state[p], group))
        # Weights whose first gradient comes late take the estimates of the others.
        furthest = max((s for s in self.state.values() if s), key=shared_numbers, default={{}})
        shared = {{key: furthest[key] for key in SHARED if furthest}}
        sums = {{}}
        for p, state, group in todo:
            if not state:
                state.update(functions_for(matrix_of(p))[0](matrix_of(p), group))
            state.update(shared)
        # A weight at a step size of 0 takes no part in the estimates.
        active = [entry for entry in todo if all(entry[2][name] for name in NONZERO)] or todo
        for p, state, group in active:
            terms = functions_for(matrix_of(p))[2]
            for name, term in terms(matrix_of(p), matrix_of(p.grad), state, group).items():
                sums[name] = sums.get(name, 0) + term
        for p, state, group in todo:
            step_weight(p, state, group, sums)
        for state in self.state.values() if active else ():
            state.update({{key: active[0][1][key] for key in SHARED if state}})
        return loss


SHARED = {shared_keys!r}
NONZERO = {shared_numbers!r}


def shared_numbers(state):
    return [abs(float(state[key])) for key in SHARED]


{matrix_of}""",
    ),
    ("def step_weight(p, state, group):", "def step_weight(p, state, group, sums):"),
    (
        """    init, step = functions_for(weight)
    if not state:
        state.update(init(weight, group))
    new_weight, new_state = step(weight, grad, state, group)
""",
        """    step = functions_for(weight)[1]
    new_weight, new_state = step(weight, grad, state, group, sums)
""",
    ),
)
"""Parts of the template, and what stands there if the step needs sums over all weights."""
REFUSAL = 'raise ValueError(f"no step for a weight of shape {tuple(weight.shape)}")'
REFUSAL_OF_MANY_DIMENSIONS = """
    if p.ndim > 2:
        raise ValueError(f"no step for a weight of shape {tuple(p.shape)}")"""


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
            bound.replace(**{name: tensor}).rule.init(torch.ones(3, 4))
        except (TypeError, ValueError, RuntimeError):
            continue  # the recipe counts or branches by the number, which is then fixed
        names.append(name)
        arguments[name] = tensor
    return names, arguments


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
        except ValueError:
            continue
        result = candidate
    return [result] if result is not bound else []


# Comparisons


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


def equal_up_to_rounding(weight: Tensor, rule_weight: Tensor, start: Tensor) -> bool:
    scale = max(start.abs().max().item(), rule_weight.abs().max().item(), 1.0)
    return bool((weight - rule_weight).abs().max() <= ROUNDING * scale)
