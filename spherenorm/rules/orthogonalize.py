"""Matrices: orthogonalize the direction, as Muon does, and project it onto the Stiefel manifold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spherenorm.fields import choice, view
from spherenorm.numerics import safe_sqrt
from spherenorm.rule import Rule, State, Update
from spherenorm.views import View, ViewLike, replicate

Polynomial = tuple[float, float, float]
"""The coefficients (a, b, c) of a step of the iteration."""
Coefficients = str | Sequence[Polynomial] | Callable[[int], Polynomial]
"""The name of a table, the polynomials of all steps, or a function from the index of a step, from
0, to its polynomial.

Example:
    >>> rule = sn.rules.Orthogonalize(lambda i: (1.5, -0.5, 0.0), steps=3)
    >>> rule.coefficients
    ((1.5, -0.5, 0.0), (1.5, -0.5, 0.0), (1.5, -0.5, 0.0))
"""

CHECKED_VALUES = np.linspace(0, 1, 2001)[1:]
"""The singular values on which the polynomials of a user are checked."""
LARGEST_VALUE = 2.0
"""The largest singular value that they may leave. The published tables leave at most 1.21."""
BAND_FROM, SMALLEST_VALUE = 0.1, 0.3
"""Singular values from the first number on have to be at least the second one after the iteration.
The published tables leave 0.68."""

ADAMW_STEP_RMS = 0.2
"""About the root mean square of AdamW's steps at a learning rate of 1.

