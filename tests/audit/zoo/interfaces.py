"""Inputs, outputs and forward passes of every kind; parts that are compiled or checkpointed."""

import functools
import itertools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, images, sequential, tokens, vectors
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
    return Case(net, keywords, {"embed.weight": CHANNEL})


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


class ShiftedNorm(nn.Module):
    """LayerNorm(x + b): what comes before is invariant only while b is 0."""

    def __init__(self):
        super().__init__()
        self.bias, self.norm = nn.Parameter(torch.zeros(6)), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + self.bias)


def refuse(graph, inputs):
    raise RuntimeError("compiled code runs as written in an audit")


def in_a_checkpoint(block):
    net = Net(lambda self, x: self.run(x), block=block)
    net.run = functools.partial(checkpoint, block, use_reentrant=False)
    return net


WRAPPERS = {
    "compiled": lambda block: torch.compile(block, backend=refuse),
    "checkpointed": in_a_checkpoint,
}


@case
def wrapped_blocks_whose_zero_biases_hide_the_norm():
    pairs = ((linear(6, 6), wrap(ShiftedNorm()), nn.Tanh()) for wrap in WRAPPERS.values())
    return sequential(vectors(), *itertools.chain(*pairs))


@case
def wrapped_blocks_of_invariant_weights():
    blocks = (wrap(nn.Sequential(linear(6, 6), nn.LayerNorm(6))) for wrap in WRAPPERS.values())
    net = nn.Sequential(*blocks, nn.Tanh(), linear(6, 3))
    views = {name: LAYER for name, p in net[: len(WRAPPERS)].named_parameters() if p.ndim > 1}
    return Case(net, (vectors(),), views)


@case
def compiled_norm_of_a_small_weight():
    body = nn.Sequential(linear(6, 5), nn.BatchNorm1d(5))
    nn.init.normal_(body[0].weight, std=0.02)
    net = nn.Sequential(torch.compile(body, backend=refuse), nn.Tanh())
    return Case(net, (vectors(),), {"0._orig_mod.0.weight": CHANNEL})


@case
def neighbours_in_one_storage():
    """As recurrent networks on a GPU, and readers of one large file, lay out their weights."""
    memory = torch.randn(60)
    net = sequential(vectors(), linear(6, 5), nn.BatchNorm1d(5), linear(5, 6), _0=CHANNEL)
    for index in (0, 2):
        weight = net.model[index].weight
        weight.data = memory[15 * index : 15 * index + 30].view(weight.shape)
    return net
