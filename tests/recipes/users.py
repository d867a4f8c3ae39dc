"""Optimizers as a user of the library writes them, one for each mechanism of a rule.

| recipe | what it needs |
|---|---|
| ademamix | two rules side by side |
| aggmo | any number of rules, whose states have one name |
| stable_adamw | a number that another rule noted |
| adafactor | states of other shapes than the weight's, and empty ones |
| soap | a branch on the step, and matrices alone |
| prodigy | sums over all weights, and a number for a state |
| lookahead_adamw, schedule_free_adamw | the end of the step, as the last rule |

Periods and first distances are short, so that a few steps see them; the papers' are longer.
"""

from dataclasses import replace

import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import Row, loops

ROWS, WHOLE = sn.as_view("channel"), sn.as_view("layer")


def averaged(past, x, beta):
    return beta * past + (1 - beta) * x


class Mix(sn.Rule):
    fast: sn.Rule
    slow: sn.Rule
    alpha: float

    def update(self, update, state):
        fast, new = self.apply(self.fast, update, state)
        slow, more = self.apply(self.slow, update, state)
        direction = fast.direction + self.alpha * slow.direction
        return update.changed(direction=direction), new | more


class SecondMoment(sn.Rule):
    """Divide by the root of the second moment of the gradient."""

    beta: float
    eps: float
    state_names = ("step", "exp_avg_sq")

    def update(self, update, state):
        square = averaged(state["exp_avg_sq"], update.grad**2, self.beta)
        length = (square / (1 - self.beta ** state["step"])).sqrt() + self.eps
        return replace(update, direction=update.direction / length), {"exp_avg_sq": square}


