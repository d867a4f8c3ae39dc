"""Embeddings, recurrent networks, gates and attention."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.case import (
    CHANNEL,
    LAYER,
    Case,
    case,
    cases,
    images,
    sequential,
    tokens,
    vectors,
)
from tests.audit.zoo.parts import Attention, Net, Plus, RMSNorm32, linear, mlp, parameter


@case
def small_embedding_before_layer_norm():
    embed = nn.Embedding(11, 8)
    nn.init.normal_(embed.weight, std=0.02)
    return sequential(tokens(), embed, nn.LayerNorm(8), linear(8, 2), _0=CHANNEL)


@case
def embedding_and_position_before_layer_norm():
    def function(self, t):
        return self.head(self.norm(self.embed(t) + self.position))

    parts = {"embed": nn.Embedding(11, 8), "position": parameter(6, 8), "norm": nn.LayerNorm(8)}
    return Case(Net(function, head=linear(8, 2), **parts), (tokens(),))


@case
def tied_embedding_and_head():
    def function(self, t):
        return F.linear(self.norm(self.embed(t)), self.embed.weight)

    return Case(Net(function, embed=nn.Embedding(11, 8), norm=nn.LayerNorm(8)), (tokens(),))


@case
def recurrent_cell_with_layer_norm():
    def function(self, x):
        h = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h = torch.tanh(self.a(self.from_x(x[:, t])) + self.b(self.from_h(h)))
        return h

    parts = {"from_x": linear(6, 5), "from_h": linear(5, 5)}
    net = Net(function, a=nn.LayerNorm(5), b=nn.LayerNorm(5), **parts)
    return Case(net, (torch.randn(3, 4, 6),), {"from_x.weight": LAYER, "from_h.weight": LAYER})


@case
def gated_before_layer_norm():
    def function(self, x):
        return self.norm(torch.sigmoid(self.gate(x)) * self.value(x))

    net = Net(function, gate=linear(6, 5), value=linear(6, 5), norm=nn.LayerNorm(5))
    return Case(net, (vectors(),), {"value.weight": LAYER})


@case
def swiglu_before_rms_norm():
    def function(self, x):
        return self.norm(self.down(F.silu(self.gate(x)) * self.up(x)))

    parts = {"gate": linear(6, 8), "up": linear(6, 8), "down": linear(8, 6)}
    net = Net(function, norm=nn.RMSNorm(6), **parts)
    return Case(net, (vectors(),), {"up.weight": LAYER, "down.weight": LAYER})


@case
def squeeze_and_excite():
    def function(self, x):
        x = self.norm(self.conv(x)).relu()
        return x * torch.sigmoid(self.excite(x.mean((2, 3))))[:, :, None, None]

    net = Net(
        function,
        conv=nn.Conv2d(3, 6, 3),
        norm=nn.BatchNorm2d(6),
        excite=mlp(6, 3, 6),
    )
    return Case(net, (images(),), {"conv.weight": CHANNEL})


@case
def bag_of_embeddings_before_layer_norm():
    bag = nn.EmbeddingBag(7, 8, mode="sum", sparse=True)
    x = torch.stack([torch.randperm(7)[:5] for _ in range(6)])
    return sequential(x, bag, nn.LayerNorm(8), nn.Linear(8, 3), _0=LAYER)


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


cases(
    embedding_before_layer_norm=lambda: sequential(
        tokens(), nn.Embedding(11, 8), nn.LayerNorm(8), linear(8, 2), _0=CHANNEL
    ),
    embedding_with_a_padding_row=lambda: sequential(
        tokens(), nn.Embedding(11, 8, padding_idx=0), nn.RMSNorm(8), linear(8, 2), _0=CHANNEL
    ),
    embedding_without_norm=lambda: sequential(
        tokens(), nn.Embedding(11, 8), linear(8, 2), nn.Tanh()
    ),
    embedding_of_bounded_norm=lambda: sequential(
        tokens(), nn.Embedding(11, 8, max_norm=1.0), linear(8, 2), nn.Tanh()
    ),
    gru=lambda: Case(
        Net(lambda self, x: self.rnn(x)[0], rnn=nn.GRU(6, 5, batch_first=True)),
        (torch.randn(3, 4, 6),),
    ),
    lstm=lambda: Case(
        Net(lambda self, x: self.rnn(x)[0], rnn=nn.LSTM(6, 5, batch_first=True)),
        (torch.randn(3, 4, 6),),
    ),
    fused_gate_before_layer_norm=lambda: sequential(
        vectors(), linear(6, 10), nn.GLU(), nn.LayerNorm(5)
    ),
    product_before_layer_norm=lambda: Case(
        Net(
            lambda self, x: self.norm(self.a(x) * self.b(x)),
            **{"a": linear(6, 5), "b": linear(6, 5), "norm": nn.LayerNorm(5)},
        ),
        (vectors(),),
        {"a.weight": LAYER, "b.weight": LAYER},
    ),
    softmax_with_a_temperature=lambda: Case(
        Net(lambda self, x: (self.f(x) / self.t.exp()).softmax(-1), f=linear(6, 5), t=parameter()),
        (vectors(),),
    ),
    product_of_sigmoids=lambda: Case(
        Net(
            lambda self, x: torch.sigmoid(self.a(x)) * torch.sigmoid(self.b(x)),
            a=linear(6, 5),
            b=linear(6, 5),
        ),
        (vectors(),),
    ),
    attention=lambda: Case(Attention(), (torch.randn(3, 5, 16),)),
    attention_of_torch=lambda: Case(
        Net(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(16, 4, batch_first=True)),
        (torch.randn(3, 5, 16),),
    ),
    attention_with_normalized_queries_and_keys=lambda: Case(
        Attention(normalize=nn.LayerNorm(4)),
        (torch.randn(3, 5, 16),),
        {"q.weight": "groups=4", "k.weight": "groups=4"},
    ),
    attention_with_l2_normalized_queries_and_keys=lambda: Case(
        Attention(normalize=Net(lambda self, x: self.s * F.normalize(x, dim=-1), s=parameter(1))),
        (torch.randn(3, 5, 16),),
        {"q.weight": "groups=4", "k.weight": "groups=4"},
    ),
    attention_normalized_over_all_heads=lambda: Case(
        Attention(whole=RMSNorm32(16)),
        (torch.randn(3, 5, 16),),
        {"q.weight": LAYER, "k.weight": LAYER},
    ),
    fused_attention_with_normalized_queries_and_keys=lambda: Case(
        Attention(fused=True, normalize=nn.LayerNorm(4)), (torch.randn(3, 5, 16),)
    ),
    fused_attention_in_a_model=lambda: Case(
        nn.Sequential(
            Plus(nn.LayerNorm(16), Attention(fused=True, normalize=nn.RMSNorm(4))),
            nn.LayerNorm(16),
            linear(16, 2),
        ),
        (torch.randn(3, 5, 16),),
    ),
    attention_before_a_norm=lambda: Case(
        nn.Sequential(Attention(), nn.RMSNorm(16), linear(16, 2)),
        (torch.randn(3, 5, 16),),
        {"0.v.weight": LAYER, "0.o.weight": LAYER},
    ),
)
