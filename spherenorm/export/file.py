"""The file that `export` writes: one text for each kind of weights, held against the rule."""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spherenorm.export.body import Body, Trace, drawn
from spherenorm.export.text import KINDS, Head, Kind, written
from spherenorm.export.words import NoWordError
from spherenorm.record import Unsupported
from spherenorm.registry import Bound

STEPS = 4
NEAR = 1e-12
"""The difference from the rule that is rounding, of the largest entry of a weight or of a step."""
WRONG = (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError)
"""The errors of a text that is not right for a weight."""


class ExportError(ValueError):
    """The step of a recipe has no text in plain torch.

    Example:
        >>> class Noisy(sn.Rule):
        ...     def update(self, update, state):
        ...         return update.replace(direction=torch.randn_like(update.weight)), {}
        >>> try:
        ...     sn.export(lambda lr=0.1: sn.chain(Noisy(), rules.StepSize(lr)), "Noise")
        ... except sn.ExportError as error:
        ...     print(str(error).split(": ")[-1])
        randn_like has no word in an export
    """


OTHERS = ((4, 4), (), (4, 3, 2, 2), (3, 5, 1, 1))
"""Shapes beside those of the kinds on which the whole file is held against the rule."""


class Written:
    """The text of one recipe's optimizer."""

    def __init__(self, bound: Bound, name: str) -> None:
        self.bound, self.name = bound, name
        self.numbers, self.tensors = _as_tensors(bound)
        self.bounds = [bound, *_changed(bound, self.numbers)]
        """The settings at which the text is held against the rule."""
        self.functions: dict[str, str] = {}
        """The text of each kind that has one of its own."""
        self.owner: dict[str, str] = {}
        """By kind, the kind whose text it takes."""
        for kind in reversed(KINDS):  # the general ones first
            self.owner[kind.name] = self._owner_of(kind)
        if not self.functions:
            shape = KINDS[-1].shapes[0]
            raise ExportError(f"{bound.name} refuses all recorded shapes, such as {shape}")
        self.flat = True
        """Weights of more than two dimensions are stepped as matrices."""
        self.flat = all(self._same(self.text(), s) for s in OTHERS if len(s) > 2 and self._takes(s))

    def _takes(self, shape: tuple[int, ...]) -> bool:
        """True if the rule steps weights of this shape."""
        try:
            self.bound.rule.init(drawn(shape, 0))
        except ValueError:
            return False
        return True

    def _owner_of(self, kind: Kind) -> str:
        """The kind whose text steps this one, which is written if there is none; "" if the rule
        refuses such weights."""
        if not self._takes(kind.shapes[0]):
            return ""
        within = kind.within and self.owner[kind.within]
        if within and kind.name != "tall" and self._steps(kind, within):
            return within
        text = self._function(kind)
        for other, known in self.functions.items():
            if text == known.replace(f"_{other}(", f"_{kind.name}("):
                return other
        self.functions[kind.name] = text
        return kind.name

    def _function(self, kind: Kind) -> str:
        """The two functions of a kind, one of which makes the first state."""
        bound = self.bound
        try:
            traces = [
                Trace(bound.recipe, self.tensors, self.numbers, shape) for shape in kind.shapes
            ]
            start, step = Body(traces, "start").lines(), Body(traces, "step").lines()
        except (NoWordError, Unsupported) as error:
            raise ExportError(f"{self.bound.name}: {error} has no word in an export") from error
        head = "\n\ndef {}_{}(weight, {}group):\n"
        return "\n".join(
            head.format(what, kind.name, inputs) + textwrap.indent("\n".join(lines), " " * 4)
            for what, inputs, lines in (("start", "", start), ("step", "grad, state, ", step))
        )

    def _steps(self, kind: Kind, other: str) -> bool:
        """True if another kind's text takes the rule's steps for the shapes of this kind."""
        space: dict[str, Any] = {"torch": torch, "math": math}
        exec(self.functions[other], space)
        for bound, (number, shape) in itertools.product(self.bounds, enumerate(kind.shapes)):
            weight = first = theirs = drawn(shape, number)
            group, rule = dict(bound.hyper_parameters), bound.rule
            try:
                state, held = space[f"start_{other}"](weight, group), rule.init(weight)
                for step in range(STEPS):
                    grad = _gradient(theirs, step)
                    weight, new = space[f"step_{other}"](weight, grad, state, group)
                    state = {**state, **new}
                    theirs, held = rule.step(theirs, grad, held)
            except WRONG:
                return False
            if not _near(weight, theirs, first):
                return False
        return True

    def text(self) -> str:
        given, taken = self.bound.hyper_parameters, self.numbers
        summary = (inspect.getdoc(self.bound.recipe) or "").partition("\n")[0]
        fixed = ", ".join(f"{k}={x!r}" for k, x in given.items() if k not in taken)
        return written(
            Head(
                self.name,
                f"{summary} Written from the recipe {self.bound.name} of spherenorm.",
                fixed and f"Decided: {fixed}.",
                {name: _plain(given[name]) for name in taken},
            ),
            self.functions,
            self.owner,
            self.flat,
        )

    def hold(self, text: str) -> None:
        """Run the file beside the rule; weights of more than two dimensions that it steps otherwise
        are refused by it from then on.

        Raises:
            ExportError: it differs from the rule.
        """
        for shape in [*OTHERS, *(shape for kind in KINDS for shape in kind.shapes)]:
            if not self._takes(shape) or (not shape and not self.owner["number"]):
                continue  # of a number the file makes a vector, which it may refuse
            if (self.flat or len(shape) < 3) and not self._same(text, shape):
                raise ExportError(f"{self.bound.name}: the text differs for a weight of {shape}")

    def _same(self, text: str, shape: tuple[int, ...]) -> bool:
        space: dict[str, Any] = {"__name__": self.name}
        exec(compile(text, f"<export of {self.bound.name}>", "exec"), space)
        for bound in self.bounds:
            ours = drawn(shape, 3).requires_grad_()
            given = {key: _plain(bound.hyper_parameters[key]) for key in self.numbers}
            optimizer, rule = space[self.name]([ours], **given), bound.rule
            theirs = first = ours.detach().clone()
            state = rule.init(theirs)
            for step in range(STEPS):
                ours.grad = _gradient(theirs, step)
                try:
                    optimizer.step()
                except WRONG:
                    return False
                theirs, state = rule.step(theirs, ours.grad, state)
            if not _near(ours.detach(), theirs, first):
                return False
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else value


