"""Second-order optimizers of matrices; biases and gains need another recipe."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.zoo import rules as z


@recipe
def soap(
    lr: Scalar = 3e-3,
    betas: tuple[Scalar, Scalar] = (0.95, 0.95),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    every: int = 10,
    one_sided: bool = False,
) -> Chain:
    """SOAP: Adam in the slowly turning eigenbasis of Shampoo's preconditioners.

        direction = Q_L (Q_L^T M Q_R / (sqrt(V) + eps)) Q_R^T,    V = average of (Q_L^T G Q_R)^2,

    Q_L and Q_R eigenvectors of averages of G G^T and G^T G. The first step takes those, and decays.
    (The release has no decay in the first step, and decays behind a step, not before it.)
    `"hyperball(soap)"` is SOAP on the hyperball.

    Start with lr = 0.003, betas (0.95, 0.95) (the default).

    Args:
        lr: in [0, inf).
        betas: decay rates of M, and of V and the preconditioners, each in [0, 1).
        eps: in [0, inf).
        weight_decay: decoupled, in [0, inf).
        every: steps between refreshed bases, at least 1.
        one_sided: turn the smaller side alone.

    Example:
        >>> rule, weight = soap(lr=0.1, betas=(0.0, 0.0), weight_decay=0.0), torch.zeros(2, 2)
        >>> state, grad = rule.init(weight), torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, grad, state)
        >>> weight.round(decimals=3)  # of one gradient alone, Muon's step
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Vyas et al. 2024, arXiv:2409.11321, Algorithm 3; nikhilvyas/SOAP, of matrices.
    """
    return chain(
        z.EigenbasisMoments(*betas, eps=eps, every=every, one_sided=one_sided),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def shampoo(
    lr: Scalar = 0.1,
    momentum: Scalar = 0.0,
    eps: Scalar = 1e-4,
    weight_decay: Scalar = 0.0,
    every: int = 1,
) -> Chain:
    """Shampoo: gradients divided by the fourth roots of both of their second moments.

        W <- W - lr L^(-1/4) G R^(-1/4),    L = eps I + sum G G^T,    R = eps I + sum G^T G.

    Start with lr = 0.1, momentum 0.9 (measured).

    Args:
        lr: in [0, inf).
        momentum: of the directions, in [0, 1).
        eps: in (0, inf).
        weight_decay: decoupled, in [0, inf).
        every: steps between new roots, at least 1.

    Example:
        >>> rule, weight = shampoo(lr=0.1), torch.zeros(2, 2)
        >>> grad = torch.tensor([[0.0, 3.0], [-2.0, 0.0]])
        >>> rule.step(weight, grad, rule.init(weight))[0].round(decimals=3)
        tensor([[ 0.0000, -0.1000],
                [ 0.1000,  0.0000]])

    Source: Gupta et al. 2018, arXiv:1802.09568, Algorithm 1.
    """
    return chain(
        z.KroneckerRoots(eps, every),
        r.HeavyBall(momentum),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )
