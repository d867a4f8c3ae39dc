"""Arithmetic that rules share: each formula once, equal for Python numbers and for tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

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
    lists are searched. Arrays, and the sequences of configuration tools, become tuples; anything
    else stays as it is.

    Raises:
        ValueError: a number is too large for a float.
    """
    if type(value) in (tuple, list):
        return type(value)(map(as_number, value))
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return tuple(map(as_number, value))
    plain = type(value) in (float, bool) or isinstance(value, Enum)
    if plain or not isinstance(value, Real):
        return value
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("a number is larger than a float can be (1.8e308)") from None
    return int(value) if isinstance(value, int) else number


HALF_DTYPES = (torch.float16, torch.bfloat16)


def is_zero(value: Scalar) -> bool:
    """Tell the Python number 0, whose term can be left out, from the rest; a tensor never is 0."""
    return not isinstance(value, Tensor) and value == 0


def is_finite(x: Tensor) -> Tensor:
    """True where `x` is neither infinite nor nan: x - x = 0 (which every reader of a step has)."""
    return (x - x) == 0


def without_overflow(squares: Tensor) -> Tensor:
    """Replace sums of squares that have overflowed by the largest number of their dtype.

    An average of inf and inf is nan, which the next division by it would write into the weight. A
    nan stays, so that a gradient that is not finite still shows.
    """
    largest = torch.finfo(squares.dtype).max
    return torch.where(is_finite(squares) | squares.ne(squares), squares, largest)


def finite_or(scale: Tensor, instead: float) -> Tensor:
    """Replace a ratio of sums that have overflowed, such as inf / inf, by a number."""
    return torch.where(is_finite(scale), scale, instead)


