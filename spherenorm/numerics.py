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

from spherenorm import torch_internals
from spherenorm.torch_internals import in_functorch_transform, pytree

T = TypeVar("T")

Scalar = float | Tensor
"""A hyper-parameter: a Python number, or a 0-dim tensor (batched under vmap, or a symbol).

Example:
    >>> [type(sn.rules.StepSize(lr).lr).__name__ for lr in (1, 0.1, torch.tensor(0.1))]
    ['int', 'float', 'Tensor']
"""


def as_number(value: Any) -> Any:
    """Return a number of another type, such as numpy's or a Fraction, as a Python int or float.

    A rule then computes with it in double: 1 - np.float32(0.9) has single precision. Tuples and
    lists are searched. Arrays, and the sequences of configuration tools, become tuples; anything
    else stays as it is.

    Raises:
        ValueError: a number is too large for a float.
    """
    if type(value) in (float, bool, str):
        return value  # instance checks of abstract classes take longer than the rest of this
    if type(value) in (tuple, list):
        return type(value)(map(as_number, value))
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, tuple)):
        return tuple(map(as_number, value))
    if type(value) in (float, bool) or isinstance(value, Enum) or not isinstance(value, Real):
        return value
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("a number is larger than a float can be (1.8e308)") from None
    return int(value) if isinstance(value, int) else number


HALF_DTYPES = (torch.float16, torch.bfloat16)


def is_zero(value: Scalar) -> bool:
    """Return True for the Python number 0, whose term can be left out, and never for a tensor."""
    return not isinstance(value, Tensor) and value == 0


def is_finite(x: Tensor) -> Tensor:
    """Return True where `x` is neither infinite nor nan."""
    # Everything that reads a recorded step knows subtraction; few know `isfinite`.
    return (x - x) == 0


def without_overflow(squares: Tensor) -> Tensor:
    """Replace sums of squares that have overflowed by the largest number of their dtype.

    An average of inf and inf is nan, which the next division by it would write into the weight. A
    nan stays, so that a gradient that is not finite still shows.
    """
    largest = torch.finfo(squares.dtype).max
    is_number = squares.eq(squares)
    return torch.where(is_number & ~is_finite(squares), largest, squares)


def finite_or(ratio: Tensor, default: float) -> Tensor:
    """Replace a ratio of sums that have overflowed, such as inf / inf, by a number."""
    return torch.where(is_finite(ratio), ratio, default)


def eigh(matrix: Tensor, rule_name: str) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of a symmetric matrix, in float64.

    LAPACK's float32 fails on Gram matrices of low rank: it raises, or returns nan, in about one of
    ten with 64 rows and more. For a device without float64 they are computed on the CPU.

    Args:
        matrix: a symmetric matrix of shape (..., n, n).
        rule_name: the name of the rule in messages.

    Returns:
        Eigenvalues in rising order and eigenvectors in float64, on the matrix's device if that has
        float64, else on the CPU.

    Raises:
        torch.linalg.LinAlgError: the matrix holds inf or nan, or the iteration has not converged.
    """
    has_float64 = accumulation_dtype(matrix.device) is torch.float64
    matrix = matrix.double() if has_float64 else matrix.cpu().double()
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch_internals.LinAlgError as error:
        raise torch_internals.LinAlgError(
            f"{rule_name}: no eigenvectors of a second moment of shape {tuple(matrix.shape)}, "
            "since a gradient was inf or nan, or the iteration did not converge; skip steps whose "
            f"gradients are not finite ({error})"
        ) from error
    return values, vectors


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which rules step weights of `dtype`: float32 for half precision.

    In float16 an eps of 1e-8 is 0, and (1 - beta2) g^2 underflows.
    """
    # `torch.promote_types` would appear in the recorded step as an operation.
    return torch.float32 if dtype in HALF_DTYPES else dtype


