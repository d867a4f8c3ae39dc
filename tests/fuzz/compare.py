"""A path differs where it is farther from the rule's own code than rounding of the inputs explains.

A few roundings of a tensor's largest entry are always allowed. Beyond them, the reference runs
again with weights, gradients, states and numbers each moved by one rounding error before every
step, up or down at random, entry by entry or a tensor at a time. An entry may lie `CONSTANT` times as far from the reference as the
farthest of these runs. A nan or inf must be in its place unless these runs disagree about it.

A difference that remains is marked "rounding of operations" if it is explained by runs that also
move the result of every operation: the path fuses or splits operations before a cancellation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.cases import STEPS, Case
from tests.fuzz.reference import Moment, Trajectory, reference

CONSTANT = 16
ROUNDINGS = 8
RUNS = (8, 24)
"""Few runs decide most cases; more of them catch decisions that rarely fall the other way."""


@dataclass(frozen=True)
class Difference:
    """The first entry that differs."""

    step: int
    place: str
    ours: float
    reference: float
    allowed: float
    of_operations: bool = False

    def __str__(self) -> str:
        kind = " (rounding of operations)" if self.of_operations else ""
        return (
            f"step {self.step}, {self.place}: {self.ours!r}, reference {self.reference!r}, "
            f"allowed {self.allowed:.2g}{kind}"
        )


def judge(case: Case, moments: list[Moment], wanted: Trajectory) -> tuple[str, Difference | None]:
    """("equal" or "explained", None), or ("different", the first difference)."""
    found = first_difference(moments, wanted, [])
    if found is None:
        return "equal", None
    runs: list[Trajectory] = []
    for more in RUNS:
        first = len(runs)
        runs += [reference(case, wanted.gradients, _nudge(first + i, case)) for i in range(more)]
        found = first_difference(moments, wanted, runs)
        if found is None:
            return "explained", None
    for run in range(RUNS[-1]):
        nudge = _nudge(-1 - run, case)
        with _Rounded(nudge):
            runs.append(reference(case, wanted.gradients, nudge))
    return "different", replace(
        found, of_operations=first_difference(moments, wanted, runs) is None
    )


def first_difference(
    moments: list[Moment], wanted: Trajectory, runs: list[Trajectory]
) -> Difference | None:
    for step in range(STEPS):
        for place, (weight, state) in wanted.moments[step].items():
            if place not in moments[step]:
                continue
            ours, our_state = moments[step][place]
            pairs = [("weight", ours, weight, [run.moments[step][place][0] for run in runs])]
            if our_state is not None:
                if our_state.keys() != state.keys():
                    return Difference(
                        step,
                        f"{place} has states {sorted(our_state)}, not {sorted(state)}",
                        0.0,
                        0.0,
                        0.0,
                    )
                pairs += [
                    (n, our_state[n], state[n], [run.moments[step][place][1][n] for run in runs])
                    for n in state
                ]
            for name, one, other, nudged in pairs:
                if one.shape != other.shape or one.dtype != other.dtype:
                    kinds = [f"{x.dtype} {tuple(x.shape)}" for x in (one, other)]
                    what = f"{name} {place} is {kinds[0]}, not {kinds[1]}"
                    return Difference(step, what, 0.0, 0.0, 0.0)
                wrong, allowed = _wrong(one, other, nudged)
                if wrong.any():
                    at = tuple(wrong.nonzero()[0].tolist())
                    return Difference(
                        step,
                        f"{name} {place} {at}",
                        one[at].item(),
                        other[at].item(),
                        allowed[at].item(),
                    )
    return None


def _wrong(one: Tensor, other: Tensor, nudged: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Which entries of `one` are too far from `other`, and how far each may be."""
    eps = torch.finfo(other.dtype).eps
    a, b, runs = one.double(), other.double(), [run.double() for run in nudged]
    finite = b.isfinite()
    scale = b[finite].abs().max() if finite.any() else 0.0
    spread = functools.reduce(torch.maximum, [(run - b).abs() for run in runs], torch.zeros_like(b))
    allowed = CONSTANT * spread + ROUNDINGS * (
        eps * scale + torch.finfo(other.dtype).smallest_normal * eps
    )
    unlike = ~_alike(a, b) | (finite & ~((a - b).abs() <= allowed))
    open_ = functools.reduce(
        torch.logical_or, [~_alike(run, b) for run in runs], torch.zeros_like(finite)
    )
    return unlike & ~open_, allowed


def _alike(a: Tensor, b: Tensor) -> Tensor:
    """Both finite, both nan, or the same infinity."""
    return (a.isfinite() & b.isfinite()) | (a.isnan() & b.isnan()) | (a.isinf() & (a == b))


def _nudge(run: int, case: Case) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1000003 * case.number + run)

    def nudge(x: Tensor) -> Tensor:
        """x (1 + eps), x or x (1 - eps); a subnormal moves by the smallest one.

        Entry by entry, or in every other run all entries of a tensor alike: signs that differ
        average out in a sum, of which they are not the worst rounding.
        """
        info = torch.finfo(x.dtype)
        shape = x.shape if run % 2 else ()
        sign = torch.randint(-1, 2, shape, generator=generator).to(x.dtype)
        by = sign * (x.abs() * info.eps + info.smallest_normal * info.eps)
        return torch.where((x == 0) | ~x.isfinite(), x, x + by)

    return nudge


class _Rounded(TorchDispatchMode):
    """Each operation that computes has its result moved by a rounding error."""

    COMPUTES = frozenset(
        (
            "add",
            "sub",
            "rsub",
            "mul",
            "div",
            "sqrt",
            "pow",
            "square",
            "lerp",
            "addcmul",
            "sum",
            "mm",
            "cos",
            "sinc",
        )
    )

    def __init__(self, nudge: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.nudge = nudge

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in self.COMPUTES and result.is_floating_point():
            return self.nudge(result)
        return result
