"""Rates of `sn.transfer.mup` are those of the mup package; skipped where it is not installed.

`pip install --no-deps mup==1.0.0` is enough: the parts that are used import torch alone.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu

import spherenorm as sn

mup = pytest.importorskip("mup")

BASE_WIDTH, WIDTH = 32, 128
RATIO = WIDTH / BASE_WIDTH


class Mlp(nn.Module):
    def __init__(self, width, readout=nn.Linear):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, width),
            nn.ReLU(),
            nn.Linear(width, 2 * width),
            nn.Tanh(),
            nn.Linear(2 * width, width),
            nn.ReLU(),
        )
        self.head = readout(width, 10)

    def forward(self, x):
        return self.head(self.body(x))


class Convolutions(nn.Module):
    def __init__(self, width, readout=nn.Linear):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, width, 1),
            nn.ReLU(),
        )
        self.head = readout(width, 10)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        y = self.ln1(x)
        query, key, value = (
            layer(y).view(batch, time, 4, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1]
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, -1e30).softmax(-1) @ value
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(gelu(self.up(self.ln2(x))))


class Gpt(nn.Module):
    def __init__(self, width, readout=nn.Linear):
        super().__init__()
        self.tokens = nn.Embedding(20, width)
        self.positions = nn.Parameter(torch.randn(12, width) * 0.02)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm = nn.LayerNorm(width)
        self.head = readout(width, 20, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions[: x.shape[1]])))


def data_of(make):
    generator = torch.Generator().manual_seed(0)
    if make is Gpt:
        return tuple(torch.randint(20, (8, 12), generator=generator) for _ in range(2))
    shape = (64, 16) if make is Mlp else (16, 3, 8, 8)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(10, shape[:1], generator=generator)


def settings_by_name(model, groups):
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: (group["lr"], group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }


def train(model, optimizer, inputs, labels):
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "like", "lr", "decay"),
    [("adam", "adam", 0.003, 0.0), ("adamw", "adam", 0.003, 0.1), ("sgd", "sgd", 0.1, 0.01)],
)
@pytest.mark.parametrize("make", [Mlp, Convolutions, Gpt])
def test_rates_starts_and_losses_are_those_of_the_package(make, name, like, lr, decay):
    torch.manual_seed(1)
    inputs, labels = data_of(make)
    ours, base = make(WIDTH).double(), make(BASE_WIDTH).double()
    theirs = make(WIDTH, mup.MuReadout).double()
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    narrow, wider = make(BASE_WIDTH, mup.MuReadout), make(2 * BASE_WIDTH, mup.MuReadout)
    mup.set_base_shapes(theirs, narrow, delta=wider)
    # In the package eps is compared with a head's gradient that is divided by the ratio of widths.
    eps = {} if like == "sgd" else {"eps": 1e-14}
    package_class = {"adam": mup.MuAdam, "adamw": mup.MuAdamW, "sgd": mup.MuSGD}[name]
    reference = package_class(list(theirs.parameters()), lr=lr, weight_decay=decay, **eps)

    sn.transfer.start(ours, base, inputs)
    policy = sn.transfer.mup(like)
    groups = sn.param_groups(
        ours, inputs, name, lr=lr, weight_decay=decay, base=base, transfer=policy, **eps
    )

    for (key, weight), weight_of_ours in zip(
        theirs.named_parameters(), ours.parameters(), strict=True
    ):
        # What MuReadout does in the forward pass lies in the start and the rate of our head.
        moved = weight_of_ours * RATIO if key == "head.weight" else weight_of_ours
        torch.testing.assert_close(weight, moved, rtol=1e-12, atol=1e-15)
    mine = settings_by_name(ours, groups)
    published = settings_by_name(theirs, reference.param_groups)
    head = mine.pop("head.weight")
    head_of_package = published.pop("head.weight")
    assert mine.keys() == published.keys()
    for key, setting in mine.items():
        assert setting == pytest.approx(published[key], rel=1e-12), key
    head_ratio = RATIO if like == "adam" else RATIO**2
    assert head == pytest.approx(
        (head_of_package[0] / head_ratio, head_of_package[1] * head_ratio), rel=1e-12
    )

    optimizer = groups.optimizer()
    losses = train(ours, optimizer, inputs, labels)
    assert losses == pytest.approx(train(theirs, reference, inputs, labels), abs=1e-9)
    assert losses[-1] < losses[0] - 0.03
