"""The optimizers of `users` as plain float64 loops, from the papers' algorithms.

A loop is a generator: it yields the point at which it wants a gradient, and is sent that gradient
and the learning rate of the step. Loops of one weight take a tensor; those in `TOGETHER` take all
weights in a list. A loop of sharpness-aware minimization asks for two gradients a step.
"""

import math

import torch


def mean(past, x, beta):
    return beta * past + (1 - beta) * x


def length(x):
    return x.flatten().dot(x.flatten()).sqrt()


def adam(betas, eps, squares=None):
    """Adam's direction of one gradient after another."""
    m = v = t = 0
    direction = None
    while True:
        g = yield direction
        t += 1
        m, v = mean(m, g, betas[0]), mean(v, g * g, betas[1])
        if squares is not None:
            squares.append(v / (1 - betas[1] ** t))
        direction = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)


def started(generator):
    next(generator)
    return generator


def lion(w, betas, weight_decay):
    m = torch.zeros_like(w)
    while True:
        g, lr = yield w
        w = w - lr * (mean(m, g, betas[0]).sign() + weight_decay * w)
        m = mean(m, g, betas[1])


def ademamix(w, betas, alpha, eps, weight_decay):
    fast, slow, v, t = 0, 0, 0, 0
    while True:
        g, lr = yield w
        t += 1
        fast, slow = mean(fast, g, betas[0]), mean(slow, g, betas[2])
        v = mean(v, g * g, betas[1])
        root = (v / (1 - betas[1] ** t)).sqrt() + eps
        w = w - lr * ((fast / (1 - betas[0] ** t) + alpha * slow) / root + weight_decay * w)


def mars_adamw(w, betas, gamma, eps, weight_decay):
    previous, inner = torch.zeros_like(w), started(adam(betas, eps))
    while True:
        g, lr = yield w
        c = g + gamma * betas[0] / (1 - betas[0]) * (g - previous)
        c = c / length(c) if length(c) > 1 else c
        w = w - lr * (inner.send(c) + weight_decay * w)
        previous = g


def masked(direction, g):
    agree = [float(d * x > 0) for d, x in zip(direction.flatten(), g.flatten(), strict=True)]
    share = max(sum(agree) / len(agree), 1e-3)
    return direction * torch.tensor(agree, dtype=g.dtype).reshape(g.shape) / share


def cautious_adamw(w, betas, eps, weight_decay):
    inner = started(adam(betas, eps))
    while True:
        g, lr = yield w
        w = w - lr * (masked(inner.send(g), g) + weight_decay * w)


def adopt(w, betas, eps, weight_decay):
    g, lr = yield w
    w, v, m, t = w - lr * weight_decay * w, g * g, torch.zeros_like(w), 0
    while True:
        g, lr = yield w
        t += 1
        scaled = g / v.sqrt().clamp(min=eps)
        m = mean(m, scaled.clamp(-(t**0.25), t**0.25), betas[0])
        w = w - lr * (m + weight_decay * w)
        v = mean(v, g * g, betas[1])


def adan(w, betas, eps, weight_decay):
    m = v = n = t = 0
    previous = None
    while True:
        g, lr = yield w
        t += 1
        change = g - previous if previous is not None else 0 * g
        m, v = mean(m, g, betas[0]), mean(v, change, betas[1])
        n = mean(n, (g + betas[1] * change) ** 2, betas[2])
        c = [1 - beta**t for beta in betas]
        step = (m / c[0] + betas[1] * v / c[1]) / (n.sqrt() / math.sqrt(c[2]) + eps)
        w = (w - lr * step) / (1 + lr * weight_decay)
        previous = g


def prodigy(ws, betas, eps, d0):
    start, d, r, root = list(ws), d0, 0.0, math.sqrt(betas[1])
    s = [torch.zeros_like(w) for w in ws]
    m, v = list(s), list(s)
    while True:
        gs, lr = yield ws
        along = sum(((x - w) * g).sum() for x, w, g in zip(start, ws, gs, strict=True))
        r = root * r + (1 - root) * lr * d * d * along
        for i, g in enumerate(gs):
            s[i] = root * s[i] + (1 - root) * lr * d * d * g
            m[i] = mean(m[i], d * g, betas[0])
            v[i] = mean(v[i], d * d * g * g, betas[1])
        ws = [w - lr * d * a / (b.sqrt() + d * eps) for w, a, b in zip(ws, m, v, strict=True)]
        d = max(d, r / sum(x.abs().sum() for x in s))


def dadapt_sgd(ws, momentum, d0):
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


