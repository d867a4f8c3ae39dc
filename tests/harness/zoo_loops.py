"""The zoo as plain float64 loops, written from the papers and their releases; see `loops`."""

from __future__ import annotations

import math

import torch

from tests.harness.loops import (
    SCALES,
    adam,
    heavy_ball,
    hyperball,
    length,
    mean,
    muon_direction,
    orthogonal,
    tangent,
    total,
    unit,
)


def rms(x):
    return math.sqrt((x * x).mean())


# Averages


def qhm(w, *, momentum=0.999, nu=0.7, weight_decay=0.0):
    m = 0
    while True:
        g, lr = yield w
        g = g + weight_decay * w
        m = mean(m, g, momentum)
        w = w - lr * ((1 - nu) * g + nu * m)


def ademamix(w, *, betas=(0.9, 0.999, 0.9999), alpha=2.0, eps=1e-8, weight_decay=0.0):
    fast = slow = v = t = 0
    while True:
        g, lr = yield w
        t += 1
        fast, slow = mean(fast, g, betas[0]), mean(slow, g, betas[2])
        v = mean(v, g * g, betas[1])
        root = v.sqrt() / math.sqrt(1 - betas[1] ** t) + eps
        w = w - lr * ((fast / (1 - betas[0] ** t) + alpha * slow) / root + weight_decay * w)


def grokfast(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, alpha=0.98, lamb=2.0):
    slow, direction = None, adam(betas, eps)
    while True:
        g, lr = yield w
        slow = g if slow is None else slow
        slow = alpha * slow + (1 - alpha) * g
        w = w - lr * (direction(g + lamb * slow) + weight_decay * w)


def schedule_free(w, lr, step, beta, power):
    """y after each step of z, which `step` makes of z, y, g and lr."""
    x = z = y = w
    largest = total_share = t = 0
    while True:
        g, lr = yield y
        t += 1
        largest = max(largest, lr)
        share = t**power * largest**2
        total_share += share
        z = step(z, y, g, lr)
        x = x + share / total_share * (z - x)
        y = beta * x + (1 - beta) * z


def schedulefree_sgd(w, *, momentum=0.9, weight_decay=0.0, power=0.0):
    def step(z, y, g, lr):
        return z - lr * (g + weight_decay * y)

    return schedule_free(w, None, step, momentum, power)


def schedulefree_adamw(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, power=0.0):
    direction = adam((0.0, betas[1]), eps)

    def step(z, y, g, lr):
        return z - lr * weight_decay * y - lr * direction(g)

    return schedule_free(w, None, step, betas[0], power)


def schedulefree_adamc(
    w, *, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, momentum=0.9, power=0.0
):
    direction = adam(betas, eps)

    def step(z, y, g, lr):
        return z - lr * lr * weight_decay * y - lr * direction(g)

    return schedule_free(w, None, step, momentum, power)


def gpa_adamw(
    w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, interpolation=0.7, memory=0.9967
):
    """As released, which knows x from y and z."""
    y, z, direction = w, w, adam(betas, eps)
    while True:
        g, lr = yield y
        u = direction(g) + weight_decay * y
        y = memory * y + (1 - memory) * z + lr * (interpolation * memory - 1) * u
        z = z - lr * u
        x = (y - (1 - interpolation) * z) / interpolation  # noqa: F841  (read by tests)


def lookahead_adamw(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, alpha=0.5, every=5):
    slow, t, direction = w, 0, adam(betas, eps)
    while True:
        g, lr = yield w
        t += 1
        w = w - lr * (direction(g) + weight_decay * w)
        if t % every == 0:
            w = slow = slow + alpha * (w - slow)


def emanesterov_adamw(
    w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, lookahead=0.5, memory=0.9
):
    m, direction = torch.zeros_like(w), adam(betas, eps)
    while True:
        y = w + lookahead * m
        g, lr = yield y
        before, w = w, y - lr * (direction(g) + weight_decay * y)
        m = mean(m, w - before, memory)


