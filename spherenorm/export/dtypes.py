"""Join the records of a step in float64 and in float32 into one record for both dtypes.

Both are dtypes in which steps are computed (half precision is computed in float32). A constant that
differs between the records depends on the dtype:

    torch.where(mask, finfo.max, squared_norm)

A conversion of a tensor to its own dtype is no operation. One to float64 is therefore in the record
in float32 alone, and one to float32 in the record in float64 alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spherenorm.operations import of_overload
from spherenorm.record import Call, TensorRef
from spherenorm.torch_internals import pytree

WEIGHT_DTYPE = "weight.dtype"
FINFO = "finfo"
"""The variable that holds `torch.finfo(weight.dtype)`."""


class DifferentStepsError(ValueError):
    """The records differ in more than constants and conversions of dtypes."""


@dataclass(frozen=True)
class Pair:
    """A tensor, a number or another argument, as the two records have it."""

    double: Any
    single: Any


@dataclass(frozen=True, eq=False)
class JointCall:
    """An operation of both records.

    Attributes:
        call: the operation as one of the records has it; in float64, unless it is a conversion.
        arguments, options: positional and keyword arguments, with a `Pair` for each leaf.
        result: the `Pair` of the result, or several in a tuple or list.
        target_dtype: the dtype as text if the operation converts floats, else "".
    """

    call: Call
    arguments: Any
    options: Any
    result: Any
    target_dtype: str = ""

    @property
    def input_pairs(self) -> list[Pair]:
        """The pairs of tensors among the arguments."""
        return tensor_pairs((self.arguments, self.options))


def tensor_pairs(tree: Any) -> list[Pair]:
    """Return the pairs of tensors in nested arguments or results."""
    leaves = pytree.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, Pair) and isinstance(x.double, TensorRef)]


def dtype_text(dtypes: Pair) -> str:
    """Return the expression of a dtype; "" if there is none."""
    if dtypes.double is dtypes.single:
        return str(dtypes.double)
    return WEIGHT_DTYPE if dtypes == Pair(torch.float64, torch.float32) else ""


def join_calls(
    double: Sequence[Call],
    single: Sequence[Call],
    outputs: Iterable[Pair],
    inputs: Iterable[Pair],
    constants: tuple[Mapping[TensorRef, Any], Mapping[TensorRef, Any]],
) -> list[JointCall]:
    """Return the calls of two records in order.

    Args:
        double, single: the calls recorded in float64 and in float32.
        outputs: the results that are returned.
        inputs: the inputs.
        constants: the constants of the two records.

    Raises:
        DifferentStepsError: the records differ in more than constants and conversions.
    """  # fmt: skip
    joiner = _Joiner(double, single, inputs, constants)
    for output in outputs:
        joiner.pair(output.double, output.single)
    return [call for _, call in sorted(joiner.calls, key=lambda item: item[0])]


class _Joiner:
    def __init__(
        self, double: Sequence[Call], single: Sequence[Call], inputs: Iterable[Pair], constants: Any
    ) -> None:
        self.joined, self.constants = set(inputs), constants
        self.calls: list[tuple[float, JointCall]] = []
        """The calls, with the number of operations before them; conversions come half before."""
        self.conversions: list[dict[Any, tuple[float, Call]]] = []
        operations: list[list[Call]] = []
        for calls in (double, single):
            conversions: dict[Any, tuple[float, Call]] = {}
            unconverted: list[Call] = []
            for call in calls:
                if _converts_floats(call):
                    conversions[call.result] = len(unconverted) - 0.5, call
                else:
                    unconverted.append(call)
            self.conversions.append(conversions)
            operations.append(unconverted)
        names = [[call.name for call in calls] for calls in operations]
        if names[0] != names[1]:
            raise DifferentStepsError
        for i, (call, single_call) in enumerate(zip(*operations, strict=True)):
            arguments, options = self._join((call.arguments, call.options), single_call)
            result = pytree.tree_map(Pair, call.result, single_call.result)
            self.joined.update(tensor_pairs(result))
            self.calls.append((i, JointCall(call, arguments, options, result)))

    def _join(self, tree: Any, single_call: Call) -> Any:
        leaves, spec = pytree.tree_flatten(tree)
        single_leaves, single_spec = pytree.tree_flatten(
            (single_call.arguments, single_call.options)
        )
        if spec != single_spec:
            raise DifferentStepsError
        pairs = [self.pair(x, y) for x, y in zip(leaves, single_leaves, strict=True)]
        return pytree.tree_unflatten(pairs, spec)

    def pair(self, x: Any, y: Any) -> Pair:
        """Return the pair of a leaf in float64 and in float32; conversions become calls."""
        if isinstance(x, TensorRef) and not self._is_known(x, y):
            raise DifferentStepsError
        return Pair(x, y)

    def _is_known(self, x: TensorRef, y: TensorRef) -> bool:
        pair = Pair(x, y)
        if pair in self.joined:
            return True
        if x in self.constants[0] and y in self.constants[1]:
            return True
        target = dtype_text(Pair(x.dtype, y.dtype))
        if not target:
            return False
        double, single = self.conversions[0].get(x), self.conversions[1].get(y)
        # A record without the conversion has a tensor that is of the dtype already.
        for conversions in ((double, single), (None, single), (double, None)):
            present = [conversion for conversion in conversions if conversion is not None]
            if not present:
                continue
            sources = [
                ref if conversion is None else conversion[1].arguments[0]
                for ref, conversion in zip((x, y), conversions, strict=True)
            ]
            if self._is_known(*sources):
                self.joined.add(pair)
                position, call = present[-1]
                joint_call = JointCall(call, (Pair(*sources),), {}, pair, target)
                self.calls.append((position, joint_call))
                return True
        return False


def _converts_floats(call: Call) -> bool:
    row = of_overload(call.name)
    if row is None or row.name != "convert":
        return False
    source = call.arguments[0].dtype
    return bool(source.is_floating_point and call.result.dtype.is_floating_point)


_INFO = Pair(torch.finfo(torch.float64), torch.finfo(torch.float32))


def factors_of_finfo(double: Sequence[float], single: Sequence[float]) -> tuple[list[float], str]:
    """Return numbers as multiples of a number of `torch.finfo`, and that number as text.

    Args:
        double, single: the numbers in float64 and in float32, at several shapes.

    Returns:
        The factors at each shape, and the text; [] and "" if there is no such number.

    Example:
        >>> factors_of_finfo([torch.finfo(torch.float64).eps ** 0.5], [2**-11.5])
        ([1.0], 'finfo.eps ** 0.5')
    """
    for name in ("eps", "tiny", "max"):
        for power, suffix in ((1, ""), (0.5, " ** 0.5")):
            units = [getattr(info, name) ** power for info in (_INFO.double, _INFO.single)]
            factors = [x / units[0] for x in double]
            single_factors = [x / units[1] for x in single]
            pairs = zip(factors, single_factors, strict=True)
            if all(math.isfinite(x) and math.isclose(x, y, rel_tol=1e-13) for x, y in pairs):
                return factors, f"{FINFO}.{name}{suffix}"
    return [], ""