def clipped_adamw(ws, longest, betas, eps, weight_decay):
    inner = [started(adam(betas, eps)) for _ in ws]
    while True:
        gs, lr = yield ws
        scale = min(1.0, longest / (math.sqrt(sum((g * g).sum() for g in gs)) + 1e-6))
        ws = [
            w - lr * (each.send(scale * g) + weight_decay * w)
            for w, g, each in zip(ws, gs, inner, strict=True)
        ]


def schedule_free_sgd(w, beta, weight_decay):
    x, z, t = w, w, 0
    while True:
        y = (1 - beta) * z + beta * x
        g, lr = yield y
        t += 1
        z = z - lr * (g + weight_decay * y)
        x = (1 - 1 / t) * x + z / t


def schedule_free_adamw(w, betas, eps, weight_decay):
    x, z, v, t = w, w, 0, 0
    while True:
        y = (1 - betas[0]) * z + betas[0] * x
        g, lr = yield y
        t += 1
        v = mean(v, g * g, betas[1])
        z = z - lr * (g / ((v / (1 - betas[1] ** t)).sqrt() + eps) + weight_decay * y)
        x = (1 - 1 / t) * x + z / t


def lookahead_adamw(w, betas, eps, weight_decay, alpha, every):
    slow, t, inner = w, 0, started(adam(betas, eps))
    while True:
        g, lr = yield w
        t += 1
        w = w - lr * (inner.send(g) + weight_decay * w)
        if t % every == 0:
            w = slow = slow + alpha * (w - slow)


def sam_sgd(ws, momentum, rho):
    p = [torch.zeros_like(w) for w in ws]
    while True:
        gs, lr = yield ws
        norm = math.sqrt(sum((g * g).sum() for g in gs)) + 1e-12
        gs, lr = yield [w + rho * g / norm for w, g in zip(ws, gs, strict=True)]
        p = [momentum * each + g for each, g in zip(p, gs, strict=True)]
        ws = [w - lr * each for w, each in zip(ws, p, strict=True)]


def power(x, exponent):
    values, vectors = torch.linalg.eigh(x)
    return vectors @ torch.diag(values**exponent) @ vectors.T


def shampoo(w, momentum, eps, every):
    shape, rows = w.shape, w.flatten(1)
    n, k = rows.shape
    left, right = eps * torch.eye(n).double(), eps * torch.eye(k).double()
    p, t = torch.zeros_like(rows), 0
    while True:
        g, lr = yield rows.reshape(shape)
        g = g.flatten(1)
        left, right = left + g @ g.T, right + g.T @ g
        if t % every == 0:
            a, b = power(left, -0.25), power(right, -0.25)
        t += 1
        p = momentum * p + a @ g @ b
        rows = rows - lr * p


def soap(w, betas, eps, weight_decay, every):
    shape = w.shape
    tall = shape[0] > w[0].numel()
    side, m, v, t = 0, 0, 0, 0
    while True:
        g, lr = yield w
        g = g.flatten(1).T if tall else g.flatten(1)
        side = mean(side, g @ g.T, betas[1])
        if t % every == 0:
            basis = torch.linalg.eigh(side)[1]
        t += 1
        m, v = mean(m, g, betas[0]), mean(v, (basis.T @ g) ** 2, betas[1])
        step = (basis.T @ m) / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        step = basis @ step
        w = w - lr * ((step.T if tall else step).reshape(shape) + weight_decay * w)


def orthogonalized(x):
    """Newton and Schulz's iteration."""
    y = x.flatten(1)
    tall = y.shape[0] > y.shape[1]
    y = y.T if tall else y
    y = y / (length(y) + 1e-7)
    for _ in range(5):
        a = y @ y.T
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * a @ a) @ y
    return (y.T if tall else y).reshape(x.shape)


def muon(w, momentum, weight_decay):
    p = torch.zeros_like(w)
    while True:
        g, lr = yield w
        p = momentum * p + g
        w = w - lr * (orthogonalized(g + momentum * p) + weight_decay * w)


def product_of_sums(x, rows, cols):
    """R C / 1^T R of each matrix in the last two dimensions."""
    return torch.einsum("...i,...j->...ij", rows, cols) / rows.sum(-1)[..., None, None]


def clipped_to(x, longest):
    return x / max(1.0, math.sqrt((x * x).mean()) / longest)


def adafactor(w, decay, longest, eps):
    rows = cols = v = t = 0
    while True:
        g, lr = yield w
        t += 1
        beta, x = 1 - t**-decay, g * g + eps
        if w.ndim < 2:
            v = mean(v, x, beta)
        else:
            rows, cols = mean(rows, x.sum(-1), beta), mean(cols, x.sum(-2), beta)
            v = product_of_sums(x, rows, cols)
        w = w - lr * clipped_to(g / v.sqrt(), longest)


