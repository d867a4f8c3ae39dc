"""Compare a step with the rule's own code once, on small random weights, before it moves one.

A compiler may be wrong, and a user's rule may take another branch on a number than on a tensor that
stands for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spherenorm.numerics import compute_dtype
from spherenorm.rule import Rule, State, trial_state

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Of a step, relative to its length: far above rounding, far below a wrong formula."""
ROUNDINGS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 2, torch.float16: 2}
"""Of the result, on top; half precision is rounded once."""


def small_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A small shape with the same equal lengths and order of lengths; none is below 3.

    (A unit of one entry, or none, has steps that are nothing but rounding on a sphere.)
    """
    lengths = sorted(set(shape))
    return tuple(3 + lengths.index(length) for length in shape)


def difference(
    rule: Rule,
    run: Callable[[Tensor, Tensor, State], None],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> str | None:
    """Step random weights by `run` and by the rule's own code.

    From a fresh state with tangential rows, then with a radial one among them, both of which a
    wrong projection does not pass; and from a random state.

    Args:
        rule: the rule.
        run: steps (weight, gradient, state) in place.
        shape, dtype, device: of the weights.

    Returns:
        Their distance in words, or None if rounding explains it.
    """
    # Drawn on a CPU, whatever the default device is.
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(kind: Callable[..., Tensor], *lengths: int) -> Tensor:
        return kind(lengths, generator=generator, dtype=torch.float64, device="cpu")

    for fresh, radial in ((True, 0.0), (True, 9.0), (False, 1.0)):
        weight, grad = draw(torch.randn, *shape), draw(torch.randn, *shape)
        if fresh and weight.ndim > 1:
            rows = tuple(range(1, weight.ndim))
            along = (weight * grad).sum(rows, True) / weight.square().sum(rows, True) * weight
            grad -= along
            grad[:1] += radial * along[:1]
        start, grad = weight.to(dtype).to(device), grad.to(dtype).to(device)
        before = {name: value.clone() for name, value in trial_state(rule, start).items()}
        if not fresh:
            before = {
                name: _state(draw(torch.rand, *value.shape), value, whole=bool(shape))
                for name, value in before.items()
            }
        off = _step_difference(rule, run, start, grad, before)
        if off is not None:
            return off
    return None


def _state(drawn: Tensor, like: Tensor, whole: bool) -> Tensor:
    """A positive state of random numbers, as second moments are; a counter that is whole."""
    counter = like.ndim == 0 and whole
    values = 3 + (4 * drawn).round() if counter else drawn + 0.1
    return values.to(like.dtype).to(like.device)


def _step_difference(
    rule: Rule, run: Callable[[Tensor, Tensor, State], None], start: Tensor, grad: Tensor,
    before: State,
) -> str | None:  # fmt: skip
    """The distance between one step by `run` and one by the rule's own code."""
    computed = compute_dtype(start.dtype)  # a state of a half-precision weight is float32
    weight, state = start.clone(), {name: value.clone() for name, value in before.items()}
    run(weight, grad.clone(), state)
    moved, new = rule.step(start, grad, before)
    given = [start, grad, *before.values()]
    cancelled = torch.finfo(computed).eps * max(
        (x.cpu().double().abs().max().item() for x in given if x.numel()), default=0.0
    )
    for name, ours, theirs, old in (
        ("the weight", weight, moved, start),
        *((f"the state {n!r}", state[n], new[n], before[n]) for n in new),
    ):
        off = _apart(ours, theirs, old, start.dtype if theirs is moved else computed, cancelled)
        if off is not None:
            shape = tuple(start.shape)
            return f"{name} is off by {off} after one step of random weights of shape {shape}"
    return None


def _apart(
    ours: Tensor, theirs: Tensor, old: Tensor, dtype: torch.dtype, cancelled: float
) -> str | None:
    """The distance of `ours` from `theirs` in words, if rounding does not explain it.

    Args:
        dtype: what they are rounded to.
        cancelled: what terms leave that cancel out, such as the tangential part of a radial row.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"its kind, {tuple(ours.shape)} of {ours.dtype}"
    ours, theirs, old = ours.cpu(), theirs.cpu(), old.cpu()  # a device may have no float64
    if ours.dtype not in TOLERANCE:
        return None if torch.equal(ours, theirs) else "whole numbers"
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not (same | (ours.isfinite() & theirs.isfinite())).all():
        return "an infinity or a nan"
    ours, theirs, old = (x.double().where(theirs.isfinite(), 0) for x in (ours, theirs, old))
    if not ours.numel():
        return None
    way, size = (theirs - old).abs().max(), torch.maximum(theirs.abs().max(), old.abs().max())
    gap = (ours - theirs).abs().max()
    rounding = ROUNDINGS[dtype] * torch.finfo(dtype).eps * size + cancelled
    if gap <= TOLERANCE[dtype] * way + rounding:
        return None
    return f"{gap.item():.1e}, on a way of {way.item():.1e}"
