"""Steps along signs."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.zoo import rules as z


@recipe
def signum(lr: Scalar = 1e-4, momentum: Scalar = 0.9, weight_decay: Scalar = 0.0) -> Chain:
    """Signum: the sign of an average of gradients.

        m <- momentum m + (1 - momentum) g,    w <- w - lr (sign(m) + weight_decay w).

    Start with lr = 0.001, momentum 0.9 (measured).

    Args:
        lr: the step of each entry, in [0, inf).
        momentum: in [0, 1); 0 is signSGD.
        weight_decay: in [0, inf).

    Example:
        >>> rule, weight = signum(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, -0.01]), rule.init(weight))[0]
        tensor([-0.1000,  0.1000])

    Source: Bernstein et al. 2018, arXiv:1802.04434, Algorithm 2.
    """
    return chain(
        r.ExponentialAverage(momentum),
        r.Sign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def cautious_lion(
    lr: Scalar = 1e-4, betas: tuple[Scalar, Scalar] = (0.9, 0.99), weight_decay: Scalar = 0.0
) -> Chain:
    """Cautious Lion: entries whose step and gradient disagree stay, and the others make up.

        direction u m / max(mean(m), 0.001),    m = 1 where u g > 0,    u of Lion.

    Start with lr = 0.001, betas (0.9, 0.99) (as `lion`).

    Args:
        lr, betas, weight_decay: as for `lion`.

    Example:
        >>> rule, weight = cautious_lion(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, 0.0]), rule.init(weight))[0]  # of one in two
        tensor([-0.2000,  0.0000])

    Source: Liang et al. 2024, arXiv:2411.16085; kyleliang919/C-Optim.
    """
    return chain(
        r.InterpolatedAverage(*betas),
        r.Sign(),
        r.CautiousMask(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def mars_lion(
    lr: Scalar = 1e-4,
    momentum: Scalar = 0.95,
    weight_decay: Scalar = 0.0,
    gamma: Scalar = 0.025,
) -> Chain:
    """MARS with signs: the sign of an average of gradients that are corrected by their change.

        c = g + gamma momentum / (1 - momentum) (g - g_past),    m = average of c / max(1, |c|).

    Start with lr = 0.001, momentum 0.95 (as `lion`).

    Args:
        lr: the step of each entry, in [0, inf).
        momentum: decay rate of m, in [0, 1).
        weight_decay: in [0, inf).
        gamma: of the correction, in [0, inf).

    Example:
        >>> rule, weight = mars_lion(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, -0.01]), rule.init(weight))[0]
        tensor([-0.1000,  0.1000])

    Source: Yuan et al. 2024, arXiv:2411.10438, Algorithm 3; AGI-Arena/MARS.
    """
    return chain(
        z.VarianceReduction(gamma, momentum),
        r.ExponentialAverage(momentum),
        r.Sign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )
