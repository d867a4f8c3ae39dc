"""Models for the audit that are not in the zoo; `by_hand` finds the truth about their weights."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

from tests.audit.zoo.case import vectors
from tests.audit.zoo.parts import Net, linear

MODELS = {}


def model(make):
    MODELS[make.__name__] = make
    return make


def matrix(*shape):
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


@model
def weight_norm_before_a_norm():
    linear = parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(linear, nn.BatchNorm1d(4), nn.Tanh()), vectors()


@model
def experts_of_a_softmax():
    def run(self, x):
        gates = self.router(x).softmax(-1)
        outs = torch.stack([torch.tanh(each(x)) for each in self.experts], -1)
        return (outs * gates[:, None]).sum(-1)

    def expert():
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))

    experts = nn.ModuleList(expert() for _ in range(3))
    return Net(run, router=linear(6, 3), experts=experts), vectors()


@model
def experts_of_a_cosine():
    def run(self, x):
        scores = F.normalize(x, dim=1) @ F.normalize(self.router, dim=1).T
        top, chosen = scores.topk(2, 1)
        outs = torch.stack([each(x) for each in self.experts], 1)
        picked = outs[torch.arange(len(x))[:, None], chosen]
        return (picked * top.softmax(1)[..., None]).sum(1)

    experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))
    return Net(run, router=matrix(3, 6), experts=experts), vectors(40)


@model
def adapter_beside_a_trained_base():
    def run(self, x):
        return torch.tanh(self.norm(self.base(x) + x @ self.down @ self.up))

    up = nn.Parameter(torch.zeros(2, 5))
    parts = {"base": nn.Linear(6, 5), "norm": nn.BatchNorm1d(5)}
    return Net(run, down=matrix(6, 2), up=up, **parts), vectors()


@model
def gates_of_zero():
    def run(self, x):
        return x + self.gate[:, None] * torch.tanh(self.body(x))

    body = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.InstanceNorm1d(4))
    return Net(run, body=body, gate=nn.Parameter(torch.zeros(4))), torch.randn(3, 4, 8)


@model
def fourier_layer():
    def run(self, x):
        spectrum = torch.fft.rfft(self.f(x)) * self.filter
        y = torch.fft.irfft(spectrum, 8)
        return y / y.norm()

    filter_ = nn.Parameter(torch.randn(5, 5, dtype=torch.complex64))
    return Net(run, f=linear(6, 8), filter=filter_), torch.randn(5, 6)


@model
def transposed_convolution_in_groups():
    up = nn.ConvTranspose1d(4, 6, 3, groups=2)
    return nn.Sequential(up, nn.BatchNorm1d(6), nn.Tanh()), torch.randn(4, 4, 5)


@model
def depthwise_then_pointwise():
    convs = nn.Conv1d(4, 4, 3, groups=4, bias=False), nn.Conv1d(4, 6, 1)
    return nn.Sequential(*convs, nn.BatchNorm1d(6), nn.Tanh()), torch.randn(4, 4, 7)


@model
def grouped_convolution_before_as_many_groups():
    conv = nn.Conv1d(4, 8, 3, groups=2, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(2, 8), nn.Tanh()), torch.randn(4, 4, 7)


@model
def bag_of_embeddings_before_a_norm():
    def run(self, x):
        return self.head(self.norm(self.bag(x)))

    bag = nn.EmbeddingBag(7, 8, mode="sum")
    x = torch.stack([torch.randperm(7)[:5] for _ in range(6)])
    return Net(run, bag=bag, norm=nn.LayerNorm(8), head=nn.Linear(8, 3)), x


@model
def small_weights_and_a_tiny_eps():
    net = nn.Sequential(linear(6, 8), nn.LayerNorm(8, eps=1e-12), nn.Linear(8, 3))
    net[0].weight.data *= 1e-3
    return net, vectors()


@model
def dropout_on_both_sides():
    layers = nn.Dropout(0.2), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2)
    return nn.Sequential(*layers), vectors(20)


@model
def divided_in_place():
    def run(self, x):
        y = self.f(x)
        y.div_(y.detach().abs().amax() * 0 + y.clone().norm(dim=1, keepdim=True))
        return self.head(y.tanh_())

    return Net(run, f=linear(6, 8), head=nn.Linear(8, 2)), vectors()


@model
def buffer_as_a_weight():
    net = Net(lambda self, x: torch.tanh(self.norm(x @ (self.w + self.fixed).T)))
    net.w, net.norm = matrix(5, 6), nn.BatchNorm1d(5)
    net.register_buffer("fixed", torch.randn(5, 6))
    return net, vectors()


@model
def two_outputs_of_which_one_shows_the_norm():
    def run(self, x):
        y = self.f(x)
        return {"logits": self.norm(y).tanh(), "size": 1e-4 * y.square().sum()}

    return Net(run, f=linear(6, 5), norm=nn.BatchNorm1d(5)), vectors()


@model
def one_hot_numbers_in_half_precision():
    def run(self, x):
        return self.head(self.norm(self.f(F.one_hot(x, 9).flatten(1).to(self.f.weight.dtype))))

    parts = {"f": nn.Linear(27, 8), "norm": nn.BatchNorm1d(8), "head": nn.Linear(8, 3)}
    return Net(run, **parts).bfloat16(), torch.randint(9, (30, 3))


@model
def divided_by_its_largest_entry():
    return Net(lambda self, x: torch.tanh(x @ self.w / self.w.abs().max()), w=matrix(6, 4)), (
        vectors()
    )


@model
def orthogonal_columns():
    def run(self, x):
        return torch.tanh(x @ torch.linalg.qr(self.w).Q)

    return Net(run, w=matrix(6, 4)), vectors()


@model
def linear_attention():
    def run(self, x):
        q, k, v = self.q(x).abs(), self.k(x).abs(), self.v(x)
        return (q @ (k.mT @ v)) / (q @ k.sum(1)[..., None])

    return Net(run, q=linear(6, 4), k=linear(6, 4), v=linear(6, 4)), torch.randn(3, 5, 6)


@model
def angle_of_two_products():
    return Net(lambda self, x: torch.atan2(x @ self.w[0], x @ self.w[1]), w=matrix(2, 6)), vectors()


@model
def shift_of_a_softmax_beside_cosines():
    """Its last row shifts all logits by the same, which no softmax shows."""

    def run(self, x):
        classes, shift = self.w[:4], x @ self.w[4]
        return (F.normalize(x @ classes.T, dim=0) + shift[:, None]).softmax(1)

    return Net(run, w=matrix(5, 6)), vectors()


@model
def an_output_of_a_very_large_spread():
    def run(self, x):
        y = self.f(x)
        return {"large": 1e5 * self.norm(y).tanh(), "size": y.square().mean()}

    return Net(run, f=linear(6, 5), norm=nn.BatchNorm1d(5)), vectors(12)
