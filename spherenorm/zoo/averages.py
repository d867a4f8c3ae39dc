"""Averages of gradients at several time scales, and averages of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spherenorm import rules as r
from spherenorm import wrappers
from spherenorm.fields import Interval, check_number, hyper
from spherenorm.numerics import (
    Scalar,
    add_scaled,
    cast_like,
    ema,
)
from spherenorm.recipes import adamw, sgd
from spherenorm.registry import recipe
from spherenorm.rule import STEP_KEY, Chain, Rule, State, Update, chain
from spherenorm.zoo.moments import SecondMomentScale


@dataclass(frozen=True)
class WeightedSum(Rule):
    """Add the directions of several rules: sum_i c_i rule_i(d).

    Args:
        rules: the rules, which all get the direction d.
        weights: c_i, one number for each rule.

    Raises:
        ValueError: the number of weights is not that of the rules.

    Example:
        >>> rule = WeightedSum((sn.rules.StepSize(1.0), sn.rules.Sign()), (1.0, 5.0))
        >>> rule.step(torch.tensor([0.0]), torch.tensor([3.0]), {})[0]
        tensor([-8.])

    Source: Lucas et al. 2019 (AggMo); Pagliardini et al. 2025 (AdEMAMix).
    """

    rules: tuple[Rule, ...]
    weights: Sequence[Scalar]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weights", tuple(self.weights))
        if len(self.rules) != len(self.weights):
            raise ValueError(
                "WeightedSum: each rule needs a weight, "
                f"got {len(self.rules)} rules and {len(self.weights)} weights"
            )

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        total = torch.zeros_like(update.direction)
        new_state: State = {}
        for index, weight in enumerate(self.weights):
            child_update, child_state = self.update_child(index, update, state)
            total = total + cast_like(weight, total) * child_update.direction
            new_state |= child_state
        return update.replace(direction=total), new_state


@recipe
def aggmo(lr: Scalar = 0.1, betas: tuple[Scalar, Scalar, Scalar] = (0.0, 0.9, 0.99)) -> Chain:
    """Aggregated momentum: the mean of heavy balls with several decay rates.

        p_i <- beta_i p_i + g,    w <- w - lr mean_i p_i.

    Start with lr = 0.1, betas (0, 0.9, 0.99) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of the heavy balls, each in [0, 1).

    Example:
        >>> rule, weight = aggmo(lr=0.1, betas=(0.0, 0.5, 0.5)), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):  # by 1, then by the mean of 1, 1.5 and 1.5
        ...     weight, state = rule.step(weight, torch.tensor([-3.0]), state)
        >>> weight
        tensor([0.7000])

    Source: Lucas et al. 2019, arXiv:1804.00325.

    `spherenorm code aggmo` prints it as plain torch.
    """
    return chain(
        WeightedSum(tuple(map(r.HeavyBall, betas)), (1 / len(betas),) * len(betas)),
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
        lr: learning rate, in [0, inf).
        momentum: decay rate of m, in [0, 1).
        nu: the share of the average, in [0, 1]; 0 is SGD.
        weight_decay: factor of the L2 term weight_decay w in the gradient, in [0, inf).

    Example:
        >>> rule, weight = qhm(lr=1.0, momentum=0.5, nu=0.5), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # of 4 and 2
        tensor([3.])

    Source: Ma and Yarats 2019, arXiv:1810.06801.

    `spherenorm code qhm` prints it as plain torch.
    """
    check_number(nu, Interval.parse("[0, 1]"), "nu must be")
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

        m1 <- beta1 m1 + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        m2 <- beta3 m2 + (1 - beta3) g,
        u = (m1 / (1 - beta1^t) + alpha m2) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    In long runs beta3 and alpha should grow from beta1 and 0, which is up to the training loop.

    Start with lr = 0.002, betas (0.9, 0.999, 0.9999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m1, v and m2, each in [0, 1).
        alpha: the factor of m2, in [0, inf).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = ademamix(lr=0.1, betas=(0.9, 0.999, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # 1 + 2 / 2
        tensor([0.2000])

    Source: Pagliardini et al. 2025, arXiv:2409.03137, Algorithm 1; apple/ml-ademamix.

    `spherenorm code ademamix` prints it as plain torch.
    """
    check_number(alpha, Interval.parse("[0, inf)"), "alpha must be")
    fast = r.ExponentialAverage(betas[0], bias_correction=True)
    slow = r.ExponentialAverage(betas[2])
    return chain(
        WeightedSum((fast, slow), (1.0, alpha)),
        SecondMomentScale(betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class AddSlowAverage(Rule):
    """Add a multiple of an average of the directions, which starts at the first direction:

        d_t + lamb h_t,    h_1 = d_1,    h_t = alpha h_{t-1} + (1 - alpha) d_t.

    Args:
        alpha: decay rate of the average, in [0, 1).
        lamb: the factor of the average, in [0, inf).

    Example:
        >>> rule = AddSlowAverage(alpha=0.5, lamb=2.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([1.0]), rule.init(weight))[0]
        tensor([-3.])

    Source: Lee et al. 2024 (Grokfast), arXiv:2405.20233, Algorithm 2.
    """

    alpha: Scalar = hyper("[0, 1)")
    lamb: Scalar = hyper("[0, inf)")

    state_names = (STEP_KEY, "slow_grad")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        slow = ema(state["slow_grad"], grad, self.alpha)
        slow = torch.where(state[STEP_KEY] > 1, slow, grad)
        return update.replace(direction=add_scaled(grad, self.lamb, slow)), {"slow_grad": slow}


@recipe
def grokfast(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    alpha: Scalar = 0.98,
    lamb: Scalar = 2.0,
) -> Chain:
    """Grokfast: AdamW of a gradient whose slow part is amplified.

        h <- alpha h + (1 - alpha) g, which starts at the first g,    g <- g + lamb h,
        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        alpha: decay rate of h, in [0, 1).
        lamb: the factor of h, in [0, inf).

    Example:
        >>> rule, weight = grokfast(lr=0.1), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[1]["slow_grad"]
        tensor([-4.])

    Source: Lee et al. 2024, arXiv:2405.20233, Algorithm 2; ironjr/grokfast, gradfilter_ema.

    `spherenorm code grokfast` prints it as plain torch.
    """
    return chain(
        AddSlowAverage(alpha, lamb),
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def schedulefree_sgd(
    lr: Scalar = 1.0, momentum: Scalar = 0.9, weight_decay: Scalar = 0.0, power: Scalar = 0.0
) -> Rule:
    """Schedule-free SGD: an average x of the iterates z takes the place of a schedule.

        z <- z - lr (g + weight_decay y),
        x <- (1 - c) x + c z,    y <- (1 - beta) z + beta x,
        c = s_t / (s_1 + ... + s_t),    s_t = t^power max(lr_1, ..., lr_t)^2,    beta = momentum.

    The model holds y, at which the gradient is taken; evaluate with `eval_weight`, which is x. The
    training loop does the warmup of lr. A step computes y from the states z and x: call
    `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 1, momentum 0.9 (the default).

    Args:
        lr: learning rate, in [0, inf).
        momentum: where y lies between the iterate and the average, in [0, 1).
        weight_decay: factor of y in the step, in [0, inf).
        power: exponent of the step count in the average, in [0, inf).

    Example:
        >>> rule, weight = schedulefree_sgd(lr=1.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)  # the mean of 1, 2 and 3
        tensor([2.])

    Source: Defazio et al. 2024, arXiv:2405.15682; facebookresearch/schedule_free.

    `spherenorm code schedulefree_sgd` prints it as plain torch.
    """
    return wrappers.schedulefree(sgd)(
        lr=lr, weight_decay=weight_decay, interpolation=momentum, power=power
    )


@recipe
def schedulefree_adamw(
    lr: Scalar = 2.5e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    power: Scalar = 0.0,
) -> Chain:
    """Schedule-free AdamW: Adam without momentum, and with an average x of the iterates z.

        v <- beta2 v + (1 - beta2) g^2,
        z <- z - lr (g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay y),
        x <- (1 - c) x + c z,    y <- (1 - beta) z + beta x,
        c = s_t / (s_1 + ... + s_t),    s_t = t^power max(lr_1, ..., lr_t)^2,    beta = beta1.

    The model holds y, at which the gradient is taken; evaluate with `eval_weight`, which is x. The
    training loop does the warmup of lr. A step computes y from the states z and x: call
    `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.005, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: where y lies between the iterate and the average, and the decay rate of v, each
            in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of y in the step, in [0, inf).
        power: exponent of the step count in the average, in [0, inf).

    Example:
        >>> rule, weight = schedulefree_adamw(lr=1.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)
        tensor([2.])

    Source: Defazio et al. 2024, arXiv:2405.15682; facebookresearch/schedule_free.

    `spherenorm code schedulefree_adamw` prints it as plain torch.
    """
    return chain(
        SecondMomentScale(betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        r.ScheduleFree(betas[0], lr, power),
    )


@recipe
def schedulefree_adamc(
    lr: Scalar = 2.5e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.95),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    momentum: Scalar = 0.9,
    power: Scalar = 0.0,
) -> Rule:
    """Schedule-free AdamC: Adam with momentum, decay by lr^2, and an average x of the iterates z.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        z <- z - lr u - lr^2 weight_decay y,
        x <- (1 - c) x + c z,    y <- (1 - beta) z + beta x,
        c = s_t / (s_1 + ... + s_t),    s_t = t^power max(lr_1, ..., lr_t)^2,    beta = momentum.

    It is ScheduleFree+ without its Polyak step size, which needs the value of the loss.

    The model holds y, at which the gradient is taken; evaluate with `eval_weight`, which is x. The
    training loop does the warmup of lr. A step computes y from the states z and x: call
    `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.005, betas (0.9, 0.95) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of lr^2 y in the step, in [0, inf); 20 to 50 are usual.
        momentum: where y lies between the iterate and the average, in [0, 1).
        power: exponent of the step count in the average, in [0, inf).

    Example:
        >>> rule, weight = schedulefree_adamc(lr=0.1, weight_decay=20.0), torch.ones(1)
        >>> rule.step(weight, torch.zeros(1), rule.init(weight))[0]  # 0.1^2 20 = 0.2
        tensor([0.8000])

    Source: Defazio 2026, arXiv:2605.19095; facebookresearch/schedule_free,
    adamc_schedulefree_plus_paper.py.

    `spherenorm code schedulefree_adamc` prints it as plain torch.
    """
    decay = weight_decay * lr
    return wrappers.schedulefree(adamw)(
        lr=lr, betas=betas, eps=eps, weight_decay=decay, interpolation=momentum, power=power
    )


@recipe
def gpa_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    interpolation: Scalar = 0.7,
    memory: Scalar = 0.9967,
) -> Rule:
    """Generalized primal averaging of AdamW: an exponential average x of the iterates z.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        z <- z - lr (u + weight_decay y),    x <- memory x + (1 - memory) z,
        y <- (1 - interpolation) z + interpolation x.

    The model holds y, at which the gradient is taken; evaluate with `eval_weight`, which is x.
    Call `optimizer.reset_averages()` after writing into the parameters. `"gpa(muon)"` does the same
    to Muon.

    Start with lr = 0.01, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: factor of y in the step, in [0, inf).
        interpolation: mu_y of the paper, where y lies between z and x, in [0, 1].
        memory: mu_x of the paper, the decay rate of x, in [0, 1).

    Example:
        >>> rule, weight = gpa_adamw(lr=1.0, memory=0.5), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):  # z is 1, then 2
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)
        tensor([1.2500])

    Source: Defazio et al. 2025, arXiv:2512.17131; facebookresearch/optimizers, gpa_adamw.py.

    `spherenorm code gpa_adamw` prints it as plain torch.
    """
    adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    return wrappers.gpa(adamw)(**adam, interpolation=interpolation, memory=memory)


@recipe
def lookahead_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    alpha: Scalar = 0.5,
    every: int = 5,
) -> Rule:
    """Lookahead around AdamW: after every k-th step, go back a part of the way.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w),
        s <- s + alpha (w - s),    w <- s    after each `every` steps.

    s is a state: call `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        alpha: the share of the way that remains, in [0, 1].
        every: k, the number of steps, in [1, inf).

    Example:
        >>> rule, weight = lookahead_adamw(lr=0.1, weight_decay=0.0, every=2), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([0.1000])

    Source: Zhang et al. 2019, arXiv:1907.08610, Algorithm 1.

    `spherenorm code lookahead_adamw` prints it as plain torch.
    """
    adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    return wrappers.lookahead(adamw)(**adam, alpha=alpha, every=every)


@recipe
def emanesterov_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
    lookahead: Scalar = 0.5,
    memory: Scalar = 0.9,
) -> Rule:
    """EMA-Nesterov around AdamW: gradients are taken ahead of the weight, along its trend.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w' = y - lr (u + weight_decay y),    m' <- memory m' + (1 - memory) (w' - w),
        y <- w' + lookahead m'.

    The model holds y; evaluate with `eval_weight`, which is w. `"emanesterov(muon)"` does the same
    to Muon. The paper switches it off in warmup and at the end. Call `optimizer.reset_averages()`
    after writing into the parameters.

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        lookahead: the distance ahead, in average steps, in [0, inf).
        memory: decay rate of the average of steps m', in [0, 1).

    Example:
        >>> rule, weight = emanesterov_adamw(lr=0.1, weight_decay=0.0, memory=0.0), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-1.0]), rule.init(weight))[0]  # half a step ahead
        tensor([0.1500])

    Source: Yau et al. 2026, arXiv:2605.25395; modded-nanogpt, track 3.

    `spherenorm code emanesterov_adamw` prints it as plain torch.
    """
    adam = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    return wrappers.emanesterov(adamw)(**adam, lookahead=lookahead, memory=memory)
