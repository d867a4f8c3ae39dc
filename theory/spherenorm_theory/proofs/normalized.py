"""Eq. 4: scale invariance makes the gradient orthogonal to the weight.

By the chain rule, and from the recorded autograd gradients of normalized functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sympy as sp
import torch
from torch import Tensor

from spherenorm.record import record
from spherenorm_theory.algebra.claims import Claim, Kind, Proof
from spherenorm_theory.algebra.formal import Formal
from spherenorm_theory.algebra.operations import interpret
from spherenorm_theory.algebra.symbols import DIMENSION, Vector
from spherenorm_theory.proofs.notation import of_float, scalar

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def normalize(z: Tensor, entries: Tensor) -> Tensor:
    """Norm(z) = (z - mean) / standard deviation (paper, Section 2.1), with no eps."""
    centred = z - z.sum() / entries
    return centred / ((centred * centred).sum() / entries).sqrt()


def _unit(x: Tensor) -> Tensor:
    return x / (x * x).sum(1, keepdim=True).sqrt()


FUNCTIONS: dict[str, Function] = {
    "batch and layer normalization of any pre-activations": (
        lambda z, x, c, entries: (x * normalize(z, entries)).sum()
    ),
    "linear layer of normalized weights": lambda w, x, c, entries: (c * _unit(w) * x).sum(),
    "weight normalization": lambda w, x, c, entries: (
        c * w / (w * w).sum(1, keepdim=True).sqrt() * x
    ).sum(),
    "cosine loss": lambda w, x, c, entries: 1 - (_unit(w) * _unit(x)).sum(),
}
"""Functions of a vector w, or of pre-activations z, with data x and a number c, in any dimension.

Each is <x, normalized output> or the like, so that x stands for any loss that follows. The
pre-activations of a unit over a batch, or of a sample over the units, are linear in the weight:
<W, grad_W> = sum <z, grad_z>, which `_linear_layer` shows.
"""

UNDER = ("f(c w) = f(w) for all c > 0", "no eps")
GRADIENT = scalar("<w,grad f(w)>")


def equation_4(functions: Mapping[str, Function] = FUNCTIONS) -> Proof:
    """Eq. 4: f(c w) = f(w) for all c > 0 gives 0 = d f(c w) / dc = <w, grad f(w)>.

    First for any f, which is then a function h of w / |w|, in three dimensions; then for
    `functions`, from the recorded code of autograd, for vectors of any dimension and any data.

    Args:
        functions: as `FUNCTIONS`.

    Example:
        >>> equation_4().proved
        True
    """
    zero = sp.Eq(GRADIENT, 0)
    along, moved = scalar("<w,grad f(X w)>"), scalar("<X w,grad f(X w)>")
    adjoint = dict(zip((along, moved), _linear_layer(), strict=True))
    return Proof(
        "Eq. 4",
        (
            Claim(
                "any function of the direction alone, an instance in three dimensions",
                zero,
                Kind.IDENTITY,
                {GRADIENT: _any_function()},
                under=UNDER,
            ),
            *(
                Claim(name, zero, Kind.DERIVED, {GRADIENT: radial_part(function)}, under=UNDER)
                for name, function in functions.items()
            ),
            Claim(
                "a linear layer before them, an instance of three samples in two dimensions",
                sp.Eq(along, moved),
                Kind.DERIVED,
                adjoint,
            ),
        ),
        remark="the eps of a normalization layer leaves a residue that `check` measures",
    )


def _any_function() -> sp.Expr:
    """<w, grad f(w)> for f(w) = h(w / |w|)."""
    w = sp.symbols("w1:4", positive=True)
    length = sp.sqrt(sp.Add(*(x**2 for x in w)))
    f = sp.Function("h")(*(x / length for x in w))
    along = sp.Add(*(x * sp.diff(f, x) for x in w))
    partial = {s: sp.Dummy() for s in along.atoms(sp.Subs)}
    return along.xreplace(partial)


def radial_part(function: Function) -> sp.Expr:
    """<w, grad> of a function, for vectors of any dimension."""
    # The values of the tensors that it is recorded at do not matter.
    shapes = (1, 4), (1, 4), (1, 1), ()
    tensors = [torch.full(shape, 4.0, dtype=torch.float64) for shape in shapes]
    written = record(torch.func.grad(function), *tensors)
    algebra, w = Formal(), Vector.atom("w")
    inputs = [w, Vector.atom("x"), sp.Symbol("c", real=True), DIMENSION]
    (gradient,) = interpret(written, algebra, inputs)
    return algebra.expand(algebra.inner(w, gradient))


def _linear_layer() -> tuple[sp.Expr, sp.Expr]:
    """<w, grad_w f> and <z, grad_z f> for f = <v, z>, z = x w^T, from autograd at whole numbers."""
    generator = torch.Generator().manual_seed(0)
    w, x, v = (
        torch.randint(-9, 9, shape, generator=generator).double()
        for shape in ((1, 2), (3, 2), (3, 1))
    )

    def readout(w: Tensor) -> Tensor:
        return (v * (x @ w.T)).sum()

    gradient = torch.func.grad(readout)(w)
    return of_float((w * gradient).sum()), of_float((v * (x @ w.T)).sum())
