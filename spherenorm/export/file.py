"""The file that `export` returns: one class, and the functions of one recipe or of a partition's.

The file of a partition has the functions of each label's recipe, and a param_group has a label. The
two files differ in a few lines of one template.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from spherenorm.export.functions import random_tensor
from spherenorm.export.recipe import (
    GRADIENT_SCALES,
    KINDS,
    MATRIX_OF,
    N_STEPS,
    OTHER_SHAPES,
    ExportedRecipe,
    ExportError,
    Step,
    find_difference,
    find_difference_at_scale,
)
from spherenorm.export.text import join_items
from spherenorm.fields import Interval
from spherenorm.partition import Partition
from spherenorm.registry import Bound, bind
from spherenorm.rule import Rule

_FUNCTION = re.compile(rf"\b(init|step|terms)_({'|'.join(kind.name for kind in KINDS)})\b")


class ExportedFile:
    """The file of one recipe, or of the recipes of a partition.

    Args:
        name: the name of the class.
        parts: the recipe of each label of a partition, or one recipe under None.
    """

    def __init__(self, name: str, parts: Mapping[str | None, ExportedRecipe]) -> None:
        self.name, self.parts = name, parts
        self.suffixes = _suffixes([label for label in parts if label is not None])

    @classmethod
    def of_recipe(cls, bound: Bound, name: str) -> ExportedFile:
        """Return the file of one recipe."""
        return cls(name, {None: ExportedRecipe(bound)})

    @classmethod
    def of_partition(
        cls, partition: Partition, name: str, bound: Bound | None = None
    ) -> ExportedFile:
        """Return the file of a partition.

        Args:
            partition: the partition.
            name: the name of the class.
            bound: the recipe that returns the partition, whose hyper-parameters are then those of
                each label; None if each label has a recipe of its own.

        Raises:
            ExportError: a label has a rule and no recipe, its step depends on sums over all
                weights, or it has an operation that cannot be printed.
        """
        parts: dict[str | None, ExportedRecipe] = {}
        for label, bound_of_label in zip(partition.labels, partition.bounds, strict=True):
            bound_part = bound_of_label if bound is None else _bind_part(bound, label)
            if bound_part is None:
                raise ExportError(
                    f"partition: {label!r} has a rule, whose numbers have no names in a file; give "
                    "it a recipe, or export the recipe that returns the partition"
                )
            part = ExportedRecipe(bound_part)
            if part.has_sums:
                raise ExportError(
                    f"partition: the step of {label!r} depends on sums over all weights, which "
                    f"only a file of one recipe has: export {bound_part.name!r} alone"
                )
            parts[label] = part
        return cls(name, parts)

    def verify(self) -> None:
        """Compare the file with the rules.

        In float64, at shapes of every kind and in every schedule's branch; in float32 and bfloat16,
        one shape for each function, at gradients from 0 to 1e20.

        Raises:
            ExportError: the file takes other steps than a rule.
        """
        namespace: dict[str, Any] = {"__name__": self.name}
        exec(compile(self.text(), f"<export of {self.name}>", "exec"), namespace)
        shapes = [*OTHER_SHAPES, *(shape for kind in KINDS for shape in kind.shapes)]
        # Schedules are the same at all shapes, but each kind has them in its own functions.
        shapes_of_schedules = {kind.shapes[0] for kind in KINDS}
        for label, part in self.parts.items():
            for bound in part.settings:
                all_steps = part.steps_to_compare(bound)
                for shape in filter(part.accepts, shapes):
                    start = random_tensor(shape, 3)
                    step = self._step_of_class(namespace[self.name], label, part, bound, start)
                    steps = all_steps if shape in shapes_of_schedules else all_steps[:N_STEPS]
                    difference = find_difference(step, bound.rule, start, steps)
                    if difference:
                        raise self._error(label, shape, difference)
            # The last setting has numbers other than 0, which switch every term on.
            bound = part.settings[-1]
            for shape in part.shapes_of_functions():
                for dtype, scales in GRADIENT_SCALES.items():
                    start = random_tensor(shape, 3).to(dtype)
                    for scale in scales:
                        step = self._step_of_class(namespace[self.name], label, part, bound, start)
                        difference = find_difference_at_scale(step, bound.rule, start, scale)
                        if difference:
                            raise self._error(label, shape, difference)

    def _error(self, label: str | None, shape: tuple[int, ...], difference: str) -> ExportError:
        labelled = f" labelled {label!r}" if label else ""
        return ExportError(
            f"{self.parts[label].bound.name}: the file differs for a weight of {shape}{labelled}: "
            f"{difference}"
        )

    def _step_of_class(
        self, cls: Any, label: str | None, part: ExportedRecipe, bound: Bound, start: Tensor
    ) -> Step:
        """Return a function that steps one weight by the optimizer class of the file."""
        weight = start.clone().requires_grad_()
        group = {"params": [weight], **part.numbers(bound)}
        optimizer = cls([group if label is None else {"label": label, **group}])

        def step(grad: Tensor, t: int) -> Tensor:
            weight.grad = grad
            if part.has_clock:
                optimizer.param_groups[0]["clock"] = t - 1
            optimizer.step()
            return weight.detach()

        return step

    # The text

    def text(self) -> str:
        """Return the source of the file."""
        functions = "\n".join(
            self._with_suffix(label, text)
            for label, part in self.parts.items()
            for text in part.functions.values()
        )
        has_sums = any(part.has_sums for part in self.parts.values())
        has_clock = any(part.has_clock for part in self.parts.values())
        single = self.parts.get(None)
        lines = self._lines_of_partition() if single is None else self._lines_of_recipe(single)
        checks = self._function_of_checks()
        return TEMPLATE.format(
            name=self.name,
            **lines,
            state=(STATE_AND_SUMS if has_sums else STATE).format(chosen=lines["chosen"]),
            imports="import math\n\n" if "math." in functions + checks else "",
            load_state_dict=LOAD_STATE_DICT,
            weights=TWO_PASSES if has_sums else ONE_PASS,
            advance=ADVANCE if has_clock else "",
            sums=", sums" if has_sums else "",
            checks=checks,
            matrix_of=MATRIX_OF,
            functions=functions,
        )

    def _function_of_checks(self) -> str:
        """Return the function that refuses numbers outside their intervals; "" without any."""
        lines = []
        for label, part in self.parts.items():
            checks = [line for entry in part.intervals.items() for line in _lines_of_check(*entry)]
            if label is not None and checks:
                checks = [f'if group["label"] == {_quote(label)}:', *_indent(checks)]
            lines += checks
        if not lines:
            return ""
        return "\n\n" + "\n".join(["def check_numbers(group):", *_indent(lines)]) + "\n"

    def _lines_of_recipe(self, part: ExportedRecipe) -> dict[str, str]:
        """Return the lines that the file of a recipe has alone."""
        bound = part.bound
        summary = (inspect.getdoc(bound.recipe) or "").partition("\n")[0]
        written = f"Written from the recipe {bound.name} of spherenorm."
        # The first line of a docstring may announce a formula, which is not here.
        origin = f"{summary.rstrip(':.')}. {written}" if summary else written
        shapes = SHAPES_AS_MATRICES
        if not part.flattens:
            shapes = "Weights of more than two dimensions are refused."
        paragraphs = [origin, f"{shapes} {HALF_PRECISION}"]
        fixed = [
            f"{name}={value!r}"
            for name, value in bound.hyper_parameters.items()
            if name not in part.numeric
        ]
        if fixed:
            paragraphs.append(f"Fixed: {', '.join(fixed)}.")
        arguments = [f"{key}={value!r}" for key, value in part.defaults.items()]
        entries = [f'"{key}": {key}' for key in part.defaults]
        constants = ""
        if part.has_sums:
            constants = CONSTANTS_OF_SUMS.format(
                keys=tuple(part.shared_keys), numbers=tuple(part.shared_numbers)
            )
        return {
            "what": "an optimizer of plain torch",
            "description": "\n\n".join(textwrap.fill(text, 100) for text in paragraphs),
            "constructor": CONSTRUCTOR_OF_RECIPE.format(
                init=join_items("    def __init__(", ["self", "params", *arguments], "):"),
                defaults=join_items("        defaults = {", entries, "}"),
                add_param_group=_add_param_group(part),
            ),
            "constants": constants,
            "refusal": "" if part.flattens else REFUSAL_OF_MANY_DIMENSIONS.format(and_label=""),
            "chosen": "weight",
            "arguments_of_choice": "weight",
            "choice": part.choice_of_functions(),
        }

    def _lines_of_partition(self) -> dict[str, str]:
        """Return the lines that the file of a partition has alone."""
        recipes = [f"    {_quote(label)}: {part.bound.name}" for label, part in self.parts.items()]
        shapes = textwrap.fill(f"{SHAPES_AS_MATRICES} {HALF_PRECISION}", 100)
        defaults, choices = [], []
        for label, part in self.parts.items():
            entries = [f'"{key}": {_quote(value)}' for key, value in part.defaults.items()]
            defaults.append(join_items(f"{_quote(label)}: {{", entries, "},", 96))
            choice = self._with_suffix(label, part.choice_of_functions())
            choices.append(f"    if label == {_quote(label)}:\n{textwrap.indent(choice, ' ' * 4)}")
        scheduled = [label for label, part in self.parts.items() if part.has_clock]
        refusing = [label for label, part in self.parts.items() if not part.flattens]
        and_label = f' and group["label"] in {_quote(refusing)}'
        return {
            "what": "an optimizer of plain torch that steps each parameter by its label",
            "description": f"{ORIGIN_OF_PARTITION}\n\n" + "\n".join(recipes) + f"\n\n{shapes}",
            "constructor": CONSTRUCTOR_OF_PARTITION.format(
                clock=CLOCK_OF_LABEL.format(labels=_quote(scheduled)) if scheduled else "",
                check=CHECK_OF_LABEL if any(part.intervals for part in self.parts.values()) else "",
            ),
            "constants": DEFAULTS.format(defaults=textwrap.indent("\n".join(defaults), " " * 4)),
            "refusal": REFUSAL_OF_MANY_DIMENSIONS.format(and_label=and_label) if refusing else "",
            "chosen": 'group["label"], weight',
            "arguments_of_choice": "label, weight",
            "choice": "\n".join(choices),
        }

    def _with_suffix(self, label: str | None, text: str) -> str:
        """Return code with a label's suffix in the names of functions: step_matrix_vector."""
        if label is None:
            return text
        return _FUNCTION.sub(rf"\1_{self.suffixes[label]}_\2", text)


