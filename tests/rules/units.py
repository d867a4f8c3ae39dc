"""The units of a weight by the numbers of their indices, and what a rule makes of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import spherenorm as sn

LAYOUTS = ("contiguous", "transposed", "channels_last", "strided")
_SEEN: list[sn.Update] = []


def unit_numbers(shape: tuple[int, ...], view: str) -> np.ndarray:
    """The number of the unit in which each entry lies."""
    if view == "layer" or not shape:
        return np.zeros(shape, int)
    written = dict(part.split("=") for part in view.split(",") if "=" in part)
    dim = int(written.get("dim", 0))
    index, length = np.indices(shape)[dim], shape[dim]
    return index // max(length // int(written["groups"]), 1) if "groups" in written else index


def by_units(formula: Callable[..., Any], view: str, *arrays: np.ndarray) -> np.ndarray:
    """`formula` of the entries of each unit, as an array of the weight's shape.

    Args:
        formula: takes one array per array, of shape (..., entries of a unit).
        view: the name of a view.
        *arrays: of shape (..., *weight's shape); the first one has the weight's shape.
    """
    shape = arrays[0].shape
    numbers = unit_numbers(shape, view)
    result = np.zeros(shape)
    if result.size and not numbers.any():  # one unit
        flat = (x.reshape(*x.shape[: x.ndim - len(shape)], -1) for x in arrays)
        result.reshape(-1)[:] = formula(*flat)
        return result
    for number in range(numbers.max(initial=-1) + 1):
        place = numbers == number
        result[place] = formula(*(x[..., place] for x in arrays))
    return result


def rows(x: Tensor, view: str) -> Tensor:
    """One unit per row, differentiably."""
    numbers = torch.as_tensor(unit_numbers(tuple(x.shape), view))
    return torch.stack([x[numbers == number] for number in numbers.unique()])


def exact(x: Tensor) -> np.ndarray:
    """A copy in double precision."""
    return x.detach().double().clone().numpy()


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another order of memory."""
    if layout == "transposed" and x.ndim >= 2:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and x.ndim == 4:
        return x.to(memory_format=torch.channels_last)
    if layout in ("strided", "channels_last") and x.ndim:
        return torch.stack([x, x], -1)[..., 0]
    return x


class Seen(sn.Rule):
    """Keeps the update that reaches it."""

    def update(self, update, state):
        _SEEN.append(update)
        return update, state


def seen(rule: sn.Rule, weights: Iterable[Tensor], grads: Iterable[Tensor]) -> list[sn.Update]:
    """The update behind `rule` at each of several steps, each from a weight of its own."""
    chained, state, found = sn.chain(rule, Seen()), None, []
    for weight, grad in zip(weights, grads, strict=True):
        state = chained.init(weight) if state is None else state
        _, state = chained.step(weight, grad, state)
        found.append(_SEEN.pop())
        _SEEN.clear()
    return found


def applied(rule: sn.Rule, weight: Tensor, grad: Tensor) -> Tensor:
    """The direction behind `rule` in one step."""
    return seen(rule, [weight], [grad])[0].direction


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def close(found: Any, expected: Any, tol: float = 1e-12, size: float = 1.0, of: Any = "") -> None:
    """Compare with an error of `tol` of `size` in each entry; nan is not equal to anything."""
    found = exact(found) if isinstance(found, Tensor) else np.asarray(found)
    expected = exact(expected) if isinstance(expected, Tensor) else np.asarray(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape, of)
    off = np.abs(found - expected)
    worst = off.max(initial=0)  # nan where one of the two is nan
    assert worst <= tol * size, f"{of}: off by {worst} of {size}\n{found}\n{expected}"