# Adam's relatives


def adabelief(w, *, betas=(0.9, 0.999), eps=1e-16, weight_decay=0.0):
    m = s = t = 0
    while True:
        g, lr = yield w
        t += 1
        m = mean(m, g, betas[0])
        s = mean(s, (g - m) ** 2, betas[1]) + eps
        root = (s / (1 - betas[1] ** t)).sqrt() + eps
        w = w - lr * (m / (1 - betas[0] ** t) / root + weight_decay * w)


def laprop(w, *, betas=(0.9, 0.999), eps=1e-15, weight_decay=0.0):
    m = v = t = 0
    while True:
        g, lr = yield w
        t += 1
        v = mean(v, g * g, betas[1])
        m = mean(m, g / ((v / (1 - betas[1] ** t)).sqrt() + eps), betas[0])
        w = w - lr * (m / (1 - betas[0] ** t) + weight_decay * w)


def adopt(w, *, betas=(0.9, 0.9999), eps=1e-6, weight_decay=0.0):
    g, lr = yield w
    w, v, m, t = w - lr * weight_decay * w, g * g, torch.zeros_like(w), 0
    while True:
        g, lr = yield w
        t += 1
        scaled = g / v.sqrt().clamp(min=eps)
        m = mean(m, scaled.clamp(-(t**0.25), t**0.25), betas[0])
        w = w - lr * (m + weight_decay * w)
        v = mean(v, g * g, betas[1])


def adan(w, *, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.0):
    m = v = n = t = 0
    past = None
    while True:
        g, lr = yield w
        t += 1
        change = 0 * g if past is None else g - past
        m, v = mean(m, g, betas[0]), mean(v, change, betas[1])
        n = mean(n, (g + betas[1] * change) ** 2, betas[2])
        c = [1 - beta**t for beta in betas]
        step = (m / c[0] + betas[1] * v / c[1]) / (n.sqrt() / math.sqrt(c[2]) + eps)
        w, past = (w - lr * step) / (1 + lr * weight_decay), g


def corrected(gamma, beta):
    """MARS's gradient, of one gradient after another."""
    past = 0

    def direction(g):
        nonlocal past
        c, past = g + gamma * beta / (1 - beta) * (g - past), g
        return c / c.norm() if c.norm() > 1 else c

    return direction


def mars_adamw(w, *, betas=(0.95, 0.99), eps=1e-8, weight_decay=0.0, gamma=0.025):
    correct, direction = corrected(gamma, betas[0]), adam(betas, eps)
    while True:
        g, lr = yield w
        w = w - lr * (direction(correct(g)) + weight_decay * w)


def mars_lion(w, *, momentum=0.95, weight_decay=0.0, gamma=0.025):
    correct, m = corrected(gamma, momentum), 0
    while True:
        g, lr = yield w
        m = mean(m, correct(g), momentum)
        w = w - lr * (m.sign() + weight_decay * w)


def masked(u, g):
    """Liang et al. (2024)."""
    agree = (u * g > 0).double()
    return u * agree / max(agree.mean().item(), 1e-3)


