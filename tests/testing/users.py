"""Optimizers of 2018 to 2026 as a user of the library writes them: the shortest form of each.

Each public function is a recipe. Periods and first distances are chosen so that a few steps see
them; the papers' are longer.
"""

from dataclasses import replace

import torch

import spherenorm as sn
from spherenorm import rules as r

ROWS, WHOLE = sn.as_view("channel"), sn.as_view("layer")


def averaged(past, x, beta):
    return beta * past + (1 - beta) * x


def adamw_behind(*rules, lr, betas, eps, weight_decay):
    return sn.chain(
        *rules, r.AdaptiveMoments(*betas, eps), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    )


class Lion(sn.Rule):
    beta1: float
    beta2: float
    state_names = ("exp_avg",)

    def update(self, update, state):
        past, grad = state["exp_avg"], update.direction
        direction = averaged(past, grad, self.beta1).sign()
        return replace(update, direction=direction), {"exp_avg": averaged(past, grad, self.beta2)}


def lion(lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1):
    return sn.chain(Lion(*betas), r.DecoupledDecay(weight_decay), r.StepSize(lr))


class Mix(sn.Combination):
    fast: sn.Rule
    slow: sn.Rule
    alpha: float

    def update(self, update, state):
        (fast, slow), state = self.apply_each(update, state)
        return replace(update, direction=fast.direction + self.alpha * slow.direction), state


class SecondMoment(sn.Rule):
    """Divide by the root of the second moment of the gradient."""

    beta: float
    eps: float
    needs_step = True
    state_names = ("exp_avg_sq",)

    def update(self, update, state):
        square = averaged(state["exp_avg_sq"], update.grad**2, self.beta)
        length = (square / (1 - self.beta**update.step)).sqrt() + self.eps
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


class VarianceReduction(sn.Rule):
    gamma: float
    beta: float
    state_names = ("previous",)

    def update(self, update, state):
        change = update.grad - state["previous"]
        corrected = update.grad + self.gamma * self.beta / (1 - self.beta) * change
        clipped = corrected / WHOLE.norm(corrected).clamp(min=1)
        return replace(update, direction=clipped), {"previous": update.grad}


def mars_adamw(lr=3e-3, betas=(0.95, 0.99), gamma=0.025, eps=1e-8, weight_decay=0.1):
    return adamw_behind(
        VarianceReduction(gamma, betas[0]), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
    )


class Cautious(sn.Rule):
    """Leave out the entries whose direction and gradient disagree."""

    def update(self, update, state):
        agree = (update.direction * update.grad > 0).to(update.direction.dtype)
        return replace(update, direction=update.direction * agree / agree.mean().clamp(1e-3)), {}


