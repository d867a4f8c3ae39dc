"""A model with weights of many kinds, optimizers for it, and the loop by hand, for the probes."""

import math
from dataclasses import replace

import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.probes import Measurement
from spherenorm.rule import Update


class Model(nn.Module):
    """Weights of many shapes, memory formats and invariances, some without a gradient."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 4, 2, bias=False)
        self.up_norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4, 12, bias=False)
        self.layer_norm = nn.LayerNorm(12)
        self.twins = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.head = nn.Linear(12, 5)
        self.unused = nn.Linear(2, 3)
        self.conv.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.up_norm(self.up(x))).mean((2, 3))
        x = self.layer_norm(self.linear(x))
        for twin in self.twins:
            x = x + torch.tanh(twin(x))
        return self.head(x)


def backward(model, step):
    dtype, generator = next(model.parameters()).dtype, torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, 6, 6, generator=generator).to(dtype)
    y = torch.randint(5, (8,), generator=generator)
    loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    return loss


def train(model, optimizer, steps):
    for number in range(steps):
        optimizer.zero_grad()
        backward(model, number)
        optimizer.step()


@sn.recipe
def remembering(lr=0.01, views=("channel", "layer"), per="tensor"):
    test = r.AccumulatedInvarianceTest(views=views, per=per)
    return sn.chain(r.HeavyBall(0.9), test, r.RadialProjection(), r.StepSize(lr))


@sn.recipe
def by_unit(lr=0.01):
    return sn.chain(r.ScaleInvarianceTest(per="unit"), r.RadialProjection(), r.StepSize(lr))


OPTIMIZERS = {
    "torch AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "AdamP": lambda model: sn.optim.AdamP(model.parameters(), lr=0.01, weight_decay=0.1),
    "groups": lambda model: sn.optim.AdamP(
        [
            {"params": [model.up.weight], "views": ("dim=1", "layer"), "lr": 0.1},
            {"params": [model.conv.weight], "recipe": "sgdg"},
            {"params": model.twins.parameters(), "recipe": "sgdp", "views": ("groups=4", "dim=1")},
            {"params": [*model.linear.parameters(), *model.head.parameters()]},
        ]
    ),
    "by unit": lambda model: sn.torch_optimizer(by_unit)(model.parameters()),
    "remembering": lambda model: sn.torch_optimizer(remembering)(
        [
            {"params": model.twins.parameters(), "views": ("groups=4", "layer"), "per": "unit"},
            {"params": [model.up.weight], "views": ("dim=1",)},
            {"params": [*model.conv.parameters(), *model.head.parameters()]},
        ]
    ),
}


def rows_of(x, view):
    """The units of a weight as rows in float64, of one slice each."""
    if view == "layer":
        return x.double().reshape(1, -1)
    dim, count = UNITS[view]
    return torch.stack([part.flatten() for part in x.double().chunk(count or x.shape[dim], dim)])


UNITS = {"channel": (0, None), "dim=1": (1, None), "groups=2": (0, 2), "groups=4": (0, 4)}
UNITS["dim=1,groups=3"] = (1, 3)
SPECTRA = ("spectral_norm", "stable_rank", "update_spectral_norm", "update_stable_rank")
NUMBERS = ("norm_before", "norm", "effective_step", "turn", "cosine")


def numbers_of(before, after, grad, view):
    """The numbers of each unit, by their formulas."""
    w, new_weight, g = (rows_of(x, view) for x in (before, after, grad))
    norms = [x.norm(dim=1) for x in (w, new_weight, g)]
    turned = (new_weight / norms[1][:, None] - w / norms[0][:, None]).norm(dim=1)
    chord = torch.where((norms[0] == 0) | (norms[1] == 0), 0.0, turned)
    cosine = ((w / norms[0][:, None]) * (g / norms[2][:, None])).sum(1)
    return norms[0], norms[1], chord, 2 * torch.asin((chord / 2).clamp(max=1)), cosine


def whole_numbers(before, after, grad):
    """The numbers of a whole weight, by their formulas."""
    w, new_weight, g = (x.double() for x in (before, after, grad))
    step = new_weight - w
    numbers = {
        "shape": tuple(w.shape),
        "grad_norm": g.norm().item() if g.any() else math.nan,
        "relative_step": (step.norm() / w.norm()).item(),
        "update_rms": step.square().mean().sqrt().item(),
    }
    for prefix, x in (("", new_weight), ("update_", step)) if w.ndim > 1 else ():
        value = torch.linalg.matrix_norm(x.flatten(1), 2)
        numbers[f"{prefix}spectral_norm"] = value.item()
        numbers[f"{prefix}stable_rank"] = (x.norm() / value).square().item()
    return numbers


def root_mean_square(x):
    x = x[~x.isnan()]
    return x.square().mean().sqrt().item() if len(x) else math.nan


class ByHand:
    """An optimizer whose steps are measured by copies, the formulas, and the test's own update.

    Attributes:
        expected: by step and weight: a measurement, the numbers of its units, and their flags.
    """

    def __init__(self, optimizer, model=None, views=None):
        self.optimizer, self.steps, self.expected = optimizer, 0, {}
        self.names = {p: name for name, p in model.named_parameters()} if model else {}
        self.views = views or {}

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self, closure=None):
        self.steps += 1
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = {p: p.detach().clone() for p in weights}
        state = self.optimizer.state
        states = {p: {k: v.clone() for k, v in state.get(p, {}).items()} for p in weights}
        names = {p: self.names.get(p, str(i)) for i, p in enumerate(weights)}
        grads, rates = {}, [g.get("lr", math.nan) for g in self.optimizer.param_groups]

        def followed(*_):
            loss = closure and closure()
            zeros = ((p, torch.zeros_like(p)) for p in weights)
            grads.update((p, z if p.grad is None else p.grad.to_dense().clone()) for p, z in zeros)
            return loss

        if closure is None:
            followed()
        self.optimizer.step(*([followed] if closure else []))
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            for p in (p for p in group["params"] if p in before and p.numel()):
                measure = self.measure if p.ndim > 1 else self.measure_vector
                measurement, *units = measure(
                    names[p], group, before[p], p.detach(), grads[p], states[p]
                )
                whole = whole_numbers(before[p], p.detach(), grads[p])
                self.expected[self.steps, names[p]] = replace(measurement, lr=lr, **whole), *units

    def measure_vector(self, name, group, before, after, grad, state):
        numbers = numbers_of(before, after, grad, "layer")
        mean = map(root_mean_square, numbers)
        return Measurement(self.steps, name, "layer", *mean, 0.0, None), numbers, torch.zeros(0)

    def measure(self, name, group, before, after, grad, state):
        rule = self.optimizer.rule_of(group) if hasattr(self.optimizer, "rule_of") else None
        tests = [x for x in rule.walk() if isinstance(x, r.InvarianceTest)] if rule else []
        test = tests[0] if tests else r.ScaleInvarianceTest()
        own = state if state.keys() >= set(test.state_names) else test.init(before)
        state = {k: own[k] for k in test.state_names}
        w, g = (x.float() if x.itemsize < 4 else x for x in (before, grad))
        invariance = test.update(Update(w, g, g), state)[0].invariance
        passed = [
            (flag.double().mean().item(), str(v), v.units(flag.expand_as(v.norm(w))))
            for flag, v in zip(invariance.flags, invariance.views, strict=True)
            if flag.any()
        ]
        share, invariant_view, flags = passed[0] if passed else (0.0, None, torch.zeros(0))
        declared = self.views if isinstance(self.views, str) else self.views.get(name)
        view = declared or (str(test.views[0]) if test.views else "channel")
        numbers = numbers_of(before, after, grad, view)
        mean = map(root_mean_square, numbers)
        return Measurement(self.steps, name, view, *mean, share, invariant_view), numbers, flags
