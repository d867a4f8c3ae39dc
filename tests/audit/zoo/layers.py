"""Rows: a weight and its normalization, and what may stand between them."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune

from tests.audit.zoo.parts import (
    CHANNEL,
    LAYER,
    Case,
    before,
    chain,
    conv,
    filled,
    images,
    linear,
    mlp,
    net,
    pair,
    parameter,
    rms32,
    small,
    vectors,
)


def bounded_norms(self, x):
    y = self.a(x)
    y = y / y.norm(dim=-1, keepdim=True).clamp(min=1e-4)
    z = self.b(F.pad(y, (0, 1)))
    norm = z.norm(dim=-1, keepdim=True)
    return ((z / torch.where(norm > 1e-6, norm, 1e-6)).relu() + 0.5).tanh()


def filter_response(self, x, eps=1e-6):
    y = self.conv(x)
    return y * torch.rsqrt(y.square().mean((2, 3), keepdim=True) + eps)


def evo_norm_s0(self, x, groups=2):
    """x sigmoid(v x) / std of the group (Liu et al. 2020)."""
    x = self.conv(x)
    grouped = x.unflatten(1, (groups, -1))
    std = (grouped.var((2, 3, 4), keepdim=True) + 1e-5).sqrt().expand_as(grouped).flatten(1, 2)
    return torch.tanh(x * torch.sigmoid(self.v * x) / std)


def evo_norm_b0(self, x):
    """x / max(std of the batch, v x + std of the instance) (Liu et al. 2020)."""
    x = self.conv(x)
    batch = (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    instance = (x.var((2, 3), keepdim=True) + 1e-5).sqrt()
    return torch.tanh(x / torch.maximum(batch, self.v * x + instance))


def standardized(self, x):
    """Weight standardization (Qiao et al. 2019)."""
    rows = self.w.flatten(1)
    rows = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-5)
    return F.conv2d(x, rows.view_as(self.w)).relu().tanh()


def normalized_twice(self, x):
    for a, b in zip(self.first, self.second, strict=True):
        y = F.linear(torch.tanh(F.linear(x, F.normalize(a))), F.normalize(b))
        x = F.normalize(x + 0.3 * (F.normalize(y) - x))
    return x


def dense(self, x):
    for layer, norm in zip(self.convs, self.norms, strict=True):
        x = torch.cat([x, layer(norm(x).relu())], 1)
    return self.last(x).relu()


def few_images(self, x):
    """Alone, they are convolved in another way than among many."""
    alone, many = self.conv(x), self.conv(x.repeat(50, 1, 1, 1))
    torch.testing.assert_close(alone, many[: len(x)])
    return torch.tanh(self.norm(alone))


def complex_filter(self, x):
    y = torch.fft.irfft(torch.fft.rfft(self.f(x)) * self.filter, 8)
    return y / y.norm()


def pruned(layer):
    prune.random_unstructured(layer, "weight", 0.4)
    return layer


def half(case, dtype):
    case.model.to(dtype)
    case.inputs = case.inputs.to(dtype)
    return case


def evaluated(case):
    case.model.eval()
    return case


def bag_of_heads(equation, *shape, view, norm=None):
    """Heads of normalized entries, which a product of a vector and `w` makes."""
    views, norm = {"w": view}, norm or nn.RMSNorm(shape[-1])
    return net(
        lambda s, x: s.norm(torch.einsum(equation, x, s.w)), views, w=parameter(*shape), norm=norm
    )


ORIGINAL = "parametrizations.weight.original"
CONV = {"conv.weight": CHANNEL}
NORMS = {
    "linear_batch_norm": lambda: before(nn.Linear(6, 5), nn.BatchNorm1d(5), CHANNEL),
    "conv1d_batch_norm": lambda: before(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), CHANNEL),
    "conv2d_batch_norm": lambda: before(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), CHANNEL),
    "conv3d_batch_norm": lambda: before(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), CHANNEL),
    "batch_norm_without_gain": lambda: before(
        nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), CHANNEL
    ),
    "batch_norm_of_a_large_eps": lambda: before(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, eps=1e-3), CHANNEL
    ),
    "batch_norm_of_two": lambda: chain(
        *(vectors(2), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.BatchNorm1d(5), linear(5, 2)),
        either={"2.weight": CHANNEL},
        verdicts={"0.weight": "no evidence", "2.weight": "no evidence"},
    ),
    "batch_norm_in_eval_mode": lambda: evaluated(before(nn.Linear(6, 5), nn.BatchNorm1d(5))),
    "batch_norm_without_running_statistics_in_eval_mode": lambda: evaluated(
        before(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), CHANNEL)
    ),
    "group_norm": lambda: before(conv(3, 8, 3), nn.GroupNorm(2, 8), "groups=2"),
    "group_norm_of_one_group": lambda: before(conv(3, 8, 3), nn.GroupNorm(1, 8), LAYER),
    "group_norm_beside_a_head_of_ten": lambda: chain(
        *(images(), conv(3, 8, 3), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(8 * 36, 10)),
        _0="groups=4",
    ),
    "group_norm_after_a_bias": lambda: before(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)),
    "instance_norm": lambda: before(nn.Conv2d(3, 5, 3), nn.InstanceNorm2d(5), CHANNEL),
    "layer_norm": lambda: before(linear(6, 7), nn.LayerNorm(7), LAYER),
    "layer_norm_after_a_bias": lambda: before(nn.Linear(6, 7), nn.LayerNorm(7)),
    "layer_norm_after_a_zero_bias": lambda: chain(
        vectors(), filled(nn.Linear(6, 7), 0), nn.LayerNorm(7), nn.Linear(7, 2)
    ),
    "layer_norm_after_two_zero_biases": lambda: chain(
        *(vectors(), filled(nn.Linear(6, 8), 0), nn.ReLU(), filled(nn.Linear(8, 7), 0)),
        *(nn.LayerNorm(7), nn.Linear(7, 2)),
        verdicts={"0.weight": "only at this point", "2.weight": "only at this point"},
    ),
    "layer_norm_over_an_image": lambda: before(conv(3, 4, 3), nn.LayerNorm((4, 6, 6)), LAYER),
    "rms_norm": lambda: before(linear(6, 7), nn.RMSNorm(7), LAYER),
    "rms_norm_in_float32": lambda: before(linear(6, 7), rms32, LAYER),
    "rms_norm_of_small_weights": lambda: chain(
        *(vectors(), small(linear(6, 7)), lambda x: rms32(x, eps=1e-5), nn.Linear(7, 2)),
        _0=LAYER,
        verdicts={"0.weight": "invariant up to eps"},
    ),
    "evo_norm_s0": lambda: net(
        evo_norm_s0, inputs=images(), conv=conv(3, 8, 3), v=parameter(1, 8, 1, 1)
    ),
    "evo_norm_b0": lambda: net(
        evo_norm_b0, CONV, images(), conv=conv(3, 8, 3), v=nn.Parameter(torch.ones(1, 8, 1, 1))
    ),
    "local_response_norm": lambda: before(nn.Conv2d(3, 8, 3), nn.LocalResponseNorm(3)),
    "l1_normalized_features": lambda: chain(
        *(vectors(), linear(6, 5), lambda y: y / (y.abs().sum(-1, keepdim=True) + 1e-6)),
        linear(5, 3),
        _0=LAYER,
    ),
    "l2_normalized_features": lambda: chain(
        vectors(), linear(6, 5), F.normalize, linear(5, 3), _0=LAYER
    ),
    "standardized_by_hand": lambda: chain(
        *(vectors(), nn.Linear(6, 5), lambda y: (y - y.mean(0)) / torch.sqrt(y.var(0) + 1e-5)),
        linear(5, 3),
        _0=CHANNEL,
    ),
    "bounded_norms_by_hand": lambda: pair(bounded_norms, {"a": LAYER, "b": LAYER}),
    "filter_response_norm": lambda: net(
        lambda s, x: torch.maximum(filter_response(s, x), s.threshold),
        *(CONV, images()),
        conv=conv(3, 5, 3),
        threshold=nn.Parameter(torch.zeros(1)),
    ),
    "filter_response_norm_of_a_learned_eps": lambda: net(
        lambda s, x: filter_response(s, x, s.eps.abs()),
        inputs=images(),
        conv=conv(3, 5, 3),
        eps=nn.Parameter(torch.tensor(1e-4)),
    ),
    "norm_behind_a_complex_filter": lambda: net(
        complex_filter,
        *({"f.weight": LAYER}, vectors(5)),
        f=linear(6, 8),
        filter=nn.Parameter(torch.randn(5, 5, dtype=torch.complex64)),
    ),
}
SHAPES = {
    "transposed_convolution": lambda: before(
        nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), "dim=1"
    ),
    "convolution_of_few_images": lambda: net(
        few_images,
        *(CONV, images(1, 16, 3)),
        conv=nn.Conv2d(16, 96, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        norm=nn.BatchNorm2d(96),
    ),
    "transposed_convolution_in_groups": lambda: before(
        nn.ConvTranspose1d(4, 6, 3, groups=2), nn.BatchNorm1d(6), "dim=1"
    ),
    "depthwise_convolution": lambda: before(
        nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), CHANNEL
    ),
    "grouped_convolution": lambda: before(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), CHANNEL),
    "grouped_convolution_before_as_many_groups": lambda: before(
        nn.Conv1d(4, 8, 3, groups=2, bias=False), nn.GroupNorm(2, 8), "groups=2"
    ),
    "transposed_matrix": lambda: bag_of_heads(
        "nd,de->ne", 6, 5, view="dim=1", norm=nn.BatchNorm1d(5)
    ),
    "transposed_matrix_layer_norm": lambda: bag_of_heads("nd,de->ne", 6, 4, view=LAYER),
    "heads_first": lambda: bag_of_heads("nd,hde->nhe", 3, 6, 4, view=CHANNEL, norm=rms32),
    "heads_in_the_middle": lambda: bag_of_heads("nd,dhe->nhe", 6, 3, 4, view="dim=1"),
    "heads_in_groups_of_columns": lambda: net(
        lambda s, x: s.norm((x @ s.w).unflatten(-1, (3, 4))),
        {"w": "dim=1,groups=3"},
        w=parameter(6, 12),
        norm=nn.RMSNorm(4),
    ),
    "double_precision": lambda: half(NORMS["linear_batch_norm"](), torch.float64),
    "half_precision": lambda: half(NORMS["linear_batch_norm"](), torch.float16),
}
BATCH = nn.BatchNorm2d
BETWEEN = {
    "relu_before_batch_norm": lambda: chain(
        images(), conv(3, 5, 3), nn.ReLU(), BATCH(5), nn.Tanh(), _0=CHANNEL
    ),
    "bias_and_relu_before_batch_norm": lambda: chain(
        images(), nn.Conv2d(3, 5, 3), nn.ReLU(), BATCH(5), nn.Tanh()
    ),
    "prelu_before_batch_norm": lambda: chain(
        images(), conv(3, 5, 3), nn.PReLU(5), BATCH(5), nn.Tanh(), _0=CHANNEL
    ),
    "gelu_before_batch_norm": lambda: chain(
        images(), conv(3, 5, 3), nn.GELU(), BATCH(5), nn.Tanh()
    ),
    "pooling_before_batch_norm": lambda: chain(
        images(), nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), BATCH(5), nn.Tanh(), _0=CHANNEL
    ),
    "two_matrices_before_layer_norm": lambda: chain(
        vectors(), linear(6, 5), linear(5, 7), nn.LayerNorm(7), linear(7, 2), _0=LAYER, _1=LAYER
    ),
    "homogeneous_network_before_batch_norm": lambda: chain(
        *(vectors(), linear(6, 8), nn.ReLU(), linear(8, 5), nn.BatchNorm1d(5), nn.Tanh()),
        _0=LAYER,
        _2=CHANNEL,
    ),
    "sum_before_batch_norm": lambda: pair(
        lambda s, x: torch.tanh(s.norm(s.a(x) + s.b(x))), norm=nn.BatchNorm1d
    ),
    "skip_around_batch_norm": lambda: chain(
        vectors(), linear(6, 5), lambda y: F.batch_norm(y, None, None, training=True) + 1e-3 * y
    ),
    "concatenation_before_batch_norm": lambda: net(
        dense,
        *({"convs*": CHANNEL}, images()),
        convs=nn.ModuleList(conv(3 + 4 * i, 4, 3, padding=1) for i in range(3)),
        norms=nn.ModuleList(BATCH(3 + 4 * i) for i in range(3)),
        last=BATCH(15),
    ),
    "a_tied_matrix_before_two_norms": lambda: net(
        lambda s, x: s.b(s.f(torch.tanh(s.a(s.f(x))))),
        {"f.weight": CHANNEL},
        **{"f": nn.Linear(6, 6), "a": nn.BatchNorm1d(6), "b": nn.BatchNorm1d(6)},
    ),
    "a_tied_matrix_before_one_norm": lambda: net(
        lambda s, x: s.f(s.a(s.f(x))), f=nn.Linear(6, 6), a=nn.BatchNorm1d(6)
    ),
}


def own(layer, name, view):
    """A layer that normalizes its own weight, within a model without a norm."""
    return Case(nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 2)), vectors(), {f"0.{name}": view})


OWN_NORM = {
    "cosine_head": lambda: net(
        lambda s, x: s.scale * F.linear(F.normalize(s.f(x)), F.normalize(s.w)),
        {"w": CHANNEL},
        **{"f": mlp(6, 8, 5), "w": parameter(3, 5), "scale": nn.Parameter(torch.tensor(5.0))},
    ),
    "cosine_similarity_head": lambda: net(
        lambda s, x: F.cosine_similarity(s.f(x)[:, None], s.w[None], -1) / 0.07,
        {"w": CHANNEL, "f.weight": LAYER},
        **{"f": linear(6, 5), "w": parameter(3, 5)},
    ),
    "normalized_rows_in_a_residual_stream": lambda: net(
        normalized_twice,
        {"first*": CHANNEL, "second*": CHANNEL},
        first=nn.ParameterList(parameter(8, 6) for _ in range(2)),
        second=nn.ParameterList(parameter(6, 8) for _ in range(2)),
    ),
    "pruned_by_a_hook": lambda: Case(
        nn.Sequential(pruned(nn.Linear(6, 5)), nn.BatchNorm1d(5)),
        vectors(),
        {"0.weight_orig": CHANNEL},
    ),
    # The lengths of its rows are invariant, too; of one entry each, they cannot turn.
    "weight_norm_before_batch_norm": lambda: Case(
        nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 4)), nn.BatchNorm1d(4), nn.Tanh()),
        *(vectors(), {f"0.{ORIGINAL}1": CHANNEL}),
        {f"0.{ORIGINAL}0": "no evidence"},
        {f"0.{ORIGINAL}0": CHANNEL},
    ),
    "weight_norm": lambda: own(
        parametrizations.weight_norm(nn.Linear(6, 5)), f"{ORIGINAL}1", CHANNEL
    ),
    "weight_norm_of_a_hook": lambda: own(
        nn.utils.weight_norm(nn.Linear(6, 5)), "weight_v", CHANNEL
    ),
    "spectral_norm": lambda: own(parametrizations.spectral_norm(nn.Linear(6, 5)), ORIGINAL, LAYER),
    "spectral_norm_of_a_hook": lambda: own(
        nn.utils.spectral_norm(nn.Linear(6, 5)), "weight_orig", LAYER
    ),
    "weight_standardization": lambda: net(
        standardized, {"w": CHANNEL}, images(), w=parameter(5, 3, 3, 3)
    ),
    "orthogonal_columns": lambda: net(
        lambda s, x: torch.tanh(x @ torch.linalg.qr(s.w).Q), {"w": "dim=1"}, w=parameter(6, 4)
    ),
}
