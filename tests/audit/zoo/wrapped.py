"""Parts that are compiled, wrapped or rebuilt by a copy, and weights that share memory."""

import functools
import itertools

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, sequential, vectors
from tests.audit.zoo.parts import Net, linear, parameter


class ShiftedNorm(nn.Module):
    """LayerNorm(x + b): what comes before is invariant only while b is 0."""

    def __init__(self):
        super().__init__()
        self.bias, self.norm = nn.Parameter(torch.zeros(6)), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + self.bias)


def refuse(graph, inputs):
    raise RuntimeError("compiled code runs as written in an audit")


class Rebuilt(nn.Module):
    """It runs its block by a closure, which a copy makes anew."""

    def __init__(self, block):
        super().__init__()
        self.block = block
        self.__setstate__(vars(self))

    def __setstate__(self, state):
        vars(self).update(state)
        block = self.block
        self.run = lambda x: checkpoint(block, x, use_reentrant=False)

    def forward(self, x):
        return self.run(x)


def replaced_forward(block):
    """As trainers wrap a model for mixed precision."""
    before = block.forward
    block.forward = functools.partial(lambda module, x: before(x), block)
    return block


def bound_forward(block):
    block.forward = functools.partial(type(block).forward, block)
    return block


def in_a_checkpoint(block):
    net = Net(lambda self, x: self.run(x), block=block)
    net.run = functools.partial(checkpoint, block, use_reentrant=False)
    return net


WRAPPERS = {
    "compiled": lambda block: torch.compile(block, backend=refuse),
    "checkpointed": in_a_checkpoint,
    "replaced": replaced_forward,
    "bound": bound_forward,
    "rebuilt": Rebuilt,
}


@case
def wrapped_blocks_whose_zero_biases_hide_the_norm():
    pairs = ((linear(6, 6), wrap(ShiftedNorm()), nn.Tanh()) for wrap in WRAPPERS.values())
    return sequential(vectors(), *itertools.chain(*pairs))


@case
def wrapped_blocks_of_invariant_weights():
    blocks = (wrap(nn.Sequential(linear(6, 6), nn.LayerNorm(6))) for wrap in WRAPPERS.values())
    net = nn.Sequential(*blocks, nn.Tanh(), linear(6, 3))
    views = {name: LAYER for name, p in net[:5].named_parameters() if p.ndim > 1}
    return Case(net, (vectors(),), views)


@case
def compiled_norm_of_a_small_weight():
    body = nn.Sequential(linear(6, 5), nn.BatchNorm1d(5))
    nn.init.normal_(body[0].weight, std=0.02)
    net = nn.Sequential(torch.compile(body, backend=refuse), nn.Tanh())
    return Case(net, (vectors(),), {"0._orig_mod.0.weight": CHANNEL})


def two_on_one_storage(make):
    def function(self, x):
        return self.norm(F.linear(x, self.a)), F.linear(x, self.b.reshape(5, 6)).tanh()

    net = Net(function, a=parameter(5, 6), norm=nn.BatchNorm1d(5))
    net.b = nn.Parameter(make(net.a.data))
    return Case(net, (vectors(),))


@case
def one_memory_before_a_norm_and_raw():
    return two_on_one_storage(lambda w: w)


@case
def one_memory_in_another_shape():
    return two_on_one_storage(lambda w: w.view(6, 5))


@case
def one_memory_that_is_frozen_elsewhere():
    made = two_on_one_storage(lambda w: w)
    made.model.b.requires_grad_(False)
    return made


@case
def one_memory_as_a_buffer():
    made = two_on_one_storage(lambda w: w)
    del made.model.b
    made.model.register_buffer("b", made.model.a.data)
    return made


@case
def one_memory_in_a_dict():
    def function(self, x):
        return self.norm(F.linear(x, self.a)), F.linear(x, self.kept["a"][0]).tanh()

    net = Net(function, a=parameter(5, 6), norm=nn.BatchNorm1d(5))
    net.kept = {"a": [net.a.data]}
    return Case(net, (vectors(),))


@case
def one_memory_of_which_rows_are_raw():
    """The first three rows are raw, too; the others are invariant by channel."""

    def function(self, x):
        return self.norm(F.linear(x, self.a)), F.linear(x, self.b).tanh()

    net = Net(function, a=parameter(5, 6), norm=nn.BatchNorm1d(5))
    net.b = nn.Parameter(net.a.data[:3])
    return Case(net, (vectors(),))


@case
def one_memory_before_two_norms():
    def function(self, x):
        return self.f(F.linear(x, self.a)), self.g(F.linear(x, self.b))

    net = Net(function, a=parameter(5, 6), f=nn.BatchNorm1d(5), g=nn.BatchNorm1d(5))
    net.b = nn.Parameter(net.a.data)
    return Case(net, (vectors(),), {"a": CHANNEL, "b": CHANNEL})


@case
def one_memory_before_norms_of_two_kinds():
    def function(self, x):
        return self.f(F.linear(x, self.a)), self.g(F.linear(x, self.b))

    net = Net(function, a=parameter(5, 6), f=nn.BatchNorm1d(5), g=nn.LayerNorm(5))
    net.b = nn.Parameter(net.a.data)
    return Case(net, (vectors(),), {"a": LAYER, "b": LAYER})


@case
def neighbours_in_one_storage():
    """As recurrent networks on a GPU, and readers of one large file, lay out their weights."""
    memory = torch.randn(60)
    net = sequential(vectors(), linear(6, 5), nn.BatchNorm1d(5), linear(5, 6), _0=CHANNEL)
    for index in (0, 2):
        weight = net.model[index].weight
        weight.data = memory[15 * index : 15 * index + 30].view(weight.shape)
    return net
