"""Normalizations of every kind, with the weight before each."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, cases, images, sequential, vectors
from tests.audit.zoo.parts import EvoNormB0, EvoNormS0, Net, RMSNorm32, linear


@case
def batch_norm_without_running_statistics_in_eval_mode():
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    made = sequential(vectors(), nn.Linear(6, 5), norm, nn.Linear(5, 2), _0=CHANNEL)
    made.model.eval()
    return made


@case
def batch_norm_in_eval_mode():
    made = sequential(vectors(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    made.model.eval()
    return made


@case
def layer_norm_after_a_zero_bias():
    layer = nn.Linear(6, 7)
    nn.init.zeros_(layer.bias)
    return sequential(vectors(), layer, nn.LayerNorm(7), nn.Linear(7, 2))


@case
def layer_norm_after_two_zero_biases():
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 2)
    nn.init.zeros_(layers[0].bias)
    nn.init.zeros_(layers[2].bias)
    return sequential(vectors(), *layers)


@case
def rms_norm_of_small_weights():
    layer = linear(6, 7)
    nn.init.normal_(layer.weight, std=0.02)
    return sequential(vectors(), layer, RMSNorm32(7, eps=1e-5), nn.Linear(7, 2), _0=LAYER)


@case
def l1_normalized_features():
    def function(self, x):
        y = self.f(x)
        return self.head(y / (y.abs().sum(-1, keepdim=True) + 1e-6))

    return Case(Net(function, f=linear(6, 5), head=linear(5, 3)), (vectors(),), {"f.weight": LAYER})


@case
def standardized_by_hand():
    def function(self, x):
        y = self.f(x)
        y = (y - y.mean(0)) / torch.sqrt(y.var(0) + 1e-5)
        return self.head(y)

    net = Net(function, f=nn.Linear(6, 5), head=linear(5, 3))
    return Case(net, (vectors(),), {"f.weight": CHANNEL})


@case
def bounded_norms_by_hand():
    def function(self, x):
        y = self.a(x)
        y = y / y.norm(dim=-1, keepdim=True).clamp(min=1e-4)
        z = self.b(y)
        norm = z.norm(dim=-1, keepdim=True)
        z = z / torch.where(norm > 1e-6, norm, 1e-6)
        return self.head(z.relu() + 0.5)

    net = Net(function, a=linear(6, 5), b=linear(5, 5), head=linear(5, 3))
    return Case(net, (vectors(),), {"a.weight": LAYER, "b.weight": LAYER})


@case
def filter_response_norm():
    def function(self, x):
        y = self.conv(x)
        y = y * torch.rsqrt(y.square().mean((2, 3), keepdim=True) + 1e-6)
        return torch.maximum(y, self.threshold)

    net = Net(function, conv=nn.Conv2d(3, 5, 3, bias=False), threshold=nn.Parameter(torch.zeros(1)))
    return Case(net, (images(),), {"conv.weight": CHANNEL})


@case
def filter_response_norm_of_a_learned_eps():
    def function(self, x):
        y = self.conv(x)
        return y * torch.rsqrt(y.square().mean((2, 3), keepdim=True) + self.eps.abs())

    net = Net(function, conv=nn.Conv2d(3, 5, 3, bias=False), eps=nn.Parameter(torch.tensor(1e-4)))
    return Case(net, (images(),))


@case
def norm_behind_a_complex_filter():
    def function(self, x):
        y = torch.fft.irfft(torch.fft.rfft(self.f(x)) * self.filter, 8)
        return y / y.norm()

    filter_ = nn.Parameter(torch.randn(5, 5, dtype=torch.complex64))
    net = Net(function, f=linear(6, 8), filter=filter_)
    return Case(net, (torch.randn(5, 6),), {"f.weight": LAYER})


cases(
    linear_batch_norm=lambda: sequential(
        vectors(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2), _0=CHANNEL
    ),
    conv1d_batch_norm=lambda: sequential(
        torch.randn(6, 3, 9), nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), nn.ReLU(), _0=CHANNEL
    ),
    conv2d_batch_norm=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), _0=CHANNEL
    ),
    conv3d_batch_norm=lambda: sequential(
        torch.randn(4, 2, 4, 4, 4), nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), _0=CHANNEL
    ),
    batch_norm_without_gain=lambda: sequential(
        vectors(), nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), _0=CHANNEL
    ),
    batch_norm_of_a_large_eps=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, eps=1e-3), _0=CHANNEL
    ),
    batch_norm_of_two=lambda: Case(
        nn.Sequential(
            *(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
        ),
        (vectors(2),),
        either={"2.weight": CHANNEL},
    ),
    group_norm=lambda: sequential(
        images(), nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8), _0="groups=2"
    ),
    group_norm_of_one_group=lambda: sequential(
        images(), nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(1, 8), _0=LAYER
    ),
    group_norm_beside_a_head_of_ten=lambda: sequential(
        images(),
        nn.Conv2d(3, 8, 3, bias=False),
        nn.GroupNorm(4, 8),
        *(nn.Flatten(), nn.Linear(8 * 36, 10)),
        _0="groups=4",
    ),
    group_norm_after_a_bias=lambda: sequential(images(), nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)),
    instance_norm=lambda: sequential(
        images(), nn.Conv2d(3, 5, 3), nn.InstanceNorm2d(5), _0=CHANNEL
    ),
    layer_norm=lambda: sequential(
        vectors(), linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 2), _0=LAYER
    ),
    layer_norm_after_a_bias=lambda: sequential(
        vectors(), nn.Linear(6, 7), nn.LayerNorm(7), nn.Linear(7, 2)
    ),
    layer_norm_over_an_image=lambda: sequential(
        images(), nn.Conv2d(3, 4, 3, bias=False), nn.LayerNorm((4, 6, 6)), _0=LAYER
    ),
    rms_norm=lambda: sequential(vectors(), linear(6, 7), nn.RMSNorm(7), nn.Linear(7, 2), _0=LAYER),
    rms_norm_in_float32=lambda: sequential(
        vectors(), linear(6, 7), RMSNorm32(7), nn.Linear(7, 2), _0=LAYER
    ),
    l2_normalized_features=lambda: Case(
        Net(lambda self, x: self.head(F.normalize(self.f(x))), f=linear(6, 5), head=linear(5, 3)),
        (vectors(),),
        {"f.weight": LAYER},
    ),
    evo_norm_s0=lambda: sequential(
        images(), nn.Conv2d(3, 8, 3, bias=False), EvoNormS0(8, 2), nn.Flatten()
    ),
    evo_norm_b0=lambda: sequential(
        images(), nn.Conv2d(3, 8, 3, bias=False), EvoNormB0(8), nn.Flatten(), _0=CHANNEL
    ),
    local_response_norm=lambda: sequential(
        images(), nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(3), nn.Flatten()
    ),
)
