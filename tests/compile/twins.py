"""Two optimizers on equal weights: one runs the rule's own code, and the other must agree."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import spherenorm as sn
from tests.harness import FAMILIES, gradient

ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2**-7}
"""Relative to the largest entry: float64 as the oracles elsewhere, others to a few roundings."""


def drawn(shapes: Iterable[Sequence[int]], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


class Twins:
    """Equal weights, stepped by the rule's own code (`own`) and on another path (`fast`).

    Args:
        make: an optimizer of weights, with a backend.
        start: the weights.
        lay_out: the weights of one of the two, from tensors that nobody else has.
    """

    def __init__(
        self,
        make: Callable[..., Optimizer],
        start: Iterable[Tensor],
        backend: str = "compiled",
        lay_out: Callable[[list[Tensor]], list[Tensor]] = list,
    ) -> None:
        start = list(start)
        self.own, self.fast = (
            [w.requires_grad_() for w in lay_out([w.clone() for w in start])] for _ in range(2)
        )
        with warnings.catch_warnings():  # of weights that do not suit a sphere
            warnings.simplefilter("ignore", UserWarning)
            self.own_opt = make(self.own, backend="rule")
            self.fast_opt = make(self.fast, backend=backend)
        self.largest = 0.0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.own, self.fast, strict=True)

    def step(
        self,
        family: str | None = None,
        step: int = 0,
        scale: float = 1.0,
        given: Callable[[Tensor, int], Tensor] = lambda grad, place: grad,
        on: AbstractContextManager[Any] | None = None,
    ) -> None:
        """One step of both; without a family each weight has its own, another one at each step.

        Args:
            given: the gradient of the weight at a place, as the optimizers get it.
            on: active while the fast one steps.
        """
        generator = torch.Generator().manual_seed(100 + step)
        for place, (own, fast) in enumerate(self):
            kind = family or FAMILIES[(place + step) % len(FAMILIES)]
            if own.ndim < 2 or not own.numel():
                kind = "random"
            grad = gradient(kind, own.detach().double(), generator, step) * scale
            own.grad, fast.grad = (given(grad.to(own.dtype), place) for _ in range(2))
            self.largest = max(self.largest, own.grad.abs().max().item() if own.numel() else 0)
        self.own_opt.step()
        with on or nullcontext():
            self.fast_opt.step()

    def agree(self, equal_nan: bool = False) -> None:
        # What cancels out leaves rounding of a gradient, in a state that may be quadratic in it.
        cancelled = min(self.largest, self.largest**2)
        for place, (own, fast) in enumerate(self):
            states = self.own_opt.state[own], self.fast_opt.state[fast]
            assert states[0].keys() == states[1].keys()
            assert_close(fast.detach(), own.detach(), equal_nan, f"weight {place}")
            for name, value in states[0].items():
                what = f"state {name!r} of weight {place}"
                assert_close(states[1][name], value, equal_nan, what, cancelled)

    @property
    def paths(self) -> set[str]:
        return paths(self.fast_opt)


def paths(optimizer: Any) -> set[str]:
    """The paths of all weights with entries."""
    return {line.path for line in sn.explain(optimizer) if 0 not in line.shape}


def assert_close(
    ours: Tensor, theirs: Tensor, equal_nan: bool = False, what: str = "", least: float = 0.0
) -> None:
    """Equal up to roundings of the largest entry, or of `least`."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    largest = theirs.double().nan_to_num(0, 0, 0).abs().max().item() if theirs.numel() else 0.0
    rounding = ROUNDING.get(theirs.dtype, 0.0)
    torch.testing.assert_close(
        ours,
        theirs,
        rtol=rounding,
        atol=rounding * max(largest, least),
        equal_nan=equal_nan,
        msg=lambda said: f"{what}: {said}",
    )
