"""Step sizes from an estimate d of the distance to the solution, shared by all weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.fields import hyper
from spherenorm.numerics import (
    Scalar,
    accumulation_dtype,
    add_scaled,
    cast_like,
    ema,
    ema_of_square,
    safe_divide,
    safe_sqrt,
)
from spherenorm.registry import recipe
from spherenorm.rule import Chain, Rule, State, Update, chain


@dataclass(frozen=True)
class ProdigyStep(Rule):
    """Adam with the step size eta d_t, where d estimates the distance to the solution:

        r_t = b r_{t-1} + (1 - b) eta d_t^2 <g_t, w_0 - w_t>,    b = sqrt(beta2),
        s_t = b s_{t-1} + (1 - b) eta d_t^2 g_t,    d_{t+1} = max(d_t, r_t / |s_t|_1),

    with sums over all weights, which share d and r. Adam's moments are those of d_t g_t, and d_t
    multiplies eps.

    Args:
        lr: eta, in [0, inf), the same for all weights; those with 0 do not move, and are not part
            of the sums.
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: added to the root of the second moment, times d_t, in [0, inf).
        d0: the first d, in (0, inf).
        weight_decay: decoupled decay, in [0, inf); w loses eta d_t weight_decay w.

    Example:
        >>> rule = ProdigyStep(1.0, 0.9, 0.999, d0=0.5)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[1]["exp_avg"]
        tensor([0.2000])

    Source: Mishchenko and Defazio 2024 (Prodigy), arXiv:2306.06101, Algorithm 4.
    """

    lr: Scalar = hyper("[0, inf)")
    beta1: Scalar = hyper("[0, 1)")
    beta2: Scalar = hyper("[0, 1)")
    eps: Scalar = hyper("[0, inf)", 1e-8)
    d0: Scalar = hyper("(0, inf)", 1e-6)
    weight_decay: Scalar = hyper("[0, inf)", 0.0)

    state_names = ("start", "s", "exp_avg", "exp_avg_sq", "r", "d")
    shared_names = ("d", "r")
    shared_fields = ("lr",)

    def init(self, weight: Tensor) -> State:
        zero = _zero_scalar(weight)
        return super().init(weight) | {"start": weight, "r": zero, "d": zero + self.d0}

    def global_sum_terms(self, update: Update, state: State) -> Mapping[str, Tensor]:
        product = (update.grad * (state["start"] - update.weight)).sum()
        norm = self._next_s(update, state).abs().sum()
        return {"prodigy_along": product, "prodigy_size": norm}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        d = state["d"]
        incoming = cast_like(d, update.grad) * update.grad
        progress = self.lr * d**2 * update.notes["prodigy_along"]
        r = ema(state["r"], progress, self.beta2**0.5)
        m = ema(state["exp_avg"], incoming, self.beta1)
        v = ema_of_square(state["exp_avg_sq"], incoming, self.beta2)
        adam_step = m / (safe_sqrt(v) + cast_like(d * self.eps, v))
        step = add_scaled(adam_step, self.weight_decay, update.weight)
        direction = cast_like(self.lr * d, step) * step
        new_state = {
            "start": state["start"],
            "s": self._next_s(update, state),
            "r": r,
            "d": _raise_estimate(d, r, update.notes["prodigy_size"]),
            "exp_avg": m,
            "exp_avg_sq": v,
        }
        return update.replace(direction=direction), new_state

    def _next_s(self, update: Update, state: State) -> Tensor:
        """Return s_t."""
        grad = cast_like(self.lr * state["d"] ** 2, update.grad) * update.grad
        return ema(state["s"], grad, self.beta2**0.5)


@recipe
def prodigy(
    lr: Scalar = 1.0,
    betas: tuple[Scalar, Scalar] = (0.9, 0.999),
    eps: Scalar = 1e-8,
    weight_decay: Scalar = 0.0,
    d0: Scalar = 1e-6,
) -> Chain:
    """Prodigy: Adam with a step size of its own, an estimate d of the distance to the solution.

        m <- beta1 m + (1 - beta1) d g,    v <- beta2 v + (1 - beta2) d^2 g^2,
        w <- w - lr d (m / (sqrt(v) + d eps) + weight_decay w),
        r <- b r + (1 - b) lr d^2 <g, w_0 - w>,    s <- b s + (1 - b) lr d^2 g,    b = sqrt(beta2),
        d <- max(d, r / |s|_1),    sums over all weights, which share d and r.

    Start with lr = 1, betas (0.9, 0.999) (the default, which needs no tuning).

    Args:
        lr: a factor for schedules, in [0, inf); all weights with lr > 0 must have the same.
        betas: decay rates of m and v, each in [0, 1).
        eps: added to the root of v, times d, in [0, inf).
        weight_decay: decoupled decay, in [0, inf).
        d0: the first d, in (0, inf).

    Example:
        >>> rule, weight = prodigy(d0=0.01), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(20):  # towards 1
        ...     weight, state = rule.step(weight, weight - 1, state)
        >>> bool(state["d"] > 0.1)
        True

    Source: Mishchenko and Defazio 2024, arXiv:2306.06101, Algorithm 4; konstmish/prodigy.

    `spherenorm code prodigy` prints it as plain torch.
    """
    return chain(ProdigyStep(lr, *betas, eps=eps, d0=d0, weight_decay=weight_decay))


@dataclass(frozen=True)
class DAdaptation(Rule):
    """SGD with the step size eta d_t / |g_1|, and with momentum as an average of iterates:

        l_t = eta d_t / |g_1|,    s_t = s_{t-1} + l_t g_t,    a_t = a_{t-1} + l_t <g_t, s_{t-1}>,
        d_{t+1} = max(d_t, 2 a_t / |s_t|),    w <- momentum w + (1 - momentum) (w_0 - s_t),

    with norms and products over all weights, which share a, d and |g_1|.

    Args:
        lr: eta, in [0, inf), the same for all weights; those with 0 do not move, and are not part
            of the sums.
        momentum: decay rate of the momentum, in [0, 1).
        d0: the first d, in (0, inf).

    Example:
        >>> rule = DAdaptation(1.0, 0.0, d0=0.5)
        >>> weight = torch.tensor([0.0])
        >>> rule.step(weight, torch.tensor([4.0]), rule.init(weight))[0]
        tensor([-0.5000])

    Source: Defazio and Mishchenko 2023, arXiv:2301.07733; facebookresearch/dadaptation.
    """

    lr: Scalar = hyper("[0, inf)")
    momentum: Scalar = hyper("[0, 1)")
    d0: Scalar = hyper("(0, inf)", 1e-6)

    uses_endpoint = True

    state_names = ("start", "s", "gain", "first_norm", "d")
    shared_names = ("d", "gain", "first_norm")
    shared_fields = ("lr",)

    def init(self, weight: Tensor) -> State:
        zero = _zero_scalar(weight)
        scalars = {"gain": zero, "first_norm": zero.clone(), "d": zero + self.d0}
        return super().init(weight) | {"start": weight, **scalars}

    def global_sum_terms(self, update: Update, state: State) -> Mapping[str, Tensor]:
        g, s = update.grad, state["s"]
        return {
            "dadaptation_gg": (g * g).sum(),
            "dadaptation_gs": (g * s).sum(),
            "dadaptation_ss": (s * s).sum(),
        }

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        gg, gs, ss = (update.notes[f"dadaptation_{name}"] for name in ("gg", "gs", "ss"))
        d, first_norm = state["d"], state["first_norm"]
        first_norm = torch.where(first_norm > 0, first_norm, safe_sqrt(gg))
        rate = safe_divide(self.lr * d, first_norm)
        gain = state["gain"] + rate * gs
        s_norm = safe_sqrt(ss + 2 * rate * gs + rate**2 * gg)
        s = add_scaled(state["s"], rate, update.grad)
        share = cast_like(1 - self.momentum, s)
        direction = share * (update.weight - (state["start"] - s))
        new_state = {
            "start": state["start"],
            "s": s,
            "gain": gain,
            "first_norm": first_norm,
            "d": _raise_estimate(d, 2 * gain, s_norm),
        }
        return update.replace(direction=direction), new_state

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        zeros = {key: torch.zeros_like(state[key]) for key in ("s", "gain")}
        return {**state, "start": weight, **zeros}


@recipe
def dadapt_sgd(lr: Scalar = 1.0, momentum: Scalar = 0.9, d0: Scalar = 1e-6) -> Chain:
    """D-Adaptation of SGD: its step size is an estimate d of the distance to the solution.

        l = lr d / |g_1|,    a <- a + l <g, s>,    s <- s + l g,    d <- max(d, 2 a / |s|),
        w <- momentum w + (1 - momentum) (w_0 - s),

    products and norms over all weights, which share a, d and |g_1|. A step continues from weights
    in the state: call `optimizer.reset_averages()` after writing into the parameters.

    Start with lr = 0.3, momentum 0.9 (measured; the paper's is 1).

    Args:
        lr: a factor for schedules, in [0, inf); all weights with lr > 0 must have the same.
        momentum: decay rate of the momentum, in [0, 1).
        d0: the first d, in (0, inf).

    Example:
        >>> rule, weight = dadapt_sgd(momentum=0.0, d0=0.01), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(20):  # towards 1
        ...     weight, state = rule.step(weight, weight - 1, state)
        >>> bool(state["d"] > 0.1)
        True

    Source: Defazio and Mishchenko 2023, arXiv:2301.07733; facebookresearch/dadaptation.

    `spherenorm code dadapt_sgd` prints it as plain torch.
    """
    return chain(DAdaptation(lr, momentum, d0))


def _zero_scalar(weight: Tensor) -> Tensor:
    """Return a 0-dim zero of the accumulation dtype, on the device of the weight."""
    return torch.zeros((), dtype=accumulation_dtype(weight.device), device=weight.device)


def _raise_estimate(d: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return max(d, numerator / denominator), and d where the denominator is 0.

    The sum of |s| is 0 without any gradient so far in the weights that step, such as a fresh head
    on a frozen body at a step size of 0. The numerator, which the body has left, says nothing then.
    """
    is_positive = denominator > 0  # False of nan, too
    estimate = numerator / torch.where(is_positive, denominator, 1)
    return torch.where(is_positive, torch.maximum(d, estimate), d)