def to_compute_dtype(x: Tensor) -> Tensor:
    """Return a weight or gradient in the dtype of its step; see `compute_dtype`."""
    return x.float() if x.dtype in HALF_DTYPES else x


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums and measurements: float64, where the device has it."""
    if device.type in ("cpu", "cuda", "meta"):
        return torch.float64
    return torch.float64 if _computes_in_float64(device) else torch.float32


@functools.cache
def _computes_in_float64(device: torch.device) -> bool:
    """Return whether an operation in float64 works on `device`; MPS and some XPU have none."""
    if device.type == "mps":
        return False
    try:
        # In FakeTensorMode every device would seem to have all dtypes.
        with torch_internals.disable_dispatch_modes():
            torch.zeros((), dtype=torch.float64, device=device).add(1)
    except (TypeError, RuntimeError):
        return False
    return True


_NO_CHANGE = nullcontext()


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context whose new tensors can be written to later, outside of inference mode."""
    # `inference_mode(False)` also turns gradients on, so callers need `no_grad` inside of it.
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NO_CHANGE


def default_device() -> torch.device:
    """Return the device on which torch makes tensors that name none."""
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.9 raises it after `torch.set_default_device(None)`
        return torch.device("cpu")


def to_accumulation_dtype(x: Tensor, device: torch.device) -> Tensor:
    """Return `x` on `device`, in the `accumulation_dtype` of that device."""
    dtype = accumulation_dtype(device)
    if dtype is torch.float64:
        return x.to(device).to(dtype)
    return x.to(dtype).to(device)  # a device without float64 cannot convert one


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which `torch.autocast` leaves operations on `device` alone.

    A step is a function of its arguments: autocast around it would round the products of Muon or
    SOAP to half precision.
    """
    if (
        not torch_internals.is_any_autocast_enabled()
    ):  # meta tensors, say, have no autocast to ask about
        return _NO_CHANGE
    try:
        enabled = torch.is_autocast_enabled(device.type)
    except RuntimeError:  # the device has no autocast, as meta has none
        return _NO_CHANGE
    return torch.autocast(device.type, enabled=False) if enabled else _NO_CHANGE


def mean(x: Tensor) -> Tensor:
    """Return the mean of all entries, also of a sharded tensor with shards of unequal size."""
    if hasattr(x, "device_mesh"):  # torch 2.9 weighs the means of its shards equally
        return x.sum() / x.numel()
    return x.mean()


def cast_like(value: Scalar, x: Tensor) -> Scalar:
    """Return a hyper-parameter or a counter in the dtype of `x` if it is a tensor.

    It would otherwise promote a 0-dim float32 weight, though not a longer one.
    """
    if isinstance(value, Tensor) and value.dtype != x.dtype:
        return value.to(x.dtype)
    return value


def cast_like_checked(old: Tensor, new: Any, source: str, what: str) -> Tensor:
    """Return `new` in the dtype of `old`.

    Args:
        old: a weight or a state.
        new: the value that a rule returns for it.
        source, what: the start of a message, as in "HeavyBall: 'momentum' must have shape (2,)".

    Raises:
        TypeError, ValueError: it has another shape, or a dtype that would lose more than precision.
    """
    if not isinstance(new, Tensor):
        raise TypeError(f"{source}: {what!r} must be a tensor, got {new!r}")
    if new.shape != old.shape:
        raise ValueError(
            f"{source}: {what!r} must have shape {tuple(old.shape)}, got {tuple(new.shape)}"
        )
    if new.dtype is old.dtype:
        return new
    if new.is_complex() or (new.is_floating_point() and not old.is_floating_point()):
        raise ValueError(f"{source}: {what!r} must be {old.dtype}, got {new.dtype}")
    return new.to(old.dtype)


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Return True if two tensors share their storage.

    Under torch.compile this can only tell if they are the same tensor.
    """
    if torch.compiler.is_compiling():
        return x is y
    return bool(torch_internals.is_alias(x, y))


def is_steppable(dtype: torch.dtype) -> bool:
    """Return True for real floats of 16 bits and more; torch has no arithmetic for shorter ones."""
    return dtype.is_floating_point and dtype.itemsize >= 2