def cautious_adamw(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
    return sn.chain(
        r.AdaptiveMoments(*betas, eps), Cautious(), r.DecoupledDecay(weight_decay), r.StepSize(lr)
    )


class Adopt(sn.Rule):
    """Divide by the root of the second moment before this step; the first direction is 0."""

    beta: float
    eps: float
    needs_step = True
    state_names = ("exp_avg_sq",)

    def update(self, update, state):
        grad, square, bound = update.direction, state["exp_avg_sq"], (update.step - 1) ** 0.25
        scaled = (grad / square.sqrt().clamp(min=self.eps)).clamp(-bound, bound)
        new = torch.where(update.step > 1, averaged(square, grad**2, self.beta), grad**2)
        return replace(update, direction=scaled), {"exp_avg_sq": new}


def adopt(lr=1e-3, betas=(0.9, 0.9999), eps=1e-6, weight_decay=0.1):
    return sn.chain(
        Adopt(betas[1], eps),
        r.ExponentialAverage(betas[0]),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


class Adan(sn.Rule):
    beta1: float
    beta2: float
    beta3: float
    eps: float
    needs_step = True
    state_names = ("exp_avg", "exp_avg_diff", "exp_avg_sq", "previous")

    def update(self, update, state):
        g, t = update.grad, update.step
        change = torch.where(t > 1, g - state["previous"], 0)
        m = averaged(state["exp_avg"], g, self.beta1)
        v = averaged(state["exp_avg_diff"], change, self.beta2)
        n = averaged(state["exp_avg_sq"], (g + self.beta2 * change) ** 2, self.beta3)
        numerator = m / (1 - self.beta1**t) + self.beta2 * v / (1 - self.beta2**t)
        direction = numerator / ((n / (1 - self.beta3**t)).sqrt() + self.eps)
        new = {"exp_avg": m, "exp_avg_diff": v, "exp_avg_sq": n, "previous": g}
        return replace(update, direction=direction), new


class ProximalDecay(sn.Rule):
    lr: float
    weight_decay: float

    def after(self, before, weight, state):
        return weight / (1 + self.lr * self.weight_decay), state


def adan(lr=1e-3, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.1):
    return sn.chain(Adan(*betas, eps), r.StepSize(lr), ProximalDecay(lr, weight_decay))


class Prodigy(sn.Rule):
    lr: float
    beta1: float
    beta2: float
    eps: float
    d0: float

    def init(self, weight):
        zero, number = torch.zeros_like(weight), sn.scalar_state(weight)
        moments = {"exp_avg": zero, "exp_avg_sq": zero}
        return {"start": weight, "s": zero, **moments, "r": number, "d": number + self.d0}

    def sum_of_gradients(self, update, state):
        return averaged(state["s"], self.lr * state["d"] ** 2 * update.grad, self.beta2**0.5)

    def measure(self, update, state):
        along = (update.grad * (state["start"] - update.weight)).sum()
        return {"along": along, "size": self.sum_of_gradients(update, state).abs().sum()}

    def update(self, update, state):
        d, g, shared = state["d"], update.grad, update.shared
        r = averaged(state["r"], self.lr * d**2 * shared["along"], self.beta2**0.5)
        m = averaged(state["exp_avg"], d * g, self.beta1)
        v = averaged(state["exp_avg_sq"], (d * g) ** 2, self.beta2)
        new = {"start": state["start"], "s": self.sum_of_gradients(update, state), "r": r}
        new |= {"exp_avg": m, "exp_avg_sq": v}
        new["d"] = torch.maximum(d, r / shared["size"].clamp(min=1e-30))
        return replace(update, direction=self.lr * d * m / (v.sqrt() + d * self.eps)), new


def prodigy(lr=1.0, betas=(0.9, 0.999), eps=1e-8, d0=1e-2):
    return sn.chain(Prodigy(lr, *betas, eps, d0))


class DAdaptation(sn.Rule):
    lr: float
    momentum: float
    d0: float

    def init(self, weight):
        number = sn.scalar_state(weight)
        numbers = {"d": number + self.d0, "gain": number, "first_norm": number}
        return {"start": weight, "s": torch.zeros_like(weight), **numbers}

    def measure(self, update, state):
        g, s = update.grad, state["s"]
        return {"gg": (g * g).sum(), "gs": (g * s).sum(), "ss": (s * s).sum()}

    def update(self, update, state):
        d, gg, gs, ss = state["d"], *(update.shared[name] for name in ("gg", "gs", "ss"))
        first = torch.where(state["first_norm"] > 0, state["first_norm"], gg.sqrt())
        rate = self.lr * d / first.clamp(min=1e-30)
        gain = state["gain"] + rate * gs
        length = (ss + 2 * rate * gs + rate**2 * gg).sqrt()
        s = state["s"] + rate * update.grad
        new = {"start": state["start"], "s": s, "gain": gain, "first_norm": first}
        new["d"] = torch.maximum(d, 2 * gain / length.clamp(min=1e-30))
        direction = (1 - self.momentum) * (update.weight - (state["start"] - s))
        return replace(update, direction=direction), new


def dadapt_sgd(lr=1.0, momentum=0.9, d0=1e-2):
    return sn.chain(DAdaptation(lr, momentum, d0))


class GlobalClip(sn.Rule):
    longest: float

    def measure(self, update, state):
        return {"squared_norm": (update.grad**2).sum()}

    def update(self, update, state):
        norm = update.shared["squared_norm"].sqrt()
        scale = (self.longest / (norm + 1e-6)).clamp(max=1)
        return replace(update, direction=scale * update.direction), {}


def clipped_adamw(lr=1e-3, longest=1.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
    return adamw_behind(GlobalClip(longest), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class ScheduleFree(sn.Rule):
    """Gradients at y, between the iterate z and the average x of all iterates."""

    beta: float
    needs_step = True

    def init(self, weight):
        return {"z": weight, "x": weight}

    def after(self, before, weight, state):
        z = state["z"] + (weight - before.weight)
        x = state["x"] + (z - state["x"]) / before.step
        return averaged(z, x, 1 - self.beta), {"z": z, "x": x}


def schedule_free_sgd(lr=0.1, beta=0.9, weight_decay=0.01):
    return sn.chain(r.CoupledDecay(weight_decay), r.StepSize(lr), ScheduleFree(beta))


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
    needs_step = True

    def init(self, weight):
        return {"slow": weight}

    def after(self, before, weight, state):
        slow = state["slow"]
        merged = slow + self.alpha * (weight - slow)
        now = before.step % self.every == 0
        return torch.where(now, merged, weight), {"slow": torch.where(now, merged, slow)}


def lookahead_adamw(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, alpha=0.5, every=2):
    adamw = adamw_behind(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return sn.chain(adamw, Lookahead(alpha, every))


class Sam(sn.Rule):
    rho: float

    def measure(self, update, state):
        return {"squared_norm": (update.grad**2).sum()}

    def evaluate_at(self, update, state):
        scale = self.rho / (update.shared["squared_norm"].sqrt() + 1e-12)
        return update.weight + scale * update.grad


def sam_sgd(lr=0.1, momentum=0.9, rho=0.05):
    return sn.chain(Sam(rho), r.HeavyBall(momentum), r.StepSize(lr))


class Matrix(sn.Rule):
    """A rule of matrices."""

    def init(self, weight):
        if weight.ndim < 2:
            raise ValueError(f"a matrix is needed, got shape {tuple(weight.shape)}")
        return {}


def inverse_root(x, eps):
    values, vectors = torch.linalg.eigh(x)
    return (vectors * (values.clamp(min=0) + eps) ** -0.25) @ vectors.mT


class Shampoo(Matrix):
    eps: float
    every: int
    needs_step = True

    def init(self, weight):
        super().init(weight)
        x = ROWS.rows(weight)
        left, right = torch.zeros_like(x @ x.mT), torch.zeros_like(x.mT @ x)
        return {"left": left, "right": right, "left_root": left, "right_root": right}

    def update(self, update, state):
        x = ROWS.rows(update.direction)
        left, right = state["left"] + x @ x.mT, state["right"] + x.mT @ x
        a, b = sn.when(
            (update.step - 1) % self.every == 0,
            lambda: (inverse_root(left, self.eps), inverse_root(right, self.eps)),
            (state["left_root"], state["right_root"]),
        )
        direction = ROWS.from_rows(a @ x @ b, update.weight)
        new = {"left": left, "right": right, "left_root": a, "right_root": b}
        return replace(update, direction=direction), new


def shampoo(lr=0.1, momentum=0.9, eps=1e-3, every=2):
    return sn.chain(Shampoo(eps, every), r.HeavyBall(momentum), r.StepSize(lr))


class Soap(Matrix):
    """Adam in the eigenbasis of the smaller side's second moment."""

    beta1: float
    beta2: float
    eps: float
    every: int
    needs_step = True

    def init(self, weight):
        super().init(weight)
        x = self.wide(weight)
        zero, square = torch.zeros_like(x), torch.zeros_like(x @ x.mT)
        return {"exp_avg": zero, "exp_avg_sq": zero, "side": square, "basis": square}

    def wide(self, x):
        rows = ROWS.rows(x)
        return rows if rows.shape[0] <= rows.shape[1] else rows.mT

    def update(self, update, state):
        x, t = self.wide(update.direction), update.step
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


class Orthogonalized(Matrix):
    """Newton and Schulz's iteration: five steps towards the nearest orthogonal matrix."""

    def update(self, update, state):
        rows = ROWS.rows(update.direction)
        x = rows.mT if rows.shape[0] > rows.shape[1] else rows
        x = x / (WHOLE.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x.mT if rows.shape[0] > rows.shape[1] else x
        return replace(update, direction=ROWS.from_rows(x, update.weight)), {}


def muon(lr=0.02, momentum=0.95, weight_decay=0.1):
    return sn.chain(
        r.HeavyBall(momentum, nesterov=True),
        Orthogonalized(),
        r.DecoupledDecay(weight_decay),
        r.StepSize(lr),
    )


class Factored(sn.Rule):
    """A second moment kept as its sums over rows and over columns, if there are any."""

    def moments(self, x, name):
        if x.ndim < 2:
            return {name: torch.zeros_like(x)}
        sums = {"row": x.sum(-1, keepdim=True), "col": x.sum(-2, keepdim=True)}
        return {f"{name}_{side}": torch.zeros_like(sum) for side, sum in sums.items()}

    def second_moment(self, state, name, x, beta):
        """The moment of x^2 (given as x), and the new states."""
        if x.ndim < 2:
            square = averaged(state[name], x, beta)
            return square, {name: square}
        row = averaged(state[f"{name}_row"], x.sum(-1, keepdim=True), beta)
        col = averaged(state[f"{name}_col"], x.sum(-2, keepdim=True), beta)
        square = row * (col / row.sum(-2, keepdim=True))
        return square, {f"{name}_row": row, f"{name}_col": col}

    def clipped(self, x, longest):
        return x / ((x**2).mean().sqrt() / longest).clamp(min=1)


class Adafactor(Factored):
    decay: float
    longest: float
    eps: float
    needs_step = True

    def init(self, weight):
        return self.moments(weight, "square")

    def update(self, update, state):
        beta = 1 - update.step**-self.decay
        square, new = self.second_moment(state, "square", update.grad**2 + self.eps, beta)
        direction = self.clipped(update.grad / square.sqrt(), self.longest)
        return replace(update, direction=direction), new


def adafactor(lr=1e-2, decay=0.8, longest=1.0, eps=1e-30):
    return sn.chain(Adafactor(decay, longest, eps), r.StepSize(lr))


class Came(Factored):
    beta1: float
    beta2: float
    beta3: float
    longest: float
    eps1: float
    eps2: float

    def init(self, weight):
        residual = self.moments(weight, "residual") if weight.ndim >= 2 else {}
        average = {"exp_avg": torch.zeros_like(weight)}
        return {**average, **self.moments(weight, "square"), **residual}

    def update(self, update, state):
        square, new = self.second_moment(state, "square", update.grad**2 + self.eps1, self.beta2)
        scaled = self.clipped(update.grad / square.sqrt(), self.longest)
        m = averaged(state["exp_avg"], scaled, self.beta1)
        new["exp_avg"], direction = m, m
        if m.ndim >= 2:
            off = (scaled - m) ** 2 + self.eps2
            residual, kept = self.second_moment(state, "residual", off, self.beta3)
            new, direction = {**new, **kept}, m / residual.sqrt()
        return replace(update, direction=direction), new


def came(lr=2e-4, betas=(0.9, 0.999, 0.9999), longest=1.0, eps=(1e-30, 1e-16), weight_decay=0.1):
    return sn.chain(Came(*betas, longest, *eps), r.DecoupledDecay(weight_decay), r.StepSize(lr))


class AdamMini(sn.Rule):
    """Adam with one second moment per row, or per vector."""

    beta1: float
    beta2: float
    eps: float
    needs_step = True

    def unit(self, weight):
        return ROWS if weight.ndim >= 2 else WHOLE

    def init(self, weight):
        square = torch.zeros_like(self.unit(weight).total(weight))
        return {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": square}

    def update(self, update, state):
        g, t, unit = update.grad, update.step, self.unit(update.grad)
        m = averaged(state["exp_avg"], g, self.beta1)
        v = averaged(state["exp_avg_sq"], unit.inner(g, g) / unit.size(g), self.beta2)
        length = (v / (1 - self.beta2**t)).sqrt() + self.eps
        direction = m / (1 - self.beta1**t) / length
        return replace(update, direction=direction), {"exp_avg": m, "exp_avg_sq": v}


def adam_mini(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
    return sn.chain(AdamMini(*betas, eps), r.DecoupledDecay(weight_decay), r.StepSize(lr))


class LargestSecondMoment(sn.Rule):
    beta: float
    eps: float
    needs_step = True
    state_names = ("exp_avg_sq", "max_exp_avg_sq")

    def update(self, update, state):
        square = averaged(state["exp_avg_sq"], update.grad**2, self.beta)
        largest = torch.maximum(state["max_exp_avg_sq"], square)
        length = (largest / (1 - self.beta**update.step)).sqrt() + self.eps
        new = {"exp_avg_sq": square, "max_exp_avg_sq": largest}
        return replace(update, direction=update.direction / length), new


def amsgrad(lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
    average = r.ExponentialAverage(betas[0], bias_correction=True)
    return sn.chain(average, LargestSecondMoment(betas[1], eps), r.StepSize(lr))


class RmsClip(sn.Rule):
    """Shorten the step where gradients are larger than their second moment says."""

    beta: float
    eps: float
    needs_step = True

    def update(self, update, state):
        expected = update.notes["second_moment"] / (1 - self.beta**update.step)
        surprise = (update.grad**2 / expected.clamp(min=self.eps**2)).mean().sqrt()
        return replace(update, direction=update.direction / surprise.clamp(min=1)), {}


def stable_adamw(lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1):
    return sn.chain(
        r.AdaptiveMoments(*betas, eps),
        r.DecoupledDecay(weight_decay),
        RmsClip(betas[1], eps),
        r.StepSize(lr),
    )


class Mean(sn.Combination):
    rules: tuple[sn.Rule, ...]

    def update(self, update, state):
        updates, state = self.apply_each(update, state)
        direction = sum(each.direction for each in updates) / len(updates)
        return replace(update, direction=direction), state


def aggmo(lr=0.1, betas=(0.0, 0.9, 0.99)):
    return sn.chain(Mean(tuple(r.HeavyBall(beta) for beta in betas)), r.StepSize(lr))


class CorrectedDecay(sn.Rule):
    """Weight decay in proportion to the schedule."""

    weight_decay: float
    lr: float

    def init(self, weight):
        return {"largest_lr": sn.scalar_state(weight)}

    def update(self, update, state):
        largest = state["largest_lr"].clamp(min=self.lr)
        decay = self.weight_decay * self.lr / largest.clamp(min=1e-30)
        direction = update.direction + decay * update.weight
        return replace(update, direction=direction), {"largest_lr": largest}


def adamc(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1):
    return sn.chain(
        r.AdaptiveMoments(*betas, eps), CorrectedDecay(weight_decay, lr), r.StepSize(lr)
    )


class Compensated(sn.Rule):
    """Weights rounded to bfloat16; what rounding takes is added at the next step."""

    state_names = ("remainder",)

    def after(self, before, weight, state):
        exact = weight + state["remainder"]
        rounded = exact.bfloat16().to(exact.dtype)
        return rounded, {"remainder": exact - rounded}


def compensated_sgd(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(lr), Compensated())


class SpikeClip(sn.Rule):
    """Gradients of at most sqrt(theta) times the root of their second moment."""

    theta: float
    beta: float
    state_names = ("spike_sq",)

    def update(self, update, state):
        g, square = update.direction, state["spike_sq"]
        spike = (square > 0) & (g**2 > self.theta * square)
        g = torch.where(spike, g.sign() * (self.theta * square).sqrt(), g)
        return replace(update, direction=g), {"spike_sq": averaged(square, g**2, self.beta)}


class Restarted(sn.Combination):
    """A rule that forgets its states, and its steps, from time to time."""

    rule: sn.Rule
    every: int
    needs_step = True

    def update(self, update, state):
        age = (update.step - 1) % self.every
        zeros = {name: torch.zeros_like(value) for name, value in state.items()}
        state = sn.when(age == 0, lambda: zeros, state)
        after, state = self.apply_children(replace(update, count=age + 1), state)
        return replace(after, count=update.count), state


def spam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, theta=2.0, every=3):
    adam = sn.chain(SpikeClip(theta, betas[1]), r.AdaptiveMoments(*betas, eps))
    return sn.chain(Restarted(adam, every), r.StepSize(lr))


RECIPES = {
    each.__name__: each
    for each in (
        *(lion, ademamix, mars_adamw, cautious_adamw, adopt, adan),
        *(prodigy, dadapt_sgd, clipped_adamw, schedule_free_sgd, schedule_free_adamw),
        *(lookahead_adamw, sam_sgd, shampoo, soap, muon, adafactor, came, adam_mini),
        *(amsgrad, stable_adamw, aggmo, adamc, compensated_sgd, spam),
    )
}
