"""Eq. 4: scale invariance makes the gradient orthogonal to the weight, from traced autograd gradients of normalized functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import sympy as sp
import torch
from torch import Tensor

from theory.coordinates import Array, Coordinates
from theory.formal import Formal
from theory.interpreter import interpret
from theory.proof import Proof
from theory.symbols import Vector, tidy
from theory.trace import trace_function

__all__ = ["FUNCTIONS", "equation_4", "normalize"]

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def normalize(z: Tensor, dim: int) -> Tensor:
    """Norm(z) = (z - mean) / standard deviation along `dim` (paper, Section 2.1), with no eps."""
    centred = z - z.mean(dim, keepdim=True)
    return centred / (centred * centred).mean(dim, keepdim=True).sqrt()


def _unit(x: Tensor) -> Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


FUNCTIONS: dict[str, Function] = {
    "batch normalization": lambda w, x, c: (c * normalize(x @ w.T, 0).T).sum(),
    "layer normalization": lambda w, x, c: (c * normalize(w @ x.T, 1)).sum(),
    "l2-normalized linear": lambda w, x, c: (c[:, :1] * _unit(w) * x).sum(),
    "weight normalization": lambda w, x, c: (
        c[:, :1] * w / (w * w).sum(1, keepdim=True).sqrt() * x
    ).sum(),
    "cosine loss": lambda w, x, c: 1 - (_unit(w) * _unit(x)).sum(),
}
"""Functions of a weight w of shape (1, n), data x and a vector c: <c, normalized output>, so that c stands for any loss that follows."""

MATRIX = ("batch normalization", "layer normalization")
"""These take a matrix of data: proved in coordinates, for w in R^2, 3 samples (or features) and any c."""


def equation_4() -> Proof:
    """Eq. 4: f(c w) = f(w) for all c > 0 gives 0 = d f(c w) / dc = <w, grad f(w)>.

    First for any f, by the chain rule; then for the functions above, of which the gradient is autograd's own code, traced.
    """
    residuals = {"any f, by the chain rule in R^3": _chain_rule()}
    for name, function in FUNCTIONS.items():
        residuals[name] = _in_coordinates(function) if name in MATRIX else _formal(function)
    return Proof(
        "Eq. 4",
        "f(c w) = f(w) for all c > 0 implies <w, grad f(w)> = 0",
        residuals,
        remark="exact without eps; the eps > 0 of a normalization layer leaves a residue that `check` measures",
    )


def _chain_rule() -> sp.Expr:
    """d f(c w) / dc at c = 1, minus <w, grad f(w)>: both are 0 if f(c w) does not depend on c."""
    c, *w = sp.symbols("c w1:4", positive=True)
    f = sp.Function("f")
    along = sp.diff(f(*(c * x for x in w)), c).doit().subs(c, 1).doit()
    return sp.simplify(along - sum(x * sp.diff(f(*w), x) for x in w))


def _formal(function: Function) -> sp.Expr:
    """<w, grad> for a vector of data, in every dimension."""
    w, x, c = (
        torch.randn(1, 4, dtype=torch.float64),
        torch.randn(1, 4, dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.float64),
    )
    graph, lines = trace_function(torch.func.grad(function), w, x, c)
    algebra = Formal()
    (gradient,) = interpret(
        graph, algebra, [Vector.atom("w"), Vector.atom("x"), sp.Symbol("c", real=True)], lines
    )
    return tidy(algebra.expand(algebra.space.inner(Vector.atom("w"), gradient)))


def _in_coordinates(function: Function) -> sp.Expr:
    """<w, grad> for a matrix of data."""
    w, x, c = (
        torch.randn(1, 2, dtype=torch.float64),
        torch.randn(3, 2, dtype=torch.float64),
        torch.randn(1, 3, dtype=torch.float64),
    )
    graph, lines = trace_function(torch.func.grad(function), w, x, c)
    weight: Array = np.array([sp.symbols("w1 w2", positive=True)], dtype=object)
    data: Array = np.array([[1, 2], [-1, 1], [3, -2]], dtype=object) * sp.Integer(1)
    after: Array = np.array([sp.symbols("c1:4", real=True)], dtype=object)
    (gradient,) = interpret(graph, Coordinates(), [weight, data, after], lines)
    return sp.simplify(sp.Add(*(weight * gradient).flat))
