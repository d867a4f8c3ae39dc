"""Optimizers as plain float64 loops, written from the papers, without the library.

A loop is a generator. It yields the weight, and is sent a gradient there and the learning rate of
the step. Its defaults are those of the paper, or of the released code. Loops of a
step that looks at all weights take and yield them in a list.
"""

from __future__ import annotations

import math

import torch


def mean(past, x, beta):
    return beta * past + (1 - beta) * x


def total(x, view="channel"):
    """Sums over each unit, shaped to broadcast against `x`."""
    kept = {"layer": None, "channel": 0, "dim=1": 1}[view]
    dims = [dim for dim in range(x.ndim) if dim != kept]
    return x.sum(dims, keepdim=True) if dims else x


def length(x, view="channel"):
    return total(x * x, view).sqrt()


def over(x, y):
    """x / y, and 0 where y is 0."""
    return torch.where(y != 0, x / torch.where(y != 0, y, 1), 0)


def either(condition, x, y):
    """torch.where of two Python numbers, which would be float32."""
    return torch.where(
        condition, torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    )


def unit(x, view="layer"):
    return over(x, length(x, view))


def tangent(x, w, view="channel"):
    """`x` without its radial part; a unit of one entry has no other."""
    if total(torch.ones_like(w), view).max() == 1:
        return torch.zeros_like(x)
    return x - total(w * x, view) / total(w * w, view) * w


# SGD, Adam and the paper's optimizers


def adam(betas=(0.9, 0.999), eps=1e-8, nesterov=False, squares=None):
    """A function of one gradient after another that returns Adam's direction."""
    m = v = t = 0

    def direction(g):
        nonlocal m, v, t
        t += 1
        m, v = mean(m, g, betas[0]), mean(v, g * g, betas[1])
        if squares is not None:
            squares.append(v / (1 - betas[1] ** t))
        numerator = mean(m, g, betas[0]) if nesterov else m
        return numerator / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)

    return direction


def projected(d, w, g, delta, views, per):
    """The direction without its radial part where g shows w to be invariant, and where that is."""
    for view in views if w.ndim >= 2 else ():
        cosine = total(w * g, view).abs() / (length(w, view) * length(g, view))
        passes = cosine < delta / math.sqrt(w.numel() / cosine.numel())
        if passes.all() or (per == "unit" and passes.any()):
            return torch.where(passes, tangent(d, w, view), d), passes
    return d, torch.tensor(False)


CHANNEL_THEN_LAYER = ("channel", "layer")


def sgdw(w, *, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False):
    p = None
    while True:
        g, lr = yield w
        p = g if p is None or momentum == 0 else momentum * p + (1 - dampening) * g
        w = w - lr * ((g + momentum * p if nesterov else p) + weight_decay * w)


def sgdp(
    w,
    *,
    momentum=0.0,
    dampening=0.0,
    weight_decay=0.0,
    nesterov=False,
    delta=0.1,
    wd_ratio=0.1,
    views=CHANNEL_THEN_LAYER,
    per="tensor",
    project_buffer=False,
):
    """Algorithm 1 of Heo et al. (2021), which remembers the momentum before its projection."""
    p = 0
    while True:
        g, lr = yield w
        p = momentum * p + (1 - dampening) * g
        q, where = projected(g + momentum * p if nesterov else p, w, g, delta, views, per)
        p = q if project_buffer else p
        decay = either(where, wd_ratio, 1.0) * weight_decay / (1 - momentum)
        w = w - lr * (q + decay * w)


def adamp(
    w,
    *,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    delta=0.1,
    wd_ratio=0.1,
    nesterov=False,
    views=CHANNEL_THEN_LAYER,
    per="tensor",
):
    direction = adam(betas, eps, nesterov)
    while True:
        g, lr = yield w
        q, where = projected(direction(g), w, g, delta, views, per)
        w = w - lr * (q + either(where, wd_ratio, 1.0) * weight_decay * w)


