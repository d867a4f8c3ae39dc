"""Rounding errors for runs of the reference: in inputs, in the order of sums, in operations."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.cases import Case
from tests.fuzz.reference import Nudge


def nudge_of(run: int, case: Case, errors: int = 1) -> Nudge:
    generator = generator_of(run, case)

    def nudge(x: Tensor) -> Tensor:
        """x (1 + k eps), x or x (1 - k eps), with k = `errors`; a subnormal by k smallest ones.

        Entry by entry, or in every other run all entries of a tensor alike: signs that differ
        average out in a sum, of which they are not the worst rounding.
        """
        info = torch.finfo(x.dtype)
        shape = x.shape if run % 2 else ()
        sign = torch.randint(-1, 2, shape, generator=generator).to(x.dtype)
        by = errors * sign * (x.abs() * info.eps + info.smallest_normal * info.eps)
        return torch.where((x == 0) | ~x.isfinite(), x, x + by)

    return nudge


def generator_of(run: int, case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(1000003 * case.number + run)


class Reordered(TorchDispatchMode):
    """Each sum takes its entries in a random order, one dimension after the other.

    In every other run it adds them one by one, as Inductor does, and not pair by pair, as torch
    does: equal entries then round to the same side.

    This changes more than low bits where a partial sum overflows: 1e38 + 1e38 + ... - 1e38 - 1e38
    is 0, inf or nan.
    """

    def __init__(self, run: int, case: Case) -> None:
        super().__init__()
        self.generator, self.one_by_one = generator_of(run, case), run % 2 == 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ != "sum" or not args[0].ndim:
            return function(*args, **kwargs)
        x, dims, keepdim = (*args, None, False)[:3] if len(args) < 3 else args
        dims = [d % x.ndim for d in dims] if dims else list(range(x.ndim))
        for i in torch.randperm(len(dims), generator=self.generator).tolist():
            order = torch.randperm(x.shape[dims[i]], generator=self.generator)
            x = x.index_select(dims[i], order)
            if self.one_by_one and x.shape[dims[i]] and not kwargs:
                x = functools.reduce(torch.add, x.split(1, dims[i]))
            else:
                x = x.sum(dims[i], keepdim=True, **kwargs)
        return x if keepdim else x.squeeze(dims)


class Rounded(TorchDispatchMode):
    """Each operation that computes has its result moved by a rounding error.

    The product of an `addcmul` is a result of its own: a machine may add it with or without
    rounding it first.
    """

    COMPUTES = (
        "add", "sub", "rsub", "mul", "div", "sqrt", "pow", "square", "lerp", "addcmul", "sum", "mm",
        "cos", "sinc",
    )  # fmt: skip

    def __init__(self, nudge: Nudge) -> None:
        super().__init__()
        self.nudge = nudge

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        compute = self._addcmul if name == "addcmul" else function
        result = compute(*args, **(kwargs or {}))
        rounds = name in self.COMPUTES and result.is_floating_point()
        return self.nudge(result) if rounds else result

    def _addcmul(self, x: Tensor, y: Tensor, z: Tensor, value: float = 1) -> Tensor:
        return x + self.nudge((y if value == 1 else value * y) * z)
