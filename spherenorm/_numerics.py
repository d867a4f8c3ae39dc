"""Arithmetic that rules share: each formula once, equal for Python numbers and for tensors."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

T = TypeVar("T")

Scalar = float | Tensor
"""A hyper-parameter: a Python number, or a 0-dim tensor (batched under vmap, or a symbol).

Example:
    >>> [type(sn.rules.StepSize(lr).lr).__name__ for lr in (1, 0.1, torch.tensor(0.1))]
    ['int', 'float', 'Tensor']
"""


def as_number(value: Any) -> Any:
    """A number of another type, such as numpy's or a Fraction, as a Python int or float.

    A rule then computes with it in double: 1 - np.float32(0.9) has single precision. Tuples and
    lists are searched; anything else stays as it is.
    """
    if type(value) in (tuple, list):
        return type(value)(map(as_number, value))
    if isinstance(value, np.generic):
        value = value.item()
    # A tuple of types, since torch.compile takes no union before torch 2.13.
    other = isinstance(value, Real) and not isinstance(value, (int, float))
    return float(value) if other else value


HALF = (torch.float16, torch.bfloat16)


def is_zero(value: Scalar) -> bool:
    """Tell the Python number 0, whose term can be left out, from the rest; a tensor never is 0."""
    return not isinstance(value, Tensor) and value == 0


def is_finite(x: Tensor) -> Tensor:
    """True where `x` is neither infinite nor nan: x - x = 0 (which every reader of a step has)."""
    return (x - x) == 0


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that rules compute in for weights of type `dtype`: float32 for half precision.

    In float16 an eps of 1e-8 is 0, and (1 - beta2) g^2 underflows.
    """
    # (`torch.promote_types` would be an operation of the step that a recorder sees.)
    return torch.float32 if dtype in HALF else dtype


def working(x: Tensor) -> Tensor:
    """`x` in the type that rules compute in; see `working_dtype`."""
    return x.float() if x.dtype in HALF else x


