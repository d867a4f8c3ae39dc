"""Weights that the model normalizes itself."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune

from tests.audit.zoo.case import CHANNEL, LAYER, Case, case, cases, images, sequential, vectors
from tests.audit.zoo.parts import Net, StandardizedConv, linear, mlp, parameter


@case
def cosine_head():
    def function(self, x):
        return self.scale * F.linear(F.normalize(self.f(x)), F.normalize(self.w))

    net = Net(function, f=mlp(6, 8, 5), w=parameter(3, 5), scale=nn.Parameter(torch.tensor(5.0)))
    return Case(net, (vectors(),), {"w": CHANNEL})


@case
def cosine_similarity_head():
    def function(self, x):
        return F.cosine_similarity(self.f(x)[:, None], self.w[None], -1) / 0.07

    return Case(
        Net(function, f=linear(6, 5), w=parameter(3, 5)),
        (vectors(),),
        {"w": CHANNEL, "f.weight": LAYER},
    )


@case
def normalized_rows_in_a_residual_stream():
    def function(self, x):
        for a, b in zip(self.first, self.second, strict=True):
            y = F.linear(torch.tanh(F.linear(x, F.normalize(a))), F.normalize(b))
            x = F.normalize(x + 0.3 * (F.normalize(y) - x))
        return x

    net = Net(
        function,
        first=nn.ParameterList(parameter(8, 6) for _ in range(2)),
        second=nn.ParameterList(parameter(6, 8) for _ in range(2)),
    )
    return Case(net, (vectors(),), {"first*": CHANNEL, "second*": CHANNEL})


@case
def pruned_by_a_hook():
    layer = nn.Linear(6, 5)
    prune.random_unstructured(layer, "weight", 0.4)
    return Case(nn.Sequential(layer, nn.BatchNorm1d(5)), (vectors(),), {"0.weight_orig": CHANNEL})


@case
def weight_norm_before_batch_norm():
    """The lengths of the rows are invariant, too; of one entry each, they cannot turn."""
    layer = parametrizations.weight_norm(nn.Linear(6, 4))
    name = "0.parametrizations.weight.original"
    net = nn.Sequential(layer, nn.BatchNorm1d(4), nn.Tanh())
    return Case(net, (vectors(),), {f"{name}1": CHANNEL}, either={f"{name}0": CHANNEL})


cases(
    weight_norm=lambda: Case(
        nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)),
        (vectors(),),
        {"0.parametrizations.weight.original1": CHANNEL},
    ),
    weight_norm_of_a_hook=lambda: Case(
        nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)),
        (vectors(),),
        {"0.weight_v": CHANNEL},
    ),
    spectral_norm=lambda: Case(
        nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)),
        (vectors(),),
        {"0.parametrizations.weight.original": LAYER},
    ),
    spectral_norm_of_a_hook=lambda: Case(
        nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 2)),
        (vectors(),),
        {"0.weight_orig": LAYER},
    ),
    weight_standardization=lambda: sequential(
        images(), StandardizedConv(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 3), _0=CHANNEL
    ),
    orthogonal_columns=lambda: Case(
        Net(lambda self, x: torch.tanh(x @ torch.linalg.qr(self.w).Q), w=parameter(6, 4)),
        (vectors(),),
        {"w": "dim=1"},
    ),
)
