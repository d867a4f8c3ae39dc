"""Adam's relatives: what they divide by, and what they average."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.views import ViewLike
from spherenorm.zoo import rules as z
from spherenorm.zoo.checks import refuse_outside


@recipe
def amsgrad(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """AMSGrad: AdamW that divides by the largest second moment so far.

        v_max <- max(v_max, v),
        direction = (m / (1 - beta1^t)) / (sqrt(v_max / (1 - beta2^t)) + eps).

    Start with lr = 0.001, betas (0.9, 0.999) (as `adamw`).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = amsgrad(lr=0.1, betas=(0.0, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]
        tensor([0.1000])

    Source: Reddi et al. 2018, arXiv:1904.09237, Algorithm 2, with bias correction, as torch.optim.
    """
    return chain(
        r.ExponentialAverage(betas[0], bias_correction=True),
        z.GradientScale(betas[1], eps, largest=True),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def adabelief(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-16,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """AdaBelief: Adam that divides by how far gradients are from their average.

        s <- beta2 s + (1 - beta2) (g - m)^2 + eps,
        direction = (m / (1 - beta1^t)) / (sqrt(s / (1 - beta2^t)) + eps).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr, betas: as for `adam`.
        eps: in [0, inf).
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = adabelief(lr=0.1, betas=(0.5, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # 4 over a deviation of 2
        tensor([0.2000])

    Source: Zhuang et al. 2020, arXiv:2010.07468, Algorithm 2.
    """
    return chain(
        z.CenteredMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def laprop(
    lr: Scalar = 4e-4,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-15,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """LaProp: the average of gradients that are divided first, where Adam divides the average.

        m <- beta1 m + (1 - beta1) g / (sqrt(v / (1 - beta2^t)) + eps),
        direction = m / (1 - beta1^t).

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = laprop(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([-4.0, 0.5]), rule.init(weight))[0]
        tensor([ 0.1000, -0.1000])

    Source: Ziyin et al. 2020, arXiv:2002.04839.
    """
    return chain(
        z.GradientScale(betas[1], eps),
        r.ExponentialAverage(betas[0], bias_correction=True),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def adopt(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.9999),
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """ADOPT: converges with any beta2, since the second moment does not know the present gradient.

        m <- beta1 m + (1 - beta1) clip(g / max(sqrt(v), eps), (t - 1)^(1/4)),    w <- w - lr m,
        v <- beta2 v + (1 - beta2) g^2.

    The first step only takes v = g^2, and decays.

    Start with lr = 0.001, betas (0.9, 0.9999) (the default).

    Args:
        lr, betas: as for `adam`.
        eps: in (0, inf).
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = adopt(lr=0.1, betas=(0.0, 0.9)), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (-4.0, -2.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.0500])

    Source: Taniguchi et al. 2024, arXiv:2411.02853, Algorithm 2; iShohei220/adopt, which does not
    decay in the first step.
    """
    return chain(
        z.AdoptScale(betas[1], eps),
        r.ExponentialAverage(betas[0]),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def adan(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar, Scalar] = (0.98, 0.92, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adan: Adam with Nesterov momentum in terms of the gradient's change, and proximal decay.

        w <- (w - lr (m + beta2 v) / (sqrt(n) + eps)) / (1 + lr weight_decay),

    m, v and n averages of g, of its change c, and of (g + beta2 c)^2.

    Start with lr = 0.005, betas (0.98, 0.92, 0.99) (measured).

    Args:
        lr, eps, weight_decay: in [0, inf).
        betas: decay rates of m, v and n, each in [0, 1).

    Example:
        >>> rule, weight = adan(lr=0.1, weight_decay=10.0), torch.ones(1)
        >>> rule.step(weight, torch.zeros(1), rule.init(weight))[0]
        tensor([0.5000])

    Source: Xie et al. 2022, arXiv:2208.06677, Algorithm 1; sail-sg/Adan.
    """
    refuse_outside("[0, inf)", lr=lr, weight_decay=weight_decay)
    return chain(
        z.DifferenceMoments(*betas, eps=eps),
        r.StepSize(lr),
        r.Retraction(r.StepSize(1 / (1 + lr * weight_decay))),
    )


@recipe
def mars_adamw(
    lr: Scalar = 3e-3,
    betas: tuple[Scalar, Scalar] = (0.95, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    gamma: Scalar = 0.025,
) -> Chain:
    """MARS with AdamW: the gradient is corrected by its change before the moments see it.

        c = g + gamma beta1 / (1 - beta1) (g - g_past);    AdamW of c / max(1, |c|).

    For matrices; the release steps biases and gains by AdamW.

    Start with lr = 0.003, betas (0.95, 0.99) (the default).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: in [0, inf).
        gamma: of the correction, in [0, inf).

    Example:
        >>> rule, weight = mars_adamw(lr=0.1), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-0.5]), rule.init(weight))[0]
        tensor([0.1000])

    Source: Yuan et al. 2024, arXiv:2411.10438, Algorithm 2; AGI-Arena/MARS.
    """
    return chain(
        z.VarianceReduction(gamma, betas[0]),
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def cautious_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Cautious AdamW: entries whose step and gradient disagree stay, and the others make up.

        direction u m / max(mean(m), 0.001),    m = 1 where u g > 0,    u of Adam.

    Start with lr = 0.001, betas (0.9, 0.999) (as `adamw`).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: in [0, inf).

    Example:
        >>> rule, weight = cautious_adamw(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([-4.0, 0.0]), rule.init(weight))[0]  # of one in two
        tensor([0.2000, 0.0000])

    Source: Liang et al. 2024, arXiv:2411.16085, Algorithm 1; kyleliang919/C-Optim.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.CautiousMask(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def grams(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Grams: the size of Adam's step with the sign of the gradient, sign(g) |u|.

    Start with lr = 0.003, betas (0.9, 0.999) (measured).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: decoupled, in [0, inf).

    Example:
        >>> rule, weight = grams(lr=0.1), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (-4.0, 1.0):  # the momentum still points the other way
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.0531])

    Source: Cao et al. 2024, arXiv:2412.17107.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        z.GradientSign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def stable_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
) -> Chain:
    """StableAdamW: AdamW whose step, with its decay, shrinks while gradients are surprising.

        lr / max(1, s),    s^2 = mean(g^2 / max(v / (1 - beta2^t), eps^2)), for each weight.

    Start with lr = 0.003, betas (0.9, 0.99) (measured).

    Args:
        lr, betas: as for `adam`.
        eps: in (0, inf).
        weight_decay: in [0, inf).

    Example:
        >>> rule, weight = stable_adamw(lr=0.1, betas=(0.0, 0.75), weight_decay=0.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (0.0, -4.0):  # Adam's second step would be 0.13
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.1000])

    Source: Wortsman et al. 2023, arXiv:2304.13013, Algorithm 2.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        z.SurpriseClip(betas[1], eps),
        r.StepSize(lr),
    )


@recipe
def adam_mini(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    view: ViewLike = "channel",
) -> Chain:
    """Adam-mini: AdamW with one second moment for each block of a weight.

        v <- beta2 v + (1 - beta2) mean(g^2) over a block.

    Blocks are the neurons of most matrices, the heads of queries and keys (`view="groups=8"`), and
    the tokens of an embedding. Biases and gains have a block for each entry, as in Adam.

    Start with lr = 0.001, betas (0.9, 0.999) (as `adamw`).

    Args:
        lr, betas, eps: as for `adam`.
        weight_decay: decoupled, in [0, inf).
        view: splits a weight into its blocks.

    Example:
        >>> rule, weight = adam_mini(lr=0.1), torch.zeros(1, 2)
        >>> rule.step(weight, torch.tensor([[1.0, 7.0]]), rule.init(weight))[0]  # over 5
        tensor([[-0.0200, -0.1400]])

    Source: Zhang et al. 2024, arXiv:2406.16793; zyushun/Adam-mini.
    """
    return chain(
        r.ExponentialAverage(betas[0], bias_correction=True),
        z.GradientScale(betas[1], eps, view=view),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )
