"""Faults of 2 % in an operation, each in the form of one backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spherenorm.export.expressions import PRINTERS
from spherenorm.operations import DERIVED, OPERATIONS, REGISTERED
from spherenorm_theory.interpreter import HANDLERS

FACTOR = 1.02


def plant_fault(monkeypatch: pytest.MonkeyPatch, name: str, column: str) -> None:
    """Let an operation give 1.02 times its value in one backend."""
    form = getattr(OPERATIONS[name], column)
    if column == "law" and form is REGISTERED:
        right_rule, mul = HANDLERS[name], HANDLERS["mul"]
        monkeypatch.setitem(
            HANDLERS, name, lambda ops, *args, **options: mul(ops, right_rule(ops, *args), FACTOR)
        )
        return
    if column == "export" and form is REGISTERED:
        right_printer = PRINTERS[name]

        def print_wrong(call: Any) -> Any:
            expression = right_printer(call)
            return replace(expression, text=f"{FACTOR} * ({expression.text})")

        monkeypatch.setitem(PRINTERS, name, print_wrong)
        return
    monkeypatch.setitem(OPERATIONS, name, replace(OPERATIONS[name], **_wrong(name, column, form)))


def _wrong(name: str, column: str, form: Any) -> dict[str, Any]:
    if column == "cpp":
        return {"cpp": f"({{kind}}({FACTOR}) * ({form}))"}
    if column == "batched":
        return {"batched": replace(form, tensors=_scaled(form.tensors))}
    if column == "export":
        templates = {"tensors": form.tensors, "numbers": form.numbers}
        return {"export": replace(form, **{k: f"{FACTOR} * ({t})" for k, t in templates.items()})}
    assert form is DERIVED, f"{name} has no law"
    derivation: Any = OPERATIONS[name].derived
    return {"derived": lambda ops, *args: ops.mul(derivation(ops, *args), FACTOR)}


def _scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*values: Any) -> Any:
        result = function(*values)
        return FACTOR * result if result.numel() > 1 else result  # counters stay right

    return wrong