Source: Liu et al. 2025 (Moonlight), Section 2.2.
"""
POLAR_EXPRESS_SAFETY = 1.01
"""Polar Express divides its input by this factor before each step, against rounding errors."""
_POLAR_EXPRESS: tuple[Polynomial, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)


def _divide_argument(polynomial: Polynomial, divisor: float) -> Polynomial:
    """Return the coefficients of p(x / divisor), where p(x) = a x + b x^3 + c x^5."""
    a, b, c = polynomial
    return a / divisor, b / divisor**3, c / divisor**5


TABLES: dict[str, tuple[Polynomial, ...]] = {
    # KellerJordan/Muon. The singular values end about evenly in (0.7, 1.2), not at 1.
    "original": ((3.4445, -4.7750, 2.0315),) * 5,
    # modded-nanogpt, microsoft/dion
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Amsel et al. 2025, arXiv:2505.16932, with its safety factor
    "polar_express": (
        # The second factor is that of the initial matrix, G / (1.01 |G|).
        _divide_argument(_POLAR_EXPRESS[0], POLAR_EXPRESS_SAFETY**2),
        *(_divide_argument(p, POLAR_EXPRESS_SAFETY) for p in _POLAR_EXPRESS[1:]),
        (1.875, -1.25, 0.375),
    ),
    # Grishina et al. 2025, arXiv:2506.10935
    "cans": (
        (8.4703, -25.1081, 18.6293),
        (4.1828, -3.1087, 0.5806),
        (3.9619, -2.9541, 0.5630),
        (3.2866, -2.4647, 0.5074),
        (2.2737, -1.6447, 0.4162),
    ),
    # DeepSeek-V4
    "deepseek": ((3.4445, -4.7750, 2.0315),) * 8 + ((2.0, -1.5, 0.5),) * 2,
    # Converges to the orthogonal factor.
    "plain": ((2.0, -1.5, 0.5),) * 12,
}
"""The polynomials of the steps of the iteration, by name."""


def check_polynomials(coefficients: Any, steps: int | None) -> tuple[Polynomial, ...]:
    """Return the polynomials of a user, after a look at what they make of singular values.

    Args:
        coefficients: triples of numbers, or a function from the index of a step to one.
        steps: the number of steps, which a function needs.

    Raises:
        TypeError, ValueError: the coefficients are not such triples, or the iteration lets a
            singular value in (0, 1] grow beyond 2 or become negative, or leaves one in [0.1, 1]
            below 0.3.

    Example:
        >>> check_polynomials([(1.5, -0.5, 0.0)] * 2, None)
        Traceback (most recent call last):
        ValueError: Orthogonalize: coefficients must bring singular values near 1, ...
    """
    if isinstance(coefficients, str):
        names = ", ".join(f'"{name}"' for name in TABLES)
        raise ValueError(
            f"Orthogonalize: coefficients must be one of {names}, or triples (a, b, c); "
            f"got {coefficients!r}"
        )
    if callable(coefficients):
        if steps is None:
            raise ValueError(
                "Orthogonalize: coefficients must be a table, or a function with a number of "
                "steps: set steps=5, or give tuple(function(i) for i in range(5))"
            )
        coefficients = [coefficients(index) for index in range(steps)]
    if not isinstance(coefficients, Iterable):
        raise TypeError(
            "Orthogonalize: coefficients must be triples (a, b, c) of numbers, "
            f"got {coefficients!r}"
        )
    table = [tuple(x) if isinstance(x, Iterable) else x for x in coefficients]
    for triple in table:
        if not isinstance(triple, tuple) or len(triple) != 3 or not all(map(_is_real, triple)):
            raise TypeError(
                f"Orthogonalize: coefficients must be triples (a, b, c) of numbers, got {triple!r}"
            )
    if not table:
        raise ValueError(
            "Orthogonalize: coefficients must be at least one triple (a, b, c), got none"
        )
    polynomials = tuple((float(a), float(b), float(c)) for a, b, c in table)
    # Numpy does the check, since a recorder of torch operations may be active.
    with np.errstate(all="ignore"):
        values = CHECKED_VALUES
        for a, b, c in _repeat_last(polynomials, steps):
            values = a * values + b * values**3 + c * values**5
        faults = {
            "grows to": ~(values <= LARGEST_VALUE),
            "turns negative, to": values < 0,
            "stays at": (values < SMALLEST_VALUE) & (CHECKED_VALUES >= BAND_FROM),
        }
    for fault, is_faulty in faults.items():
        if is_faulty.any():
            index = int(is_faulty.argmax())
            raise ValueError(
                "Orthogonalize: coefficients must bring singular values near 1, but one of "
                f"{CHECKED_VALUES[index]:.3g} {fault} {values[index]:.3g}; other triples, or more "
                "steps, do"
            )
    return polynomials


def _is_real(x: Any) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _repeat_last(table: Sequence[Polynomial], steps: int | None) -> Iterable[Polynomial]:
    """Return the polynomials of a number of steps; after the table, its last one is repeated."""
    n_steps = len(table) if steps is None else steps
    return itertools.islice(itertools.chain(table, itertools.repeat(table[-1])), n_steps)


def newton_schulz(
    matrix: Tensor,
    polynomials: Iterable[Polynomial],
    eps: float,
    start: str = "frobenius",
    method: str = "iterate",
) -> Tensor:
    """Move the singular values of matrices towards 1, and leave the singular vectors:

        X_0 = G / max(|G|, eps),    X <- a X + (b A + c A^2) X,    A = X X^T.

    Args:
        matrix: G, of shape (..., m, n). A tall G is transposed, so that A is the smaller product.
        polynomials: (a, b, c) of each step.
        eps: the minimum of the denominator.
        start: "aol" divides the rows of G by the roots of the sums over rows of |G G^T|.
        method: "gram" multiplies the polynomials of A, and G only once: P = a I + b A + c A^2,
            Q <- P Q, A <- P A P, and the result is Q X_0.

    Example:
        >>> newton_schulz(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), TABLES["plain"], 1e-7).round()
        tensor([[1., 0.],
                [0., 1.]])

    Source: Jordan et al. 2024 (Muon); Boissin et al. 2025 (Turbo-Muon), arXiv:2512.04632, for
    "aol".
    """
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    if start == "aol":
        squares = (x @ x.mT).abs().sum(-1, keepdim=True)
    else:
        squares = (x * x).sum((-2, -1), keepdim=True)
    x = x / safe_sqrt(squares).clamp(min=eps)
    if method == "gram":
        x = _iterate_gram(x, polynomials)
    else:
        for a, b, c in polynomials:
            gram = x @ x.mT
            x = _addmm(a, x, 1.0, _addmm(b, gram, c, gram, gram), x)
    return x.mT if is_tall else x


def _iterate_gram(x: Tensor, polynomials: Iterable[Polynomial]) -> Tensor:
    """Return the result of the iteration from x; all factors are polynomials of x x^T."""
    gram = x @ x.mT
    identity = torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device)
    product = identity
    for a, b, c in polynomials:
        factor = a * identity + b * gram + c * (gram @ gram)
        product = factor if product is identity else factor @ product
        gram = factor @ gram @ factor
    return product @ x


def _addmm(beta: float, x: Tensor, alpha: float, y: Tensor, z: Tensor) -> Tensor:
    """Return beta x + alpha y z, in half precision by one operation, which rounds only the sum."""
    if x.itemsize == 2 and x.ndim == 3:
        return torch.baddbmm(x, y, z, beta=beta, alpha=alpha)
    return beta * x + (y @ z if alpha == 1 else alpha * (y @ z))


@dataclass(frozen=True)
class Orthogonalize(Rule):
    """Replace the direction D = U S V^T by its orthogonal factor U V^T, by Newton-Schulz iteration.

    A unit of the view is one matrix: its first dimension by all others, in the order of the weight.
    So "layer" makes a weight one matrix, and flattens a convolution to (out, in x kernel);
    "groups=8" makes each of 8 heads a matrix, "dim=1,groups=8" if the heads are groups of columns;
    "channel" makes each expert of a stack (experts, out, in) a matrix.

    For a matrix of shape m x n, the result is multiplied by

        original: sqrt(max(1, m / n)),      match_rms_adamw: 0.2 sqrt(max(m, n)),
        spectral: sqrt(m / n),              aspect: sqrt(max(m, n) / min(m, n)),
        none: 1.

    Args:
        coefficients: the name of a table of polynomials: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek" or "plain". Only with the last two the singular
            values converge to 1. Or a table of your own, ((a, b, c), ...), or a function from the
            index of a step, from 0, to (a, b, c), with `steps`.
        steps: the number of steps; after the end of the table, its last polynomial is repeated.
            None takes as many steps as the table has polynomials.
        scale: the name of the factor in the list above.
        precision: the dtype of the iteration: "weight" is the compute dtype of the rule; "float32";
            "bfloat16" is fast on a GPU and has errors of a few percent.
        view: splits the weight into matrices.
        eps: the minimum of |D| in the denominator.
        start: the denominator of D: "frobenius" is |D|. "aol" divides each row (of a wide matrix;
            of a tall one each column) by the root of the sum of its |entries| in D D^T, which
            leaves larger singular values, and takes the factor of the matrix of scaled rows.
        method: "iterate" multiplies D in each step, "gram" only the smaller of D D^T and D^T D. On
            a CPU that takes 0.6 times as long for a matrix four times as long as wide, and 1.4
            times as long for a square one. It squares the condition number: in float32 singular
            values are off by up to 1 %, at a condition of 1e3.

    Raises:
        TypeError, ValueError: on construction, for an unknown name, polynomials that do not bring
            singular values near 1 (see `check_polynomials`), or `method="gram"` in bfloat16. On
            `init`, if the weight has fewer than two dimensions.

    Example:
        >>> rule = chain(Orthogonalize("plain"))
        >>> rule.step(torch.zeros(2, 2), torch.tensor([[3.0, 0.0], [0.0, 1.0]]), {})[0].round()
        tensor([[-1.,  0.],
                [ 0., -1.]])

    Source: Jordan et al. 2024 (Muon); Liu et al. 2025 (Moonlight), for `match_rms_adamw`; Boissin
    et al. 2025 (Turbo-Muon), arXiv:2512.04632, for "aol".
    """

    coefficients: Any = "original"
    steps: int | None = None
    scale: str = choice("none", "original", "match_rms_adamw", "spectral", "aspect")
    precision: str = choice("weight", "float32", "bfloat16")
    view: ViewLike = view("layer")
    eps: float = 1e-7
    start: str = choice("frobenius", "aol")
    method: str = choice("iterate", "gram")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and not (type(self.steps) is int and self.steps > 0):
            raise ValueError(f"Orthogonalize: steps must be a positive int, got {self.steps!r}")
        if not (isinstance(self.coefficients, str) and self.coefficients in TABLES):
            polynomials = check_polynomials(self.coefficients, self.steps)
            object.__setattr__(self, "coefficients", polynomials)
        if self.method == "gram" and self.precision == "bfloat16":
            raise ValueError(
                'Orthogonalize: method="gram" squares the condition number, which bfloat16 does '
                'not resolve; take precision="float32", or method="iterate"'
            )

    vector_policy = "refuse"
    needs_whole_weight = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        units = _stack_units(direction, self.view)
        m, n = units.shape[1], math.prod(units.shape[2:])
        is_name = isinstance(self.coefficients, str)
        table = TABLES[self.coefficients] if is_name else self.coefficients
        polynomials = _repeat_last(table, self.steps)
        dtype = ITERATION_DTYPES.get(self.precision, direction.dtype)
        matrices = units.reshape(units.shape[0], m, n).to(dtype)
        factors = newton_schulz(matrices, polynomials, self.eps, self.start, self.method)
        factors = factors.to(direction.dtype)
        factors = _shape_factor(self.scale, m, n) * factors.reshape(units.shape)
        return update.replace(direction=_unstack_units(factors, direction, self.view)), {}


ITERATION_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _stack_units(x: Tensor, view: View) -> Tensor:
    """Return the units of a view, stacked; each has the dimensions of a slice of `x`, in order."""
    x = replicate(x)
    if view.dim is None:
        return x.unsqueeze(0)
    dim = view.dim % x.ndim
    if view.groups is not None:
        x = torch.unflatten(x, dim, (view.groups, x.shape[dim] // view.groups))
    return x.movedim(dim, 0)


def _unstack_units(units: Tensor, like: Tensor, view: View) -> Tensor:
    """Return the inverse of `_stack_units`, in the shape of `like`."""
    return units.movedim(0, (view.dim or 0) % like.ndim).reshape(like.shape)


def _shape_factor(scale: str, m: int, n: int) -> float:
    """Return the factor that `Orthogonalize` lists for a matrix of shape m x n."""
    m, n = max(m, 1), max(n, 1)
    if scale == "original":
        return math.sqrt(max(1, m / n))
    if scale == "match_rms_adamw":
        return ADAMW_STEP_RMS * math.sqrt(max(m, n))
    if scale == "aspect":
        return math.sqrt(max(m, n) / min(m, n))
    if scale == "spectral":
        return math.sqrt(m / n)
    return 1.0


@dataclass(frozen=True)
class StiefelProjection(Rule):
    """Project the direction onto the tangent space of the Stiefel manifold, W^T W = I:

        D - W sym(W^T D),    sym(A) = (A + A^T) / 2.

    For a wide matrix the manifold is W W^T = I. A convolution is a matrix of shape (out, rest).

    Raises:
        ValueError: on `init`, if the weight has fewer than two dimensions.

    Example:
        >>> weight, grad = torch.eye(2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
        >>> StiefelProjection().step(weight, grad, {})[0]  # I minus the skew part
        tensor([[ 1., -1.],
                [ 1.,  1.]])

    Source: Edelman, Arias and Smith 1998.
    """

    vector_policy = "refuse"
    needs_whole_weight = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        w, d = update.weight.flatten(1), update.direction.flatten(1)
        if w.shape[0] < w.shape[1]:
            inner = d @ w.mT
            tangent = d - 0.5 * (inner + inner.mT) @ w
        else:
            inner = w.mT @ d
            tangent = d - 0.5 * w @ (inner + inner.mT)
        return update.replace(direction=tangent.reshape(update.weight.shape)), {}
