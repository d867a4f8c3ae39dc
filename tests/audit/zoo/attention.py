"""Attention, with and without normalized queries and keys."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, vectors
from tests.audit.zoo.parts import Attention, Net, Plus, RMSNorm32, linear, parameter


@case
def attention():
    return Case(Attention(), (torch.randn(3, 5, 16),))


@case
def attention_of_torch():
    net = Net(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(16, 4, batch_first=True))
    return Case(net, (torch.randn(3, 5, 16),))


@case
def attention_with_normalized_queries_and_keys():
    net = Attention(normalize=nn.LayerNorm(4))
    return Case(net, (torch.randn(3, 5, 16),), {"q.weight": "groups=4", "k.weight": "groups=4"})


@case
def attention_with_l2_normalized_queries_and_keys():
    net = Attention(normalize=Net(lambda self, x: self.s * F.normalize(x, dim=-1), s=parameter(1)))
    return Case(net, (torch.randn(3, 5, 16),), {"q.weight": "groups=4", "k.weight": "groups=4"})


@case
def attention_normalized_over_all_heads():
    net = Attention(whole=RMSNorm32(16))
    return Case(net, (torch.randn(3, 5, 16),), {"q.weight": LAYER, "k.weight": LAYER})


@case
def fused_attention_with_normalized_queries_and_keys():
    return Case(Attention(fused=True, normalize=nn.LayerNorm(4)), (torch.randn(3, 5, 16),))


@case
def fused_attention_in_a_model():
    body = Plus(nn.LayerNorm(16), Attention(fused=True, normalize=nn.RMSNorm(4)))
    return Case(nn.Sequential(body, nn.LayerNorm(16), linear(16, 2)), (torch.randn(3, 5, 16),))


@case
def attention_before_a_norm():
    net = nn.Sequential(Attention(), nn.RMSNorm(16), linear(16, 2))
    return Case(net, (torch.randn(3, 5, 16),), {"0.v.weight": LAYER, "0.o.weight": LAYER})


@case
def linear_attention_before_a_norm():
    def function(self, x):
        y = self.q(x) @ (self.k(x).transpose(1, 2) @ self.v(x))
        return self.norm(y)

    parts = {name: linear(8, 8) for name in "qkv"}
    net = Net(function, norm=nn.LayerNorm(8), **parts)
    return Case(net, (torch.randn(3, 5, 8),), {f"{name}.weight": LAYER for name in "qkv"})


@case
def attention_pooling():
    def function(self, x):
        return self.head((self.score(x).softmax(1) * x).sum(1))

    return Case(Net(function, score=linear(8, 1), head=linear(8, 2)), (torch.randn(3, 5, 8),))


@case
def masked_logits():
    def function(self, x):
        y = self.f(x)
        return y.masked_fill(torch.arange(5) > 2, -torch.inf)

    net = Net(function, f=nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)))
    return Case(net, (vectors(),), {"f.0.weight": CHANNEL})