def can_never_be_stepped(weight: Tensor) -> bool:
    """Return True for a frozen parameter of a dtype that cannot be stepped, as quantized ones have.

    A tensor that is no Parameter counts as trainable: torch's optimizers step it if it has a
    gradient.
    """
    is_frozen = isinstance(weight, Parameter) and not weight.requires_grad
    return is_frozen and not is_steppable(weight.dtype)


def refuse_unless_real(weight: Tensor, name: str) -> None:
    """Refuse a complex or integer weight: steps of an integer weight would be truncated.

    Args:
        weight: the weight to step.
        name: the name of the weight in messages.

    Raises:
        TypeError: the weight is no tensor, or complex, of integers, or of 8-bit floats.
    """
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(weight).__name__}")
    if not weight.is_floating_point():
        kind = "complex" if weight.is_complex() else "integer"
        raise TypeError(
            f"{name} is {kind} ({weight.dtype}); only real floating-point weights can be optimized"
        )
    if not is_steppable(weight.dtype):
        raise TypeError(
            f"{name} has {8 * weight.dtype.itemsize} bits ({weight.dtype}), in which torch has no "
            "arithmetic; keep the weight in bfloat16 or float32, and cast a copy for the product"
        )


def ema(average: Tensor, x: Tensor, beta: Scalar) -> Tensor:
    """Return beta average + (1 - beta) x, exactly `x` at beta = 0."""
    return torch.lerp(average, x, cast_like(1 - beta, average))


def ema_of_square(average: Tensor, x: Tensor, beta: Scalar) -> Tensor:
    """Return beta average + (1 - beta) x^2.

    As in torch.optim, x is multiplied by 1 - beta before it is squared, so that a float32 gradient
    of 1e20 gives 1e37 and not infinity.
    """
    if isinstance(beta, Tensor):
        average = cast_like(beta, average) * average
        return torch.addcmul(average, cast_like(1 - beta, x) * x, x)
    average = beta * average
    return torch.addcmul(average, x, x, value=1 - beta)


def add_scaled(x: Tensor, scale: Scalar, y: Tensor) -> Tensor:
    """Return x + scale y, and x itself at scale = 0, even where y is infinite.

    The derivative by a tensor `scale` is y, at 0 too: training of hyper-parameters may start there.
    """
    if not isinstance(scale, Tensor):
        return x if scale == 0 else torch.add(x, y, alpha=scale)
    is_off = scale == 0  # before the cast to x.dtype: 1e-300 is 0 in float32
    if derivatives_are_taken(scale):
        return torch.addcmul(x, scale.to(x.dtype), torch.where(is_off & ~is_finite(y), 0, y))
    return torch.where(is_off, x, torch.addcmul(x, scale.to(x.dtype), y))


def affine(scale: Scalar, x: Tensor, shift: Scalar) -> Tensor:
    """Return scale x + shift, in one operation where both are numbers."""
    if isinstance(scale, Tensor) and isinstance(shift, Tensor):
        # Rounds once, as the operation on numbers below does.
        return torch.addcmul(shift.to(x.dtype), scale.to(x.dtype), x)
    if isinstance(scale, Tensor) or isinstance(shift, Tensor):
        return cast_like(scale, x) * x + cast_like(shift, x)
    first: Any = shift  # torch.add takes a number here; its annotations leave that out
    return torch.add(first, x, alpha=scale)


def bias_correction(beta: Scalar, step: Tensor) -> Scalar:
    """Return Adam's bias correction 1 - beta^t: the sum of the weights in an EMA over t steps.

    It is a number where both can be read, since arithmetic of numbers costs no operation.
    """
    return bias_corrections(step, beta)[0]


def bias_corrections(step: Tensor, *betas: Scalar) -> list[Scalar]:
    """Return `bias_correction` for each of several `betas`; the step count is read once."""
    count = step.item() if readable_without_sync(step) else 0
    # A count below 1 (0**-1, say) gives infinity or nan in a tensor, where a number would raise.
    return [
        1 - (power(beta, step) if count < 1 or isinstance(beta, Tensor) else beta**count)
        for beta in betas
    ]