def ademamix(lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, eps=1e-8, weight_decay=0.1):
    return sn.chain(
        Mix(
            r.ExponentialAverage(betas[0], bias_correction=True),
            r.ExponentialAverage(betas[2]),
            alpha,
        ),
        SecondMoment(betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


class Mean(sn.Rule):
    rules: tuple[sn.Rule, ...]

    def update(self, update, state):
        total, new = 0, {}
        for rule in self.rules:
            after, own = self.apply(rule, update, state)
            total, new = total + after.direction, new | own
        return update.changed(direction=total / len(self.rules)), new


def aggmo(lr=0.1, betas=(0.0, 0.9, 0.99)):
    return sn.chain(Mean(tuple(r.HeavyBall(beta) for beta in betas)), r.StepSize(lr))


class RmsClip(sn.Rule):
    """Shorten the step where gradients are larger than their second moment says."""

    beta: float
    eps: float

    state_names = ("step",)

    def update(self, update, state):
        expected = update.notes["second_moment"] / (1 - self.beta ** state["step"])
        surprise = (update.grad**2 / expected.clamp(min=self.eps**2)).mean().sqrt()
        return replace(update, direction=update.direction / surprise.clamp(min=1)), {}


def stable_adamw(lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1):
    return sn.chain(
        r.AdaptiveMoments(*betas, eps),
        r.DecoupledDecay(weight_decay),
        RmsClip(betas[1], eps),
        r.StepSize(lr),
    )


class Adafactor(sn.Rule):
    """A second moment kept as its sums over rows and over columns, if there are any."""

    decay: float
    longest: float
    eps: float

    state_names = ("step", "row", "col", "square")

    def init(self, weight):
        none = weight.flatten()[:0]
        row, col = (weight.sum(-1), weight.sum(-2)) if weight.ndim >= 2 else (none, none)
        new = {"row": row, "col": col, "square": none if weight.ndim >= 2 else weight}
        return super().init(weight) | {name: torch.zeros_like(x) for name, x in new.items()}

    def update(self, update, state):
        beta, x = 1 - state["step"] ** -self.decay, update.grad**2 + self.eps
        new = dict(state)
        if x.ndim < 2:
            square = new["square"] = averaged(state["square"], x, beta)
        else:
            row = new["row"] = averaged(state["row"], x.sum(-1), beta)
            col = new["col"] = averaged(state["col"], x.sum(-2), beta)
            square = row[..., None] * (col / row.sum(-1, keepdim=True))[..., None, :]
        direction = update.grad / square.sqrt()
        direction = direction / ((direction**2).mean().sqrt() / self.longest).clamp(min=1)
        return replace(update, direction=direction), new


def adafactor(lr=1e-2, decay=0.8, longest=1.0, eps=1e-30):
    return sn.chain(Adafactor(decay, longest, eps), r.StepSize(lr))


class Soap(sn.Rule):
    """Adam in the eigenbasis of the smaller side's second moment."""

    beta1: float
    beta2: float
    eps: float
    every: int

    state_names = ("step", "exp_avg", "exp_avg_sq", "side", "basis")

    def init(self, weight):
        if weight.ndim < 2:
            raise ValueError(f"a matrix is needed, got shape {tuple(weight.shape)}")
        x = self.wide(weight)
        zero, square = torch.zeros_like(x), torch.zeros_like(x @ x.mT)
        new = {"exp_avg": zero, "exp_avg_sq": zero, "side": square, "basis": square}
        return super().init(weight) | new

    def wide(self, x):
        rows = ROWS.rows(x)
        return rows if rows.shape[0] <= rows.shape[1] else rows.mT

    def update(self, update, state):
        x, t = self.wide(update.direction), state["step"]
        side = averaged(state["side"], x @ x.mT, self.beta2)
        refresh = (t - 1) % self.every == 0
        basis = sn.when(refresh, lambda: torch.linalg.eigh(side)[1], state["basis"])
        m = averaged(state["exp_avg"], x, self.beta1)
        v = averaged(state["exp_avg_sq"], (basis.mT @ x) ** 2, self.beta2)
        length = (v / (1 - self.beta2**t)).sqrt() + self.eps
        step = basis @ (basis.mT @ m / (1 - self.beta1**t) / length)
        rows = step if step.shape == ROWS.rows(update.weight).shape else step.mT
        new = {"exp_avg": m, "exp_avg_sq": v, "side": side, "basis": basis}
        return replace(update, direction=ROWS.from_rows(rows, update.weight)), new


def soap(lr=3e-3, betas=(0.95, 0.95), eps=1e-8, weight_decay=0.01, every=2):
    return sn.chain(Soap(*betas, eps, every), r.DecoupledDecay(weight_decay), r.StepSize(lr))


class Prodigy(sn.Rule):
    lr: float
    beta1: float
    beta2: float
    eps: float
    d0: float

    state_names = ("start", "s", "exp_avg", "exp_avg_sq", "r", "d")

    def init(self, weight):
        zero, number = torch.zeros_like(weight), torch.zeros((), dtype=torch.float64)
        moments = {"exp_avg": zero, "exp_avg_sq": zero}
        return {"start": weight, "s": zero, **moments, "r": number, "d": number + self.d0}

    def sum_of_gradients(self, update, state):
        return averaged(state["s"], self.lr * state["d"] ** 2 * update.grad, self.beta2**0.5)

    def measure(self, update, state):
        along = (update.grad * (state["start"] - update.weight)).sum()
        return {"along": along, "size": self.sum_of_gradients(update, state).abs().sum()}

    def update(self, update, state):
        d, g, shared = state["d"], update.grad, update.notes
        r = averaged(state["r"], self.lr * d**2 * shared["along"], self.beta2**0.5)
        m = averaged(state["exp_avg"], d * g, self.beta1)
        v = averaged(state["exp_avg_sq"], (d * g) ** 2, self.beta2)
        new = {"start": state["start"], "s": self.sum_of_gradients(update, state), "r": r}
        new |= {"exp_avg": m, "exp_avg_sq": v}
        new["d"] = torch.maximum(d, r / shared["size"].clamp(min=1e-30))
        return replace(update, direction=self.lr * d * m / (v.sqrt() + d * self.eps)), new


def prodigy(lr=1.0, betas=(0.9, 0.999), eps=1e-8, d0=1e-2):
    return sn.chain(Prodigy(lr, *betas, eps, d0))


class ScheduleFree(sn.Rule):
    """Gradients at y, between the iterate z and the average x of all iterates."""

    beta: float

    state_names = ("step", "z", "x")

    def init(self, weight):
        return super().init(weight) | {"z": weight, "x": weight}

    def update(self, update, state):
        z = state["z"] - update.direction
        x = state["x"] + (z - state["x"]) / state["step"]
        y = averaged(z, x, 1 - self.beta)
        return update.changed(direction=update.weight - y), {"z": z, "x": x}


def schedule_free_adamw(lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
    return sn.chain(
        r.AdaptiveMoments(0.0, betas[1], eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        ScheduleFree(betas[0]),
    )


class Lookahead(sn.Rule):
    alpha: float
    every: int

    state_names = ("step", "slow")

    def init(self, weight):
        return super().init(weight) | {"slow": weight}

    def update(self, update, state):
        slow, fast = state["slow"], update.weight - update.direction
        merged = slow + self.alpha * (fast - slow)
        now = state["step"] % self.every == 0
        moved = torch.where(now, merged, fast)
        new = {"slow": torch.where(now, merged, slow)}
        return update.changed(direction=update.weight - moved), new


def lookahead_adamw(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, alpha=0.5, every=2):
    return sn.chain(
        r.AdaptiveMoments(*betas, eps),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
        Lookahead(alpha, every),
    )


USERS = [
    *(
        Row(recipe, oracle=getattr(loops, recipe.__name__))
        for recipe in (ademamix, aggmo, stable_adamw, adafactor, prodigy)
    ),
    Row(schedule_free_adamw, oracle=loops.schedule_free_adamw),
    Row(lookahead_adamw, oracle=loops.lookahead_adamw),
    Row(soap, oracle=loops.soap, fewest=2),
]
"""Their rows."""
