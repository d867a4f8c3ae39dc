"""Parts that are compiled or checkpointed, and weights laid out in one storage."""

import functools
import itertools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, sequential, vectors
from tests.audit.zoo.parts import Net, linear


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
