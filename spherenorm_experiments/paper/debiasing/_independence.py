"""The Hilbert-Schmidt independence criterion of two sets of features.

Source: L. Song et al., *Feature Selection via Dependence Maximization*, 2012, Equation 5.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["hsic", "reversed_gradient"]

FEWEST = 4
"""Items below which the estimate does not exist."""


def hsic(x: Tensor, y: Tensor, sigma: float | None = None) -> Tensor:
    r"""The unbiased estimate of HSIC(x, y), which is 0 in expectation if x and y are independent:

        (tr(K L) + 1'K1 1'L1 / ((n-1)(n-2)) - 2 / (n-2) 1'K L1) / (n (n-3)),

    K and L the Gaussian kernels of x and of y, with zeros for their diagonals.

    Args:
        x, y: shape (n, any); below four items the result is 0.
        sigma: of the kernels exp(-|a - b|^2 / (2 sigma^2)); None takes the square root of the
            median squared distance between items, for x and for y.

    Example:
        >>> x = torch.randn(256, 3, generator=torch.Generator().manual_seed(0))
        >>> f"{hsic(x, x, 1.0):.3f} {hsic(x, x.flip(0), 1.0):.3f}"
        '0.056 -0.000'
    """
    n = len(x)
    if n < FEWEST:
        return 0 * (x.sum() + y.sum())
    with torch.autocast(x.device.type, enabled=False):  # differences of large sums
        K, L = _kernel(x, sigma), _kernel(y, sigma)
        rows = K.sum(1), L.sum(1)
        total = (K * L).sum() + rows[0].sum() * rows[1].sum() / ((n - 1) * (n - 2))
        return (total - 2 / (n - 2) * (rows[0] @ rows[1])) / (n * (n - 3))


def _kernel(x: Tensor, sigma: float | None) -> Tensor:
    """exp(-|x_i - x_j|^2 / (2 sigma^2)), with zeros for the diagonal."""
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    squares = (x * x).sum(1)
    distances = (squares[:, None] + squares - 2 * x @ x.T).clamp(min=0)
    others = ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    if sigma is None:
        scale = distances.detach()[others].median().clamp(min=torch.finfo(x.dtype).tiny)
    else:
        scale = torch.tensor(sigma**2, dtype=x.dtype, device=x.device)
    return torch.exp(-distances / (2 * scale)) * others


def reversed_gradient(x: Tensor) -> Tensor:
    """x, whose gradient arrives with the opposite sign.

    Example:
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> reversed_gradient(x).backward()
        >>> x.grad
        tensor([-1.])
    """
    return 2 * x.detach() - x