def _add_param_group(part: ExportedRecipe) -> str:
    """Return the method of a recipe's class; "" where it has nothing to add to torch's."""
    if not part.intervals and not part.has_clock:
        return ""
    check = CHECK_OF_RECIPE if part.intervals else ""
    return ADD_PARAM_GROUP.format(check=check, **(CLOCK if part.has_clock else NO_CLOCK))


def _lines_of_check(entry: str, interval: Interval) -> list[str]:
    """Return the lines that refuse a number outside its interval.

    Args:
        entry: name of the number in a param_group, such as "lr" or "betas[0]".
        interval: the interval.
    """
    name, _, index = entry.rstrip("]").partition("[")
    variable = f"{name.removesuffix('s')}{int(index) + 1}" if index else name
    value = f'group["{name}"]' + (f"[{index}]" if index else "")
    low, high = (repr(x).replace("inf", "math.inf") for x in (interval.low, interval.high))
    is_above = f"{low.removesuffix('.0')} {'<' if interval.open_low else '<='} {variable}"
    is_below = f"{'<' if interval.open_high else '<='} {high.removesuffix('.0')}"
    text = str(interval).replace("∞", "inf")
    return [
        f"{variable} = {value}",
        f"if not {is_above} {is_below}:",
        f'    raise ValueError(f"{entry} must be in {text}, got {{{variable}}}")',
    ]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _quote(value: Any) -> str:
    """Return the representation of a value, with a formatter's quotes."""
    return repr(value).replace("'", '"')


