"""Adam in less memory, and without a learning rate."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.zoo import rules as z


@recipe
def adafactor(
    lr: Scalar = 1e-2,
    decay: Scalar = 0.8,
    longest: Scalar = 1.0,
    eps: Scalar = 1e-30,
    eps2: Scalar = 1e-3,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adafactor: a second moment in rows and columns, and steps relative to the weight.

        u = g / sqrt(R C / sum(R)),    w <- w - lr max(eps2, rms(w)) u / max(1, rms(u) / longest),

    R and C averages of the sums of g^2 + eps, with a decay rate of 1 - t^-decay.

    Start with lr = 0.02 (measured).

    Args:
        lr: relative to the weight, in [0, inf). The paper's is min(0.01, 1 / sqrt(t)).
        decay: in (0, inf).
        longest: in (0, inf).
        eps: in [0, inf).
        eps2: the least size of a weight that counts, in (0, inf).
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = adafactor(lr=0.1), 2 * torch.ones(2, 2)
        >>> rule.step(weight, torch.tensor([[1.0, 1.0], [3.0, 3.0]]), rule.init(weight))[0]
        tensor([[1.8000, 1.8000],
                [1.8000, 1.8000]])

    Source: Shazeer and Stern 2018, arXiv:1804.04235, Algorithms 4 and 5.
    """
    return chain(
        z.FactoredScale(decay=decay, eps=eps),
        z.RmsLimit(longest),
        z.WeightRms(eps2),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def came(
    lr: Scalar = 2e-4,
    betas: tuple[Scalar, Scalar, Scalar] = (0.9, 0.999, 0.9999),
    longest: Scalar = 1.0,
    eps: Scalar = 1e-30,
    eps2: Scalar = 1e-16,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """CAME: Adafactor with momentum, which counts less where the factored step is far from it.

        u = g / sqrt(factored moment of g^2 + eps),    u <- u / max(1, rms(u) / longest),
        m <- beta1 m + (1 - beta1) u,    direction = m / sqrt(factored moment of (u - m)^2 + eps2).

    Start with lr = 0.0002, betas (0.9, 0.999, 0.9999) (the default).

    Args:
        lr: in [0, inf).
        betas: of m, and of the two moments, each in [0, 1).
        longest: in (0, inf).
        eps, eps2: in [0, inf).
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = came(lr=0.1, betas=(0.5, 0.0, 0.0)), torch.zeros(1, 1)
        >>> rule.step(weight, torch.tensor([[-4.0]]), rule.init(weight))[0]  # m and u - m are 0.5
        tensor([[0.1000]])

    Source: Luo et al. 2023, arXiv:2307.02047, Algorithm 2; yangluo7/CAME.
    """
    return chain(
        z.FactoredScale(betas[1], eps=eps),
        z.RmsLimit(longest),
        z.Confidence(betas[0], betas[2], eps2),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def prodigy(
    lr: Scalar = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    d0: Scalar = 1e-6,
) -> Chain:
    """Prodigy: Adam that finds its own step size, an estimate of the distance to the solution.

    See `zoo.rules.ProdigyStep` for the formula. All weights share the estimate.

    Start with lr = 1, betas (0.9, 0.999) (the default, which needs no tuning).

    Args:
        lr: a factor, in [0, inf), for schedules; the same for all weights, but for 0.
        betas: decay rates of the moments, each in [0, 1).
        eps: in [0, inf).
        weight_decay: in [0, inf).
        d0: the first estimate, in (0, inf).

    Example:
        >>> rule, weight = prodigy(d0=0.01), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(20):  # towards 1
        ...     weight, state = rule.step(weight, weight - 1, state)
        >>> bool(state["d"] > 0.1)
        True

    Source: Mishchenko and Defazio 2024, arXiv:2306.06101, Algorithm 4; konstmish/prodigy.
    """
    return chain(z.ProdigyStep(lr, *betas, eps=eps, d0=d0, weight_decay=weight_decay))


@recipe
def dadapt_sgd(lr: Scalar = 1.0, momentum: Scalar = 0.9, d0: Scalar = 1e-6) -> Chain:
    """D-Adaptation of SGD: its step size is an estimate of the distance to the solution.

    See `zoo.rules.DAdaptation` for the formula. All weights share the estimate. A step goes on from
    weights in the state: call `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.3, momentum 0.9 (measured; the paper's is 1).

    Args:
        lr: a factor, in [0, inf), for schedules; the same for all weights, but for 0.
        momentum: in [0, 1).
        d0: the first estimate, in (0, inf).

    Example:
        >>> rule, weight = dadapt_sgd(momentum=0.0, d0=0.01), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(20):  # towards 1
        ...     weight, state = rule.step(weight, weight - 1, state)
        >>> bool(state["d"] > 0.1)
        True

    Source: Defazio and Mishchenko 2023, arXiv:2301.07733; facebookresearch/dadaptation.
    """
    return chain(z.DAdaptation(lr, momentum, d0))