def cautious_adamw(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        w = w - lr * (masked(direction(g), g) + weight_decay * w)


def cautious_lion(w, *, betas=(0.9, 0.99), weight_decay=0.0):
    m = torch.zeros_like(w)
    while True:
        g, lr = yield w
        w = w - lr * (masked(mean(m, g, betas[0]).sign(), g) + weight_decay * w)
        m = mean(m, g, betas[1])


def signum(w, *, momentum=0.9, weight_decay=0.0):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        w = w - lr * (m.sign() + weight_decay * w)


def grams(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        w = w - lr * (direction(g).abs() * g.sign() + weight_decay * w)


def stable_adamw(w, *, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-2):
    squares = []
    direction = adam(betas, eps, squares=squares)
    while True:
        g, lr = yield w
        step = direction(g)
        surprise = math.sqrt((g * g / squares[-1].clamp(min=eps * eps)).mean())
        w = w - lr / max(1.0, surprise) * (step + weight_decay * w)


def adam_mini(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, view="channel"):
    m = v = t = 0
    while True:
        g, lr = yield w
        t += 1
        m = mean(m, g, betas[0])
        v = mean(v, total(g * g, view) / total(torch.ones_like(g), view), betas[1])
        root = (v / (1 - betas[1] ** t)).sqrt() + eps
        w = w - lr * (m / (1 - betas[0] ** t) / root + weight_decay * w)


# In less memory, and without a rate


def factored(beta, state):
    """The moment of one x after another, from its sums over rows and over columns."""

    def moment(x, t):
        b = beta(t)
        if x.ndim < 2:
            state["v"] = mean(state.get("v", 0), x, b)
            return state["v"]
        rows = state["rows"] = mean(state.get("rows", 0), x.sum(-1), b)
        cols = state["cols"] = mean(state.get("cols", 0), x.sum(-2), b)
        return torch.einsum("...i,...j->...ij", rows, cols) / rows.sum(-1)[..., None, None]

    return moment


def adafactor(w, *, decay=0.8, longest=1.0, eps=1e-30, eps2=1e-3, weight_decay=0.0):
    moment, t = factored(lambda t: 1 - t**-decay, {}), 0
    while True:
        g, lr = yield w
        t += 1
        u = g / moment(g * g + eps, t).sqrt()
        u = u / max(1.0, rms(u) / longest)
        w = w - lr * (max(eps2, rms(w)) * u + weight_decay * w)


def came(w, *, betas=(0.9, 0.999, 0.9999), longest=1.0, eps=1e-30, eps2=1e-16, weight_decay=0.0):
    moment, instability = (factored(lambda t, b=b: b, {}) for b in betas[1:])
    m = 0
    while True:
        g, lr = yield w
        u = g / moment(g * g + eps, 0).sqrt()
        u = u / max(1.0, rms(u) / longest)
        m = mean(m, u, betas[0])
        step = m if w.ndim < 2 else m / instability((u - m) ** 2 + eps2, 0).sqrt()
        w = w - lr * (step + weight_decay * w)


def prodigy(ws, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, d0=1e-6):
    start, d, r, root = list(ws), d0, 0.0, math.sqrt(betas[1])
    s = [torch.zeros_like(w) for w in ws]
    m, v = list(s), list(s)
    while True:
        gs, lr = yield ws
        along = sum(((x - w) * g).sum() for x, w, g in zip(start, ws, gs, strict=True))
        r = root * r + (1 - root) * lr * d * d * along
        for i, g in enumerate(gs):
            s[i] = mean(s[i], lr * d * d * g, root)
            m[i], v[i] = mean(m[i], d * g, betas[0]), mean(v[i], d * d * g * g, betas[1])
        ws = [
            w - lr * d * (a / (b.sqrt() + d * eps) + weight_decay * w)
            for w, a, b in zip(ws, m, v, strict=True)
        ]
        d = max(d, r / sum(x.abs().sum() for x in s))


def dadapt_sgd(ws, *, momentum=0.9, d0=1e-6):
    start, d, gain, first = list(ws), d0, 0.0, None
    s = [torch.zeros_like(w) for w in ws]
    while True:
        gs, lr = yield ws
        if first is None:
            first = math.sqrt(sum((g * g).sum() for g in gs))
        rate = d * lr / first
        gain = gain + rate * sum((g * x).sum() for g, x in zip(gs, s, strict=True))
        s = [x + rate * g for x, g in zip(s, gs, strict=True)]
        ws = [momentum * w + (1 - momentum) * (x - y) for w, x, y in zip(ws, start, s, strict=True)]
        d = max(d, 2 * gain / math.sqrt(sum((x * x).sum() for x in s)))


# Matrices


def soap_direction(shape, betas=(0.95, 0.95), eps=1e-8, every=10, one_sided=False):
    """A function of one gradient after another, as released; the first step only turns the bases.

    A basis that does not turn is the identity.
    """
    m, n = torch.empty(shape).flatten(1).shape
    turns = (not one_sided or m <= n, not one_sided or m > n)
    sides, bases, M, V, t = [0, 0], [torch.eye(m).double(), torch.eye(n).double()], 0, 0, 0

    def direction(g):
        nonlocal M, V, t
        G, step = g.flatten(1), torch.zeros_like(g).flatten(1)
        if t > 0:
            left, right = bases
            M, V = mean(M, G, betas[0]), mean(V, (left.T @ G @ right) ** 2, betas[1])
            root = (V / (1 - betas[1] ** t)).sqrt() + eps
            step = left @ (left.T @ M @ right / (1 - betas[0] ** t) / root) @ right.T
        for i, gram in enumerate((G @ G.T, G.T @ G)):
            sides[i] = mean(sides[i], gram, betas[1])
            if not turns[i]:
                continue
            if t == 0:
                bases[i] = torch.linalg.eigh(sides[i])[1].flip(1)
            elif t % every == 0:
                order = torch.diag(bases[i].T @ sides[i] @ bases[i]).argsort(descending=True)
                bases[i] = torch.linalg.qr(sides[i] @ bases[i][:, order])[0]
                V = V.index_select(i, order)
        t += 1
        return step.reshape(shape)

    return direction


def soap(w, *, weight_decay=1e-2, **settings):
    direction = soap_direction(w.shape, **settings)
    while True:
        g, lr = yield w
        w = w - lr * (direction(g) + weight_decay * w)


def dion2(
    w,
    *,
    momentum=0.95,
    weight_decay=0.01,
    fraction=0.25,
    coefficients="polar_express",
    scale="spectral",
):
    """As released, of one matrix: the selected rows alone are orthogonalized."""
    m, n = w.flatten(1).shape
    M = torch.zeros(m, n).double()
    while True:
        g, lr = yield w
        M = M + g.flatten(1)
        side = M if m <= n else M.T
        indices = side.abs().sum(1).topk(math.ceil(fraction * len(side))).indices
        rows = side[indices]
        factor = torch.zeros_like(side)
        factor[indices] = SCALES[scale](m, n) * orthogonal(rows, coefficients)
        side = side.clone()
        side[indices] = momentum * rows
        M, factor = (side, factor) if m <= n else (side.T, factor.T)
        w = w - lr * (factor.reshape(w.shape) + weight_decay * w)


def power(x, exponent):
    values, vectors = torch.linalg.eigh(x)
    return vectors @ torch.diag(values**exponent) @ vectors.T


def shampoo(w, *, momentum=0.0, eps=1e-4, weight_decay=0.0, every=1):
    left, right = (eps * torch.eye(n).double() for n in w.flatten(1).shape)
    p, t = 0, 0
    while True:
        g, lr = yield w
        G = g.flatten(1)
        left, right = left + G @ G.T, right + G.T @ G
        if t % every == 0:
            a, b = power(left, -0.25), power(right, -0.25)
        t += 1
        p = momentum * p + (a @ G @ b).reshape(w.shape)
        w = w - lr * (p + weight_decay * w)


def muoneq(
    w, *, momentum=0.95, weight_decay=0.1, nesterov=False, coefficients="original", view="channel"
):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        rows = unit(mean(m, g, momentum) if nesterov else m, view)
        w = w - lr * (orthogonal(rows, coefficients, "match_rms_adamw") + weight_decay * w)


def muon2(
    w,
    *,
    betas=(0.95, 0.95),
    eps=1e-10,
    weight_decay=0.0,
    nesterov=True,
    coefficients="original",
    scale="original",
):
    m = v = 0
    while True:
        g, lr = yield w
        m, v = mean(m, g, betas[0]), mean(v, g * g, betas[1])
        u = (mean(m, g, betas[0]) if nesterov else m) / (v.sqrt() + eps)
        w = w - lr * (orthogonal(u, coefficients, scale) + weight_decay * w)


def adamuon(
    w, *, momentum=0.95, eps=1e-8, weight_decay=1e-2, nesterov=True, coefficients="original"
):
    m = v = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        o = orthogonal((mean(m, g, momentum) if nesterov else m).sign(), coefficients)
        v = mean(v, o * o, momentum)
        u = o / (v.sqrt() + eps)
        w = w - lr * (0.2 * math.sqrt(u.numel()) * u / u.norm() + weight_decay * w)


def polargrad(w, *, momentum=0.95, weight_decay=0.0, coefficients="plain"):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        u = orthogonal(m, coefficients).flatten(1)
        nuclear = torch.trace(u.T @ m.flatten(1))
        w = w - lr * (nuclear * u.reshape(w.shape) + weight_decay * w)


def rmnp(w, *, momentum=0.95, weight_decay=0.0, nesterov=False):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        w = w - lr * (unit(mean(m, g, momentum) if nesterov else m, "channel") + weight_decay * w)


def mano(w, *, momentum=0.95, weight_decay=0.1):
    m, t = 0, 0
    while True:
        g, lr = yield w
        m = momentum * m + g
        view = ("dim=1", "channel")[t % 2]
        t += 1
        if w.ndim < 2:
            view = "channel"
        u = unit(tangent(m, w, view), view) * total(torch.ones_like(w), view).sqrt()
        w = w - lr * (0.2 * u + weight_decay * w)


def rowfloor_muon(
    w,
    *,
    momentum=0.95,
    weight_decay=0.025,
    floor=0.3825,
    outward=0.5,
    coefficients="original",
):
    direction = muon_direction(momentum, True, coefficients, "original")
    while True:
        g, lr = yield w
        u, norm = direction(g), w.norm()
        radial = (u * w).sum() / norm**2 * w
        u = u - radial + (outward if (u * w).sum() < 0 else 1.0) * radial
        u = u * (floor * length(w) / length(u)).clamp(min=1)
        shrinks = (u * w > 0).double()
        end = w - lr * u
        end = end / end.norm() * (norm - lr * (u * w).sum() / norm).abs()
        w = end * (1 - lr * weight_decay * shrinks)


def hyperp(
    w,
    *,
    depth=8.0,
    tokens=9.5e9,
    batch=2.0**21,
    momentum=0.95,
    nesterov=True,
    coefficients="original",
):
    factor = math.sqrt(8 / depth) * (tokens / 9.5e9) ** -0.32 * math.sqrt(batch / 2**21)
    walk = hyperball(w, muon_direction(momentum, nesterov, coefficients, "none"))
    w = next(walk)
    while True:
        g, lr = yield w
        w = walk.send((g, factor * lr))


# On spheres


def fromage(w, *, view="layer"):
    while True:
        g, lr = yield w
        w = (w - lr * length(w, view) * unit(g, view)) / math.sqrt(1 + lr * lr)


def nero(w, *, beta=0.999, view="channel"):
    v = t = 0
    while True:
        g, lr = yield w
        t += 1
        v = mean(v, total(g * g, view), beta)
        w = w - lr * length(w, view) * g / (v / (1 - beta**t)).sqrt()
        if w.ndim >= 2:
            w = w - total(w, view) / total(torch.ones_like(w), view)
        w = unit(w, view)


def layca(w, *, momentum=0.0, view="layer"):
    direction, radius = heavy_ball(momentum), length(w, view)
    while True:
        g, lr = yield w
        s = unit(tangent(direction(g), w, view), view) * length(w, view)
        w = radius * unit(w - lr * s, view)


def hyperspherical(w, *, view="channel"):
    while True:
        g, lr = yield w
        w = unit(w - lr * unit(tangent(g, w, view), view), view)


def oblique_sgd(w, *, momentum=0.9, view="channel"):
    direction = heavy_ball(momentum)
    while True:
        g, lr = yield w
        w = unit(w - lr * tangent(direction(g), w, view), view)
