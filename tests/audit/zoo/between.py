"""Operations that may stand between a weight and its normalization."""

import torch
from torch import nn

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, cases, images, sequential, vectors
from tests.audit.zoo.parts import Net, linear


@case
def sum_before_batch_norm():
    def function(self, x):
        return torch.tanh(self.norm(self.a(x) + self.b(x)))

    net = Net(function, a=linear(6, 5), b=linear(6, 5), norm=nn.BatchNorm1d(5))
    return Case(net, (vectors(),))


@case
def skip_around_batch_norm():
    def function(self, x):
        y = self.a(x)
        return self.norm(y) + 1e-3 * y

    return Case(Net(function, a=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


@case
def concatenation_before_batch_norm():
    def function(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.cat([x, conv(norm(x).relu())], 1)
        return self.last(x).relu()

    net = Net(
        function,
        convs=nn.ModuleList(nn.Conv2d(3 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3)),
        norms=nn.ModuleList(nn.BatchNorm2d(3 + 4 * i) for i in range(3)),
        last=nn.BatchNorm2d(15),
    )
    return Case(net, (images(),), {"convs*": CHANNEL})


cases(
    relu_before_batch_norm=lambda: sequential(
        images(),
        nn.Conv2d(3, 5, 3, bias=False),
        nn.ReLU(),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        _0=CHANNEL,
    ),
    bias_and_relu_before_batch_norm=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.BatchNorm2d(5), nn.Tanh()
    ),
    prelu_before_batch_norm=lambda: sequential(
        images(),
        nn.Conv2d(3, 5, 3, bias=False),
        nn.PReLU(5),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        _0=CHANNEL,
    ),
    gelu_before_batch_norm=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3, bias=False), nn.GELU(), nn.BatchNorm2d(5), nn.Tanh()
    ),
    pooling_before_batch_norm=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.BatchNorm2d(5), nn.Tanh(), _0=CHANNEL
    ),
    two_matrices_before_layer_norm=lambda: sequential(
        vectors(), linear(6, 5), linear(5, 7), nn.LayerNorm(7), linear(7, 2), _0=LAYER, _1=LAYER
    ),
    homogeneous_network_before_batch_norm=lambda: sequential(
        vectors(),
        *(linear(6, 8), nn.ReLU(), linear(8, 5), nn.BatchNorm1d(5), nn.Tanh()),
        _0=LAYER,
        _2=CHANNEL,
    ),
)
