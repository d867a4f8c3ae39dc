"""The inner products of a step on a CPU, by a C++ kernel that reads w, w' and g once."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from spherenorm.compile import Export, load_function, read_header, threads
from spherenorm.record import Unsupported

INNER_PRODUCTS = Export(
    "inner_products",
    (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
)
TYPES = {
    torch.float64: ("double", "double"),
    torch.float32: ("float", "float"),
    torch.bfloat16: ("float", "bfloat16"),
    torch.float16: ("float", "float16"),
}
"""The types that an entry is read as, and that it is stored in."""


class ProductsKernel:
    """A kernel for weights of one dtype, which gives the products of `Scratch.inner_products`.

    The torch operations there write w, d and g in float64 before they multiply them, which takes
    three to five times as long on one core.

    Args:
        dtype: of the weights.

    Raises:
        Unsupported: no kernel reads the dtype, or it cannot be compiled.

    Example:
        >>> w, new_w, g = (torch.full((1, 2), x) for x in (1.0, 3.0, 5.0))
        >>> ProductsKernel(torch.float32).inner_products([w], [new_w], [g], dim=0).flatten()
        tensor([ 2.,  4., 10.,  4.,  8., 20., 10., 20., 50.], dtype=torch.float64)
    """

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype not in TYPES:
            raise Unsupported(f"C++ kernels read no {dtype}")
        real, stored = TYPES[dtype]
        source = (resources.files(__package__) / "products.hpp").read_text(encoding="utf-8")
        # A product that is added before it is rounded makes sums no less accurate.
        options = (f"-DREAL={real}", f"-DSTORED={stored}", "-ffp-contract=fast")
        self._dtype = dtype
        self._function = load_function(read_header("numbers.hpp") + source, options, INNER_PRODUCTS)

    def takes(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the tensors have memory that the kernel can read."""
        # Loops in Python over many small weights take as long as their products.
        return (
            set(map(type, tensors)) == {Tensor}
            and {x.dtype for x in tensors} == {self._dtype}
            and not any(map(Tensor.is_neg, tensors))
        )

    def inner_products(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        grads: Sequence[Tensor],
        dim: int | None,
    ) -> Tensor:
        """Return the products of w, d = w' - w and g with each other at each index of `dim`.

        Args:
            before, after, grads: of one shape; of any, if `dim` is None.
            dim: a dimension of them; None for the sums over whole weights.

        Returns:
            A tensor of shape (weights, indices, 3, 3); there is one index if `dim` is None.
        """
        count = len(before)
        length = 1 if dim is None else before[0].shape[dim]
        n_outer = 1 if dim is None else math.prod(before[0].shape[:dim])
        vectors = [list(map(Tensor.contiguous, tensors)) for tensors in (before, after, grads)]
        table = np.empty((5, count), dtype=np.int64)
        table[:3] = [list(map(Tensor.data_ptr, tensors)) for tensors in vectors]
        table[3] = n_outer
        table[4] = list(map(Tensor.numel, before))
        table[4] //= n_outer * length
        products = torch.empty(count, length, 3, 3, dtype=torch.float64, device="cpu")
        self._function(count, length, table.ctypes.data, products.data_ptr(), threads())
        return products


def load_products_kernel(weight: Tensor) -> ProductsKernel | None:
    """Return the kernel for weights such as `weight`; None if there is none."""
    if weight.device.type != "cpu":
        return None
    try:
        return ProductsKernel(weight.dtype)
    except Unsupported:
        return None
