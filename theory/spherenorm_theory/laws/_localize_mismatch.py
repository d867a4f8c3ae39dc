"""Find the operation at which a law and its code differ."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from torch import Tensor

from spherenorm import View
from spherenorm.record import Call, Value, record
from spherenorm_theory.algebra import Array
from spherenorm_theory.laws._evaluation import choose_step, read_units
from spherenorm_theory.laws._inputs import Case
from spherenorm_theory.laws._one_step import OneStep

SHAPING = {
    *("view", "_unsafe_view", "reshape", "expand", "permute", "t", "transpose", "unsqueeze"),
    *("squeeze", "clone", "alias", "detach"),
}
"""Operations that a weight of other dimensions may have more or fewer of."""


class DifferenceError(ValueError):
    """A law differs from the code that it came from; there is no law of this recipe."""


def find_operation(step: OneStep, case: Case) -> DifferenceError:
    """The error that shows the first operation whose reading differs from its tensors."""
    where = "in no single operation"
    for call, pairs in _compare_calls(step, View(None), case):
        actual, read = pairs[-1] if pairs else (None, None)
        if actual is not None and not _is_of_units(actual, read, View(None), case.weight):
            where = f"{call.name} in {call.line} gives {_text(actual)}, the law {_text(read)}"
            break
    given = ", ".join(f"{n}={x:.4g}" for n, x in case.hyper_parameters.items())
    held = "".join(f", {n}={_text(x)}" for n, x in case.state.items())
    return DifferenceError(
        f"{step.traced.name}: the law differs from the step of the code: {where}; "
        f"at {given}, weight {_text(case.weight)}, gradient {_text(case.grad)}{held}"
    )


def find_mixing(step: OneStep, view: View, case: Case) -> str:
    """The first operation in which a unit of a weight of several is not as it is alone, in text."""
    for call, pairs in _compare_calls(step, view, case):
        if not pairs:
            return f"; with several, other operations are done from {call.line} on"
        if not _is_of_units(*pairs[-1], view, case.weight):
            return f"; with several, they mix in {call.line}"
    return ""


def decides_together(step: OneStep, view: View, case: Case) -> bool:
    """Tell if an open decision of a weight of several units has other numbers than each unit's.

    Those that decide, and those that it chooses from: no input that is tried need show either, as
    `w.norm() > 1e6` and what is done at step 10^5.
    """
    open_calls = choose_step(step, case).open_calls
    if not open_calls:
        return False
    compared = [*_compare_calls(step, view, case, open_calls)]
    if any(not pairs for _, pairs in compared):
        return False
    taken = (pair for _, pairs in compared for pair in pairs[:-1])
    return not all(_is_of_units(*pair, view, case.weight) for pair in taken)


Pair = tuple[Tensor, Any]
"""A tensor of the code, and its reading by the law for each unit."""


def _compare_calls(
    step: OneStep, view: View, case: Case, wanted: tuple[Call, ...] | None = None
) -> Iterator[tuple[Call, list[Pair]]]:
    """The operations of a case, with the tensors that they take and the one that they give.

    Those that shape tensors are left out. From where the code does other operations than those of
    the law, there is one with no tensors.
    """
    used = choose_step(step, case)
    numbers = read_units(used, view, case)
    calls, tensors = _run(case)
    known = used.traced.general.needed
    expected, done = ([c for c in all_ if c.packet not in SHAPING] for all_ in (known, calls))
    for call, own in zip_longest(expected, done):
        if call is None or own is None or call.packet != own.packet:
            yield own or done[-1], []
            return
        if wanted is None or call in wanted:
            values = zip([*call.values(), call.result], [*own.values(), own.result], strict=False)
            read = ((tensors[b], used.values[a]) for a, b in values if a in used.values)
            yield own, [(tensor, numbers.of(x)) for tensor, x in read]


def _run(case: Case) -> tuple[tuple[Call, ...], dict[Value, Any]]:
    """The operations of a step that its result depends on, and the tensors that they give."""
    names = [*case.state]

    def step(weight: Tensor, grad: Tensor, *states: Tensor) -> list[Tensor]:
        new, state = case.rule.step(weight, grad, dict(zip(names, states, strict=True)))
        return [new, *(state[name] for name in names)]

    inputs = [case.weight, case.grad, *case.state.values()]
    written = record(step, *inputs)
    tensors: dict[Value, Any] = dict(zip(written.inputs, inputs, strict=True)) | written.constants

    def tensor_of(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [tensor_of(each) for each in x]
        return tensors[x] if isinstance(x, Value) else x

    for call in written.needed:
        options = {name: tensor_of(x) for name, x in call.options.items()}
        tensors[call.result] = call.function(*map(tensor_of, call.arguments), **options)
    return written.needed, tensors


def _is_of_units(whole: Tensor, read: Any, view: View, weight: Tensor) -> bool:
    """Tell if a result for a whole weight holds that of each unit, as far as shapes tell."""
    rows, read = view.rows(weight), np.asarray(read, dtype=float)
    if whole.shape == weight.shape and read.shape == rows.shape:
        return _same(read, view.rows(whole))
    if len(rows) == 1 and weight.numel() == max(weight.shape, default=1):
        return _same(read.reshape(1, -1), whole.reshape(1, -1))
    if read.ndim == 2 and read.shape[-1] > 1:
        return True
    if whole.numel() == 1:
        return _same(read.reshape(-1, 1), whole.reshape(1, 1))
    if whole.shape == view.total(weight).shape and read.size in (1, len(rows)):
        return _same(read.reshape(-1, 1), view.units(whole)[:, None])
    return True


def _same(read: Array, actual: Tensor) -> bool:
    """Tell if rows of numbers are the same, relative to the greatest of each, or to 1."""
    expected = actual.double().numpy()
    try:
        read, expected = np.broadcast_arrays(read, expected)
    except ValueError:
        return False
    scale = np.abs(expected).max(1, initial=1.0, keepdims=True)
    off = np.abs(read - expected) <= 1e-10 * scale
    return bool((off | (read == expected) | (np.isnan(read) & np.isnan(expected))).all())


def _text(x: Any) -> str:
    """Numbers in text, a few of many."""
    flat = np.asarray(x, dtype=float).reshape(-1)
    shown = ", ".join(f"{value:.6g}" for value in flat[:6])
    if flat.size == 1:
        return shown
    return f"[{shown}{', ...' if flat.size > 6 else ''}]"
