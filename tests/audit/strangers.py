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
def dropout_on_both_sides():
    layers = nn.Dropout(0.2), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Linear(5, 2)
    return nn.Sequential(*layers), vectors(20)


@model
def two_outputs_of_which_one_shows_the_norm():
    def run(self, x):
        y = self.f(x)
        return {"logits": self.norm(y).tanh(), "size": 1e-4 * y.square().sum()}

    return Net(run, f=linear(6, 5), norm=nn.BatchNorm1d(5)), vectors()


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
