"""Train ten models that have no scale-invariant weight, or few, with the groups of the audit.

    python -m tests.audit.training

Each model is trained by plain SGD with momentum, and by the groups that `param_groups` makes for
SGDG and SGDP, with the same learning rate for all that is Euclidean. SGDP has it for all weights;
SGDG has its own defaults on the sphere. None is tuned.

The table has the losses on new data after training, geometric means over seeds, and the interval
(95 %, paired by seed) of the log of their ratio to SGD's. The
exit code is 1 if a recipe is worse than SGD by more than chance: if an interval lies above 0.
"""

import argparse
import math
import statistics
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import spherenorm as sn
from tests.audit.zoo.parts import Net, Plus, decoder, linear, mlp

CLASSES, FEATURES, TOKENS, LENGTH = 4, 16, 11, 6
SGD = {"lr": 0.05, "momentum": 0.9}
STUDENT = {3: 4.303, 5: 2.776, 8: 2.365, 10: 2.262}
"""The 97.5 % quantile of Student's t, by the number of seeds."""


def zero_head():
    model = mlp(FEATURES, 64, 64, CLASSES)
    nn.init.zeros_(model[-1].weight)
    return model


def zero_biases_before_a_norm():
    model = nn.Sequential(
        *(nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32)),
        *(nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, CLASSES)),
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return model


def rezero():
    def block():
        def function(self, x):
            return x + self.gate * self.body(x)

        return Net(function, gate=nn.Parameter(torch.zeros(())), body=mlp(32, 64, 32))

    return nn.Sequential(nn.Linear(FEATURES, 32), block(), block(), nn.Linear(32, CLASSES))


def layer_scale():
    def block():
        scale = Net(lambda self, x: self.gamma * x, gamma=nn.Parameter(1e-6 * torch.ones(32)))
        return Plus(nn.LayerNorm(32), mlp(32, 64, 32, act=nn.GELU), scale)

    return nn.Sequential(nn.Linear(FEATURES, 32), block(), block(), nn.Linear(32, CLASSES))


def adapter():
    def function(self, x):
        return self.head(F.relu(self.base(x) + x @ self.a @ self.b))

    model = Net(function, base=nn.Linear(FEATURES, 64), head=nn.Linear(64, CLASSES))
    model.a = nn.Parameter(torch.randn(FEATURES, 4) / 4)
    model.b = nn.Parameter(torch.zeros(4, 64))
    model.base.requires_grad_(False)
    return model


def plain():
    return mlp(FEATURES, 64, 64, CLASSES)


def one_batch_norm():
    return nn.Sequential(
        *(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU()),
        mlp(32, 64, CLASSES),
    )


def batch_norms_and_a_zero_head():
    model = mlp(FEATURES, 32, 32, CLASSES, norm=nn.BatchNorm1d)
    nn.init.zeros_(model[-1].weight)
    return model


def transformer():
    model = decoder(std=0.1)
    return nn.Sequential(model, Net(lambda self, y: y.mean(1)), nn.Linear(TOKENS, CLASSES))


def normalized_embedding():
    embed = nn.Embedding(TOKENS, 16)
    nn.init.normal_(embed.weight, std=0.02)
    body = nn.Flatten(), linear(16 * LENGTH, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    return nn.Sequential(embed, nn.LayerNorm(16), *body)


MODELS = {
    make.__name__: (make, reads)
    for make, reads in (
        *((zero_head, "vectors"), (zero_biases_before_a_norm, "vectors"), (rezero, "vectors")),
        *((layer_scale, "vectors"), (adapter, "vectors"), (plain, "vectors")),
        *((one_batch_norm, "vectors"), (batch_norms_and_a_zero_head, "vectors")),
        *((transformer, "tokens"), (normalized_embedding, "tokens")),
    )
}


def data(reads, seed, count):
    """Inputs, and the classes that a random teacher gives them; the teacher depends on `reads`."""
    generator = torch.Generator().manual_seed(7)
    if reads == "vectors":
        shape = (FEATURES, 12), (12, CLASSES)
        a, b = (torch.randn(s, generator=generator) for s in shape)
        x = torch.randn(count, FEATURES, generator=generator.manual_seed(seed))
        return x, (torch.tanh(x @ a) @ b).argmax(1)
    table = torch.randn(TOKENS, CLASSES, generator=generator)
    x = torch.randint(TOKENS, (count, LENGTH), generator=generator.manual_seed(seed))
    return x, table[x].sum(1).argmax(1)


def optimizer(recipe, model, batch):
    if recipe == "sgd":
        return sn.optim.SGD(model.parameters(), **SGD)
    if recipe == "sgdg on everything":
        return sn.optim.SGDG(model.parameters())
    if recipe == "sgdg":
        groups = sn.param_groups(model, batch, "sgdg", rest=sn.bind("sgd", **SGD))
        return sn.optim.SGDG(groups)
    return sn.optim.SGDP(sn.param_groups(model, batch, recipe, **SGD))


def train(name, recipe, seed, steps):
    """The loss on new data after training."""
    make, reads = MODELS[name]
    torch.manual_seed(seed)
    model = make()
    x, y = data(reads, 100 + seed, 2048)
    steppers = optimizer(recipe, model, x[:64])
    order = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in steppers.param_groups:  # a linear schedule to 0
            group.setdefault("first_lr", group["lr"])
            group["lr"] = group["first_lr"] * (1 - step / steps)
        chosen = torch.randint(len(x), (64,), generator=order)
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        steppers.zero_grad()
        loss.backward()
        steppers.step()
    new_x, new_y = data(reads, 10_000, 2048)
    with torch.no_grad():
        return F.cross_entropy(model.eval()(new_x), new_y).item()


def losses(name, recipe, seeds, steps):
    return [train(name, recipe, seed, steps) for seed in range(seeds)]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.audit.training", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, choices=STUDENT)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    worse, start = 0, time.perf_counter()
    print(f"{'model':30}{'sgd':>9}" + "".join(f"{r:>9}{'log ratio':>20}" for r in ("sgdg", "sgdp")))
    for name in MODELS:
        base = losses(name, "sgd", given.seeds, given.steps)
        cells = [f"{name:30}{_mean(base):9.4f}"]
        for recipe in ("sgdg", "sgdp"):
            found = losses(name, recipe, given.seeds, given.steps)
            ratios = [math.log(a / b) for a, b in zip(found, base, strict=True)]
            half = STUDENT[given.seeds] * statistics.stdev(ratios) / math.sqrt(given.seeds)
            middle = statistics.mean(ratios)
            worse += middle - half > 0
            cells.append(f"{_mean(found):9.4f}{f'{middle:+.3f} ± {half:.3f}':>20}")
        print("".join(cells), flush=True)
    print(f"{worse} of {2 * len(MODELS)} worse than SGD; {time.perf_counter() - start:.0f} s")
    return bool(worse)


def _mean(values):
    return math.exp(statistics.mean(map(math.log, values)))


if __name__ == "__main__":
    sys.exit(main())
