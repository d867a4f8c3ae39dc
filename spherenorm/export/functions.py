"""Write the functions of one kind of weights, from records of a recipe at three shapes.

Each record is a joint one of float64 and float32 (see `dtypes.py`). A number that is equal in all
records is written as it is, and one that differs as a function of the shape or of the dtype. Each
function is straight-line code:

    def step_vector(weight, grad, state, group):
        lr = group["lr"]
        # HeavyBall: Momentum of SGD: ...
        new_momentum_buffer = grad + momentum * state["momentum_buffer"]
        new_weight = weight - lr * new_momentum_buffer
        return new_weight, {"momentum_buffer": new_momentum_buffer}
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from spherenorm.export.branches import sink_into_branches
from spherenorm.export.dtypes import (
    FINFO,
    WEIGHT_DTYPE,
    DifferentStepsError,
    JointCall,
    Pair,
    dtype_text,
    factors_of_finfo,
    join_calls,
)
from spherenorm.export.expressions import (
    Expression,
    UnsupportedOpError,
    convert_float,
    expression,
    function_of_shape,
)
from spherenorm.export.text import (
    MAX_LINE_LENGTH,
    format_assignment,
    join_items,
    simplify_number,
    unparse,
)
from spherenorm.manifolds import Manifold
from spherenorm.operations import of_overload
from spherenorm.optim.schedules import CLOCK
from spherenorm.record import Call, Recorder, TensorRef
from spherenorm.registry import Recipe
from spherenorm.rule import STEP_KEY, Chain, Rule, make_checked_update
from spherenorm.rules.watch import without_watches
from spherenorm.torch_internals import pytree

MAX_INLINE_LENGTH = 44
"""Columns of an expression that is written where it is used, if it is used once."""
MAX_COMMENT_LENGTH = 92

FunctionName = Literal["init", "terms", "step"]


class Trace:
    """The record of a recipe at one shape and dtype: its initial state, and one step.

    Args:
        recipe: the recipe.
        hyper_parameters: its arguments, with tensors in the place of numbers.
        numeric: the names of those that are tensors.
        shape: the shape of the weight.
        dtype: the dtype of the weight.

    Attributes:
        calls: for each function, the calls on which the outputs depend.
        outputs: for each function, the returned values by name; the new weight is "weight".
        inputs: the expression of each input.
        constants: the tensors that the code brings along.
        owners: the rule or manifold whose code made a call, by the id of the call.
    """

    def __init__(
        self,
        recipe: Recipe,
        hyper_parameters: Mapping[str, Any],
        numeric: Sequence[str],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self.owners: dict[int, Rule | Manifold | None] = {}
        recorder = Recorder(on_call=self._note_owner)
        weight, grad = (random_tensor(shape, seed).to(dtype) for seed in (1, 2))
        self.inputs = {
            recorder.add_input(weight): Expression("weight", shape=weight.shape, may_alias=True),
            recorder.add_input(grad): Expression("grad", shape=grad.shape, may_alias=True),
        }
        self.variables_of_entry: dict[str, list[str]] = {}
        """The variables that hold an entry of the param_group: "betas" is beta1 and beta2."""
        self.step_variable = "t" if "t" not in numeric else CLOCK
        """The variable that holds the number of the step, on which schedules depend."""
        step = torch.ones((), dtype=torch.float64)
        self.inputs[recorder.add_input(step)] = Expression(self.step_variable, True, step.shape)
        for name in numeric:
            value = hyper_parameters[name]
            tensors = value if isinstance(value, tuple) else (value,)
            variables = [name]
            if isinstance(value, tuple):
                singular = name.removesuffix("s")
                variables = [f"{singular}{i}" for i in range(1, len(value) + 1)]
            self.variables_of_entry[name] = variables
            for variable, tensor in zip(variables, tensors, strict=True):
                self.inputs[recorder.add_input(tensor)] = Expression(variable, True, tensor.shape)

        with torch.no_grad(), recorder:
            rule = without_watches(recipe(**hyper_parameters)).at_step(step)
            initial_state = rule.init(weight)
        state = {key: value.clone() for key, value in initial_state.items()}
        for key, value in state.items():
            self.inputs[recorder.add_input(value)] = Expression(
                f'state["{key}"]',
                key == STEP_KEY,
                value.shape,
                may_alias=True,
                is_wide=_is_wide(value, weight),
            )
        initial_values = recorder.refs_in(initial_state)
        terms: dict[str, TensorRef] = {}
        sums: dict[str, Tensor] | None = None
        if rule.needs_global_sums:
            with torch.no_grad(), recorder:
                update = make_checked_update(rule, weight, grad, state)
                tensors_by_name = rule.global_sum_terms(update, state)
            terms = recorder.refs_in(dict(tensors_by_name))
            sums = {name: random_tensor((), i).abs() for i, name in enumerate(terms)}
            for name, total in sums.items():
                self.inputs[recorder.add_input(total)] = Expression(
                    f'sums["{name}"]', shape=total.shape, is_wide=_is_wide(total, weight)
                )
        with torch.no_grad(), recorder:
            new_weight, new_state = rule.step(weight, grad, state, global_sums=sums)

        self.outputs: dict[FunctionName, dict[str, TensorRef]] = {
            "init": initial_values,
            "terms": terms,
            "step": recorder.refs_in({"weight": new_weight, **new_state}),
        }
        self.constants = recorder.constants
        self.calls = {
            name: _calls_needed_for(list(outputs.values()), recorder.calls)
            for name, outputs in self.outputs.items()
        }

    def _note_owner(self, call: Call) -> None:
        self.owners[id(call)] = _running_rule()


def _is_wide(tensor: Tensor, weight: Tensor) -> bool:
    return tensor.dtype is torch.float64 is not weight.dtype


class JointTrace:
    """The records of a recipe at one shape, in float64 and in float32.

    Args:
        recipe, hyper_parameters, numeric, shape: as of `Trace`.

    Attributes:
        calls, outputs, inputs, owners: as of `Trace`, with pairs of references.
        double, single: the two records.
    """

    def __init__(
        self,
        recipe: Recipe,
        hyper_parameters: Mapping[str, Any],
        numeric: Sequence[str],
        shape: tuple[int, ...],
    ) -> None:
        self.shape = shape
        make_trace = functools.partial(Trace, recipe, hyper_parameters, numeric, shape)
        self.double, self.single = make_trace(torch.float64), make_trace(torch.float32)
        self.step_variable = self.double.step_variable
        self.variables_of_entry = self.double.variables_of_entry
        self.owners = {**self.double.owners, **self.single.owners}
        refs = zip(self.double.inputs, self.single.inputs, strict=True)
        pairs = [Pair(*refs_of_input) for refs_of_input in refs]
        # The record in float32 knows which inputs are wider than the weight.
        self.inputs = dict(zip(pairs, self.single.inputs.values(), strict=True))
        self.outputs: dict[FunctionName, dict[str, Pair]] = {}
        self.calls: dict[FunctionName, list[JointCall]] = {}
        for name, outputs in self.double.outputs.items():
            single_outputs = self.single.outputs[name]
            self.outputs[name] = {key: Pair(x, single_outputs[key]) for key, x in outputs.items()}
            try:
                self.calls[name] = join_calls(
                    self.double.calls[name],
                    self.single.calls[name],
                    self.outputs[name].values(),
                    pairs,
                    (self.double.constants, self.single.constants),
                )
            except DifferentStepsError:
                raise UnsupportedOpError("a step that depends on the dtype") from None


def _calls_needed_for(outputs: Sequence[TensorRef], calls: Sequence[Call]) -> list[Call]:
    needed_values, needed_calls = set(outputs), []
    for call in reversed(calls):
        if call.in_place:
            raise UnsupportedOpError(f"{call.packet}, which writes in place,")
        results = [leaf for leaf in pytree.tree_leaves(call.result) if isinstance(leaf, TensorRef)]
        if not needed_values.isdisjoint(results):
            needed_values.update(call.input_refs())
            needed_calls.append(call)
    return needed_calls[::-1]


def _models_of_constants(joint_call: JointCall) -> list[Pair]:
    """Return the tensor branch of a decision whose other branch is one number for all entries.

    The number becomes a tensor like the other branch, which then needs a name.
    """
    call = joint_call.call
    if call.packet != "where" or call.arguments[0].shape or not call.result.shape:
        return []
    branches = joint_call.arguments[1:]
    if all(branch.double.shape for branch in branches):
        return []
    return [branch for branch in branches if branch.double.shape]


def _running_rule() -> Rule | Manifold | None:
    """Return the innermost rule or manifold on the stack that is not a chain."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Rule | Manifold) and not isinstance(owner, Chain):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


