"""Shapes and dtypes of entrywise operations, against torch's own."""

import itertools

import pytest
import torch

from spherenorm.compile._lower import carried_out

aten = torch.ops.aten
KINDS = [
    torch.empty(shape, dtype=dtype, device="meta")
    for shape in ((), (3,), (4, 1), (4, 3))
    for dtype in (torch.bool, torch.int64, torch.float16, torch.float32, torch.float64)
]
FUNCTIONS = [
    aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Tensor, aten.maximum.default, aten.lt.Tensor,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_every_pair_of_kinds(function):
    for _ in range(2):  # when the dtype is new, and when it is known
        for x, y in itertools.product(KINDS, KINDS):
            assert_alike(function, x, y)


@pytest.mark.parametrize("number", [True, 2, 0.5])
def test_numbers(number):
    for _, x in itertools.product(range(2), KINDS):
        for function in (aten.mul.Tensor, aten.pow.Tensor_Scalar, aten.eq.Scalar):
            assert_alike(function, x, number)


def test_options():
    for _, x in itertools.product(range(2), KINDS):
        for dtype in (torch.float32, torch.float64):
            assert_alike(aten._to_copy.default, x, dtype=dtype)
        assert_alike(aten.sum.default, x)  # which is not entrywise


def test_what_does_not_fit_is_torchs_to_refuse():
    fits = torch.empty(4, 3, device="meta")
    carried_out(aten.add.Tensor, fits, fits)
    with pytest.raises(RuntimeError):
        carried_out(aten.add.Tensor, fits, torch.empty(5, 3, device="meta"))


def test_the_memory_of_a_transposed_tensor():
    x = torch.empty(3, 4, device="meta").T
    for _ in range(2):
        assert carried_out(aten.add.Tensor, x, x).stride() == (1, 4)


def assert_alike(function, *arguments, **options):
    ours = carried_out(function, *arguments, **options)
    theirs = function(*arguments, **options)
    assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
