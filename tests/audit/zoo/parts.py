"""Parts of the zoo's models, and the case that a row makes."""

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

CHANNEL, LAYER = "channel", "layer"


@dataclass
class Case:
    """A model, a batch, and what is true of its weights.

    Attributes:
        model: with fixed weights.
        inputs: the arguments of the model, or a dict of its keyword arguments.
        views: the views of the scale-invariant weights, by name or pattern ("blocks*"); all other
            weights are not invariant.
        verdicts: of weights of which the audit must say more than that.
        either: weights that may be found or not: nothing in the batch tells.
        loss: of the audit.
    """

    model: nn.Module
    inputs: Any
    views: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    either: dict[str, str] = field(default_factory=dict)
    loss: Callable[[Any], Any] | None = None

    def true_view(self, name: str) -> str | None:
        for pattern, view in {**self.views, **self.either}.items():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                return view
        return None


def chain(inputs, *layers, verdicts=None, either=None, **views):
    """A chain of layers and functions; the keywords are views by number: _0="channel"."""
    named = {f"{key[1:]}.weight": view for key, view in views.items()}
    modules = (x if isinstance(x, nn.Module) else Net(lambda _, y, x=x: x(y)) for x in layers)
    return Case(nn.Sequential(*modules), inputs, named, verdicts or {}, either or {})


def before(layer, norm, view=None, name="0.weight"):
    """A layer before a norm, in whose view its weight is invariant."""
    _, channels, *kernel = layer.weight.shape
    shape = 6, getattr(layer, "in_channels", channels), *(8 for _ in kernel)
    inputs = torch.randn(shape) if kernel else vectors(d=channels)
    return Case(as_chain(layer, norm, nn.Tanh()), inputs, {name: view} if view else {})


def as_chain(*layers):
    return chain(None, *layers).model


def net(function, views=None, inputs=None, verdicts=None, either=None, loss=None, **parts):
    """A model whose forward pass is a function of it and its inputs, or of 16 vectors."""
    inputs = vectors() if inputs is None else inputs
    return Case(Net(function, **parts), inputs, views or {}, verdicts or {}, either or {}, loss)


def pair(function, views=None, norm=nn.LayerNorm, inputs=None):
    """A function of a network with two layers, `a` and `b`, and a `norm` of their outputs."""
    parts = {"a": linear(6, 5), "b": linear(6, 5), "norm": norm(5)}
    return net(function, {f"{name}.weight": view for name, view in (views or {}).items()}, **parts)


def vectors(n=16, d=6):
    return torch.randn(n, d)


def images(n=6, c=3, s=8):
    return torch.randn(n, c, s, s)


def sequences(n=3, t=5, d=16):
    return torch.randn(n, t, d)


def tokens(n=4, t=6):
    return torch.randint(11, (n, t))


linear = functools.partial(nn.Linear, bias=False)
conv = functools.partial(nn.Conv2d, bias=False)


def parameter(*shape, std=1.0):
    return nn.Parameter(std * torch.randn(shape))


def small(layer, std=0.02):
    nn.init.normal_(layer.weight, std=std)
    return layer


def filled(layer, value, name="bias"):
    nn.init.constant_(getattr(layer, name), value)
    return layer


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


def rms32(x, eps=1e-6):
    """The root mean square norm of large language models, computed in float32."""
    y = x.to(torch.float32)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


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
        q, k, v = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k = self.whole(q), self.whole(k)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(self.normalize(q), self.normalize(k), v)
        return self.o(y.transpose(1, 2).flatten(2))


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


class Straight(torch.autograd.Function):
    """The identity, with a backward pass that takes the radial part out."""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return w.clone()

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad - (w * grad).sum() / (w * w).sum() * w


def hides_its_norm(self, x):
    """A layer whose gradient hides the norm of its weight."""
    return torch.tanh(F.linear(x, Straight.apply(self.w)))


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
        norms = [nn.LayerNorm(width) for _ in range(2)]
        if pre:
            return nn.Sequential(Plus(norms[0], attention), Plus(norms[1], feed))
        return nn.Sequential(Plus(attention), norms[0], Plus(feed), norms[1])

    def function(self, tokens):
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    blocks = nn.Sequential(*(block() for _ in range(depth)))
    parts = {"embed": nn.Embedding(11, width), "position": parameter(12, width), "blocks": blocks}
    model = Net(function, **parts, norm=nn.LayerNorm(width), head=linear(width, 11))
    for weight in model.parameters():
        if weight.ndim >= 2:
            nn.init.normal_(weight, std=std)
    return model


def refuse(graph, inputs):
    raise RuntimeError("compiled code runs as written in an audit")


def compiled(block):
    return torch.compile(block, backend=refuse)


def checkpointed(block, use_reentrant=False):
    wrapped = Net(lambda self, x: self.run(x), block=block)
    wrapped.run = functools.partial(checkpoint, block, use_reentrant=use_reentrant)
    return wrapped


def checkpointed_reentrantly(block):
    return checkpointed(block, use_reentrant=True)
