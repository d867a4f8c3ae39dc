"""Find the operation at which a law and its code differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spherenorm import View
from spherenorm.record import Record, Value, record
from spherenorm_theory.laws._evaluation import is_start, split, symbol_values, unit_numbers
from spherenorm_theory.laws._inputs import Case
from spherenorm_theory.laws._one_step import OneStep

SHAPING = {
    *("view", "_unsafe_view", "reshape", "expand", "permute", "t", "transpose", "unsqueeze"),
    *("squeeze", "clone", "alias", "detach"),
}
"""Operations that a weight of other dimensions may have more or fewer of."""

UNITS = 8
"""Of a weight, which are compared where all of them would take long."""


class DifferenceError(ValueError):
    """A law differs from the code that it came from; there is no law of this recipe."""


def find_operation(step: OneStep, first: OneStep | None, case: Case) -> DifferenceError:
    """The error that shows the first operation whose reading differs from its tensors."""
    traced, view = step.traced, View(None)
    used = _reading_of(step, first, case)
    (unit,) = split(used, view, case.weight, case.grad, case.state)
    values = symbol_values(traced, case.hyper_parameters)
    numbers = unit_numbers(used, unit, values)
    names = (name for kind, name in traced.inputs if kind == "hyper")
    hypers = [torch.tensor(case.hyper_parameters[n], dtype=torch.float64) for n in names]
    tensors = _replay(traced.record, [*hypers, *_tensors_of(case)])
    where = "in no single operation"
    for call in traced.general.needed:
        actual, read = tensors[call.result], numbers.of(used.values[call.result])
        if not _same(read, actual):
            where = f"{call.name} in {call.line} gives {_text(actual)}, the law {_text(read)}"
            break
    given = ", ".join(f"{n}={x:.4g}" for n, x in case.hyper_parameters.items())
    held = "".join(f", {n}={_text(x)}" for n, x in case.state.items())
    return DifferenceError(
        f"{traced.name}: the law differs from the step of the code: {where}; "
        f"at {given}, weight {_text(case.weight)}, gradient {_text(case.grad)}{held}"
    )


def _reading_of(step: OneStep, first: OneStep | None, case: Case) -> OneStep:
    """The first step, or the general one, as the state of a case has it."""
    starting = first is not None and is_start(step.traced, case.weight, case.state)
    return first if starting and first is not None else step


def find_mixing(step: OneStep, view: View, case: Case) -> str:
    """The first operation in which a unit of a weight of several is not as it is alone, in text."""
    units = split(step, view, case.weight, case.grad, case.state)
    together = _record_of(case)
    tensors = _replay(together, _tensors_of(case))
    alone = []
    for unit in units:
        weight = torch.tensor(unit.weight).reshape(1, -1)
        state = {
            name: torch.as_tensor(unit.state[letter], dtype=torch.float64).reshape(
                _alone(case, name, weight)
            )
            for name, letter in step.letters.items()
        }
        one = Case(case.rule, case.hyper_parameters, weight, torch.tensor(unit.grad)[None], state)
        written = _record_of(one)
        alone.append((written, _replay(written, _tensors_of(one))))
    for n, call in enumerate(together.needed):
        whole = tensors[call.result]
        for i, (written, values) in enumerate(alone):
            if n >= len(written.needed) or written.needed[n].name != call.name:
                return f"; with several, other operations are done from {call.line} on"
            part = values[written.needed[n].result]
            if not _is_part(whole, part, i, view, case.weight):
                return f"; with several, they mix in {call.line}"
    return ""


def decides_together(step: OneStep, first: OneStep | None, view: View, case: Case) -> bool:
    """Tell if an open decision of a weight of several units has other numbers than each unit's.

    Those that decide, and those that it chooses from: no input that is tried need show either, as
    `w.norm() > 1e6` and what is done at step 10^5.
    """
    step = _reading_of(step, first, case)
    if not step.open_calls:
        return False
    calls = [call for call in step.traced.general.needed if call.packet not in SHAPING]
    together = _record_of(case)
    likewise = [call for call in together.needed if call.packet not in SHAPING]
    if [call.packet for call in calls] != [call.packet for call in likewise]:
        return False
    tensors = _replay(together, _tensors_of(case))
    values = symbol_values(step.traced, case.hyper_parameters)
    units = split(step, view, case.weight, case.grad, case.state)[:UNITS]
    numbers = [unit_numbers(step, unit, values) for unit in units]
    open_calls = {*step.open_calls}
    for call, other in zip(calls, likewise, strict=True):
        pairs = zip(call.values(), other.values(), strict=False) if call in open_calls else ()
        for formal, given in ((a, b) for a, b in pairs if a in step.values):
            for i, each in enumerate(numbers):
                part = torch.as_tensor(each.of(step.values[formal]), dtype=torch.float64)
                if not _is_part(tensors[given].double(), part, i, view, case.weight):
                    return True
    return False


def _alone(case: Case, name: str, weight: Tensor) -> tuple[int, ...]:
    return tuple(case.rule.init(weight)[name].shape)


def _is_part(whole: Tensor, part: Tensor, i: int, view: View, weight: Tensor) -> bool:
    """Tell if a result for a whole weight holds that of its unit i, as far as shapes tell."""
    if whole.shape == weight.shape and part.numel() * len(view.rows(weight)) == weight.numel():
        return _same(part, view.rows(whole)[i])
    if whole.numel() == 1 and part.numel() == 1:
        return _same(part, whole)
    if part.numel() == 1 and whole.shape == view.total(weight).shape:
        return _same(part, view.units(whole)[i])
    return True


def _record_of(case: Case) -> Record:
    names = [*case.state]

    def step(weight: Tensor, grad: Tensor, *states: Tensor) -> list[Tensor]:
        new, state = case.rule.step(weight, grad, dict(zip(names, states, strict=True)))
        return [new, *(state[name] for name in names)]

    return record(step, *_tensors_of(case))


def _tensors_of(case: Case) -> list[Tensor]:
    return [case.weight, case.grad, *case.state.values()]


def _replay(written: Record, inputs: Sequence[Tensor]) -> dict[Value, Any]:
    """The tensors of a record on other inputs."""
    tensors: dict[Value, Any] = dict(zip(written.inputs, inputs, strict=True))
    tensors |= written.constants
    for call in written.needed:
        arguments, options = pytree.tree_map_only(
            Value, tensors.__getitem__, (call.arguments, call.options)
        )
        tensors[call.result] = call.function(*arguments, **options)
    return tensors


def _same(read: Any, actual: Tensor) -> bool:
    expected = actual.double().flatten().numpy()
    try:
        given = np.broadcast_to(np.asarray(read, dtype=float).reshape(-1), expected.shape)
    except ValueError:
        return False
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    return bool(np.allclose(given, expected, rtol=0, atol=1e-10 * scale, equal_nan=True))


def _text(x: Any) -> str:
    """Numbers in text, a few of many."""
    flat = np.asarray(x, dtype=float).reshape(-1)
    shown = ", ".join(f"{value:.6g}" for value in flat[:6])
    if flat.size == 1:
        return shown
    return f"[{shown}{', ...' if flat.size > 6 else ''}]"