def came(w, betas, longest, eps, weight_decay):
    rows = cols = other_rows = other_cols = v = m = 0
    while True:
        g, lr = yield w
        x = g * g + eps[0]
        if w.ndim < 2:
            v = mean(v, x, betas[1])
            step = m = mean(m, clipped_to(g / v.sqrt(), longest), betas[0])
        else:
            rows, cols = mean(rows, x.sum(-1), betas[1]), mean(cols, x.sum(-2), betas[1])
            u = clipped_to(g / product_of_sums(x, rows, cols).sqrt(), longest)
            m = mean(m, u, betas[0])
            off = (u - m) ** 2 + eps[1]
            other_rows = mean(other_rows, off.sum(-1), betas[2])
            other_cols = mean(other_cols, off.sum(-2), betas[2])
            step = m / product_of_sums(off, other_rows, other_cols).sqrt()
        w = w - lr * (step + weight_decay * w)


def adam_mini(w, betas, eps, weight_decay):
    m, t, blocks = 0, 0, len(w) if w.ndim >= 2 else 1
    v = [0.0] * blocks
    while True:
        g, lr = yield w
        t += 1
        m = mean(m, g, betas[0])
        parts = g.reshape(blocks, -1)
        v = [mean(past, (part**2).mean(), betas[1]) for past, part in zip(v, parts, strict=True)]
        root = [math.sqrt(x / (1 - betas[1] ** t)) + eps for x in v]
        rows = m.reshape(blocks, -1) / (1 - betas[0] ** t)
        step = torch.stack([row / x for row, x in zip(rows, root, strict=True)]).reshape(w.shape)
        w = w - lr * (step + weight_decay * w)


def amsgrad(w, betas, eps):
    m, v, largest, t = 0, 0, torch.zeros_like(w), 0
    while True:
        g, lr = yield w
        t += 1
        m, v = mean(m, g, betas[0]), mean(v, g * g, betas[1])
        largest = torch.maximum(largest, v)
        root = largest.sqrt() / math.sqrt(1 - betas[1] ** t) + eps
        w = w - lr * m / (1 - betas[0] ** t) / root


def stable_adamw(w, betas, eps, weight_decay):
    squares = []
    inner = started(adam(betas, eps, squares))
    while True:
        g, lr = yield w
        step = inner.send(g)
        surprise = math.sqrt((g * g / squares[-1].clamp(min=eps * eps)).mean())
        w = w - lr / max(1.0, surprise) * (step + weight_decay * w)


def aggmo(w, betas):
    ps = [torch.zeros_like(w) for _ in betas]
    while True:
        g, lr = yield w
        ps = [beta * p + g for beta, p in zip(betas, ps, strict=True)]
        w = w - lr / len(betas) * sum(ps)


def adamc(w, betas, eps, weight_decay):
    largest, inner = 0.0, started(adam(betas, eps))
    while True:
        g, lr = yield w
        largest = max(largest, lr)
        w = w - lr * (inner.send(g) + weight_decay * lr / largest * w)


def compensated_sgd(w, momentum):
    p, remainder = torch.zeros_like(w), torch.zeros_like(w)
    while True:
        g, lr = yield w
        p = momentum * p + g
        exact = w - lr * p + remainder
        w = exact.to(torch.bfloat16).double()
        remainder = exact - w


def spam(w, betas, eps, theta, every):
    t = 0
    while True:
        g, lr = yield w
        if t % every == 0:
            inner, v = started(adam(betas, eps)), torch.zeros_like(w)
        t += 1
        longest = (theta * v).sqrt()
        g = torch.where((v > 0) & (g.abs() > longest), g.sign() * longest, g)
        v = mean(v, g * g, betas[1])
        w = w - lr * inner.send(g)


TOGETHER = (prodigy, dadapt_sgd, clipped_adamw, sam_sgd)


def trajectory(name, hyper_parameters, weights, gradient, rates):
    """The weights after each step of a loop.

    Args:
        name: of the loop.
        hyper_parameters: its own; a learning rate among them is left out.
        weights: float64 tensors.
        gradient: of (weight, index of the weight, step) at a point.
        rates: the learning rate of each step.
    """
    loop = globals()[name]
    own = {key: value for key, value in hyper_parameters.items() if key != "lr"}
    together = loop in TOGETHER
    runs = [loop(list(weights), **own)] if together else [loop(w, **own) for w in weights]
    points = [next(run) for run in runs]
    states = []
    for step, lr in enumerate(rates):
        for _ in range(2 if loop is sam_sgd else 1):
            flat = points[0] if together else points
            grads = [gradient(w, i, step) for i, w in enumerate(flat)]
            sent = [grads] if together else grads
            points = [run.send((each, lr)) for run, each in zip(runs, sent, strict=True)]
        states.append([w.clone() for w in (points[0] if together else points)])
    return states
