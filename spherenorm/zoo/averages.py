"""Averages: of gradients with several memories, and of the weights that a run passes."""

from __future__ import annotations

from spherenorm import rules as r
from spherenorm.numerics import Scalar
from spherenorm.registry import recipe
from spherenorm.rule import Chain, chain
from spherenorm.zoo import rules as z
from spherenorm.zoo.checks import refuse_outside


@recipe
def aggmo(lr: Scalar = 0.1, betas: tuple[Scalar, Scalar, Scalar] = (0.0, 0.9, 0.99)) -> Chain:
    """Aggregated momentum: the mean of heavy balls with several memories.

        p_i <- beta_i p_i + g,    w <- w - lr mean_i p_i.

    Start with lr = 0.1, betas (0, 0.9, 0.99) (the default).

    Args:
        lr: in [0, inf).
        betas: of the heavy balls, each in [0, 1).

    Example:
        >>> rule, weight = aggmo(lr=0.1, betas=(0.0, 0.5, 0.5)), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):  # by 1, then by the mean of 1, 1.5 and 1.5
        ...     weight, state = rule.step(weight, torch.tensor([-3.0]), state)
        >>> weight
        tensor([0.7000])

    Source: Lucas et al. 2019, arXiv:1804.00325.
    """
    return chain(
        z.WeightedSum(tuple(map(r.HeavyBall, betas)), (1 / len(betas),) * len(betas)),
        r.StepSize(lr),
    )


@recipe
def qhm(
    lr: Scalar = 1.0, momentum: Scalar = 0.999, nu: Scalar = 0.7, weight_decay: Scalar = 0.0
) -> Chain:
    """Quasi-hyperbolic momentum: a mean of the gradient and of its average.

        m <- momentum m + (1 - momentum) g,    w <- w - lr ((1 - nu) g + nu m).

    Start with lr = 1, momentum 0.999, nu 0.7 (the default).

    Args:
        lr: in [0, inf).
        momentum: in [0, 1).
        nu: the share of the average, in [0, 1]; 0 is SGD.
        weight_decay: of an L2 regularization, in [0, inf).

    Example:
        >>> rule, weight = qhm(lr=1.0, momentum=0.5, nu=0.5), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # of 4 and 2
        tensor([3.])

    Source: Ma and Yarats 2019, arXiv:1810.06801.
    """
    refuse_outside("[0, 1]", nu=nu)
    return chain(
        r.CoupledDecay(weight_decay),
        r.InterpolatedAverage(nu * momentum, momentum),
        r.StepSize(lr),
    )