def wide_dtype(device: torch.device) -> torch.dtype:
    """The type that measurements are computed in: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def cast_like(value: Scalar, x: Tensor) -> Scalar:
    """A tensor among hyper-parameters and counters in the dtype of `x`.

    A 0-dim float32 weight would otherwise be promoted by it, where a longer one is not.
    """
    if isinstance(value, Tensor) and value.dtype != x.dtype:
        return value.to(x.dtype)
    return value


def like(old: Tensor, new: Any, whose: str, what: str) -> Tensor:
    """`new` in the dtype of `old`.

    Args:
        whose, what: of the message, as in "HeavyBall: momentum must have shape (2,), got (3,)".

    Raises:
        TypeError, ValueError: it has another shape, or a dtype that would lose more than precision.
    """
    if not isinstance(new, Tensor):
        raise TypeError(f"{whose}: {what!r} must be a tensor, got {new!r}")
    if new.shape != old.shape:
        shapes = f"{tuple(old.shape)}, got {tuple(new.shape)}"
        raise ValueError(f"{whose}: {what!r} must have shape {shapes}")
    if new.dtype is old.dtype:
        return new
    if new.is_complex() or (new.is_floating_point() and not old.is_floating_point()):
        raise ValueError(f"{whose}: {what!r} must be {old.dtype}, got {new.dtype}")
    return new.to(old.dtype)


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """True if one is a view of the other, as far as known: of values under torch.compile, if one
    is the other."""
    alias = torch._C._is_alias_of  # type: ignore[attr-defined]
    return x is y if torch.compiler.is_compiling() else alias(x, y)


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Refuse a complex or integer weight: steps of an integer weight would be truncated.

    Raises:
        TypeError: the weight is no tensor, or complex, or of integers; it is called `what`.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(weight).__name__}")
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        only = "only real floating-point weights can be optimized"
        raise TypeError(f"{what} is {kind} ({weight.dtype}); {only}")


def averaged(past: Tensor, entering: Tensor, beta: Scalar) -> Tensor:
    """beta past + (1 - beta) entering, exactly `entering` at beta = 0."""
    return torch.lerp(past, entering, cast_like(1 - beta, past))


def averaged_square(past: Tensor, entering: Tensor, beta: Scalar) -> Tensor:
    """beta past + (1 - beta) entering^2.

    As torch.optim does, 1 - beta is multiplied by the entering value before that is squared, so
    that a float32 gradient of 1e20 gives 1e37 and not infinity.
    """
    if isinstance(beta, Tensor):
        past = cast_like(beta, past) * past
        return torch.addcmul(past, cast_like(1 - beta, entering) * entering, entering)
    past = beta * past
    return torch.addcmul(past, entering, entering, value=1 - beta)


def plus_scaled(x: Tensor, scale: Scalar, y: Tensor) -> Tensor:
    """x + scale y, and x itself at scale = 0, even where y is infinite.

    The derivative by a tensor `scale` is y, at 0 too: training of hyper-parameters may start there.
    """
    if not isinstance(scale, Tensor):
        return x if scale == 0 else torch.add(x, y, alpha=scale)
    off = scale == 0  # as it was given: a float32 has none but 0 for 1e-300
    if derivatives_are_taken(scale):
        return torch.addcmul(x, scale.to(x.dtype), torch.where(off & ~is_finite(y), 0, y))
    return torch.where(off, x, torch.addcmul(x, scale.to(x.dtype), y))


def scaled_plus(scale: Scalar, x: Tensor, shift: Scalar) -> Tensor:
    """scale x + shift, as one operation where both are numbers."""
    if isinstance(scale, Tensor) or isinstance(shift, Tensor):
        return cast_like(scale, x) * x + cast_like(shift, x)
    added: Any = shift  # (torch takes a number here, which its annotations leave out)
    return torch.add(added, x, alpha=scale)


def total_share(beta: Scalar, step: Tensor) -> Scalar:
    """1 - beta^t, the sum of the weights in an average over t steps: Adam's bias correction.

    It is a number where both can be read, since arithmetic of numbers costs no operation.
    """
    return total_shares(step, beta)[0]


def total_shares(step: Tensor, *betas: Scalar) -> list[Scalar]:
    """`total_share` of each of several `betas`; the step is read once."""
    count = step.item() if readable(step) else 0
    # Of a count below 1, a tensor is infinite or nan where a number raises.
    return [
        1 - (power(beta, step) if count < 1 or isinstance(beta, Tensor) else beta**count)
        for beta in betas
    ]


def power(base: Scalar, exponent: Tensor) -> Tensor:
    """base^exponent, for an exponent that counts from 1: the share of a past that old.

    Torch has no derivative of second order at a base of 0, nor of third at 1e-300: there a
    polynomial has those up to the fourth.
    """
    if not (isinstance(base, Tensor) and derivatives_are_taken(base)):
        return base**exponent
    tiny = base.abs() < 1e-60
    near_zero = sum(torch.where(exponent == k, base**k, 0) for k in range(1, 5))
    return torch.where(tiny, near_zero, torch.where(tiny, 1, base) ** exponent)


def ratio(inner: Tensor, squared_norm: Tensor) -> Tensor:
    """<w, x> / <w, w>, 0 where w is.

    The division by the exact <w, w>, instead of a norm plus eps, makes a projection exact at any
    scale of the weight at which <w, w> neither overflows nor underflows.
    """
    return inner / torch.where(squared_norm > 0, squared_norm, 1)


def root(x: Tensor) -> Tensor:
    """sqrt(x), with the derivative 0 at 0, where torch has an infinite one.

    An infinite derivative makes nan of a chain rule's 0.
    """
    if derivatives_are_taken(x):
        return torch.where(x == 0, 0, torch.where(x == 0, 1, x).sqrt())
    return x.sqrt()


def derivatives_are_taken(x: Tensor) -> bool:
    """True unless no derivative by `x` can be asked for, as in a step of an optimizer.

    Formulas that only serve derivatives cost operations, which kernels and laws need not have.
    """
    # (Derivatives in forward mode are taken under `no_grad` too. Of compiled code we cannot know.)
    if torch.compiler.is_compiling() or torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and (x.requires_grad or _is_transformed())


def readable(x: Tensor) -> bool:
    """True if the values of `x` may decide what runs, and reading them waits for no device.

    They may not where a step holds for other values too: in vmap, torch.compile and a recorder.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.is_cpu
        and not x.requires_grad
        and not _is_transformed()
        and not torch._C._len_torch_dispatch_stack()
    )


def _is_transformed() -> bool:
    """True within a transform of torch.func, such as vmap."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def when(condition: Tensor, fresh: Callable[[], T], kept: T) -> T:
    """`fresh()` where `condition` holds, `kept` where it does not.

    For work that is worth while every k steps, such as the roots of Shampoo. A step that runs as it
    is written reads the condition and does the work only if it holds (on a GPU, reading waits for
    the device). Under vmap over the condition, torch.compile and a recorder, whose steps hold for
    other values too, both are computed and one is chosen: the numbers are the same.

    Args:
        condition: 0-dim truth value, such as `update.step % 10 == 1`.
        fresh: computes tensors, in any nesting of lists, tuples and dicts.
        kept: tensors of the same nesting, shapes and dtypes.

    Raises:
        ValueError: `condition` is not 0-dim.

    Example:
        >>> when(torch.tensor(7.0) % 10 == 1, lambda: torch.ones(2), torch.zeros(2))
        tensor([0., 0.])
    """
    if not isinstance(condition, Tensor) or condition.ndim:
        shape = tuple(condition.shape) if isinstance(condition, Tensor) else repr(condition)
        raise ValueError(f"when: condition must be a 0-dim tensor, got {shape}")
    if can_decide(condition):
        return fresh() if condition else kept
    chosen: T = pytree.tree_map(lambda new, old: torch.where(condition, new, old), fresh(), kept)
    return chosen


def can_decide(condition: Tensor) -> bool:
    """True if the value may decide what runs: it is one, and no recorder is at work."""
    if torch.compiler.is_compiling() or condition.is_meta or _get_current_dispatch_mode_stack():
        return False
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(condition):
        if functorch.is_batchedtensor(condition):
            return False
        condition = functorch.get_unwrapped(condition)
    return True