def _bind_part(bound: Bound, label: str) -> Bound:
    """Return the recipe of one part of the partition that a recipe returns."""

    @functools.wraps(bound.recipe)
    def part(**hyper_parameters: Any) -> Rule:
        partition = bound.recipe(**hyper_parameters)
        rule: Rule = partition.rules[label]  # type: ignore[attr-defined]
        return rule

    values = {name: bound.hyper_parameters[name] for name in bound.explicit_names}
    return replace(bind(part, **values), recipe=part)


def _suffixes(labels: Sequence[str]) -> dict[str, str]:
    """Return a part of a function's name for each label."""
    suffixes: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"\W+", "_", "rest" if label == "*" else label).strip("_") or "part"
        suffix, number = stem, 1
        while suffix in suffixes.values():
            number += 1
            suffix = f"{stem}{number}"
        suffixes[label] = suffix
    return suffixes


# The lines of both files

SHAPES_AS_MATRICES = "Weights of more than two dimensions are matrices of len(weight) rows."
HALF_PRECISION = "Half precision is computed in float32."
REFUSAL_OF_MANY_DIMENSIONS = """
    if p.ndim > 2{and_label}:
        raise ValueError(f"no step for a weight of shape {{tuple(p.shape)}}")"""

TEMPLATE = '''"""{name}, {what}.

{description}
"""

{imports}import torch


class {name}(torch.optim.Optimizer):
{constructor}
{load_state_dict}
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
{weights}{advance}        return loss
{constants}{checks}

def step_weight(p, state, group{sums}):
    if p.is_complex():
        raise TypeError("no step for a complex weight"){refusal}
    weight, grad = matrix_of(p), matrix_of(p.grad)
    {state}
    new_weight, new_state = step(weight, grad, state, group{sums})
    state.update(new_state)
    p.copy_(new_weight.reshape(p.shape))


{matrix_of}

def functions_for({arguments_of_choice}):
{choice}
{functions}
'''

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