def riemannian(y, g, nu, alpha, view):
    """Cho and Lee (2017): regularize, project, clip. `rows` is V^T in their notation."""
    if y.ndim >= 2:
        moved = y.movedim(1, 0) if view == "dim=1" else y
        rows = moved.reshape(1 if view == "layer" else len(moved), -1)
        away = 2 * alpha * (rows @ rows.T - torch.eye(len(rows)).double()) @ rows
        away = away.reshape(moved.shape)
        g = g + (away.movedim(0, 1) if view == "dim=1" else away)
    h = tangent(g, y, view)
    return h if nu is None else unit(h, view) * length(h, view).clamp(max=nu)


def sgdg(y, *, momentum=0.9, nu=0.1, alpha=0.1, view="channel"):
    m = torch.zeros_like(y)
    while True:
        g, lr = yield y
        m = momentum * m - lr * riemannian(y, g, nu, alpha, view)
        angle, u = length(m, view), unit(m, view)
        y, m = y * angle.cos() + u * angle.sin(), angle * (u * angle.cos() - y * angle.sin())


def adamg(y, *, betas=(0.9, 0.99), eps=1e-8, nu=0.1, alpha=0.1, view="channel"):
    m = v = t = 0
    while True:
        g, lr = yield y
        t += 1
        h = riemannian(y, g, nu, alpha, view)
        m, v = mean(m, h, betas[0]), mean(v, total(h * h, view), betas[1])
        d = -lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * m / (v + eps).sqrt()
        angle, u = length(d, view), unit(d, view)
        along = total(u * m, view)
        m = m - along * (angle.sin() * y + (1 - angle.cos()) * u)
        y = y * angle.cos() + u * angle.sin()


# Optimizers entry by entry, and those that hold a norm


def lion(w, *, betas=(0.9, 0.99), weight_decay=0.0):
    m = 0
    while True:
        g, lr = yield w
        w = w - lr * (mean(m, g, betas[0]).sign() + weight_decay * w)
        m = mean(m, g, betas[1])


def lamb(w, *, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, view="layer"):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        w = w - lr * length(w, view) * unit(direction(g) + weight_decay * w, view)


def lars(w, *, momentum=0.9, weight_decay=1e-4, trust=1e-3, view="layer"):
    v = 0
    while True:
        g, lr = yield w
        v = momentum * v + lr * trust * length(w, view) * unit(g + weight_decay * w, view)
        w = w - v


