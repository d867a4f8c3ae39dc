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
from spherenorm_theory.proofs.reading import scalar

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
<W, grad_W> = sum <z, grad_z>.
"""


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
    radial = scalar("<w,grad f(w)>")
    any_function = "any function of the direction alone, an instance in three dimensions"
    cases = {any_function: (Kind.IDENTITY, {radial: _any_function()})}
    cases |= {name: (Kind.DERIVED, {radial: radial_part(f)}) for name, f in functions.items()}
    under = ("f(c w) = f(w) for all c > 0", "no eps")
    return Proof(
        "Eq. 4",
        tuple(Claim(n, sp.Eq(radial, 0), *case, under=under) for n, case in cases.items()),
        remark="the eps of a normalization layer leaves a residue that `check` measures",
    )


def _any_function() -> sp.Expr:
    """<w, grad f(w)> for f(w) = h(w / |w|)."""
    w = sp.symbols("w1:4", positive=True)
    f = sp.Function("h")(*(x / sp.sqrt(sum(x**2 for x in w)) for x in w))
    along = sp.Add(*(x * sp.diff(f, x) for x in w))
    return along.xreplace({partial: sp.Dummy() for partial in along.atoms(sp.Subs)})


def radial_part(function: Function) -> sp.Expr:
    """<w, grad> of a function, for vectors of any dimension."""
    # The values of the tensors that it is recorded at do not matter.
    tensors = (torch.full(x, 4.0, dtype=torch.float64) for x in ((1, 4), (1, 4), (1, 1), ()))
    written = record(torch.func.grad(function), *tensors)
    algebra, w = Formal(), Vector.atom("w")
    inputs = [w, Vector.atom("x"), sp.Symbol("c", real=True), DIMENSION]
    (gradient,) = interpret(written, algebra, inputs)
    return algebra.expand(algebra.inner(w, gradient))
