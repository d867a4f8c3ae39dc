"""Steps as users write them, (w, d, m) -> (direction, new m), to take and to refuse."""

from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

import spherenorm as sn
from spherenorm import rules as r

TRACED = {
    "the gradient as a state": lambda w, d, m: (d, d),
    "the weight within a state": lambda w, d, m: (d, w + m),
    "a constant direction": lambda w, d, m: (torch.ones_like(d), m + d),
    "a choice of a number": lambda w, d, m: (torch.where(d > 0, d, 0), torch.where(m > d, 0.5, d)),
    "a truth value times a number": lambda w, d, m: ((d > 0) * d, m + (d > 0)),
    "truth values as numbers": lambda w, d, m: (
        d * (real(d > 0, d) + real(m > 0, d)),
        real(d > 0, d) - real(m > 0, d),
    ),
    "a truth value as the direction": lambda w, d, m: (real(d > 0, d), -real(m > 0, d)),
    "one minus a truth value": lambda w, d, m: (
        (1 - real(d > 0, d)) * d,
        m + d / (1 + real(m > 0, d)),
    ),
    "a count": lambda w, d, m: (d * real(d > 0, d).sum(), m + d),
    "comparison of truth values": lambda w, d, m: (
        torch.where((d > 0) == (m > 0), d, -d),
        ((d > 0) < (m > 0)) * d,
    ),
    "choice of truth values": lambda w, d, m: (
        torch.where(d > 0, m > 0, d > 1) * d,
        torch.where(d > 0, real(m > 0, d), d),
    ),
    "decisions over all entries": lambda w, d, m: (
        torch.where((d > 1).any(), d, -d),
        torch.where((d > -9).all(), m + d, m),
    ),
    "scaled additions": lambda w, d, m: (torch.add(d, m, alpha=2), torch.sub(m, d, alpha=3)),
    "lerp": lambda w, d, m: (m.lerp(d, 0.1), torch.lerp(m, d, torch.exp(-d.square()))),
    "addcmul": lambda w, d, m: (torch.addcmul(d, m, d, value=0.5), torch.addcmul(m, d, d)),
    "addcdiv": lambda w, d, m: (
        torch.addcdiv(d, m, d.abs() + 1, value=-0.5),
        torch.addcdiv(m, d, 1 + d * d),
    ),
    "clamp": lambda w, d, m: (d.clamp(-0.5, 0.5), m.clamp(min=0.1) + d.clamp(max=d.abs().mean())),
    "norms": lambda w, d, m: (d / (1e-3 + d.norm()), m + torch.linalg.vector_norm(d) * d),
    "means": lambda w, d, m: (d - d.mean(), m + d / (1 + d.square().mean().sqrt())),
    "log1p": lambda w, d, m: (torch.log1p(d.abs()), m - torch.log1p(d.square().sum()) * d),
    "sigmoid": lambda w, d, m: (torch.sigmoid(d), m + torch.sigmoid(d.sum()) * d),
    "softplus": lambda w, d, m: (
        softplus(d) + softplus(d.sum(), beta=0.5),
        m + softplus(d, beta=2.0, threshold=0.5),
    ),
    "a product with 0": lambda w, d, m: (w + d * 0, 0 * m + d),
    "an old state that is read again behind the new one": lambda w, d, m: (
        (new := 0.5 * m + d) - m.abs() * new.square(),
        new,
    ),
    "a choice times 0": lambda w, d, m: (torch.where(d.sum() > 0, d, w) * 0, m + 0.0 * d.sum()),
}
"""Of any shape."""

TRACED_ROWS = {
    "norms of rows": lambda w, d, m: (d / d.norm(dim=axes(d), keepdim=True), m + d),
    "means of rows": lambda w, d, m: (d - d.mean(dim=axes(d), keepdim=True), m + d),
    "a sum over a number": lambda w, d, m: (
        d + torch.where((d * d).sum() > 0, 1.5 + 0 * d, d).sum(dim=axes(d), keepdim=True),
        m + d,
    ),
    "functions of rows": lambda w, d, m: (
        d * softplus(d.sum(dim=axes(d), keepdim=True)),
        m + d * torch.sigmoid(torch.log1p(d.square().sum(dim=axes(d), keepdim=True))),
    ),
}
"""Of two dimensions or more."""

SATURATING = {
    "log1p": torch.log1p,
    "sigmoid": torch.sigmoid,
    "softplus": softplus,
    "softplus, scaled": lambda d: softplus(d, beta=3.0, threshold=10.0),
}
"""Functions of entries that torch computes so that none overflows or cancels out."""

