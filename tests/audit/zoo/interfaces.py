"""Inputs, outputs and forward passes of every kind."""

import torch
from torch import nn

from tests.audit.zoo.case import CHANNEL, Case, case, images, tokens, vectors
from tests.audit.zoo.parts import LayerDrop, Net, Plus, linear, mlp


@case
def keyword_inputs_and_a_dict_of_outputs():
    def function(self, *, ids, mask):
        x = self.norm(self.embed(ids)) * mask[..., None]
        logits = self.head(x)
        return {"logits": logits, "hidden": (x, [x.sum()]), "name": "none", "nothing": None}

    net = Net(function, embed=nn.Embedding(11, 8), norm=nn.LayerNorm(8), head=linear(8, 2))
    mask = (torch.arange(6) < 5).expand(4, -1)
    keywords = {"ids": tokens(), "mask": mask}
    return Case(net, (), {"embed.weight": CHANNEL}, keywords=keywords)


@case
def float32_inside():
    def function(self, x):
        x = self.f(x) @ torch.eye(5, dtype=torch.float32)
        x = self.norm(x.float()) + self.table
        return self.head(x.half()).float()

    net = Net(function, f=nn.Linear(6, 5), norm=nn.BatchNorm1d(5), head=linear(5, 2))
    net.table = torch.ones(5)
    return Case(net, (vectors(),), {"f.weight": CHANNEL})


@case
def in_place_forward():
    def function(self, x):
        x += 1
        return self.f(x.relu_())

    return Case(Net(function, f=mlp(6, 8, 3)), (vectors().double(),))


@case
def layer_drop():
    blocks = (Plus(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(4))
    stem = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    net = nn.Sequential(*stem, LayerDrop(*blocks), nn.Dropout(0.2), nn.Flatten())
    return Case(net, (images(),), {"0.weight": CHANNEL, "2*": CHANNEL})


@case
def a_tied_matrix_before_two_norms():
    def function(self, x):
        return self.b(self.f(torch.tanh(self.a(self.f(x)))))

    net = Net(function, f=nn.Linear(6, 6), a=nn.BatchNorm1d(6), b=nn.BatchNorm1d(6))
    return Case(net, (vectors(),), {"f.weight": CHANNEL})


@case
def a_tied_matrix_before_one_norm():
    net = Net(lambda self, x: self.f(self.a(self.f(x))), f=nn.Linear(6, 6), a=nn.BatchNorm1d(6))
    return Case(net, (vectors(),))
