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
    """Adam's step, eta d_t times it, d the distance that gradients and the way so far show:

        r_t = b r_{t-1} + (1 - b) eta d_t^2 <g_t, w_0 - w_t>,    b = sqrt(beta2),
        s_t = b s_{t-1} + (1 - b) eta d_t^2 g_t,    d_{t+1} = max(d_t, r_t / |s_t|_1),

    sums over all weights, which share d and r. Adam's moments are of d_t g_t, and eps is times d_t.

    Args:
        lr: eta, in [0, inf), one for all weights; those with 0 stand still and are not summed over.
        beta1, beta2: decay rates of the moments, in [0, 1).
        eps: in [0, inf).
        d0: the first d, in (0, inf).
        weight_decay: in [0, inf); w loses eta d_t weight_decay w.

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
        number = _number(weight)
        return super().init(weight) | {"start": weight, "r": number, "d": number + self.d0}

    def global_sum_terms(self, update: Update, state: State) -> Mapping[str, Tensor]:
        along = (update.grad * (state["start"] - update.weight)).sum()
        return {"prodigy_along": along, "prodigy_size": self._sum(update, state).abs().sum()}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        d, entering = state["d"], cast_like(state["d"], update.grad) * update.grad
        along = self.lr * d**2 * update.notes["prodigy_along"]
        r = ema(state["r"], along, self.beta2**0.5)
        m = ema(state["exp_avg"], entering, self.beta1)
        v = ema_of_square(state["exp_avg_sq"], entering, self.beta2)
        step = add_scaled(
            m / (safe_sqrt(v) + cast_like(d * self.eps, v)), self.weight_decay, update.weight
        )
        direction = cast_like(self.lr * d, step) * step
        later = torch.maximum(d, safe_divide(r, update.notes["prodigy_size"]))
        new = {"start": state["start"], "s": self._sum(update, state), "r": r, "d": later}
        return update.replace(direction=direction), new | {"exp_avg": m, "exp_avg_sq": v}

    def _sum(self, update: Update, state: State) -> Tensor:
        """s_t."""
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
    """
    return chain(ProdigyStep(lr, *betas, eps=eps, d0=d0, weight_decay=weight_decay))


@dataclass(frozen=True)
class DAdaptation(Rule):
    """SGD with the step size eta d_t / |g_1|, and momentum as an average of iterates:

        l_t = eta d_t / |g_1|,    s_t = s_{t-1} + l_t g_t,    a_t = a_{t-1} + l_t <g_t, s_{t-1}>,
        d_{t+1} = max(d_t, 2 a_t / |s_t|),    w <- momentum w + (1 - momentum) (w_0 - s_t),

    norms and products over all weights, which share a, d and |g_1|.

    Args:
        lr: eta, in [0, inf), one for all weights; those with 0 stand still and are not summed over.
        momentum: in [0, 1).
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

    state_names = ("start", "s", "gain", "first_norm", "d")
    shared_names = ("d", "gain", "first_norm")
    shared_fields = ("lr",)

    def init(self, weight: Tensor) -> State:
        number = _number(weight)
        numbers = {"gain": number, "first_norm": number.clone(), "d": number + self.d0}
        return super().init(weight) | {"start": weight, **numbers}

    def global_sum_terms(self, update: Update, state: State) -> Mapping[str, Tensor]:
        g, s = update.grad, state["s"]
        sums = {"gg": (g * g).sum(), "gs": (g * s).sum(), "ss": (s * s).sum()}
        return {f"dadaptation_{name}": value for name, value in sums.items()}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        gg, gs, ss = (update.notes[f"dadaptation_{name}"] for name in ("gg", "gs", "ss"))
        d, first = state["d"], state["first_norm"]
        first = torch.where(first > 0, first, safe_sqrt(gg))
        rate = safe_divide(self.lr * d, first)
        gain = state["gain"] + rate * gs
        length = safe_sqrt(ss + 2 * rate * gs + rate**2 * gg)
        s = add_scaled(state["s"], rate, update.grad)
        share = cast_like(1 - self.momentum, s)
        direction = share * (update.weight - (state["start"] - s))
        later = torch.maximum(d, safe_divide(2 * gain, length))
        new = {"start": state["start"], "s": s, "gain": gain, "first_norm": first, "d": later}
        return update.replace(direction=direction), new

    def restart_averages(self, weight: Tensor, state: State) -> State:
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
        momentum: in [0, 1).
        d0: the first d, in (0, inf).

    Example:
        >>> rule, weight = dadapt_sgd(momentum=0.0, d0=0.01), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(20):  # towards 1
        ...     weight, state = rule.step(weight, weight - 1, state)
        >>> bool(state["d"] > 0.1)
        True

    Source: Defazio and Mishchenko 2023, arXiv:2301.07733; facebookresearch/dadaptation.
    """
    return chain(DAdaptation(lr, momentum, d0))


def _number(weight: Tensor) -> Tensor:
    return torch.zeros((), dtype=accumulation_dtype(weight.device), device=weight.device)
