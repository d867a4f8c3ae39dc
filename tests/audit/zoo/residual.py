"""Residual streams, at usual and at small initializations."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, images, tokens
from tests.audit.zoo.parts import Net, Plus, decoder, linear


@case
def residual_blocks_with_batch_norm():
    def conv():
        return nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    blocks = [Plus(*conv(), nn.ReLU(), *conv()) for _ in range(3)]
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    head = nn.Flatten(), nn.Linear(144, 3)
    views = {"0.0.weight": CHANNEL, "1*": CHANNEL, "2*": CHANNEL, "3*": CHANNEL}
    return Case(nn.Sequential(stem, *blocks, *head), (images(),), views)


@case
def residual_blocks_with_zero_gains():
    made = residual_blocks_with_batch_norm()
    for block in made.model[1:4]:
        nn.init.zeros_(block.body[4].weight)
    return made


@case
def residual_blocks_with_the_norm_first():
    def conv():
        return nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, bias=False)

    blocks = [Plus(*conv(), *conv()) for _ in range(2)]
    stem = nn.Conv2d(3, 4, 3, bias=False)
    views = {"1.body.2.weight": CHANNEL, "2.body.2.weight": CHANNEL}
    return Case(nn.Sequential(stem, *blocks, nn.BatchNorm2d(4), nn.Flatten()), (images(),), views)


@case
def transformer_with_the_norm_first():
    return Case(decoder(std=0.3), (tokens(),))


@case
def transformer_with_the_norm_last():
    return Case(decoder(std=0.3, pre=False), (tokens(),))


@case
def gpt_at_its_initialization_with_a_loss():
    t = tokens()
    loss = Net(lambda self, y: F.cross_entropy(y[:, :-1].flatten(0, 1), t[:, 1:].flatten()))
    return Case(decoder(depth=3), (t,), loss=loss)


@case
def bert_at_its_initialization_with_a_loss():
    t = tokens()
    loss = Net(lambda self, y: F.cross_entropy(y.flatten(0, 1), t.flatten()))
    return Case(decoder(depth=3, pre=False), (t,), loss=loss)


@case
def convnext_at_its_initialization():
    def block():
        body = [nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)]
        scale = Net(lambda self, x: self.gamma * x, gamma=nn.Parameter(1e-6 * torch.ones(6)))
        deep = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        move = Net(lambda self, x: self.body(x.movedim(1, -1)).movedim(-1, 1))
        move.body = nn.Sequential(nn.LayerNorm(6, eps=1e-6), *body, scale)
        return Plus(deep, move)

    stem = nn.Conv2d(3, 6, 2, 2)
    return Case(
        nn.Sequential(stem, block(), block(), nn.Flatten(), nn.LayerNorm(96), linear(96, 3)),
        (images(),),
    )


@case
def depthwise_before_layer_norm_with_a_layer_scale():
    def function(self, x):
        y = self.norm(self.deep(x).movedim(1, -1))
        return x.movedim(1, -1) + self.gamma * self.out(F.gelu(y))

    net = Net(
        function,
        deep=nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
        norm=nn.LayerNorm(6),
        out=nn.Linear(6, 6),
        gamma=nn.Parameter(1e-6 * torch.ones(6)),
    )
    return Case(net, (images(c=6),), {"deep.weight": LAYER})


@case
def mobile_blocks():
    def block():
        pairs = [(4, 8, 1, 1), (8, 8, 3, 8), (8, 4, 1, 1)]
        layers = []
        for a, b, k, g in pairs:
            conv = nn.Conv2d(a, b, k, padding=k // 2, groups=g, bias=False)
            layers += [conv, nn.BatchNorm2d(b, eps=1e-3), nn.ReLU6()]
        return Plus(*layers[:-1])

    stem = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    model = nn.Sequential(*stem, block(), block(), nn.Flatten(), nn.Linear(144, 3))
    return Case(model, (images(),), {"0*": CHANNEL, "2*": CHANNEL, "3*": CHANNEL})


@case
def u_net_with_group_norm():
    def function(self, x):
        a = self.enter(x)
        b = self.down(a)
        return self.leave(torch.cat([a, self.up(b)], 1))

    def norm(conv, channels):
        return nn.Sequential(conv, nn.GroupNorm(2, channels), nn.SiLU())

    net = Net(
        function,
        enter=norm(nn.Conv2d(3, 4, 3, padding=1, bias=False), 4),
        down=norm(nn.Conv2d(4, 8, 2, 2, bias=False), 8),
        up=norm(nn.ConvTranspose2d(8, 4, 2, 2, bias=False), 4),
        leave=nn.Conv2d(8, 1, 1),
    )
    views = {"enter.0.weight": "groups=2", "down.0.weight": "groups=2"}
    return Case(net, (images(),), {**views, "up.0.weight": "dim=1,groups=2"})
