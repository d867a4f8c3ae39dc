"""Models for the audit that are not in the zoo; `by_hand` finds the truth about their weights."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

__all__ = ["MODELS"]

MODELS = {}


class Net(nn.Module):
    """A module of parts, run by a function of it and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run, self.eps = run, 1e-6
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.run(self, *inputs)


def model(make):
    MODELS[make.__name__] = make
    return make


def matrix(*shape):
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def plain(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def vectors(n=12, d=6):
    return torch.randn(n, d)


@model
def tied_embedding_and_head():
    def run(self, x):
        return self.body(self.norm(F.embedding(x, self.table))) @ self.table.T

    parts = {"norm": nn.LayerNorm(8), "body": nn.Linear(8, 8)}
    return Net(run, table=matrix(7, 8), **parts), torch.randint(7, (5, 4))


@model
def one_weight_before_two_norms():
    def run(self, x):
        return self.head(self.b(self.f(torch.tanh(self.a(self.f(x))))))

    norms = {"a": nn.BatchNorm1d(6), "b": nn.BatchNorm1d(6)}
    return Net(run, f=nn.Linear(6, 6), head=nn.Linear(6, 2), **norms), vectors()


@model
def one_weight_before_a_norm_and_without():
    def run(self, x):
        return self.head(self.f(torch.tanh(self.a(self.f(x)))))

    return Net(run, f=nn.Linear(6, 6), a=nn.BatchNorm1d(6), head=nn.Linear(6, 2)), vectors()


@model
def weight_norm_of_a_convolution():
    conv = parametrizations.weight_norm(nn.Conv1d(3, 4, 3))
    return nn.Sequential(conv, nn.Tanh()), torch.randn(4, 3, 7)


@model
def weight_norm_before_a_norm():
    linear = parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(linear, nn.BatchNorm1d(4), nn.Tanh()), vectors()


@model
def spectral_norm():
    linear = parametrizations.spectral_norm(nn.Linear(6, 4), n_power_iterations=3)
    return nn.Sequential(linear, nn.Tanh()), vectors()


@model
def root_mean_square_norm_of_a_large_eps():
    return nn.Sequential(plain(6, 8), nn.RMSNorm(8, eps=1e-4), nn.Linear(8, 3)), vectors()


@model
def three_groups_of_twelve():
    conv = nn.Conv2d(3, 12, 3, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(3, 12), nn.Tanh()), torch.randn(3, 3, 6, 6)


@model
def a_bias_before_groups():
    conv = nn.Conv2d(3, 12, 3)
    return nn.Sequential(conv, nn.GroupNorm(3, 12), nn.Tanh()), torch.randn(3, 3, 6, 6)


@model
def layer_norm_over_two_dimensions():
    return nn.Sequential(plain(6, 5), nn.LayerNorm([4, 5]), nn.Tanh()), torch.randn(5, 4, 6)


@model
def instance_norm_of_a_signal():
    layers = nn.Conv1d(3, 5, 2), nn.InstanceNorm1d(5, affine=True), nn.Tanh()
    return nn.Sequential(*layers), torch.randn(3, 3, 9)


def attend(self, q, k, v):
    heads = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in (q, k, v))
    q, k, v = heads
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return self.out(((5 * q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


@model
def normalized_queries_and_keys():
    def run(self, x):
        return attend(self, self.q(x), self.k(x), self.v(x))

    parts = {name: plain(8, 8) for name in ("q", "k", "v", "out")}
    return Net(run, **parts), torch.randn(3, 5, 8)


@model
def normalized_queries_and_keys_fused():
    def run(self, x):
        return attend(self, *self.qkv(x).chunk(3, -1))

    return Net(run, qkv=plain(8, 24), out=plain(8, 8)), torch.randn(3, 5, 8)


@model
def experts_of_a_softmax():
    def run(self, x):
        gates = self.router(x).softmax(-1)
        outs = torch.stack([torch.tanh(each(x)) for each in self.experts], -1)
        return (outs * gates[:, None]).sum(-1)

    def expert():
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))

    experts = nn.ModuleList(expert() for _ in range(3))
    return Net(run, router=plain(6, 3), experts=experts), vectors()


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
    return Net(run, f=plain(6, 8), filter=filter_), torch.randn(5, 6)


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
def cosine_classifier():
    def run(self, x):
        return 8 * F.normalize(self.body(x), dim=1) @ F.normalize(self.classes, dim=1).T

    return Net(run, body=plain(6, 8), classes=matrix(5, 8)), vectors()


@model
def small_weights_and_a_tiny_eps():
    net = nn.Sequential(plain(6, 8), nn.LayerNorm(8, eps=1e-12), nn.Linear(8, 3))
    net[0].weight.data *= 1e-3
    return net, vectors()


@model
def batch_norm_in_eval_mode():
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh())
    net(vectors())
    return net.eval(), vectors()


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

    return Net(run, f=plain(6, 8), head=nn.Linear(8, 2)), vectors()


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

    return Net(run, f=plain(6, 5), norm=nn.BatchNorm1d(5)), vectors()


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
def standardized_rows():
    def run(self, x):
        centered = self.w - self.w.mean(1, keepdim=True)
        return torch.tanh(x @ (centered / (centered.std(1, keepdim=True) + self.eps)).T)

    return Net(run, w=matrix(5, 6)), vectors()


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

    return Net(run, q=plain(6, 4), k=plain(6, 4), v=plain(6, 4)), torch.randn(3, 5, 6)


@model
def angle_of_two_products():
    return Net(lambda self, x: torch.atan2(x @ self.w[0], x @ self.w[1]), w=matrix(2, 6)), vectors()


@model
def norm_of_three_layers_in_a_row():
    layers = plain(6, 8), nn.ReLU(), plain(8, 7), nn.ReLU(), plain(7, 5)
    return nn.Sequential(*layers, nn.RMSNorm(5), nn.Tanh()), vectors()


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

    return Net(run, f=plain(6, 5), norm=nn.BatchNorm1d(5)), vectors()
