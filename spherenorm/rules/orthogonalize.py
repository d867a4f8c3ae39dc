"""Matrices: orthogonalize the direction, as Muon does, and project it onto the Stiefel manifold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import choice, view
from spherenorm.numerics import safe_sqrt
from spherenorm.rule import Rule, State, Update
from spherenorm.views import View, ViewLike, replicate

Polynomial = tuple[float, float, float]
_Name = str

_SAFETY = 1.01
_POLAR_EXPRESS: tuple[Polynomial, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)


def _shrunk(polynomial: Polynomial, by: float) -> Polynomial:
    """The polynomial of x / by."""
    a, b, c = polynomial
    return a / by, b / by**3, c / by**5


TABLES: dict[str, tuple[Polynomial, ...]] = {
    # KellerJordan/Muon; the singular values end about evenly in (0.7, 1.2), not at 1.
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
        _shrunk(_POLAR_EXPRESS[0], _SAFETY**2),  # of G / (1.01 |G|)
        *(_shrunk(each, _SAFETY) for each in _POLAR_EXPRESS[1:]),
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
    # converges to the orthogonal factor itself
    "plain": ((2.0, -1.5, 0.5),) * 12,
}
"""The coefficients (a, b, c) of each step of the iteration, by name."""


def newton_schulz(matrix: Tensor, polynomials: Iterable[Polynomial], eps: float) -> Tensor:
    """Drive the singular values of matrices towards 1, and keep their singular vectors:

        X_0 = G / max(|G|, eps),    X <- a X + (b A + c A^2) X,    A = X X^T.

    Args:
        matrix: G, of shape (..., m, n); the iteration runs on the wide one of G and G^T.
        polynomials: (a, b, c) of each step.
        eps: the smallest norm that is divided by.

    Example:
        >>> newton_schulz(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), TABLES["plain"], 1e-7).round()
        tensor([[1., 0.],
                [0., 1.]])

    Source: Jordan et al. 2024 (Muon).
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix
    x = x / safe_sqrt((x * x).sum((-2, -1), keepdim=True)).clamp(min=eps)
    for a, b, c in polynomials:
        gram = x @ x.mT
        x = _plus_product(a, x, 1.0, _plus_product(b, gram, c, gram, gram), x)
    return x.mT if tall else x


def _plus_product(beta: float, x: Tensor, alpha: float, y: Tensor, z: Tensor) -> Tensor:
    """beta x + alpha y z; in half precision by one operation, which rounds the sum alone."""
    if x.itemsize == 2 and x.ndim == 3:
        return torch.baddbmm(x, y, z, beta=beta, alpha=alpha)
    return beta * x + (y @ z if alpha == 1 else alpha * (y @ z))


@dataclass(frozen=True)
class Orthogonalize(Rule):
    """The orthogonal factor U V^T of the direction D = U S V^T, by Newton-Schulz iteration.

    A unit of the view is one matrix: its first dimension by all others, in the weight's order. So
    "layer" takes a weight as one matrix, and flattens a convolution to (out, in x kernel);
    "groups=8" takes each of 8 heads by itself, and "dim=1,groups=8" where they are its columns;
    "channel" takes a stack (experts, out, in) expert by expert.

    With a matrix of m x n, the result is multiplied by

        original: sqrt(max(1, m / n)),      match_rms_adamw: 0.2 sqrt(max(m, n)),
        spectral: sqrt(m / n),              aspect: sqrt(max(m, n) / min(m, n)),
        none: 1.

    Args:
        coefficients: the name of a table of polynomials: "original" (Muon's), "quintic",
            "polar_express", "cans", "deepseek" or "plain"; only the last two converge to 1.
        steps: of the iteration; the last polynomial of the table goes on. None: as many as the
            table has.
        scale: by the shape of the matrix.
        precision: of the iteration: "weight", that of the rule; "float32"; or "bfloat16", which is
            fast on a GPU and off by a few percent.
        view: splits the weight into its matrices.
        eps: the smallest norm of D that is divided by.

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions; an unknown name.

    Example:
        >>> rule = chain(Orthogonalize("plain"))
        >>> rule.step(torch.zeros(2, 2), torch.tensor([[3.0, 0.0], [0.0, 1.0]]), {})[0].round()
        tensor([[-1.,  0.],
                [ 0., -1.]])

    Source: Jordan et al. 2024 (Muon); Liu et al. 2025 (Moonlight), for `match_rms_adamw`.
    """

    coefficients: _Name = choice(
        "original", "quintic", "polar_express", "cans", "deepseek", "plain"
    )
    steps: int | None = None
    scale: _Name = choice("none", "original", "match_rms_adamw", "spectral", "aspect")
    precision: _Name = choice("weight", "float32", "bfloat16")
    view: ViewLike = view("layer")
    eps: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and not (type(self.steps) is int and self.steps > 0):
            raise ValueError(f"Orthogonalize: steps must be a positive int, got {self.steps!r}")

    vectors = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        units = _units(direction, self.view)
        m, n = units.shape[1], math.prod(units.shape[2:])
        table = TABLES[self.coefficients]
        steps = len(table) if self.steps is None else self.steps
        polynomials = itertools.islice(itertools.chain(table, itertools.repeat(table[-1])), steps)
        matrices = units.reshape(units.shape[0], m, n).to(
            _DTYPES.get(self.precision, direction.dtype)
        )
        factors = newton_schulz(matrices, polynomials, self.eps).to(direction.dtype)
        factors = _scale(self.scale, m, n) * factors.reshape(units.shape)
        return update.replace(direction=_from_units(factors, direction, self.view)), {}


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _units(x: Tensor, view: View) -> Tensor:
    """The units of a view, stacked: each keeps the order of its dimensions, as a slice of `x`."""
    x = replicate(x)
    if view.dim is None:
        return x.unsqueeze(0)
    dim = view.dim % x.ndim
    if view.groups is not None:
        x = torch.unflatten(x, dim, (view.groups, x.shape[dim] // view.groups))
    return x.movedim(dim, 0)


def _from_units(units: Tensor, like: Tensor, view: View) -> Tensor:
    """The inverse of `_units` for a tensor shaped as `like`."""
    return units.movedim(0, (view.dim or 0) % like.ndim).reshape(like.shape)


def _scale(scale: str, m: int, n: int) -> float:
    m, n = max(m, 1), max(n, 1)
    if scale == "original":
        return math.sqrt(max(1, m / n))
    if scale == "match_rms_adamw":
        return 0.2 * math.sqrt(max(m, n))
    if scale == "aspect":
        return math.sqrt(max(m, n) / min(m, n))
    return math.sqrt(m / n) if scale == "spectral" else 1.0


@dataclass(frozen=True)
class StiefelProjection(Rule):
    """The part of the direction that is tangent to the Stiefel manifold, W^T W = I:

        D - W sym(W^T D),    sym(A) = (A + A^T) / 2.

    A wide matrix has W W^T = I instead; a convolution is out x rest.

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> weight, grad = torch.eye(2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
        >>> StiefelProjection().step(weight, grad, {})[0]  # I minus the skew part
        tensor([[ 1., -1.],
                [ 1.,  1.]])

    Source: Edelman, Arias and Smith 1998.
    """

    vectors = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        w, d = update.weight.flatten(1), update.direction.flatten(1)
        if w.shape[0] < w.shape[1]:
            inner = d @ w.mT
            tangent = d - 0.5 * (inner + inner.mT) @ w
        else:
            inner = w.mT @ d
            tangent = d - 0.5 * w @ (inner + inner.mT)
        return update.replace(direction=tangent.reshape(update.weight.shape)), {}
