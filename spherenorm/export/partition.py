"""The file of a partition: one class, which steps each param_group by the recipe of its label."""

from __future__ import annotations

import functools
import re
import textwrap
from dataclasses import replace
from typing import Any

from spherenorm.export.file import (
    KINDS,
    LOAD_STATE_DICT,
    MATRIX_OF,
    OTHER_SHAPES,
    STEP_ERRORS,
    ExportedFile,
    ExportError,
    equal_up_to_rounding,
    sample_gradient,
)
from spherenorm.export.functions import random_tensor
from spherenorm.export.text import join_items
from spherenorm.partition import Partition
from spherenorm.registry import Bound, bind
from spherenorm.rule import Rule

N_STEPS = 12
"""Steps of the comparison of the whole file with the partition."""
_FUNCTION = re.compile(rf"\b(init|step)_({'|'.join(kind.name for kind in KINDS)})\b")


class ExportedPartition:
    """The file of a partition.

    Args:
        partition: the partition.
        name: the name of the class.
        bound: the recipe that returns the partition, whose hyper-parameters are then those of each
            label; None if each label has a recipe of its own.

    Raises:
        ExportError: a label has a rule and no recipe, its step depends on sums over all weights, or
            it has an operation that cannot be printed.
    """

    def __init__(self, partition: Partition, name: str, bound: Bound | None = None) -> None:
        self.partition, self.name = partition, name
        self.files: dict[str, ExportedFile] = {}
        for label, bound_of_label in zip(partition.labels, partition.bounds, strict=True):
            bound_part = bound_of_label if bound is None else _bind_part(bound, label)
            if bound_part is None:
                raise ExportError(
                    f"partition: {label!r} has a rule, whose numbers have no names in a file; give "
                    "it a recipe, or export the recipe that returns the partition"
                )
            file = ExportedFile(bound_part, name)
            if file.has_sums:
                raise ExportError(
                    f"partition: the step of {label!r} depends on sums over all weights, which "
                    f"only a file of one recipe has: export {bound_part.name!r} alone"
                )
            self.files[label] = file
        self.suffixes = _suffixes(partition.labels)

    def verify(self) -> None:
        """Compare each part with its rule, and the whole file with the partition.

        Raises:
            ExportError: the file takes other steps.
        """
        for file in self.files.values():
            file.verify()
        namespace: dict[str, Any] = {"__name__": self.name}
        exec(compile(self.text(), f"<export of {self.name}>", "exec"), namespace)
        shapes = [*OTHER_SHAPES, *(kind.shapes[0] for kind in KINDS)]
        groups, rules = [], []
        for label, file in self.files.items():
            weights = [
                random_tensor(shape, i).requires_grad_()
                for i, shape in enumerate(shapes)
                if file.accepts(shape)
            ]
            groups.append({"label": label, "params": weights})
            rules += [(label, file.bound.rule, weight) for weight in weights]
        optimizer = namespace[self.name](groups)
        expected = [weight.detach().clone() for _, _, weight in rules]
        starts = [weight.clone() for weight in expected]
        states = [rule.init(weight) for (_, rule, _), weight in zip(rules, expected, strict=True)]
        for step in range(N_STEPS):
            for i, (_, rule, weight) in enumerate(rules):
                weight.grad = sample_gradient(expected[i], step)
                expected[i], states[i] = rule.step(expected[i], weight.grad, states[i])
            try:
                optimizer.step()
            except STEP_ERRORS as error:
                raise ExportError(f"partition: the file fails in a step: {error}") from error
        for (label, _, weight), rule_weight, start in zip(rules, expected, starts, strict=True):
            if not equal_up_to_rounding(weight.detach(), rule_weight, start):
                raise ExportError(
                    f"partition: the file differs for a weight of {tuple(weight.shape)} labelled "
                    f"{label!r}"
                )

    def text(self) -> str:
        """Return the source of the file."""
        summaries = [
            f"    {label!r}: {file.bound.name}".replace("'", '"')
            for label, file in self.files.items()
        ]
        functions = "\n".join(
            _FUNCTION.sub(rf"\1_{self.suffixes[label]}_\2", text)
            for label, file in self.files.items()
            for text in file.functions.values()
        )
        refusing = [label for label, file in self.files.items() if not file.flattens]
        return TEMPLATE.format(
            name=self.name,
            recipes="\n".join(summaries),
            imports="import math\n\n" if "math." in functions else "",
            load_state_dict=LOAD_STATE_DICT,
            matrix_of=MATRIX_OF,
            defaults=textwrap.indent("\n".join(map(self._defaults, self.files)), " " * 4),
            refusal=REFUSAL_OF_MANY_DIMENSIONS.format(labels=refusing) if refusing else "",
            choice=textwrap.indent("\n".join(map(self._choice, self.files)), " " * 4),
            functions=f"{functions}\n",
        ).replace("'", '"')

    def _defaults(self, label: str) -> str:
        entries = [f'"{key}": {value!r}' for key, value in self.files[label].defaults.items()]
        return join_items(f'"{label}": {{', entries, "},", 96)

    def _choice(self, label: str) -> str:
        """Return the branch of `functions_for(label, weight)` for a label."""
        choice = textwrap.dedent(self.files[label].choice_of_functions())
        choice = _FUNCTION.sub(rf"\1_{self.suffixes[label]}_\2", choice)
        return f'if label == "{label}":\n' + textwrap.indent(choice, " " * 4)


def _bind_part(bound: Bound, label: str) -> Bound:
    """Return the recipe of one part of the partition that a recipe returns."""

    @functools.wraps(bound.recipe)
    def part(**hyper_parameters: Any) -> Rule:
        partition = bound.recipe(**hyper_parameters)
        rule: Rule = partition.rules[label]  # type: ignore[attr-defined]
        return rule

    values = {name: bound.hyper_parameters[name] for name in bound.explicit_names}
    return replace(bind(part, **values), recipe=part)


def _suffixes(labels: tuple[str, ...]) -> dict[str, str]:
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


REFUSAL_OF_MANY_DIMENSIONS = """
    if p.ndim > 2 and group["label"] in {labels}:
        raise ValueError(f"no step for a weight of shape {{tuple(p.shape)}}")"""

TEMPLATE = '''"""{name}, an optimizer of plain torch that steps each parameter by its label.

Written from a partition of spherenorm, whose labels have these recipes:

{recipes}

Weights of more than two dimensions are matrices of len(weight) rows. Half precision is computed in
float32.
"""

{imports}import torch


class {name}(torch.optim.Optimizer):
    """Takes param_groups with a label each: [{{"label": ..., "params": [...], "lr": ...}}, ...].

    Other entries are hyper-parameters, whose defaults are in DEFAULTS.
    """

    def __init__(self, params):
        super().__init__(params, {{}})

    def add_param_group(self, param_group):
        label = param_group.get("label")
        if label not in DEFAULTS:
            raise ValueError(f"a param_group needs a label of {{[*DEFAULTS]}}, got {{label!r}}")
        super().add_param_group({{**DEFAULTS[label], **param_group}})

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


DEFAULTS = {{
{defaults}
}}


def step_weight(p, state, group):
    if p.is_complex():
        raise TypeError("no step for a complex weight"){refusal}
    weight, grad = matrix_of(p), matrix_of(p.grad)
    init, step = functions_for(group["label"], weight)
    if not state:
        state.update(init(weight, group))
    new_weight, new_state = step(weight, grad, state, group)
    state.update(new_state)
    p.copy_(new_weight.reshape(p.shape))


{matrix_of}

def functions_for(label, weight):
{choice}
{functions}'''
