"""Plain float64 loops in equilibrium under random gradients, without code of the library."""

import math

import torch

from spherenorm_theory import equilibrium

NOISE = {"lr": 0.1, "weight_decay": 0.1}
ADAMW = {"lr": 0.01, "weight_decay": 1.0}
ADAMP = {"lr": 0.01, "weight_decay": 10.0}
RATIO = 0.1
"""The share of the decay that projected weights have in SGDP and AdamP, by default."""
UNITS = {2: 2048, 16: 512, 256: 64}


def inner(a, b):
    return (a * b).sum(1, keepdim=True)


def tangent(x, w):
    return x - inner(x, w) / inner(w, w) * w


def step_sgd(name, w, g, m, numbers):
    """Return the new weight and momentum of a step of sgd, sgdw or sgdp."""
    lr, decay, beta = (numbers[n] for n in ("lr", "weight_decay", "momentum"))
    d = g + decay * w if name == "sgd" else g
    m = beta * m + d
    u = d + beta * m if numbers.get("nesterov") else m
    if name == "sgd":
        return w - lr * u, m
    if name == "sgdp":
        u = tangent(u, w)
        m = u if numbers.get("project_buffer") else m
        decay = decay * RATIO / (1 - beta)
    return (1 - lr * decay) * w - lr * u, m


def step_adam(name, w, g, moments, time, numbers):
    """Return the new weight and moments of a step of adamw or adamp without eps."""
    (m, v), (beta1, beta2) = moments, numbers["betas"]
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    u = m / (1 - beta1**time) / (v / (1 - beta2**time)).sqrt()
    u = tangent(u, w) if name == "adamp" else u
    lr, decay = numbers["lr"], numbers["weight_decay"] * (RATIO if name == "adamp" else 1)
    return (1 - lr * decay) * w - lr * u, (m, v)


def simulate(name, numbers, dimension, start, warm_up, steps):
    """The root mean squares of |w|, of the effective step and of |w| |g| under random gradients."""
    generator = torch.Generator().manual_seed(0)

    def normal():
        shape = (UNITS[dimension], dimension)
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    w = normal()
    w = w / w.norm(dim=1, keepdim=True) * start
    m = v = torch.zeros_like(w)
    sums = [0.0, 0.0, 0.0]
    for time in range(1, warm_up + steps + 1):
        g = tangent(normal(), w) / w.norm(dim=1, keepdim=True)
        if name.startswith("adam"):
            new, (m, v) = step_adam(name, w, g, (m, v), time, numbers)
        else:
            new, m = step_sgd(name, w, g, m, numbers)
        if time > warm_up:
            turned = new / new.norm(dim=1, keepdim=True) - w / w.norm(dim=1, keepdim=True)
            squares = inner(w, w), inner(turned, turned), inner(w, w) * inner(g, g)
            sums = [total + x.mean().item() for total, x in zip(sums, squares, strict=True)]
        w = new
    return [math.sqrt(total / steps) for total in sums]


def compare(name, numbers, dimension, steps=1500, min_warm_up=1500):
    """The relative errors of |w| and of the effective step, and an estimate of them.

    The first `min_warm_up` steps are left out, or more where a second moment remembers more.
    """
    memory = 1 / (1 - max(numbers.get("betas", (0.0,))))
    warm_up = max(min_warm_up, int(8 * memory))
    flags = {n: x for n, x in numbers.items() if isinstance(x, bool) or x == 0}
    structure = {"eps": 0.0} if name.startswith("adam") else {}
    structure |= {"dampening": 0.0} if name.startswith("sgd") else {}
    law = equilibrium(name, **flags, **structure)
    values = law.traced.free_values(**numbers)
    start = math.sqrt(law.squared_norm(values, dimension, math.sqrt(dimension - 1)))
    norm, step, gamma = simulate(name, numbers, dimension, start, warm_up, steps)
    expected = math.sqrt(law.squared_norm(values, dimension, gamma))
    errors = expected / norm - 1, law.effective_step(values) / step - 1
    return errors, error_of_means(numbers, dimension)


def error_of_means(numbers, dimension):
    """1 / d + M / (20 d) for fluctuations, M the memory of the momentum, and those of a moment.

    Half of the relative variance 2 (1 - beta2) / (1 + beta2) of a second moment of Gaussian
    entries, from 16 of them on; fitted to runs with kappa of 1 % per step.
    """
    betas = numbers.get("betas", (numbers.get("momentum", 0.0),))
    if len(betas) == 2 and dimension < 16:
        return math.inf
    memory = 1 / (1 - betas[0])
    variance = (1 - betas[1]) / (1 + betas[1]) if len(betas) == 2 else 0.0
    return (1 + memory / 20) / dimension + variance


def recipes(momenta, memories):
    """Each recipe with hyper-parameters, for these momenta and these memories of second moments."""
    for beta in momenta:
        numbers = {**NOISE, "momentum": beta}
        yield from ((name, numbers) for name in ("sgd", "sgdw", "sgdp"))
        yield "sgd", {**numbers, "nesterov": True}
        yield "sgdp", {**numbers, "project_buffer": True}
    for beta in memories:
        yield "adamw", {**ADAMW, "betas": (0.9, beta)}
        yield "adamp", {**ADAMP, "betas": (0.9, beta)}
