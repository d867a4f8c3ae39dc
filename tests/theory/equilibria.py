"""Equilibrium laws against plain float64 loops, which share no code with the library.

    python -m tests.theory.equilibria               # every recipe at d = 256
    python -m tests.theory.equilibria --bounds      # d = 2, 16, 256 and short and long memories

Each line shows how far |w| and the effective step are off, and the bound that the law prints.
"""

from __future__ import annotations

import argparse
import math

import torch

from spherenorm_theory import equilibrium
from spherenorm_theory.laws import NoEquilibriumError

NOISE = {"lr": 0.1, "weight_decay": 0.1}
ADAMW = {"lr": 0.01, "weight_decay": 1.0}
ADAMP = {"lr": 0.01, "weight_decay": 10.0}
LION = {"lr": 0.001, "weight_decay": 10.0}
RATIO = 0.1
"""The share of the decay that projected weights have in SGDP and AdamP, by default."""
RECIPES = (
    *(("sgd", {**NOISE, "momentum": momentum}) for momentum in (0.0, 0.5, 0.9)),
    ("sgd", {**NOISE, "momentum": 0.9, "nesterov": True}),
    ("sgdw", {**NOISE, "momentum": 0.9}),
    ("sgdp", {**NOISE, "momentum": 0.9}),
    ("sgdp", {**NOISE, "momentum": 0.9, "project_buffer": True}),
    *(("adamw", {**ADAMW, "betas": (0.9, beta)}) for beta in (0.99, 0.999)),
    *(("adamp", {**ADAMP, "betas": (0.9, beta)}) for beta in (0.99, 0.999)),
    *(("lion", {**LION, "betas": betas}) for betas in ((0.9, 0.99), (0.95, 0.98))),
)  # fmt: skip
UNITS = {2: 2048, 16: 512, 256: 64}


def inner(a, b):
    return (a * b).sum(1, keepdim=True)


def tangent(x, w):
    return x - inner(x, w) / inner(w, w) * w


def step_sgd(name, w, g, m, numbers):
    """One step of sgd, sgdw or sgdp: the new weight and momentum."""
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
    """One step of adamw or adamp without eps: the new weight and moments."""
    (m, v), (beta1, beta2) = moments, numbers["betas"]
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    u = m / (1 - beta1**time) / (v / (1 - beta2**time)).sqrt()
    u = tangent(u, w) if name == "adamp" else u
    lr, decay = numbers["lr"], numbers["weight_decay"] * (RATIO if name == "adamp" else 1)
    return (1 - lr * decay) * w - lr * u, (m, v)


def step_lion(w, g, m, numbers):
    """One step of lion: the new weight and momentum."""
    beta1, beta2 = numbers["betas"]
    u = (beta1 * m + (1 - beta1) * g).sign()
    new = w - numbers["lr"] * (u + numbers["weight_decay"] * w)
    return new, beta2 * m + (1 - beta2) * g


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
        elif name == "lion":
            new, m = step_lion(w, g, m, numbers)
        else:
            new, m = step_sgd(name, w, g, m, numbers)
        if time > warm_up:
            turned = new / new.norm(dim=1, keepdim=True) - w / w.norm(dim=1, keepdim=True)
            squares = inner(w, w), inner(turned, turned), inner(w, w) * inner(g, g)
            sums = [total + x.mean().item() for total, x in zip(sums, squares, strict=True)]
        w = new
    return [math.sqrt(total / steps) for total in sums]


def compare(name, numbers, dimension, steps=1500, least=1500):
    """The relative errors of |w| and of the effective step, and the law's bound.

    The first `least` steps are left out, or more where a second moment remembers more.
    """
    memory = 1 / (1 - max(numbers.get("betas", (0.0,))))
    warm_up = max(least, int(8 * memory))
    flags = {n: x for n, x in numbers.items() if isinstance(x, bool) or x == 0}
    law = equilibrium(name, **flags, **({"eps": 0.0} if name.startswith("adam") else {}))
    values = law.traced.values(**numbers)
    start = math.sqrt(law.squared_norm(values, dimension, math.sqrt(dimension - 1)))
    norm, step, gamma = simulate(name, numbers, dimension, start, warm_up, steps)
    expected = math.sqrt(law.squared_norm(values, dimension, gamma))
    errors = expected / norm - 1, law.rotation(values) / step - 1
    return errors, law.bound(values, dimension)


def grid():
    """Recipes at short and long memories."""
    for beta in (0.5, 0.9, 0.99):
        numbers = {**NOISE, "momentum": beta}
        yield from ((name, numbers) for name in ("sgd", "sgdw", "sgdp"))
        yield "sgd", {**numbers, "nesterov": True}
        yield "sgdp", {**numbers, "project_buffer": True}
        yield "adamw", {**ADAMW, "betas": (0.9, beta)}
        yield "adamp", {**ADAMP, "betas": (0.9, beta)}
        yield "lion", {**LION, "betas": (0.9, beta)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bounds", action="store_true", help="small d and long memories too")
    bounds = parser.parse_args().bounds
    exceeded = 0
    for dimension in UNITS if bounds else (256,):
        for name, numbers in grid() if bounds else RECIPES:
            shown = f"{name} {', '.join(f'{n}={x}' for n, x in numbers.items())}"
            try:
                errors, bound = compare(name, numbers, dimension)
            except NoEquilibriumError as error:
                print(f"d={dimension:3} {shown}: refused: {error}", flush=True)
                continue
            within = max(map(abs, errors)) <= (bound if bounds else min(bound, 0.01))
            exceeded += not within
            print(
                f"d={dimension:3} {shown}: |w| {errors[0]:+.2%}, step {errors[1]:+.2%}, "
                f"bound {bound:.2%}{'' if within else '  EXCEEDED'}",
                flush=True,
            )
    raise SystemExit(exceeded > 0)


if __name__ == "__main__":
    main()