EXTREME = (
    *(0.0, 1e-40, 1e-20, 1e-12, 1e-9, 1e-8, 6e-8, 1e-7, 1e-4, 0.3, 0.7, 1.0, 1.5, 3.33, 3.34),
    *(19.9, 20.0, 20.1, 36.0, 88.0, 89.0, 100.0, 103.0, 709.0, 710.0, 745.0, 1e4, 1e20, 1e38),
    float("inf"),
)
"""Entries that round, pass a threshold, or leave the range of float32 or float64."""

REFUSED = {
    "a sum whose dimension is lost": (
        lambda w, d, m: (d * d.square().sum(1), m + d),
        r"sum\.dim_IntList to the shape \(6,\)",
    ),
    "a sum over columns": (lambda w, d, m: (d * d.sum(0), m + d), "a sum over dimensions"),
    "rounding to integers": (
        lambda w, d, m: (d.to(torch.int64).to(d.dtype), m + d),
        "to torch.int64",
    ),
    "rounding to float32": (lambda w, d, m: (d.float().to(d.dtype), m + d), "to torch.float32"),
    "rounding to half": (lambda w, d, m: (d.bfloat16().to(d.dtype), m + d), "to torch.bfloat16"),
    "a sum in float32": (
        lambda w, d, m: (d * d.sum(dtype=torch.float32), m + d),
        "sum.default in torch.float32",
    ),
    "a float32 constant": (
        lambda w, d, m: (d * torch.where(d.sum() > 0, 0.1, 1.0), m + d),
        "to torch.float32",
    ),
    "bits of integers": (
        lambda w, d, m: ((torch.full((), 6) & torch.full((), 3)) * d, m + d),
        "and of numbers",
    ),
    "a sum of truth values as such": (
        lambda w, d, m: (d * ((d > 0) + (m > 0)), m + d),
        "to torch.bool",
    ),
    "not of numbers": (lambda w, d, m: (torch.logical_not(d) * d, m + d), "not of numbers"),
    "another norm": (
        lambda w, d, m: (d / d.norm(p=1), m + d),
        "of all norms only the one with ord=2, got ord=1",
    ),
    "a value read": (lambda w, d, m: (d * d.sum().item(), m + d), "its code reads a value"),
    "a branch on a value": (
        lambda w, d, m: (d if d.sum() > 0 else -d, m + d),
        "its code reads a value",
    ),
    "a transpose": (lambda w, d, m: (d.T.contiguous(), m + d), "permute"),
    "random numbers": (lambda w, d, m: (torch.rand_like(d), m + d), "rand_like"),
    "a constant tensor": (
        lambda w, d, m: (torch.tensor(2.0, dtype=d.dtype) * d, m),
        "a tensor of its own",
    ),
    "in place": (lambda w, d, m: (d.clone().mul_(2), m + d), "mul_"),
}
"""Of float64 squares: and what is said."""


def real(flag, like):
    return flag.to(like.dtype)


def axes(x):
    return tuple(range(1, x.ndim))


@dataclass(frozen=True)
class Word(sn.Rule):
    """The sum of some steps, each with a state of its own."""

    steps: tuple

    @property
    def state_names(self):
        return tuple(f"m{i}" for i in range(len(self.steps)))

    def update(self, update, state):
        results = [
            step(update.weight, update.direction, state[name])
            for step, name in zip(self.steps, self.state_names, strict=True)
        ]
        direction = sum(d for d, _ in results)
        return sn.Update(update.weight, update.grad, direction), {
            n: m for n, (_, m) in zip(self.state_names, results, strict=True)
        }


def assert_agrees_at_extremes(function, dtype):
    """A compiled step along `function` of entries from -inf to inf, and of nan, is torch's.

    The weight starts at 0, so that results far below 1 count as well.
    """
    ends = torch.tensor(EXTREME, dtype=dtype)
    entries = torch.cat([ends, -ends, torch.full((1,), float("nan"), dtype=dtype)])

    def extreme(lr=1.0):
        return sn.chain(Word((lambda w, d, m: (function(d), m),)), r.StepSize(lr))

    weight = torch.zeros_like(entries, requires_grad=True)
    weight.grad = entries
    sn.torch_optimizer(extreme)([weight], backend="compiled").step()
    rtol = 1e-12 if dtype is torch.float64 else 2e-5
    torch.testing.assert_close(
        weight.detach(),
        -function(entries),
        rtol=rtol,
        atol=torch.finfo(dtype).tiny,
        equal_nan=True,
    )
