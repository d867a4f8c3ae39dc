"""The functions that generated Triton kernels call; only they import it, as it needs Triton."""

# mypy: ignore-errors
# Triton's language has the syntax of Python and not its types.

import triton
import triton.language as tl

LANES = tl.constexpr(1024)


@triton.jit
def power(x, y):
    """x^y in float64, from exp and log, which Triton's interpreter has too.

    The relative error is |y log x| + 1 roundings at most, 1e-13 down to results of 1e-260, and what
    an optimizer subtracts from 1, beta^t, is off by less than one rounding of 1: z e^-z is at most
    1/e.
    """
    x, y = x.to(tl.float64), y.to(tl.float64)
    size = tl.exp(y * tl.log(tl.where(x == 0, 1.0, tl.abs(x))))
    whole = tl.floor(y) == y
    odd = tl.floor(y * 0.5) * 2.0 != y
    signed = tl.where(x < 0, tl.where(whole, tl.where(odd, -size, size), float("nan")), size)
    at_zero = tl.where(y > 0, 0.0, float("inf"))
    return tl.where(y == 0, 1.0, tl.where(x == 0, at_zero, signed))


@triton.jit
def log1p(x):
    """log(1 + x), from log, which Triton's interpreter has too.

    What the rounding of 1 + x takes from the logarithm the factor x / ((1 + x) - 1) gives back, to
    a few roundings (Higham 2002, Accuracy and Stability of Numerical Algorithms, Section 1.14.1).
    """
    one_more = 1.0 + x
    itself = (one_more == 1.0) | (one_more == float("inf"))
    added = tl.where(itself, 1.0, one_more - 1.0)
    return tl.where(itself, x, tl.log(one_more) * (x / added))


@triton.jit
def total_sum(slots, count, stride: tl.constexpr):
    """The sum of `count` float64 values, `stride` apart; their number fixes its order."""
    lane = tl.arange(0, LANES)
    sums = tl.zeros([LANES], tl.float64)
    for first in range(0, count, LANES):
        sums += tl.load(slots + (first + lane) * stride, mask=first + lane < count, other=0.0)
    return tl.sum(sums, axis=0)


@triton.jit
def total_any(slots, count, stride: tl.constexpr):
    """True if one of `count` truths, kept as 0 and 1, holds."""
    return total_sum(slots, count, stride) != 0


@triton.jit
def totals(shape, partial, result, columns: tl.constexpr, reductions: tl.constexpr):
    """The sums of what a weight's programs have left, for each of its reductions.

    `shape` begins at the column of the first program, which that of their number follows.
    """
    tensor, k = tl.program_id(0) // reductions, tl.program_id(0) % reductions
    shape += tensor * columns
    slots, count = partial + tl.load(shape) * reductions + k, tl.load(shape + 1)
    tl.store(result + tensor * reductions + k, total_sum(slots, count, reductions))
