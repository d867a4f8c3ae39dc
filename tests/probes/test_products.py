"""The products of w, w' - w and g: by the kernel, by torch operations, and by a plain loop."""

import itertools
import math
from dataclasses import fields

import pytest
import torch

import spherenorm as sn
from spherenorm.probes.kernel import ProductsKernel
from spherenorm.probes.products import Scratch, VectorProducts
from spherenorm.record import Unsupported
from tests.probes.models import Model, train
from tests.probes.test_by_hand import DTYPES, LAYOUTS

SHAPES = (1, 1), (3, 5), (40, 300), (6, 4, 3, 3), (700, 100), (5, 1, 3), (2, 40, 9), (3, 2, 300)
"""Rows of any length, and dimensions behind which few or many entries lie."""


def draw(shape, dtype, values):
    """w, w' and g, of which some entries are as `values` says."""
    w, d, g = torch.randn(3, *shape, dtype=torch.float64)
    if values == "ordinary":
        new_w = w + 0.1 * d
    elif values == "tiny steps":
        new_w = w + 1e-6 * d
    elif values == "large and small":
        scales = (1e3, 1e-3) if dtype is torch.float16 else (1e30, 1e-30)
        w, new_w, g = scales[0] * w, scales[0] * (w + d), scales[1] * g
    else:
        new_w = w + d
        for x, value in ((w, 0.0), (new_w, math.inf), (g, math.nan), (g, -math.inf)):
            x[torch.rand(shape) < 2 / x.numel()] = value
    return [x.to(dtype) for x in (w, new_w, g)]


def check_equal(products, expected):
    """Sums in float64 differ by rounding; those that are not finite are equal."""
    assert products.shape == expected.shape
    assert products.dtype == expected.dtype == torch.float64
    norms = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    bounds = 1e-14 * norms[..., :, None] * norms[..., None, :]
    is_number = expected.isfinite()
    assert ((products - expected).abs() <= bounds)[is_number].all()
    assert torch.equal(
        products.nan_to_num(5.0, 7.0, -7.0)[~is_number],
        expected.nan_to_num(5.0, 7.0, -7.0)[~is_number],
    )


@pytest.mark.parametrize("values", ["ordinary", "tiny steps", "large and small", "not finite"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernel_has_the_products_of_the_torch_operations(dtype, values):
    kernel, scratch = ProductsKernel(dtype), Scratch()
    for shape, *layouts in itertools.product(SHAPES, LAYOUTS, LAYOUTS[::-1]):
        weights = [draw(shape, dtype, values) for _ in range(2)]
        before, after, grads = zip(*weights, strict=True)
        after, grads = (
            [layout(x) for x in xs] for layout, xs in zip(layouts, (after, grads), strict=True)
        )
        for dim in range(len(shape)):
            products = kernel.inner_products(before, after, grads, dim)
            check_equal(products, scratch.inner_products(before, after, grads, dim))
        vectors = [
            [x.flatten()[: 5 * k + 1] for k, x in enumerate(xs)] for xs in (before, after, grads)
        ]
        products = kernel.inner_products(*vectors, dim=None)
        check_equal(products, VectorProducts(vectors[0]).inner_products(*vectors))


@pytest.mark.parametrize("size", [1, 7, 8, 1000])
def test_products_are_those_of_a_plain_loop(size):
    """Products of numbers in float32 are exact in float64, and `fsum` rounds their sum once."""
    w, g = torch.randn(2, 1, size)
    new_w = torch.nextafter(w, g)
    (products,) = ProductsKernel(torch.float32).inner_products([w], [new_w], [g], dim=0)
    entries = [x.double().flatten().tolist() for x in (w, new_w.double() - w.double(), g)]
    for i, j in itertools.product(range(3), repeat=2):
        terms = [x * y for x, y in zip(entries[i], entries[j], strict=True)]
        bound = 1e-14 * math.fsum(map(abs, terms))
        assert products[0, i, j].item() == pytest.approx(math.fsum(terms), rel=0, abs=bound)


def test_a_kernel_takes_no_tensors_that_it_would_read_wrongly():
    kernel, x = ProductsKernel(torch.float32), torch.ones(2, 3)
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    for other in (x.double(), torch.nn.Parameter(x), negative, x.to("meta").as_subclass(Strange)):
        assert kernel.takes([x, x])
        assert not kernel.takes([x, other])
    with pytest.raises(Unsupported):
        ProductsKernel(torch.float8_e4m3fn)


class Strange(torch.Tensor):
    pass


def test_any_number_of_threads_gives_the_same_bits():
    kernel, threads = ProductsKernel(torch.float32), torch.get_num_threads()
    shapes = (7, 300), (300, 7), (5, 40, 9)
    weights = {shape: draw(shape, torch.float32, "ordinary") for shape in shapes}
    products = []
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            products.append(
                [
                    kernel.inner_products(*([x] for x in vectors), dim)
                    for shape, vectors in weights.items()
                    for dim in range(len(shape))
                ]
            )
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *products))


def measure(**arguments):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with sn.probe(optimizer, every=1, model=model, **arguments) as probe:
        train(model, optimizer, 3)
    return probe.measurements


def test_a_probe_multiplies_by_the_kernel_and_without_a_compiler_by_torch(monkeypatch):
    """Both give the same numbers, and neither warns."""
    with monkeypatch.context() as patch:
        patch.setattr(Scratch, "inner_products", None)
        patch.setattr(VectorProducts, "inner_products", None)
        by_kernel = measure()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    by_torch = measure()
    assert [(m.step, m.weight) for m in by_kernel] == [(m.step, m.weight) for m in by_torch]
    for m, other in zip(by_kernel, by_torch, strict=True):
        for field in fields(m):
            value, other_value = (getattr(x, field.name) for x in (m, other))
            if isinstance(value, float):
                assert value == pytest.approx(other_value, rel=1e-9, abs=1e-12, nan_ok=True)
            elif field.name != "units":
                assert value == other_value
