"""Parts of the zoo's models: a module of any function, normalizations, small networks."""

import functools
import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

linear = functools.partial(nn.Linear, bias=False)


def parameter(*shape, std=1.0):
    return nn.Parameter(std * torch.randn(shape))


class Net(nn.Module):
    """A module whose forward pass is a function of itself and its inputs."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **keywords):
        return self.function(self, *inputs, **keywords)


class Plus(nn.Module):
    """x + f(x)."""

    def __init__(self, *body):
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x):
        return x + self.body(x)


class RMSNorm32(nn.Module):
    """The root mean square of large language models, computed in float32."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        before = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(before)


class StandardizedConv(nn.Conv2d):
    """Weight standardization (Qiao et al. 2019)."""

    def forward(self, x):
        flat = self.weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-5)
        return F.conv2d(x, flat.view_as(self.weight), self.bias, padding=self.padding)


class EvoNormS0(nn.Module):
    """x sigmoid(v x) / std of the group (Liu et al. 2020)."""

    def __init__(self, channels, groups):
        super().__init__()
        self.v, self.groups = parameter(1, channels, 1, 1), groups
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x):
        grouped = x.unflatten(1, (self.groups, -1))
        std = (grouped.var((2, 3, 4), keepdim=True) + 1e-5).sqrt().expand_as(grouped).flatten(1, 2)
        return x * torch.sigmoid(self.v * x) / std * self.gamma


class EvoNormB0(nn.Module):
    """x / max(std of the batch, v x + std of the instance) (Liu et al. 2020)."""

    def __init__(self, channels):
        super().__init__()
        self.v = nn.Parameter(torch.ones(1, channels, 1, 1))

    def forward(self, x):
        batch = (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()
        instance = (x.var((2, 3), keepdim=True) + 1e-5).sqrt()
        return x / torch.maximum(batch, self.v * x + instance)


class Attention(nn.Module):
    """Softmax attention; `normalize` is applied to the queries and keys of each head."""

    def __init__(self, dim=16, heads=4, normalize=None, fused=False, whole=None):
        super().__init__()
        self.heads, self.fused = heads, fused
        if fused:
            self.qkv = linear(dim, 3 * dim)
        else:
            self.q, self.k, self.v = (linear(dim, dim) for _ in range(3))
        self.o = linear(dim, dim)
        self.normalize, self.whole = normalize or nn.Identity(), whole or nn.Identity()

    def forward(self, x):
        parts = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = parts
        q, k = self.whole(q), self.whole(k)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        q, k = self.normalize(q), self.normalize(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2))


def mlp(*widths, act=nn.ReLU, norm=None, bias=True):
    layers = []
    for index, (a, b) in enumerate(itertools.pairwise(widths)):
        layers.append(nn.Linear(a, b, bias=bias))
        if index < len(widths) - 2:
            layers += ([norm(b)] if norm else []) + [act()]
    return nn.Sequential(*layers)


def decoder(width=16, depth=2, std=0.02, pre=True):
    """A small transformer over 11 tokens, with the initialization of GPT and BERT."""

    def block():
        attention, feed = Attention(width), mlp(width, 4 * width, width, act=nn.GELU)
        if pre:
            return nn.Sequential(
                Plus(nn.LayerNorm(width), attention), Plus(nn.LayerNorm(width), feed)
            )
        return nn.Sequential(Plus(attention), nn.LayerNorm(width), Plus(feed), nn.LayerNorm(width))

    def function(self, tokens):
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    model = Net(
        function,
        embed=nn.Embedding(11, width),
        position=parameter(12, width),
        blocks=nn.Sequential(*(block() for _ in range(depth))),
        norm=nn.LayerNorm(width),
        head=linear(width, 11),
    )
    for weight in model.parameters():
        if weight.ndim >= 2:
            nn.init.normal_(weight, std=std)
    return model


class LayerDrop(nn.Module):
    """Drops blocks by Python's random numbers, as fairseq does."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            if not self.training or random.random() > 0.5:
                x = block(x)
        return x
