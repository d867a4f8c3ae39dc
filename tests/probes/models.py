"""A model with weights of many kinds, optimizers for it, and a training loop, for the probes."""

import math

import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r


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


def loss_of(model, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, 6, 6, generator=generator).to(dtype)
    y = torch.randint(5, (8,), generator=generator)
    return nn.functional.cross_entropy(model(x).float(), y)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step, next(model.parameters()).dtype).backward()
        yield step + 1
        optimizer.step()


@sn.recipe
def remembering(lr=0.01, views=("channel", "layer"), per="tensor"):
    return sn.chain(
        r.HeavyBall(0.9),
        r.AccumulatedInvarianceTest(views=views, per=per),
        r.RadialProjection(),
        r.StepSize(lr),
    )


@sn.recipe
def by_unit(lr=0.01):
    return sn.chain(r.ScaleInvarianceTest(per="unit"), r.RadialProjection(), r.StepSize(lr))


OPTIMIZERS = {
    "torch SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
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
    "remembering": lambda model: sn.torch_optimizer(remembering)(model.parameters()),
    "by unit": lambda model: sn.torch_optimizer(by_unit)(model.parameters()),
    "remembering groups": lambda model: sn.torch_optimizer(remembering)(
        [
            {"params": model.twins.parameters(), "views": ("groups=4", "layer"), "per": "unit"},
            {"params": [model.up.weight], "views": ("dim=1",)},
        ]
    ),
}


def root_mean_square(x):
    x = x.double()
    x = x[~x.isnan()]
    return x.square().mean().sqrt().item() if len(x) else math.nan


def its_test(optimizer, group):
    if not isinstance(optimizer, sn.optim.RecipeOptimizer):
        return r.ScaleInvarianceTest()
    tests = [x for x in optimizer.rule_of(group).tree() if isinstance(x, r.InvarianceTest)]
    return tests[0] if tests else r.ScaleInvarianceTest()
