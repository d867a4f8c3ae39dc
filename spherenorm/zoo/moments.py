"""Adam's and Lion's relatives: other second moments, corrected gradients, masks and signs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm import rules as r
from spherenorm import wrappers
from spherenorm.fields import Interval, check_number, hyper, view
from spherenorm.numerics import (
    Scalar,
    add_scaled,
    bias_correction,
    bias_corrections,
    cast_like,
    ema,
    ema_of_square,
    mean,
    safe_sqrt,
    without_overflow,
)
from spherenorm.recipes import adamw, lion
from spherenorm.registry import recipe
from spherenorm.rule import STEP_KEY, Chain, Rule, State, Update, chain
from spherenorm.views import View, ViewLike

NON_NEGATIVE = Interval.parse("[0, inf)")


@dataclass(frozen=True)
class SecondMomentScale(Rule):
    """Divide by the root of Adam's second moment; the first t is 1:

        v_t = beta v_{t-1} + (1 - beta) g_t^2,    d / (sqrt(v_t / (1 - beta^t)) + eps).

    Args:
        beta: decay rate of v, in [0, 1).
        eps: added to the root, in [0, inf).
        largest: divide by the root of the largest v so far.
        view: average the squares of the entries over the units of this view, with one v per unit;
            None has one v per entry.

    Example:
        >>> rule = SecondMomentScale(0.9, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([5.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Kingma and Ba 2015, Algorithm 1; Reddi et al. 2018 (AMSGrad), for `largest`; Zhang et
    al. 2024 (Adam-mini), for `view`.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    largest: bool = False
    view: ViewLike | None = view(None)

    @property
    def state_names(self) -> tuple[str, ...]:
        names = (STEP_KEY, "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if self.largest else names

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        for name in state.keys() - {STEP_KEY}:
            state[name] = self._unit_means(state[name])
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if self.view is None:
            square = ema_of_square(state["exp_avg_sq"], update.grad, self.beta)
        else:
            mean_square = without_overflow(self._unit_means(update.grad**2))
            square = ema(state["exp_avg_sq"], mean_square, self.beta)
        new_state = {"exp_avg_sq": square}
        if self.largest:
            square = torch.maximum(state["max_exp_avg_sq"], square)
            new_state["max_exp_avg_sq"] = square
        correction = bias_correction(self.beta, state[STEP_KEY])
        root = safe_sqrt(square / cast_like(correction, square)) + cast_like(self.eps, square)
        return update.replace(direction=update.direction / root), new_state

    def _unit_means(self, x: Tensor) -> Tensor:
        """Return the means over the units of the view, or x without a view."""
        if self.view is None:
            return x
        unit_view: View = self.view
        return unit_view.unit_sums(x) / max(unit_view.size(x), 1)


@recipe
def amsgrad(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """AMSGrad: AdamW that divides by the largest second moment so far.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,    v_max <- max(v_max, v),
        u = (m / (1 - beta1^t)) / (sqrt(v_max / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v_max, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = amsgrad(lr=0.1, betas=(0.0, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]
        tensor([0.1000])

    Source: Reddi et al. 2018, arXiv:1904.09237, Algorithm 2, with bias correction, as torch.optim.

    `spherenorm code amsgrad` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(betas[0], bias_correction=True),
        SecondMomentScale(betas[1], eps, largest=True),
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
    """LaProp: average gradients that are divided before, where Adam divides the average.

        v <- beta2 v + (1 - beta2) g^2,
        m <- beta1 m + (1 - beta1) g / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (m / (1 - beta1^t) + weight_decay w).

    Start with lr = 0.002, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = laprop(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([-4.0, 0.5]), rule.init(weight))[0]
        tensor([ 0.1000, -0.1000])

    Source: Ziyin et al. 2020, arXiv:2002.04839.

    `spherenorm code laprop` prints it as plain torch.
    """
    return chain(
        SecondMomentScale(betas[1], eps),
        r.ExponentialAverage(betas[0], bias_correction=True),
        r.DecoupledDecay(weight_decay),
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

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) mean(g^2) over a block,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Blocks are the neurons of most matrices, the heads of queries and keys (`view="groups=8"`), and
    the tokens of an embedding. In biases and gains each entry is a block, as in Adam.

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        view: splits a weight into its blocks.

    Example:
        >>> rule, weight = adam_mini(lr=0.1), torch.zeros(1, 2)
        >>> rule.step(weight, torch.tensor([[1.0, 7.0]]), rule.init(weight))[0]  # over 5
        tensor([[-0.0200, -0.1400]])

    Source: Zhang et al. 2024, arXiv:2406.16793; zyushun/Adam-mini.

    `spherenorm code adam_mini` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(betas[0], bias_correction=True),
        SecondMomentScale(betas[1], eps, view=view),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class CenteredMoments(Rule):
    """Adam's moments with a second moment about the first one; the first t is 1:

        m_t = beta1 m_{t-1} + (1 - beta1) d_t
        s_t = beta2 s_{t-1} + (1 - beta2) (d_t - m_t)^2 + eps
        direction = (m_t / (1 - beta1^t)) / (sqrt(s_t / (1 - beta2^t)) + eps)

    Args:
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the second moment, and to its root, in [0, inf).

    Example:
        >>> rule = CenteredMoments(0.5, 0.5, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[0]  # of a deviation of 2
        tensor([-2.])

    Source: Zhuang et al. 2020 (AdaBelief), arXiv:2010.07468, Algorithm 2.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-16)

    state_names = (STEP_KEY, "exp_avg", "exp_avg_var")
    tangent_names = ("exp_avg",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        average = ema(state["exp_avg"], update.direction, self.beta1)
        eps = cast_like(self.eps, average)
        variance = ema_of_square(state["exp_avg_var"], update.direction - average, self.beta2)
        variance = variance + eps
        correction1, correction2 = bias_corrections(state[STEP_KEY], self.beta1, self.beta2)
        root = safe_sqrt(variance / cast_like(correction2, variance)) + eps
        direction = average / cast_like(correction1, average) / root
        new_state = {"exp_avg": average, "exp_avg_var": variance}
        return update.replace(direction=direction), new_state


@recipe
def adabelief(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-16,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """AdaBelief: Adam that divides by the deviation of gradients from their average.

        m <- beta1 m + (1 - beta1) g,    s <- beta2 s + (1 - beta2) (g - m)^2 + eps,
        u = (m / (1 - beta1^t)) / (sqrt(s / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and s, each in [0, 1).
        eps: added to s and to its root, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = adabelief(lr=0.1, betas=(0.5, 0.5)), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-4.0]), rule.init(weight))[0]  # 4 over a deviation of 2
        tensor([0.2000])

    Source: Zhuang et al. 2020, arXiv:2010.07468, Algorithm 2.

    `spherenorm code adabelief` prints it as plain torch.
    """
    return chain(
        CenteredMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class AdoptScale(Rule):
    """Divide by the second moment of earlier steps, and clip; the first direction is 0:

        clip(d_t / max(sqrt(v_{t-1}), eps), (t - 1)^(1/4)),
        v_1 = d_1^2,    v_t = beta v_{t-1} + (1 - beta) d_t^2.

    Args:
        beta: decay rate of v, in [0, 1).
        eps: the minimum of the root, in (0, inf).

    Example:
        >>> rule = AdoptScale(0.9, 1e-6)
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for grad in (4.0, 2.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([-0.5000])

    Source: Taniguchi et al. 2024 (ADOPT), arXiv:2411.02853, Algorithm 2.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("(0, inf)", 1e-6)

    state_names = (STEP_KEY, "exp_avg_sq")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        square = state["exp_avg_sq"]
        earlier_steps = state[STEP_KEY] - 1
        bound = (earlier_steps**0.25).to(direction.dtype)
        eps = cast_like(self.eps, square) * torch.ones_like(square)
        scaled = direction / torch.maximum(safe_sqrt(square), eps)
        scaled = torch.minimum(torch.maximum(scaled, -bound), bound)
        average = ema_of_square(square, direction, self.beta)
        square = torch.where(earlier_steps > 0, average, direction**2)
        return update.replace(direction=scaled), {"exp_avg_sq": square}


@recipe
def adopt(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.9999),
    eps: Scalar = 1e-6,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """ADOPT: converges with any beta2, since the second moment leaves out the present gradient.

        m <- beta1 m + (1 - beta1) clip(g / max(sqrt(v), eps), (t - 1)^(1/4)),
        w <- w - lr (m + weight_decay w),    v <- beta2 v + (1 - beta2) g^2.

    The first step only sets v = g^2, and decays.

    Start with lr = 0.001, betas (0.9, 0.9999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: the minimum of the root of v, in (0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = adopt(lr=0.1, betas=(0.0, 0.9)), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (-4.0, -2.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.0500])

    Source: Taniguchi et al. 2024, arXiv:2411.02853, Algorithm 2; iShohei220/adopt, which does not
    decay in the first step.

    `spherenorm code adopt` prints it as plain torch.
    """
    return chain(
        AdoptScale(betas[1], eps),
        r.ExponentialAverage(betas[0]),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class DifferenceMoments(Rule):
    """Average the gradient and its change, c_t = g_t - g_{t-1} with c_1 = 0:

        m = avg1(g),    v = avg2(c),    n = avg3((g + beta2 c)^2),
        direction = (m + beta2 v) / (sqrt(n) + eps),

    where avg1, avg2 and avg3 are averages with decay rates beta1, beta2 and beta3, and with bias
    correction.

    Args:
        beta1, beta2, beta3: decay rates of the averages, in [0, 1).
        eps: added to the root, in [0, inf).

    Example:
        >>> rule = DifferenceMoments(0.9, 0.9, 0.9, 0.0)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[0]
        tensor([-1.])

    Source: Xie et al. 2022 (Adan), arXiv:2208.06677, Algorithm 1; sail-sg/Adan.
    """

    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    beta3: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)

    state_names = (STEP_KEY, "exp_avg", "exp_avg_diff", "exp_avg_sq", "past_grad")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        change = torch.where(state[STEP_KEY] > 1, grad - state["past_grad"], 0)
        m = ema(state["exp_avg"], grad, self.beta1)
        v = ema(state["exp_avg_diff"], change, self.beta2)
        ahead = add_scaled(grad, self.beta2, change)
        n = ema_of_square(state["exp_avg_sq"], ahead, self.beta3)
        corrections = bias_corrections(state[STEP_KEY], self.beta1, self.beta2, self.beta3)
        m_correction, v_correction, n_correction = (cast_like(x, m) for x in corrections)
        numerator = m / m_correction + cast_like(self.beta2, v) * (v / v_correction)
        direction = numerator / (safe_sqrt(n / n_correction) + cast_like(self.eps, n))
        new_state = {"exp_avg": m, "exp_avg_diff": v, "exp_avg_sq": n, "past_grad": grad}
        return update.replace(direction=direction), new_state


@recipe
def adan(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar, Scalar] = (0.98, 0.92, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Adan: Adam with Nesterov momentum in terms of the gradient's change, and proximal decay.

        m <- beta1 m + (1 - beta1) g,    c = g - g_past,    v <- beta2 v + (1 - beta2) c,
        n <- beta3 n + (1 - beta3) (g + beta2 c)^2,
        w <- (w - lr (m + beta2 v) / (sqrt(n) + eps)) / (1 + lr weight_decay),

    with bias correction of m, v and n.

    Start with lr = 0.005, betas (0.98, 0.92, 0.99) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m, v and n, each in [0, 1).
        eps: added to the root of n, in [0, inf).
        weight_decay: coefficient of the decay, in [0, inf).

    Example:
        >>> rule, weight = adan(lr=0.1, weight_decay=10.0), torch.ones(1)
        >>> rule.step(weight, torch.zeros(1), rule.init(weight))[0]
        tensor([0.5000])

    Source: Xie et al. 2022, arXiv:2208.06677, Algorithm 1; sail-sg/Adan.

    `spherenorm code adan` prints it as plain torch.
    """
    check_number(lr, NON_NEGATIVE, "lr must be")
    check_number(weight_decay, NON_NEGATIVE, "weight_decay must be")
    return chain(
        DifferenceMoments(*betas, eps=eps),
        r.StepSize(lr),
        r.Retraction(r.StepSize(1 / (1 + lr * weight_decay))),
    )


@dataclass(frozen=True)
class VarianceReduction(Rule):
    """Correct the gradient by its change, and clip its norm at 1 for each weight:

        c_t = g_t + gamma beta / (1 - beta) (g_t - g_{t-1}),    c_t / max(1, |c_t|),    g_0 = 0.

    Args:
        gamma: the strength of the correction, in [0, inf).
        beta: decay rate of the average after this rule, in [0, 1).

    Example:
        >>> rule = VarianceReduction(gamma=0.1, beta=0.5)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([0.5]), rule.init(weight))[0]
        tensor([-0.5500])

    Source: Yuan et al. 2024 (MARS), arXiv:2411.10438, the approximate form; AGI-Arena/MARS.
    """

    gamma: Scalar = hyper("[0, inf)")
    beta: Scalar = hyper("[0, 1)")

    state_names = ("past_grad",)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        grad = update.direction
        strength = self.gamma * self.beta / (1 - self.beta)
        corrected = add_scaled(grad, strength, grad - state["past_grad"])
        norm = safe_sqrt((corrected * corrected).sum())
        corrected = corrected / torch.where(norm > 1, norm, 1)
        return update.replace(direction=corrected), {"past_grad": grad}


@recipe
def mars_adamw(
    lr: Scalar = 3e-3,
    betas: tuple[Scalar, Scalar] = (0.95, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    gamma: Scalar = 0.025,
) -> Chain:
    """MARS with AdamW: the gradient is corrected by its change before the moments average it.

        c = g + gamma beta1 / (1 - beta1) (g - g_past),    g <- c / max(1, |c|),
        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (u + weight_decay w).

    For matrices; the release steps biases and gains by AdamW.

    Start with lr = 0.003, betas (0.95, 0.99) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        gamma: the strength of the correction, in [0, inf).

    Example:
        >>> rule, weight = mars_adamw(lr=0.1), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-0.5]), rule.init(weight))[0]
        tensor([0.1000])

    Source: Yuan et al. 2024, arXiv:2411.10438, Algorithm 2; AGI-Arena/MARS.

    `spherenorm code mars_adamw` prints it as plain torch.
    """
    return chain(
        VarianceReduction(gamma, betas[0]),
        r.AdaptiveMoments(*betas, eps=eps),
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

        c = g + gamma momentum / (1 - momentum) (g - g_past),
        m <- momentum m + (1 - momentum) c / max(1, |c|),    w <- w - lr (sign(m) + weight_decay w).

    Start with lr = 0.001, momentum 0.95 (measured for Lion; large models take a tenth).

    Args:
        lr: the step of each entry, in [0, inf).
        momentum: decay rate of m, in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.
        gamma: the strength of the correction, in [0, inf).

    Example:
        >>> rule, weight = mars_lion(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, -0.01]), rule.init(weight))[0]
        tensor([-0.1000,  0.1000])

    Source: Yuan et al. 2024, arXiv:2411.10438, Algorithm 3; AGI-Arena/MARS.

    `spherenorm code mars_lion` prints it as plain torch.
    """
    return chain(
        VarianceReduction(gamma, momentum),
        r.ExponentialAverage(momentum),
        r.Sign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@recipe
def cautious_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Rule:
    """Cautious AdamW: entries whose step and gradient disagree do not move, the others move more.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        c = 1 where u g > 0, else 0,    w <- w - lr (u c / max(mean(c), 0.001) + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.999) (the default).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = cautious_adamw(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([-4.0, 0.0]), rule.init(weight))[0]  # of one in two
        tensor([0.2000, 0.0000])

    Source: Liang et al. 2024, arXiv:2411.16085, Algorithm 1; kyleliang919/C-Optim.

    `spherenorm code cautious_adamw` prints it as plain torch.
    """
    return wrappers.cautious(adamw)(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


@recipe
def cautious_lion(
    lr: Scalar = 1e-4, betas: tuple[Scalar, Scalar] = (0.9, 0.99), weight_decay: Scalar = 0.0
) -> Rule:
    """Cautious Lion: entries whose step and gradient disagree do not move, the others move more.

        u = sign(beta1 m + (1 - beta1) g),    m <- beta2 m + (1 - beta2) g,
        c = 1 where u g > 0, else 0,    w <- w - lr (u c / max(mean(c), 0.001) + weight_decay w).

    Start with lr = 0.001, betas (0.9, 0.99) (measured for Lion; large models take a tenth).

    Args:
        lr: the step of each entry, in [0, inf).
        betas: beta1 and beta2, each in [0, 1).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = cautious_lion(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, 0.0]), rule.init(weight))[0]  # of one in two
        tensor([-0.2000,  0.0000])

    Source: Liang et al. 2024, arXiv:2411.16085; kyleliang919/C-Optim.

    `spherenorm code cautious_lion` prints it as plain torch.
    """
    return wrappers.cautious(lion)(lr=lr, betas=betas, weight_decay=weight_decay)


@dataclass(frozen=True)
class GradientSign(Rule):
    """Give each entry of the direction the sign of the gradient: |d| sign(g).

    Example:
        >>> update = Update(torch.zeros(2), torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 4.0]))
        >>> GradientSign().update(update, {})[0].direction
        tensor([-3.,  4.])

    Source: Cao et al. 2024 (Grams), arXiv:2412.17107.
    """

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction.abs() * torch.sign(update.grad)
        return update.replace(direction=direction), {}


@recipe
def grams(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
) -> Chain:
    """Grams: the size of Adam's step with the sign of the gradient.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr (sign(g) |u| + weight_decay w).

    Start with lr = 0.003, betas (0.9, 0.999) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, in [0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = grams(lr=0.1), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (-4.0, 1.0):  # the momentum still points the other way
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.0531])

    Source: Cao et al. 2024, arXiv:2412.17107.

    `spherenorm code grams` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        GradientSign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


@dataclass(frozen=True)
class UpdateClip(Rule):
    """Shorten the direction if gradients are larger than their second moment predicts:

        d / max(1, s),    s^2 = mean(g^2 / max(v_t / (1 - beta^t), eps^2)).

    Args:
        beta: decay rate of v, the note "second_moment" of an earlier rule, in [0, 1).
        eps: the minimum of the root of v, in (0, inf).

    Raises:
        KeyError: on the first step, if no earlier rule notes a "second_moment".

    Example:
        >>> rule = sn.chain(sn.rules.AdaptiveMoments(0.0, 0.75), UpdateClip(0.75))
        >>> weight, state = torch.tensor([0.0]), rule.init(torch.tensor([0.0]))
        >>> for grad in (0.0, 1.0):
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight  # Adam's step of sqrt(7) / 2, divided by an excess of the same size
        tensor([-1.])

    Source: Wortsman et al. 2023 (StableAdamW), arXiv:2304.13013, Algorithm 2.
    """

    beta: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("(0, inf)", 1e-8)

    state_names = (STEP_KEY,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        square = update.notes["second_moment"]
        expected = square / cast_like(bias_correction(self.beta, state[STEP_KEY]), square)
        min_square = cast_like(self.eps, square) ** 2 * torch.ones_like(square)
        excess = safe_sqrt(mean(update.grad**2 / torch.maximum(expected, min_square)))
        direction = update.direction / torch.where(excess > 1, excess, 1)
        return update.replace(direction=direction), {}


@recipe
def stable_adamw(
    lr: Scalar = 1e-3,
    betas: tuple[Scalar, Scalar] = (0.9, 0.99),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 1e-2,
) -> Chain:
    """StableAdamW: AdamW whose step, with its decay, shrinks while gradients are surprising.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2,
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps),
        w <- w - lr / max(1, s) (u + weight_decay w),
        s^2 = mean(g^2 / max(v / (1 - beta2^t), eps^2)) over the entries of a weight.

    Start with lr = 0.003, betas (0.9, 0.99) (measured).

    Args:
        lr: learning rate, in [0, inf).
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, and its minimum in s, in (0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = stable_adamw(lr=0.1, betas=(0.0, 0.75), weight_decay=0.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (0.0, -4.0):  # Adam's second step would be 0.13
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.1000])

    Source: Wortsman et al. 2023, arXiv:2304.13013, Algorithm 2.

    `spherenorm code stable_adamw` prints it as plain torch.
    """
    return chain(
        r.AdaptiveMoments(*betas, eps=eps),
        r.DecoupledDecay(weight_decay),
        UpdateClip(betas[1], eps),
        r.StepSize(lr),
    )


@recipe
def signum(lr: Scalar = 1e-4, momentum: Scalar = 0.9, weight_decay: Scalar = 0.0) -> Chain:
    """Signum: the sign of an average of gradients.

        m <- momentum m + (1 - momentum) g,    w <- w - lr (sign(m) + weight_decay w).

    Start with lr = 0.001, momentum 0.9 (measured).

    Args:
        lr: the step of each entry, in [0, inf).
        momentum: decay rate of m, in [0, 1); 0 is signSGD.
        weight_decay: decoupled decay, in [0, inf); w loses lr weight_decay w per step.

    Example:
        >>> rule, weight = signum(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([3.0, -0.01]), rule.init(weight))[0]
        tensor([-0.1000,  0.1000])

    Source: Bernstein et al. 2018, arXiv:1802.04434, Algorithm 2.

    `spherenorm code signum` prints it as plain torch.
    """
    return chain(
        r.ExponentialAverage(momentum),
        r.Sign(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )
