"""Rows: embeddings, recurrence, attention, residual streams; inputs and passes of every kind."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.parts import (
    CHANNEL,
    LAYER,
    Attention,
    Case,
    LayerDrop,
    Net,
    Plus,
    as_chain,
    chain,
    checkpointed,
    checkpointed_reentrantly,
    compiled,
    conv,
    decoder,
    images,
    linear,
    mlp,
    net,
    pair,
    parameter,
    rms32,
    sequences,
    small,
    tokens,
    vectors,
)


def recurrent(self, x):
    h = x.new_zeros(len(x), 5)
    for t in range(x.shape[1]):
        h = torch.tanh(self.a(self.from_x(x[:, t])) + self.b(self.from_h(h)))
    return h


def squeeze_and_excite(self, x):
    x = self.norm(self.conv(x)).relu()
    return x * torch.sigmoid(self.excite(x.mean((2, 3))))[:, :, None, None]


def in_float32(self, x):
    x = self.f(x) @ torch.eye(5, dtype=torch.float32)
    x = self.norm(x.float()) + self.table
    return self.head(x.half()).float()


def keywords(self, *, ids, mask):
    x = self.norm(self.embed(ids)) * mask[..., None]
    logits = self.head(x)
    return {"logits": logits, "hidden": (x, [x.sum()]), "name": "none", "nothing": None}


def in_place(self, x):
    x += 1
    return self.f(x.relu_())


def cross_entropy(t):
    return lambda y: F.cross_entropy(y.flatten(0, 1), t.flatten())


def with_loss(pre):
    t = tokens()
    return Case(decoder(depth=3, pre=pre), t, loss=cross_entropy(t))


def attention(views=(), **settings):
    return Case(Attention(**settings), sequences(), {f"{name}.weight": v for name, v in views})


HEADS = (("q", "groups=4"), ("k", "groups=4"))
SEQUENCES = {
    "embedding_before_layer_norm": lambda: chain(
        tokens(), nn.Embedding(11, 8), nn.LayerNorm(8), linear(8, 2), _0=CHANNEL
    ),
    "small_embedding_before_layer_norm": lambda: chain(
        *(tokens(), small(nn.Embedding(11, 8)), nn.LayerNorm(8), linear(8, 2)),
        _0=CHANNEL,
        verdicts={"0.weight": "invariant up to eps"},
    ),
    "embedding_with_a_padding_row": lambda: chain(
        tokens(), nn.Embedding(11, 8, padding_idx=0), nn.RMSNorm(8), linear(8, 2), _0=CHANNEL
    ),
    "embedding_without_norm": lambda: chain(tokens(), nn.Embedding(11, 8), linear(8, 2), nn.Tanh()),
    "embedding_of_bounded_norm": lambda: chain(
        tokens(), nn.Embedding(11, 8, max_norm=1.0), linear(8, 2), nn.Tanh()
    ),
    "embedding_and_position_before_layer_norm": lambda: net(
        lambda s, t: s.norm(s.embed(t) + s.position).tanh(),
        inputs=tokens(),
        **{"embed": nn.Embedding(11, 8), "position": parameter(6, 8), "norm": nn.LayerNorm(8)},
    ),
    "tied_embedding_and_head": lambda: net(
        lambda s, t: F.linear(s.norm(s.embed(t)), s.embed.weight),
        inputs=tokens(),
        **{"embed": nn.Embedding(11, 8), "norm": nn.LayerNorm(8)},
    ),
    "bag_of_embeddings_before_layer_norm": lambda: chain(
        torch.stack([torch.randperm(7)[:5] for _ in range(6)]),
        *(nn.EmbeddingBag(7, 8, mode="sum", sparse=True), nn.LayerNorm(8), nn.Linear(8, 3)),
        _0=LAYER,
    ),
    "gru": lambda: net(lambda s, x: s.rnn(x)[0], inputs=sequences(d=6), rnn=nn.GRU(6, 5)),
    "lstm": lambda: net(lambda s, x: s.rnn(x)[0], inputs=sequences(d=6), rnn=nn.LSTM(6, 5)),
    "recurrent_cell_with_layer_norm": lambda: net(
        recurrent,
        *({"from_x.weight": LAYER, "from_h.weight": LAYER}, sequences(d=6)),
        **{"from_x": linear(6, 5), "from_h": linear(5, 5)},
        **{"a": nn.LayerNorm(5), "b": nn.LayerNorm(5)},
    ),
    "gated_before_layer_norm": lambda: pair(
        lambda s, x: s.norm(torch.sigmoid(s.a(x)) * s.b(x)), {"b": LAYER}
    ),
    "fused_gate_before_layer_norm": lambda: chain(
        vectors(), linear(6, 10), nn.GLU(), nn.LayerNorm(5)
    ),
    "swiglu_before_rms_norm": lambda: net(
        lambda s, x: s.norm(s.down(F.silu(s.gate(x)) * s.up(x))),
        {"up.weight": LAYER, "down.weight": LAYER},
        **{"gate": linear(6, 8), "up": linear(6, 8), "down": linear(8, 6), "norm": nn.RMSNorm(6)},
    ),
    "product_before_layer_norm": lambda: pair(
        lambda s, x: s.norm(s.a(x) * s.b(x)), {"a": LAYER, "b": LAYER}
    ),
    "product_of_sigmoids": lambda: pair(lambda s, x: torch.sigmoid(s.a(x)) * torch.sigmoid(s.b(x))),
    "squeeze_and_excite": lambda: net(
        squeeze_and_excite,
        *({"conv.weight": CHANNEL}, images()),
        **{"conv": nn.Conv2d(3, 6, 3), "norm": nn.BatchNorm2d(6), "excite": mlp(6, 3, 6)},
    ),
    "softmax_with_a_temperature": lambda: net(
        lambda s, x: (s.f(x) / s.t.exp()).softmax(-1), f=linear(6, 5), t=parameter()
    ),
    "linear_attention_before_a_norm": lambda: net(
        lambda s, x: s.norm(s.q(x) @ (s.k(x).transpose(1, 2) @ s.v(x))),
        *({f"{name}.weight": LAYER for name in "qkv"}, sequences(d=8)),
        **{"norm": nn.LayerNorm(8), **{name: linear(8, 8) for name in "qkv"}},
    ),
    "attention_pooling": lambda: net(
        lambda s, x: (s.score(x).softmax(1) * x).sum(1), inputs=sequences(d=8), score=linear(8, 1)
    ),
    "attention": attention,
    "attention_of_torch": lambda: net(
        lambda s, x: s.a(x, x, x)[0], inputs=sequences(), a=nn.MultiheadAttention(16, 4)
    ),
    "attention_with_normalized_queries_and_keys": lambda: attention(
        HEADS, normalize=nn.LayerNorm(4)
    ),
    "attention_with_l2_normalized_queries_and_keys": lambda: attention(
        HEADS, normalize=Net(lambda s, x: s.s * F.normalize(x, dim=-1), s=parameter(1))
    ),
    "attention_normalized_over_all_heads": lambda: attention(
        (("q", LAYER), ("k", LAYER)), whole=rms32
    ),
    "fused_attention_with_normalized_queries_and_keys": lambda: attention(
        fused=True, normalize=nn.LayerNorm(4)
    ),
    "fused_attention_in_a_model": lambda: chain(
        sequences(),
        Plus(nn.LayerNorm(16), Attention(fused=True, normalize=nn.RMSNorm(4))),
        *(nn.LayerNorm(16), linear(16, 2)),
    ),
    "attention_before_a_norm": lambda: Case(
        as_chain(Attention(), nn.RMSNorm(16), linear(16, 2)),
        *(sequences(), {"0.v.weight": LAYER, "0.o.weight": LAYER}),
    ),
    "masked_logits": lambda: chain(
        *(vectors(), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)),
        lambda y: y.masked_fill(torch.arange(5) > 2, -torch.inf),
        _0=CHANNEL,
    ),
}


def residual_network(zero_gains=False):
    def pair():
        return conv(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    blocks = [Plus(*pair(), nn.ReLU(), *pair()) for _ in range(3)]
    for block in blocks if zero_gains else ():
        nn.init.zeros_(block.body[4].weight)
    stem = nn.Sequential(conv(3, 4, 3), nn.BatchNorm2d(4))
    views = {"0.0.weight": CHANNEL, "1*": CHANNEL, "2*": CHANNEL, "3*": CHANNEL}
    layers = stem, *blocks, nn.Flatten(), nn.Linear(144, 3)
    return Case(nn.Sequential(*layers), images(), views)


def u_net():
    def function(self, x):
        a = F.silu(self.a(self.enter(x)))
        b = F.silu(self.b(self.down(a)))
        return self.leave(torch.cat([a, F.silu(self.c(self.up(b)))], 1))

    views = {"enter.weight": "groups=2", "down.weight": "groups=2", "up.weight": "dim=1,groups=2"}
    return net(
        *(function, views, images()),
        **{"enter": conv(3, 4, 3, padding=1), "a": nn.GroupNorm(2, 4)},
        **{"down": conv(4, 8, 2, 2), "b": nn.GroupNorm(2, 8)},
        **{"up": nn.ConvTranspose2d(8, 4, 2, 2, bias=False), "c": nn.GroupNorm(2, 4)},
        leave=nn.Conv2d(8, 1, 1),
    )


def layer_drop():
    blocks = (Plus(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(4))
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), LayerDrop(*blocks), nn.Dropout(0.2)
    return Case(
        nn.Sequential(*layers, nn.Flatten()), images(), {"0.weight": CHANNEL, "2*": CHANNEL}
    )


def wrapped_zero_biases():
    """LayerNorm(x + b): what comes before is invariant only while b is 0."""
    layers = []
    for wrap in (compiled, checkpointed, checkpointed_reentrantly):
        zeros, norm = nn.Parameter(torch.zeros(6)), nn.LayerNorm(6)
        shifted = Net(lambda s, x: s.norm(x + s.b), b=zeros, norm=norm)
        layers += linear(6, 6), wrap(shifted), nn.Tanh()
    return chain(vectors(), *layers)


def wrapped_invariant():
    wraps = compiled, checkpointed, checkpointed_reentrantly
    blocks = [wrap(nn.Sequential(linear(6, 6), nn.LayerNorm(6))) for wrap in wraps]
    model = nn.Sequential(*blocks, nn.Tanh(), linear(6, 3))
    named = nn.Sequential(*blocks).named_parameters()
    return Case(model, vectors(), {name: LAYER for name, p in named if p.ndim > 1})


def neighbours_in_one_storage():
    """As recurrent networks on a GPU, and readers of one large file, lay out their weights."""
    memory = torch.randn(60)
    made = chain(vectors(), linear(6, 5), nn.BatchNorm1d(5), linear(5, 6), _0=CHANNEL)
    for index in (0, 2):
        weight = made.model[index].weight
        weight.data = memory[15 * index : 15 * index + 30].view(weight.shape)
    return made


NETWORKS = {
    "residual_blocks_with_batch_norm": residual_network,
    "residual_blocks_with_zero_gains": lambda: residual_network(zero_gains=True),
    "transformer_with_the_norm_first": lambda: Case(decoder(std=0.3), tokens()),
    "transformer_with_the_norm_last": lambda: Case(decoder(std=0.3, pre=False), tokens()),
    "gpt_at_its_initialization_with_a_loss": lambda: with_loss(pre=True),
    "bert_at_its_initialization_with_a_loss": lambda: with_loss(pre=False),
    "depthwise_before_layer_norm_with_a_layer_scale": lambda: net(
        lambda s, x: x.movedim(1, -1) + s.gamma * s.out(F.gelu(s.norm(s.deep(x).movedim(1, -1)))),
        *({"deep.weight": LAYER}, images(c=6)),
        **{"deep": conv(6, 6, 3, padding=1, groups=6), "norm": nn.LayerNorm(6)},
        **{"out": nn.Linear(6, 6), "gamma": nn.Parameter(1e-6 * torch.ones(6))},
    ),
    "u_net_with_group_norm": u_net,
    "keyword_inputs_and_a_dict_of_outputs": lambda: net(
        *(keywords, {"embed.weight": CHANNEL}),
        {"ids": tokens(), "mask": (torch.arange(6) < 5).expand(4, -1)},
        **{"embed": nn.Embedding(11, 8), "norm": nn.LayerNorm(8), "head": linear(8, 2)},
    ),
    "float32_inside": lambda: net(
        *(in_float32, {"f.weight": CHANNEL}),
        **{"f": nn.Linear(6, 5), "norm": nn.BatchNorm1d(5), "head": linear(5, 2)},
        table=torch.ones(5),
    ),
    "in_place_forward": lambda: net(in_place, inputs=vectors().double(), f=mlp(6, 8, 3)),
    "layer_drop": layer_drop,
    "wrapped_blocks_whose_zero_biases_hide_the_norm": wrapped_zero_biases,
    "wrapped_blocks_of_invariant_weights": wrapped_invariant,
    "compiled_norm_of_a_small_weight": lambda: Case(
        nn.Sequential(compiled(nn.Sequential(small(linear(6, 5)), nn.BatchNorm1d(5))), nn.Tanh()),
        vectors(),
        {"0._orig_mod.0.weight": CHANNEL},
    ),
    "neighbours_in_one_storage": neighbours_in_one_storage,
}
