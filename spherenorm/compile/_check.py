"""Compare a path with the rule's own code once, on small random tensors, before it steps a weight.

A compiler may be wrong (torch 2.13's drops a factor), and a user's rule may take another branch on
a number than on a tensor that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spherenorm._numerics import working, working_dtype
from spherenorm._steps import init_apart
from spherenorm.core import Rule, State

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Of a step, relative to its length: far above rounding, far below a wrong formula."""
ROUNDINGS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 2, torch.float16: 2}
"""Of the result, on top; half precision is rounded once."""
RUNS = 8
"""Runs of the rule's own code on rounded inputs, where a result is farther off."""
ROUNDED = 16
"""Times the farthest of them that a result may be off."""


def small_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A small shape with the same zeros, ones, equal lengths and order of lengths."""
    lengths = sorted({length for length in shape if length > 1})
    return tuple(length if length < 2 else 2 + lengths.index(length) for length in shape)


def difference(
    rule: Rule,
    run: Callable[[Tensor, Tensor, State], None],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    negative: bool = False,
) -> str | None:
    """Step random weights by `run` and by the rule's own code, from a fresh state and a random one.

    Args:
        rule: the rule.
        run: steps (weight, gradient, state) in place.
        shape, dtype, device: of the weights.
        negative: `run` also takes a weight whose memory holds its negative; one of them does.

    Returns:
        Their distance in words, or None if rounding explains it.
    """
    # Drawn on a CPU, whatever the default device is.
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(kind: Callable[..., Tensor], *lengths: int) -> Tensor:
        return kind(lengths, generator=generator, dtype=torch.float64, device="cpu")

    for fresh in (True, False):
        start = draw(torch.randn, *shape).to(dtype).to(device)
        grad = draw(torch.randn, *shape).to(dtype).to(device)
        before = {name: value.clone() for name, value in init_apart(rule, start).items()}
        if not fresh:
            before = {
                name: _state(draw(torch.rand, *value.shape), value, whole=bool(shape))
                for name, value in before.items()
            }
        weight = torch._neg_view(-start) if negative and not fresh else start.clone()
        off = _step_difference(rule, run, weight, start, grad, before)
        if off is not None:
            return off
    return None


def _state(drawn: Tensor, like: Tensor, whole: bool) -> Tensor:
    """A positive state of random numbers, as second moments are; a counter that is whole."""
    counter = like.ndim == 0 and whole
    return (3 + (4 * drawn).round() if counter else drawn + 0.1).to(like)


def _step_difference(
    rule: Rule,
    run: Callable[[Tensor, Tensor, State], None],
    weight: Tensor,
    start: Tensor,
    grad: Tensor,
    before: State,
) -> str | None:
    """The distance between one step of `weight` by `run` and one of `start` by the rule's own code.

    Both hold the same values.
    """
    computed = working_dtype(start.dtype)  # a state of a half-precision weight is float32
    state = {name: value.clone() for name, value in before.items()}
    run(weight, grad.clone(), state)
    given = [start, grad, *before.values()]
    moved, new = rule.step(start, grad, before)
    cancelled = torch.finfo(computed).eps * max(map(_largest, given))
    moves = None
    for name, ours, theirs, old in (
        ("the weight", weight, moved, start),
        *((f"the state {n!r}", state[n], new[n], before[n]) for n in new),
    ):
        kept = start.dtype if theirs is moved else computed
        if _apart(ours, theirs, old, kept, cancelled) is None:
            continue
        moves = moves or _moves_by_rounding(rule, start, grad, before)
        off = _apart(ours, theirs, old, kept, cancelled + ROUNDED * moves[name])
        if off is not None:
            shape = tuple(start.shape)
            return f"{name} is off by {off} after one step of random weights of shape {shape}"
    return None


def _moves_by_rounding(rule: Rule, start: Tensor, grad: Tensor, before: State) -> dict[str, float]:
    """The distances by which roundings of the inputs move the results of the rule's own code.

    A unit that cannot move, such as one of one entry on a sphere, steps by nothing but roundings,
    which a preconditioner may enlarge.
    """
    generator = torch.Generator("cpu").manual_seed(1)

    def rounded(x: Tensor, by: float) -> Tensor:
        if not (x.ndim and x.is_floating_point()):
            return x  # a counter
        sign = torch.randint(-1, 2, x.shape, generator=generator, device="cpu").to(x.device)
        return x + by * sign * torch.finfo(x.dtype).eps * x.abs()

    def results(by: float) -> dict[str, Tensor]:
        state = {name: rounded(value, by) for name, value in before.items()}
        moved, new = rule.step(rounded(working(start), by), rounded(working(grad), by), state)
        return {"the weight": moved, **{f"the state {n!r}": value for n, value in new.items()}}

    exact = results(0)
    runs = [results(1) for _ in range(RUNS)]
    return {n: max(_largest(run[n].double() - exact[n]) for run in runs) for n in exact}


def _largest(x: Tensor) -> float:
    """The largest finite entry, without its sign."""
    return x.double().nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0.0


def _apart(
    ours: Tensor, theirs: Tensor, old: Tensor, dtype: torch.dtype, cancelled: float
) -> str | None:
    """The distance of `ours` from `theirs` in words, if rounding does not explain it.

    Args:
        dtype: what they are rounded to.
        cancelled: what terms leave that cancel out, such as the tangential part of a unit of one
            entry.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"its kind, {tuple(ours.shape)} of {ours.dtype}"
    if ours.dtype not in TOLERANCE:
        return None if torch.equal(ours, theirs) else "whole numbers"
    if not ours.numel():
        return None
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not (same | (ours.isfinite() & theirs.isfinite())).all():
        return "an infinity or a nan"
    ours, theirs, old = (x.double().where(theirs.isfinite(), 0) for x in (ours, theirs, old))
    old = old.nan_to_num(0, 0, 0)
    way, size = (theirs - old).abs().max(), torch.maximum(theirs.abs().max(), old.abs().max())
    gap = (ours - theirs).abs().max()
    rounding = ROUNDINGS[dtype] * torch.finfo(dtype).eps * size + cancelled
    if gap <= TOLERANCE[dtype] * way + rounding:
        return None
    return f"{gap.item():.1e}, on a way of {way.item():.1e}"