def eigh(matrix: Tensor, whose: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues in rising order, and eigenvectors, of a symmetric matrix, in float64.

    LAPACK's float32 fails on Gram matrices of low rank: it raises, or returns nan, in about one of
    ten with 64 rows and more. A device without float64 has them computed on the host.

    Args:
        matrix: of shape (..., n, n).
        whose: the rule, for the message.

    Returns:
        Eigenvalues and eigenvectors in float64, on the matrix's device if that has float64.

    Raises:
        torch.linalg.LinAlgError: the matrix holds inf or nan, or the iteration has not converged.
    """
    has_float64 = accumulation_dtype(matrix.device) is torch.float64
    matrix = matrix.double() if has_float64 else matrix.cpu().double()
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch._C._LinAlgError as error:
        raise torch._C._LinAlgError(
            f"{whose}: no eigenvectors of a second moment of shape {tuple(matrix.shape)}, since "
            "a gradient was inf or nan, or the iteration did not converge; skip steps whose "
            f"gradients are not finite ({error})"
        ) from error
    return values, vectors


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that rules compute in for weights of type `dtype`: float32 for half precision.

    In float16 an eps of 1e-8 is 0, and (1 - beta2) g^2 underflows.
    """
    # (`torch.promote_types` would be an operation of the step that a recorder sees.)
    return torch.float32 if dtype in HALF_DTYPES else dtype


def to_compute_dtype(x: Tensor) -> Tensor:
    """`x` in the type that rules compute in; see `working_dtype`."""
    return x.float() if x.dtype in HALF_DTYPES else x


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The type that measurements are computed in: float64, where the device has it."""
    if device.type in ("cpu", "cuda", "meta"):
        return torch.float64
    return torch.float64 if _computes_in_float64(device) else torch.float32


@functools.cache
def _computes_in_float64(device: torch.device) -> bool:
    """Return whether an operation in float64 works on `device`; MPS and some XPU have none."""
    if device.type == "mps":
        return False
    try:
        # Outside of FakeTensorMode and the like, in which every device seems to have all dtypes.
        with _disable_current_modes():
            torch.zeros((), dtype=torch.float64, device=device).add(1)
    except (TypeError, RuntimeError):
        return False
    return True


_NO_CHANGE = nullcontext()


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context whose new tensors can be written to later, outside of inference mode."""
    # (`inference_mode(False)` also turns gradients on, so that its users write `no_grad` inside.)
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NO_CHANGE


def to_accumulation_dtype(x: Tensor, device: torch.device) -> Tensor:
    """Return `x` on `device` in its `wide_dtype`."""
    dtype = accumulation_dtype(device)
    if dtype is torch.float64:
        return x.to(device).to(dtype)
    return x.to(dtype).to(device)  # a device without float64 cannot convert one


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which `torch.autocast` leaves operations on `device` alone.

    A step is a function of its arguments: autocast around it would round the products of Muon or
    SOAP to half precision.
    """
    if not torch._C._is_any_autocast_enabled():  # meta tensors, say, have no autocast to ask about
        return _NO_CHANGE
    try:
        enabled = torch.is_autocast_enabled(device.type)
    except RuntimeError:
        return _NO_CHANGE
    return torch.autocast(device.type, enabled=False) if enabled else _NO_CHANGE


def cast_like(value: Scalar, x: Tensor) -> Scalar:
    """A tensor among hyper-parameters and counters in the dtype of `x`.

    A 0-dim float32 weight would otherwise be promoted by it, where a longer one is not.
    """
    if isinstance(value, Tensor) and value.dtype != x.dtype:
        return value.to(x.dtype)
    return value


def cast_like_checked(old: Tensor, new: Any, whose: str, what: str) -> Tensor:
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


def is_steppable(dtype: torch.dtype) -> bool:
    """True of real floats of 16 bits and more; torch has no arithmetic for shorter ones."""
    return dtype.is_floating_point and dtype.itemsize >= 2


def can_never_be_stepped(weight: Tensor) -> bool:
    """True of a frozen parameter of a type in which no step exists, as quantized ones have.

    (A tensor that is no Parameter is not frozen: torch's optimizers step it if it has a gradient.)
    """
    frozen = isinstance(weight, Parameter) and not weight.requires_grad
    return frozen and not is_steppable(weight.dtype)


def refuse_unless_real(weight: Tensor, what: str) -> None:
    """Refuse a complex or integer weight: steps of an integer weight would be truncated.

    Raises:
        TypeError: the weight is no tensor, or complex, of integers, or of 8-bit floats; it is
            called `what`.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(weight).__name__}")
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        only = "only real floating-point weights can be optimized"
        raise TypeError(f"{what} is {kind} ({weight.dtype}); {only}")
    if not is_steppable(weight.dtype):
        raise TypeError(
            f"{what} has {8 * weight.dtype.itemsize} bits ({weight.dtype}), in which torch has no "
            "arithmetic; keep the weight in bfloat16 or float32, and cast a copy for the product"
        )


def ema(past: Tensor, entering: Tensor, beta: Scalar) -> Tensor:
    """beta past + (1 - beta) entering, exactly `entering` at beta = 0."""
    return torch.lerp(past, entering, cast_like(1 - beta, past))


def ema_of_square(past: Tensor, entering: Tensor, beta: Scalar) -> Tensor:
    """beta past + (1 - beta) entering^2.

    As torch.optim does, 1 - beta is multiplied by the entering value before that is squared, so
    that a float32 gradient of 1e20 gives 1e37 and not infinity.
    """
    if isinstance(beta, Tensor):
        past = cast_like(beta, past) * past
        return torch.addcmul(past, cast_like(1 - beta, entering) * entering, entering)
    past = beta * past
    return torch.addcmul(past, entering, entering, value=1 - beta)


def add_scaled(x: Tensor, scale: Scalar, y: Tensor) -> Tensor:
    """x + scale y, and x itself at scale = 0, even where y is infinite.

    The derivative by a tensor `scale` is y, at 0 too: training of hyper-parameters may start there.
    """
    if not isinstance(scale, Tensor):
        return x if scale == 0 else torch.add(x, y, alpha=scale)
    off = scale == 0  # as it was given: a float32 has none but 0 for 1e-300
    if derivatives_are_taken(scale):
        return torch.addcmul(x, scale.to(x.dtype), torch.where(off & ~is_finite(y), 0, y))
    return torch.where(off, x, torch.addcmul(x, scale.to(x.dtype), y))


def affine(scale: Scalar, x: Tensor, shift: Scalar) -> Tensor:
    """scale x + shift, as one operation where both are numbers."""
    if isinstance(scale, Tensor) or isinstance(shift, Tensor):
        return cast_like(scale, x) * x + cast_like(shift, x)
    added: Any = shift  # (torch takes a number here, which its annotations leave out)
    return torch.add(added, x, alpha=scale)


def bias_correction(beta: Scalar, step: Tensor) -> Scalar:
    """1 - beta^t, the sum of the weights in an average over t steps: Adam's bias correction.

    It is a number where both can be read, since arithmetic of numbers costs no operation.
    """
    return bias_corrections(step, beta)[0]


def bias_corrections(step: Tensor, *betas: Scalar) -> list[Scalar]:
    """`total_share` of each of several `betas`; the step is read once."""
    count = step.item() if readable_without_sync(step) else 0
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


def safe_divide(inner: Tensor, squared_norm: Tensor) -> Tensor:
    """<w, x> / <w, w>, and the numerator itself where <w, w> is 0.

    The numerator of a projection is 0 there. A caller whose numerator is not 0, such as a target
    norm over the norm of a direction, multiplies by that direction, which is 0. The division by the
    exact <w, w>, instead of a norm plus eps, makes a projection exact at any scale of the weight at
    which <w, w> neither overflows nor underflows.
    """
    return inner / torch.where(squared_norm > 0, squared_norm, 1)


def safe_sqrt(x: Tensor) -> Tensor:
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


def readable_without_sync(x: Tensor) -> bool:
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
        condition: 0-dim truth value, such as `state["step"] % 10 == 1`.
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
    if is_concrete(condition):
        return fresh() if condition else kept
    chosen: T = pytree.tree_map(lambda new, old: torch.where(condition, new, old), fresh(), kept)
    return chosen


def is_concrete(condition: Tensor) -> bool:
    """True if the value may decide what runs: it is one, and no recorder is at work."""
    if torch.compiler.is_compiling() or condition.is_meta or _get_current_dispatch_mode_stack():
        return False
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(condition):
        if functorch.is_batchedtensor(condition):
            return False
        condition = functorch.get_unwrapped(condition)
    return True