def _as_tensors(bound: Bound) -> tuple[list[str], dict[str, Any]]:
    """The hyper-parameters that are numbers, by name, and all of them, with tensors for these."""
    numbers, tensors = [], dict(bound.hyper_parameters)
    for name, value in bound.hyper_parameters.items():
        if not (made := _tensor_of(value)):
            continue
        try:  # a recipe may count with one, or decide by it
            bound.replace(**{name: made[0]}).rule.init(torch.ones(3, 4))
        except (TypeError, ValueError, RuntimeError):
            continue
        numbers.append(name)
        tensors[name] = made[0]
    return numbers, tensors


def _changed(bound: Bound, numbers: Sequence[str]) -> list[Bound]:
    """The recipe with each number changed, if it takes that; there is no number that is 0 then."""

    def other(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(other, value))
        return 0.9 * _plain(value) if value else 0.01

    changed = bound
    for name in numbers:
        try:
            changed.replace(**{name: other(changed.hyper_parameters[name])}).rule  # noqa: B018
        except ValueError:
            continue
        changed = changed.replace(**{name: other(changed.hyper_parameters[name])})
    return [changed] if changed is not bound else []


def _tensor_of(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        made = [_tensor_of(each) for each in value]
        return [tuple(each for (each,) in made)] if value and all(made) else []
    number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    return [torch.as_tensor(value, dtype=torch.float64).clone()] if number else []


def _gradient(weight: Tensor, step: int) -> Tensor:
    """Radial in part, tangential row by row, tangential as a whole, radial, by turns."""
    x = drawn(tuple(weight.shape), 100 + step)
    dims = tuple(range(1, weight.ndim))
    if step % 4 == 1 and dims:
        inner = (x * weight).sum(dims, keepdim=True)
        return x - weight * inner / weight.square().sum(dims, keepdim=True)
    if step % 4 == 2 and dims and weight.numel() > 1:
        return x - weight * (x * weight).sum() / weight.square().sum()
    return x + weight / 2


def _near(ours: Tensor, theirs: Tensor, first: Tensor) -> bool:
    size = max(first.abs().max().item(), theirs.abs().max().item(), 1.0)
    return bool((ours - theirs).abs().max() <= NEAR * size)