class FunctionWriter:
    """The body of one function, written call by call.

    Args:
        traces: records of one recipe at three shapes.
        function: "init", which returns the initial state, "terms", which returns the terms of sums
            over all weights, or "step".
    """

    def __init__(self, traces: Sequence[JointTrace], function: FunctionName) -> None:
        self.traces, self.function = traces, function
        trace = traces[0]
        self.calls, self.outputs = trace.calls[function], trace.outputs[function]
        self.expressions: dict[Pair, Expression] = dict(trace.inputs)
        self.assigned: dict[str, Expression] = {}
        """The variable of each expression that has been assigned to one."""
        self.used_names = {"weight", "grad", "state", "group", "sums", "rows", "columns", "size"}
        self.used_names |= {"math", "torch", FINFO, *(x.text for x in trace.inputs.values())}
        self.n_uses: dict[Pair, int] = {}
        for value in [
            *self.outputs.values(),
            *(v for call in self.calls for v in call.input_pairs),
        ]:
            self.n_uses[value] = self.n_uses.get(value, 0) + 1
        self.models_of_constants = {x for call in self.calls for x in _models_of_constants(call)}
        self.output_names: dict[Pair, str] = {}
        for key, value in self.outputs.items():
            self.output_names.setdefault(value, f"new_{key}" if function == "step" else key)
        self.lines: list[str] = []
        self.last_owner: type | None = None

    def body(self) -> list[str]:
        """Return the lines of the function's body.

        Raises:
            UnsupportedOpError: an operation has no expression, or the records differ in more than
                numbers.
        """
        calls = [trace.calls[self.function] for trace in self.traces]
        if len({len(calls_at_shape) for calls_at_shape in calls}) > 1:
            raise UnsupportedOpError("a step that depends on the shape")
        for same_call in zip(*calls, strict=True):
            self._write_call(same_call)
        returned = {}
        for key in self.outputs:
            values = [trace.outputs[self.function][key] for trace in self.traces]
            returned[key] = self._output_text(key, values[0], self._resolve(values))
        new_weight = returned.pop("weight", None) if self.function == "step" else None
        self.lines = sink_into_branches(self.lines, [new_weight or "", *returned.values()])
        state = [f'"{key}": {text}' for key, text in returned.items() if text]
        head = f"return {new_weight}, {{" if new_weight else "return {"
        self.lines.append(join_items(head, state, "}", MAX_LINE_LENGTH))
        return [*self._unpacking_lines(), *self.lines]

    def _output_text(self, key: str, value: Pair, output: Expression) -> str:
        """Return the text of an output; "" for a state that stays as it is."""
        if self.function == "step" and output.text == f'state["{key}"]':
            return ""
        if output.is_number and key != STEP_KEY:
            dtype = dtype_text(Pair(value.double.dtype, value.single.dtype))
            option = "" if dtype == WEIGHT_DTYPE else f", dtype={dtype}"
            return f"weight.new_full((), {output.text}{option})"
        return f"{output.text}.clone()" if output.may_alias else output.text

    def _unpacking_lines(self) -> list[str]:
        """Return the lines that name the sizes and hyper-parameters which the body uses."""
        body = ast.parse("\n".join(self.lines).replace("return ", ""))
        names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
        lines = []
        if FINFO in names:
            lines.append(f"{FINFO} = torch.finfo({WEIGHT_DTYPE})")
        if {"rows", "columns"} <= names:
            lines.append("rows, columns = weight.shape")
        elif "rows" in names:
            lines.append("rows = weight.shape[0]")
        elif "columns" in names:
            lines.append("columns = weight.shape[1]")
        if "size" in names:
            lines.append("size = weight.numel()")
        if self.traces[0].step_variable in names:
            lines.append(f'{self.traces[0].step_variable} = group["{CLOCK}"] + 1')
        for entry, variables in self.traces[0].variables_of_entry.items():
            if not names.isdisjoint(variables):
                lines.append(f'{", ".join(variables)} = group["{entry}"]')
        return lines

    def _write_call(self, calls: Sequence[JointCall]) -> None:
        """Write one call, of which `calls` has the record at each shape."""
        joint_call = calls[0]
        call = joint_call.call
        leaves_at_shapes, specs = [], []
        for call_at_shape in calls:
            leaves, spec = pytree.tree_flatten((call_at_shape.arguments, call_at_shape.options))
            leaves_at_shapes.append(leaves)
            specs.append(spec)
            if call_at_shape.call.function is not call.function or spec != specs[0]:
                raise UnsupportedOpError("a step that depends on the shape")
        resolved = [self._resolve(leaf) for leaf in zip(*leaves_at_shapes, strict=True)]
        args, options = pytree.tree_unflatten(resolved, specs[0])
        options = {key: value for key, value in options.items() if key not in IMPLIED_OPTIONS}
        exact_dtypes = (WEIGHT_DTYPE, str(torch.float64))
        if joint_call.target_dtype and (
            not args[0].is_number or joint_call.target_dtype in exact_dtypes
        ):
            result = convert_float(args[0], joint_call.target_dtype)
        else:
            result = expression(call, args, options)
        if not isinstance(joint_call.result, Pair):
            self._assign_several(joint_call, result)
            return
        if not joint_call.target_dtype:
            # A number with the precision of float64 makes no tensor wide that is not.
            widens = any(x.is_wide or x.text == "torch.float64" for x in resolved)
            result = replace(result, is_wide=widens and _is_wide_in_float32(joint_call.result))
        self._assign_or_inline(joint_call, result)

    def _resolve(self, leaf: Sequence[Pair]) -> Expression:
        """Return the expression of an argument, of which `leaf` has the record at each shape."""
        first = leaf[0]
        if first in self.expressions:
            return self.expressions[first]
        double, single = [x.double for x in leaf], [x.single for x in leaf]
        is_boolean = False
        if isinstance(first.double, TensorRef):
            double = self._constants(double, [trace.double for trace in self.traces])
            single = self._constants(single, [trace.single for trace in self.traces])
            is_boolean = first.double.dtype is torch.bool
        if type(double[0]) in (int, float, bool) and type(first.double) is not bool:
            return self._resolve_number(double, single, is_boolean)
        if isinstance(first.double, torch.dtype) and dtype_text(first):
            return Expression(dtype_text(first), True)
        if double != single:
            raise UnsupportedOpError(f"{double[0]!r}, which depends on the dtype,")
        return Expression(repr(first.double), True)

    def _constants(self, refs: Sequence[TensorRef], traces: Sequence[Trace]) -> list[Any]:
        """Return the number that the code brings along, at each shape."""
        constants = [trace.constants[ref] for trace, ref in zip(traces, refs, strict=True)]
        if any(constant.ndim for constant in constants):
            raise UnsupportedOpError("a tensor that the code brings along")
        return [constant.item() for constant in constants]

    def _resolve_number(
        self, double: Sequence[Any], single: Sequence[Any], is_boolean: bool
    ) -> Expression:
        """Return a number, of which `double` and `single` have the value at each shape."""
        if repr(double) == repr(single):
            text = self._function_of_shape(double, is_boolean)
            return Expression(text, True, torch.Size(()), is_boolean)
        factors, unit = factors_of_finfo(double, single)
        if all(factor == 1 for factor in factors) and unit:
            return Expression(unit, True, torch.Size(()))
        if unit:
            text = f"{self._function_of_shape(factors)} * ({unit})"
            return Expression(text, True, torch.Size(()))
        values = [self._function_of_shape(numbers, is_boolean) for numbers in (double, single)]
        text = f"({values[0]} if {WEIGHT_DTYPE} is torch.float64 else {values[1]})"
        return Expression(text, True, torch.Size(()), is_boolean)

    def _function_of_shape(self, values: Sequence[Any], is_boolean: bool = False) -> str:
        """Return the text of a number that has these values at the shapes of the records."""
        if len(set(map(repr, values))) == 1:
            is_whole = isinstance(values[0], float) and values[0].is_integer() and not is_boolean
            text = repr(values[0])
            if isinstance(values[0], float) and not math.isfinite(values[0]):
                text = text.replace("inf", "math.inf").replace("nan", "math.nan")
            text = text.replace(repr(math.pi), "math.pi")
            return text.removesuffix(".0") if is_whole else text
        shapes = [trace.shape for trace in self.traces]
        function = function_of_shape([float(value) for value in values], shapes)
        if function is None:
            raise UnsupportedOpError(f"the number {values[0]!r}, which depends on the shape,")
        return function

    def _assign_or_inline(self, joint_call: JointCall, result: Expression) -> None:
        """Assign the result of a call to a variable, or write it where it is used."""
        call, value = joint_call.call, joint_call.result
        output_name = self.output_names.get(value)
        print_text = simplify_number if result.is_number else _normalize
        result = replace(result, text=print_text(result.text))
        if result.text in self.assigned and not output_name and self.function == "step":
            self.expressions[value] = self.assigned[result.text]
            return
        is_short = len(result.text) <= MAX_INLINE_LENGTH
        needs_name = output_name or result.is_branch or value in self.models_of_constants
        if (self.n_uses[value] == 1 and not needs_name and is_short) or _ATOM.fullmatch(
            result.text
        ):
            self.expressions[value] = result
            return
        self._write_comment(self.traces[0].owners[id(call)])
        name = self._unused_name(
            output_name or call.source.variable or result.variable or call.packet
        )
        self.lines.append(format_assignment(name, result.text))
        variable = replace(result, text=name, variable="")
        self.expressions[value] = self.assigned[result.text] = variable

    def _assign_several(self, joint_call: JointCall, result: Expression) -> None:
        """Assign the results of an operation that returns several tensors."""
        call = joint_call.call
        row = of_overload(call.name)
        names = []
        for value, result_name in zip(joint_call.result, row.results if row else (), strict=True):
            name = "_"
            if value in self.n_uses:
                name = self._unused_name(self.output_names.get(value) or result_name)
                self.expressions[value] = Expression(
                    name, shape=value.double.shape, is_wide=_is_wide_in_float32(value)
                )
            names.append(name)
        self._write_comment(self.traces[0].owners[id(call)])
        self.lines.append(format_assignment(", ".join(names), unparse(ast.parse(result.text))))

    def _write_comment(self, owner: Rule | Manifold | None) -> None:
        """Write the summary of a rule before its first line."""
        if owner is None or type(owner) is self.last_owner:
            return
        self.last_owner = type(owner)
        summary = (inspect.getdoc(type(owner)) or "").partition("\n\n")[0].rstrip(":.")
        text = f"{type(owner).__name__}: {' '.join(summary.split())}"
        self.lines += textwrap.wrap(
            text, MAX_COMMENT_LENGTH, initial_indent="# ", subsequent_indent="# "
        )

    def _unused_name(self, name: str) -> str:
        number, unused = 1, name
        while unused in self.used_names:
            number += 1
            unused = f"{name}{number}"
        self.used_names.add(unused)
        return unused


def _normalize(text: str) -> str:
    return unparse(ast.parse(text))


def _is_wide_in_float32(value: Pair) -> bool:
    return bool(value.single.dtype is torch.float64)


_ATOM = re.compile(r'\w+|(?:state|sums)\["\w+"\]|-?[\d.]+')
"""A name, a state or a number, which is never assigned to another variable."""

IMPLIED_OPTIONS = {
    "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit",
}  # fmt: skip
"""Options of torch's operations that follow from their tensors."""


def random_tensor(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return normal random numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