# Of the two, the file of a recipe

CONSTRUCTOR_OF_RECIPE = """\
{init}
{defaults}
        super().__init__(params, defaults)
{add_param_group}"""

ADD_PARAM_GROUP = """
    def add_param_group(self, param_group):
{check}{clock}        super().add_param_group({param_group})
"""
CHECK_OF_RECIPE = "        check_numbers({**self.defaults, **param_group})\n"

# Of the two, the file of a partition

ORIGIN_OF_PARTITION = "Written from a partition of spherenorm, whose labels have these recipes:"
CONSTRUCTOR_OF_PARTITION = '''\
    """Takes param_groups with a label each: [{{"label": ..., "params": [...], "lr": ...}}, ...].

    Other entries are hyper-parameters, whose defaults are in DEFAULTS.
    """

    def __init__(self, params):
        super().__init__(params, {{}})

    def add_param_group(self, param_group):
        label = param_group.get("label")
        if label not in DEFAULTS:
            raise ValueError(f"a param_group needs a label of {{[*DEFAULTS]}}, got {{label!r}}")
{clock}        param_group = {{**DEFAULTS[label], **param_group}}
{check}        super().add_param_group(param_group)
'''
CHECK_OF_LABEL = "        check_numbers(param_group)\n"
DEFAULTS = """

DEFAULTS = {{
{defaults}
}}
"""

# A step without sums over all weights, and one with such sums

ONE_PASS = """\
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    step_weight(p, self.state[p], group)
"""
STATE = """\
init, step = functions_for({chosen})
    if not state:
        state.update(init(weight, group))"""

TWO_PASSES = """\
        todo = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    todo.append((p, self.state[p], group))
        # Weights whose first gradient comes late take the estimates of the others.
        furthest = max((s for s in self.state.values() if s), key=shared_numbers, default={})
        shared = {key: furthest[key] for key in SHARED if furthest}
        sums = {}
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
            state.update({key: active[0][1][key] for key in SHARED if state})
"""
STATE_AND_SUMS = "step = functions_for(weight)[1]"
CONSTANTS_OF_SUMS = """

SHARED = {keys!r}
NONZERO = {numbers!r}


def shared_numbers(state):
    return [abs(float(state[key])) for key in SHARED]
"""

# The clock of schedules, which counts the steps of a param_group

CLOCK = {
    "clock": """\
        # Schedules follow a clock. A group that joins late has the clock of the others.
        clock = max((group["clock"] for group in self.param_groups), default=0)
""",
    "param_group": '{"clock": clock, **param_group}',
}
NO_CLOCK = {"clock": "", "param_group": "param_group"}
CLOCK_OF_LABEL = """\
        if label in {labels}:
            # Schedules follow a clock. A group that joins late has the clock of the others.
            clock = max((group.get("clock", 0) for group in self.param_groups), default=0)
            param_group = {{"clock": clock, **param_group}}
"""
ADVANCE = """\
        for group in self.param_groups:
            if "clock" in group:
                group["clock"] += 1
"""