@recipe
def ademamix(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar, Scalar] = (0.9, 0.999, 0.9999),
    alpha: Scalar = 2.0,
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """AdEMAMix: AdamW with a second momentum that remembers tens of thousands of steps.

        direction = (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v / (1 - beta2^t)) + eps).

    Start with lr = 0.002, betas (0.9, 0.999, 0.9999) (measured).

    Args:
        lr, weight_decay: in [0, inf).
        betas: of m1, of v, and of m2, each in [0, 1). Long runs want beta3, and alpha, to grow
            from beta1 and from 0, which is left to the training loop.
        alpha: the weight of m2, in [0, inf).
        eps: in [0, inf).

    Example:
        >>> rule, weight = ademamix(lr=0.1, betas=(0.9, 0.999, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # 1 + 2 / 2
        tensor([0.2000])

    Source: Pagliardini et al. 2025, arXiv:2409.03137, Algorithm 1; apple/ml-ademamix.
    """
    refuse_outside("[0, inf)", alpha=alpha)
    fast = r.ExponentialAverage(betas[0], bias_correction=True)
    slow = r.ExponentialAverage(betas[2])
    return chain(
        z.WeightedSum((fast, slow), (1.0, alpha)),
        z.GradientScale(betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def grokfast(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    alpha: Scalar = 0.98,
    lamb: Scalar = 2.0,
) -> Chain:
    """Grokfast: AdamW of a gradient whose slow part is made larger.

        h <- alpha h + (1 - alpha) g, which starts at the first g;    AdamW of g + lamb h.

    Start with lr = 0.001, betas (0.9, 0.999) (as `adamw`).

    Args:
        lr, weight_decay: in [0, inf).
        betas, eps: as for `adamw`.
        alpha: decay rate of the slow part, in [0, 1).
        lamb: by which it is multiplied, in [0, inf).

    Example:
        >>> rule, weight = grokfast(lr=0.1), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[1]["slow_grad"]
        tensor([-4.])

    Source: Lee et al. 2024, arXiv:2405.20233, Algorithm 2; ironjr/grokfast, gradfilter_ema.
    """
    return chain(
        z.SlowGradient(alpha, lamb),
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def schedulefree_sgd(
    lr: Scalar = 1.0, momentum: Scalar = 0.9, weight_decay: Scalar = 0.0, power: Scalar = 0.0
) -> Chain:
    """Schedule-free SGD: an average of the iterates takes the place of a schedule.

    The model holds y, at which the gradient is taken; evaluate with `eval_weight`. A warmup of lr is
    yours. See `zoo.rules.ScheduleFree` for the formula. A step makes y of z and x in the state:
    call `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 1, momentum 0.9 (the default).

    Args:
        lr: in [0, inf).
        momentum: where y lies between the iterate and the average, in [0, 1).
        weight_decay: at y, in [0, inf).
        power: of the step number in the average, in [0, inf).

    Example:
        >>> rule, weight = schedulefree_sgd(lr=1.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)  # the mean of 1, 2 and 3
        tensor([2.])

    Source: Defazio et al. 2024, arXiv:2405.15682; facebookresearch/schedule_free.
    """
    return chain(
        r.CoupledDecay(weight_decay),
        r.StepSize(lr),
        z.ScheduleFree(momentum, lr, power),
    )


@recipe
def schedulefree_adamw(
    lr: Scalar = 2.5e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    power: Scalar = 0.0,
) -> Chain:
    """Schedule-free AdamW: Adam without its momentum, and with an average of the iterates.

    The model holds y, as for `schedulefree_sgd`; write into it as there.

    Start with lr = 0.005, betas (0.9, 0.999) (measured).

    Args:
        lr: in [0, inf).
        betas: where y lies between the iterate and the average, and of the second moment, each
            in [0, 1).
        eps: in [0, inf).
        weight_decay, power: as for `schedulefree_sgd`.

    Example:
        >>> rule, weight = schedulefree_adamw(lr=1.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)
        tensor([2.])

    Source: Defazio et al. 2024, arXiv:2405.15682; facebookresearch/schedule_free.
    """
    return chain(
        z.GradientScale(betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        z.ScheduleFree(betas[0], lr, power),
    )


@recipe
def schedulefree_adamc(
    lr: Scalar = 2.5e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: Scalar = 0.9,
    power: Scalar = 0.0,
) -> Chain:
    """Schedule-free AdamC: Adam with its momentum, decay by lr^2, and an average of the iterates.

    It is ScheduleFree+ without its Polyak step size, which needs the value of the loss. The model
    holds y, as for `schedulefree_sgd`; write into it as there.

    Start with lr = 0.005, betas (0.9, 0.95) (measured).

    Args:
        lr, eps: in [0, inf).
        betas: decay rates of Adam's moments, each in [0, 1).
        weight_decay: the iterate loses lr^2 weight_decay y, in [0, inf); 20 to 50 are usual.
        momentum: where y lies between the iterate and the average, in [0, 1).
        power: as for `schedulefree_sgd`.

    Example:
        >>> rule, weight = schedulefree_adamc(lr=0.1, weight_decay=20.0), torch.ones(1)
        >>> rule.step(weight, torch.zeros(1), rule.init(weight))[0]  # 0.1^2 20 = 0.2
        tensor([0.8000])

    Source: Defazio 2026, arXiv:2605.19095; facebookresearch/schedule_free,
    adamc_schedulefree_plus_paper.py.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay * lr),
        r.StepSize(lr),
        z.ScheduleFree(momentum, lr, power),
    )


@recipe
def lookahead_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    alpha: Scalar = 0.5,
    every: int = 5,
) -> Chain:
    """Lookahead around AdamW: every few steps, go back a part of the way.

        s <- s + alpha (w - s),    w <- s    after each `every` steps.

    s is in the state: call `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr, betas, eps, weight_decay: as for `adamw`.
        alpha: the share of the way that is kept, in [0, 1].
        every: at least 1.

    Example:
        >>> rule, weight = lookahead_adamw(lr=0.1, weight_decay=0.0, every=2), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([0.1000])

    Source: Zhang et al. 2019, arXiv:1907.08610, Algorithm 1.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        z.Lookahead(alpha, every),
    )


@recipe
def emanesterov_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    lookahead: Scalar = 0.5,
    memory: Scalar = 0.9,
) -> Chain:
    """EMA-Nesterov around AdamW: gradients are taken ahead of the weight, along its trend.

    The model holds the point ahead; evaluate with `eval_weight`. `zoo.rules.TrendLookahead` behind the
    step size of any chain does the same. The paper switches it off in warmup and at the end. Call
    `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr, betas, eps, weight_decay: as for `adamw`.
        lookahead: how far ahead, in average steps, in [0, inf).
        memory: decay rate of the average of steps, in [0, 1).

    Example:
        >>> rule, weight = emanesterov_adamw(lr=0.1, weight_decay=0.0, memory=0.0), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-1.0]), rule.init(weight))[0]  # half a step ahead
        tensor([0.1500])

    Source: Yau et al. 2026, arXiv:2605.25395; modded-nanogpt, track 3.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        z.TrendLookahead(lookahead, memory),
    )