def adamc(w, *, max_lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        w = w - lr * direction(g) - weight_decay * lr**2 / max_lr * w


def adamh(w, *, betas=(0.9, 0.95), eps=1e-8, view="layer"):
    return hyperball(w, adam(betas, eps), view)


def ngpt(w, *, betas=(0.9, 0.95), eps=1e-8, view="channel"):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        w = unit(w - lr * direction(g), view)


def nora(w, *, momentum=0.95, weight_decay=0.0, view="channel"):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        w = w - lr * (unit(tangent(m, w, view), view) + weight_decay * w)


def orthograd(w, *, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, view="layer"):
    direction = adam(betas, eps)
    while True:
        g, lr = yield w
        g = unit(tangent(g, w, view), view) * length(g, view)
        w = w - lr * (direction(g) + weight_decay * w)


def heavy_ball(momentum):
    p = 0

    def direction(g):
        nonlocal p
        p = momentum * p + g
        return p

    return direction


def hyperball(w, direction, view="layer", radius=None, project=lambda u, w, view: u):
    radius = length(w, view) if radius is None else radius
    while True:
        g, lr = yield w
        u = unit(project(direction(g), w, view), view)
        w = radius * unit(w - lr * length(w, view) * u, view)


def hyperball_mine(w, *, momentum=0.9, view="layer"):
    return hyperball(w, heavy_ball(momentum), view)


def hyperball_tangent(w, *, momentum, view="layer"):
    """A row has entries of variance 1 / fan_in."""
    radius = (w.shape[0] if view == "layer" else 1) ** 0.5
    return hyperball(w, heavy_ball(momentum), view, radius, tangent)


def hyperball_muon(w, *, momentum=0.95):
    return hyperball(w, muon_direction(momentum, nesterov=True), "layer")


def rotational_mine(w, *, momentum=0.9, memory=0.9, eps=1e-8, zero_mean=True, view="channel"):
    direction, radius, square, t = heavy_ball(momentum), length(w, view), 0, 0
    while True:
        g, lr = yield w
        t += 1
        d = tangent(direction(g), w, view)
        if zero_mean and w.ndim >= 2:
            d = d - total(d, view) / total(torch.ones_like(d), view)
        square = mean(square, total(d * d, view), memory)
        d = d / ((square / (1 - memory**t)).sqrt() + eps)
        w = radius * unit(w - lr * radius * d, view)


def radial_brake_mine(w, *, momentum=0.9, outward=0.5, inward=1.0, floor=0.35, view="layer"):
    direction = heavy_ball(momentum)
    while True:
        g, lr = yield w
        d, norm = direction(g), length(w, view)
        radial = total(d * w, view) / norm**2
        kept = either(radial < 0, outward, inward)  # a step outward has <d, w> < 0
        d = d - (1 - kept) * radial * w
        d = d * over(floor * norm, length(d, view)).clamp(min=1)
        w = unit(w - lr * d, view) * (norm - lr * total(d * w, view) / norm).abs()


# Optimizers that orthogonalize


def polar_express():
    """Amsel et al. (2025), with the safety factor 1.01."""
    first = (8.28721201814563, -23.595886519098837, 17.300387312530933)
    rest = (
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    )
    shrunk = [(first, 1.01**2), *((each, 1.01) for each in rest)]
    return [*((a / s, b / s**3, c / s**5) for (a, b, c), s in shrunk), (1.875, -1.25, 0.375)]


TABLES = {
    "original": [(3.4445, -4.7750, 2.0315)] * 5,
    "polar_express": polar_express(),
    "plain": [(2.0, -1.5, 0.5)] * 12,
}
SCALES = {
    "none": lambda m, n: 1.0,
    "original": lambda m, n: math.sqrt(max(1, m / n)),
    "match_rms_adamw": lambda m, n: 0.2 * math.sqrt(max(m, n)),
    "spectral": lambda m, n: math.sqrt(m / n),
    "aspect": lambda m, n: math.sqrt(max(m, n) / min(m, n)),
}


def orthogonal(x, coefficients="original", scale="none", view="layer"):
    """As Jordan et al. (2024) write it, matrix by matrix."""
    if view == "channel":  # a stack of matrices
        return torch.stack([orthogonal(each, coefficients, scale) for each in x])
    flat = x.reshape(len(x), -1)
    tall = flat.shape[0] > flat.shape[1]
    y = flat.T if tall else flat
    y = y / y.norm().clamp(min=1e-7)
    for a, b, c in TABLES[coefficients]:
        y = a * y + b * (y @ y.T @ y) + c * (y @ y.T @ y @ y.T @ y)
    return SCALES[scale](*flat.shape) * (y.T if tall else y).reshape(x.shape)


def muon_direction(momentum, nesterov, *orthogonalization):
    m = 0

    def direction(g):
        nonlocal m
        m = mean(m, g, momentum)
        return orthogonal(mean(m, g, momentum) if nesterov else m, *orthogonalization)

    return direction


def muon(
    w,
    *,
    momentum=0.95,
    weight_decay=0.1,
    nesterov=True,
    coefficients="original",
    scale="original",
    view="layer",
):
    direction = muon_direction(momentum, nesterov, coefficients, scale, view)
    while True:
        g, lr = yield w
        w = w - lr * (direction(g) + weight_decay * w)


def muonh(w, *, momentum=0.95, nesterov=True, coefficients="original", view="layer"):
    direction = muon_direction(momentum, nesterov, coefficients, "none", view)
    return hyperball(w, direction, view)


def muonsphere(w, *, momentum=0.9, radius=1.0, coefficients="polar_express"):
    direction = muon_direction(momentum, True, coefficients)
    R = radius * math.sqrt(len(w) / w[0].numel())
    while True:
        g, lr = yield w
        w = R / torch.linalg.matrix_norm(w.flatten(1), 2) * w - lr * R * direction(g)


def normuon(
    w,
    *,
    momentum=0.95,
    beta2=0.95,
    weight_decay=0.1,
    coefficients="original",
    scale="original",
):
    direction, v = muon_direction(momentum, True, coefficients, scale), 0
    while True:
        g, lr = yield w
        o = direction(g)
        v = mean(v, total(o * o), beta2)
        w = w - lr * (length(o, "layer") * unit(o / v.sqrt()) + weight_decay * w)


def scion(w, *, momentum=0.9, radius=50.0, weight_decay=1.0, coefficients="original", view="layer"):
    d = 0
    while True:
        g, lr = yield w
        d = mean(d, g, momentum)
        w = w - lr * (radius * orthogonal(d, coefficients, "spectral", view) + weight_decay * w)


def spel(w, *, momentum=0.0):
    m = 0
    while True:
        g, lr = yield w
        m = mean(m, g, momentum)
        flat, d = w.flatten(1), m.flatten(1)
        if flat.shape[0] < flat.shape[1]:
            d = d - (d @ flat.T + flat @ d.T) / 2 @ flat
        else:
            d = d - flat @ (flat.T @ d + d.T @ flat) / 2
        w = orthogonal(w - lr * orthogonal(d.reshape(w.shape), "plain"), "plain")


def muown(
    w,
    *,
    momentum=0.95,
    betas=(0.9, 0.95),
    weight_decay=0.0,
    gain_ratio=1.0,
    coefficients="original",
):
    """v has a length of its own; the gains alone decay."""
    v, gain, m, step = w, length(w), 0, adam(betas)
    while True:
        g, lr = yield w
        slope = total(g * v) / length(v)
        m = mean(m, gain / length(v) * tangent(g, v), momentum)
        gain = gain - gain_ratio * lr * (step(slope) + weight_decay * gain)
        v = v - lr * orthogonal(m, coefficients, "original")
        w = gain * unit(v, "channel")


def angularmuown(w, *, momentum=0.95, betas=(0.9, 0.95), gain_ratio=1.0, coefficients="original"):
    u, gain, m, step = unit(w, "channel"), length(w), 0, adam(betas)
    while True:
        g, lr = yield w
        slope, d = total(g * u), gain * tangent(g, u)
        m = momentum * m + d
        u = unit(u - lr * orthogonal(d + momentum * m, coefficients, "original"), "channel")
        gain = gain - gain_ratio * lr * step(slope)
        w = gain * u


def mdmuon(w, *, momentum=0.95, betas=(0.9, 0.95), gain_ratio=0.1, coefficients="original"):
    """W = diag(a) V diag(b) with |V| = |W_0|; a and b are the softplus of raw numbers."""
    v, radius, views = w, length(w, "layer"), ("channel", "dim=1")
    raw = [torch.full_like(total(w, view), math.log(math.e - 1)) for view in views]
    steps = [adam(betas), adam(betas)]
    direction = muon_direction(momentum, True, coefficients, "aspect")
    while True:
        g, lr = yield w
        a, b = ((1 + x.exp()).log() for x in raw)
        slopes = total(v * b * g), total(v * a * g, "dim=1")
        v = radius * unit(v - lr * direction(a * b * g))
        raw = [
            x - gain_ratio * lr * step(slope / (1 + (-x).exp()))
            for x, step, slope in zip(raw, steps, slopes, strict=True)
        ]
        a, b = ((1 + x.exp()).log() for x in raw)
        w = a * v * b


def apart(w, *, momentum=0.9, betas=(0.9, 0.95)):
    v, gain, p, step = w, length(w), heavy_ball(momentum), adam(betas, 1e-2)
    while True:
        g, lr = yield w
        slope = total(g * v) / length(v)
        v, gain = v - lr * p(gain / length(v) * tangent(g, v)), gain - lr * step(slope)
        w = gain * unit(v, "channel")


def aggmo(w, *, betas=(0.0, 0.9, 0.99)):
    momenta = [heavy_ball(beta) for beta in betas]
    while True:
        g, lr = yield w
        w = w - lr / len(betas) * sum(momentum(g) for momentum in momenta)