def power(base: Scalar, exponent: Tensor) -> Tensor:
    """Return base^exponent, for an exponent that counts from 1, as in beta^t.

    Torch has no second derivative at a base of 0, and no third one at 1e-300. A polynomial there
    has derivatives up to the fourth.
    """
    if not (isinstance(base, Tensor) and derivatives_are_taken(base)):
        return base**exponent
    is_tiny = base.abs() < 1e-60
    polynomial = sum(torch.where(exponent == k, base**k, 0) for k in range(1, 5))
    return torch.where(is_tiny, polynomial, torch.where(is_tiny, 1, base) ** exponent)


def safe_divide(inner: Tensor, squared_norm: Tensor) -> Tensor:
    """Return <w, x> / <w, w>, and the numerator itself where <w, w> is 0.

    The numerator of a projection is 0 there. A caller whose numerator is not 0, such as a target
    norm over the norm of a direction, multiplies by that direction, which is 0. The division by the
    exact <w, w>, instead of a norm plus eps, makes a projection exact at any scale of the weight at
    which <w, w> neither overflows nor underflows.
    """
    return inner / torch.where(squared_norm > 0, squared_norm, 1)


def safe_sqrt(x: Tensor) -> Tensor:
    """Return sqrt(x), with the derivative 0 at x = 0, where torch has an infinite one.

    The chain rule multiplies the infinite derivative by 0, which is nan.
    """
    if derivatives_are_taken(x):
        return torch.where(x == 0, 0, torch.where(x == 0, 1, x).sqrt())
    return x.sqrt()


def derivatives_are_taken(x: Tensor) -> bool:
    """Return True if a derivative by `x` may be taken; False in a step of an optimizer.

    Formulas that only serve derivatives cost operations, which kernels and laws do without.
    """
    # Compiled code may be differentiated later, so under torch.compile the answer is yes.
    if torch.compiler.is_compiling() or torch_internals.in_forward_mode():
        return True
    return torch.is_grad_enabled() and (x.requires_grad or in_functorch_transform())


def readable_without_sync(x: Tensor) -> bool:
    """Return True if Python may branch on the values of `x`, and reading them waits for no device.

    Under vmap, torch.compile and a recorder it may not: their steps hold for other values too.
    """
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.is_cpu
        and not x.requires_grad
        and not in_functorch_transform()
        and not torch_internals.count_dispatch_modes()
    )


def when(condition: Tensor, fresh: Callable[[], T], unchanged: T) -> T:
    """Return `fresh()` if a condition is true, else `unchanged`.

    This is for work that pays only every k steps, such as the roots of Shampoo. A step that runs as
    it is written reads the condition and does the work only if it is true (on a GPU, reading waits
    for the device). Under vmap over the condition, torch.compile and a recorder, whose steps hold
    for other values too, both are computed and one is selected: the numbers are the same.

    Args:
        condition: a 0-dim boolean, such as `state["step"] % 10 == 1`.
        fresh: computes tensors, in any nesting of lists, tuples and dicts.
        unchanged: tensors of the same nesting, shapes and dtypes.

    Raises:
        ValueError: `condition` is not 0-dim.

    Example:
        >>> when(torch.tensor(7.0) % 10 == 1, lambda: torch.ones(2), torch.zeros(2))
        tensor([0., 0.])
    """
    if not isinstance(condition, Tensor) or condition.ndim:
        value = tuple(condition.shape) if isinstance(condition, Tensor) else repr(condition)
        raise ValueError(f"when: condition must be a 0-dim tensor, got {value}")
    if is_concrete(condition):
        return fresh() if condition else unchanged
    selected: T = pytree.tree_map(
        lambda new, old: torch.where(condition, new, old), fresh(), unchanged
    )
    return selected


def is_concrete(condition: Tensor) -> bool:
    """Return True if Python may branch on a boolean: it has one value, and nothing records it."""
    if torch.compiler.is_compiling() or condition.is_meta or torch_internals.dispatch_modes():
        return False
    while torch_internals.is_functorch_tensor(condition):
        if torch_internals.is_batched(condition):
            return False
        condition = torch_internals.unwrap_functorch(condition)
    return True
