"""Weights of other shapes and types than a plain matrix."""

import torch
from torch import nn

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, cases, images, sequential, vectors
from tests.audit.zoo.parts import Net, RMSNorm32, parameter


@case
def heads_first():
    def function(self, x):
        return RMSNorm32.forward(self.norm, torch.einsum("nd,hde->nhe", x, self.w))

    net = Net(function, w=parameter(3, 6, 4), norm=RMSNorm32(4))
    return Case(net, (vectors(),), {"w": CHANNEL})


@case
def heads_in_the_middle():
    def function(self, x):
        return self.norm(torch.einsum("nd,dhe->nhe", x, self.w))

    return Case(
        Net(function, w=parameter(6, 3, 4), norm=nn.RMSNorm(4)), (vectors(),), {"w": "dim=1"}
    )


@case
def heads_in_groups_of_columns():
    def function(self, x):
        return self.norm((x @ self.w).unflatten(-1, (3, 4)))

    net = Net(function, w=parameter(6, 12), norm=nn.RMSNorm(4))
    return Case(net, (vectors(),), {"w": "dim=1,groups=3"})


@case
def double_precision():
    made = sequential(vectors().double(), nn.Linear(6, 5), nn.BatchNorm1d(5), _0=CHANNEL)
    made.model.double()
    return made


@case
def half_precision():
    made = sequential(vectors().half(), nn.Linear(6, 5), nn.BatchNorm1d(5), _0=CHANNEL)
    made.model.half()
    return made


@case
def grouped_convolution_before_as_many_groups():
    conv = nn.Conv1d(4, 8, 3, groups=2, bias=False)
    x = torch.randn(4, 4, 7)
    return sequential(x, conv, nn.GroupNorm(2, 8), nn.Tanh(), _0="groups=2")


cases(
    transposed_convolution=lambda: sequential(
        images(), nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), _0="dim=1"
    ),
    depthwise_convolution=lambda: sequential(
        images(c=4), nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.ReLU(), _0=CHANNEL
    ),
    grouped_convolution=lambda: sequential(
        images(c=4), nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU(), _0=CHANNEL
    ),
    transposed_matrix=lambda: Case(
        Net(lambda self, x: self.norm(x @ self.w), w=parameter(6, 5), norm=nn.BatchNorm1d(5)),
        (vectors(),),
        {"w": "dim=1"},
    ),
    transposed_matrix_layer_norm=lambda: Case(
        Net(lambda self, x: self.norm(x @ self.w), w=parameter(6, 5), norm=nn.LayerNorm(5)),
        (vectors(),),
        {"w": LAYER},
    ),
    transposed_convolution_in_groups=lambda: sequential(
        torch.randn(4, 4, 5),
        nn.ConvTranspose1d(4, 6, 3, groups=2),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        _0="dim=1",
    ),
)
