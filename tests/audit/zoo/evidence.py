"""Rows: weights that are invariant at one point only, of which nothing tells, or that deceive."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.parts import (
    CHANNEL,
    Case,
    Net,
    chain,
    filled,
    hides_its_norm,
    images,
    linear,
    mlp,
    net,
    parameter,
    vectors,
)

LEAST = torch.finfo(torch.float32).min


def zero_head(norm=None, **truth):
    model = mlp(6, 8, 8, 3, norm=norm)
    nn.init.zeros_(model[-1].weight)
    return Case(model, vectors(), **truth)


def rezero():
    def block(*body):
        zero = nn.Parameter(torch.zeros(()))
        return Net(lambda s, x: x + s.a * s.body(x), a=zero, body=nn.Sequential(*body))

    plain = block(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    normed = block(nn.Linear(6, 6), nn.BatchNorm1d(6))
    return Case(nn.Sequential(plain, normed), vectors(), {"1.body.0.weight": CHANNEL})


def lora(*after, **truth):
    return net(
        lambda s, x: s.after(s.base(x) + x @ s.A @ s.B),
        **{"A": parameter(6, 2), "B": parameter(2, 6, std=0.0), "after": nn.Sequential(*after)},
        **{"base": nn.Linear(6, 6).requires_grad_(False), **truth},
    )


def one_expert(self, x):
    chosen = (self.router(x) + self.bias).softmax(-1).topk(1, -1)
    parts = torch.stack([expert(x) for expert in self.experts], 1)
    index = chosen.indices[:, :, None].expand(-1, 1, 3)
    return (parts.gather(1, index) * chosen.values[..., None]).sum(1)


def deep_convolutions():
    layers = [nn.Conv2d(3, 6, 3, padding=1)]
    for _ in range(7):
        layers += [nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)]
    return Case(nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 3)), images())


def hidden(function):
    """A weight whose gradient hides its norm."""
    return net(function, verdicts={"w": "not invariant"}, w=parameter(4, 6))


def hidden_beside(function):
    """The same beside an invariant weight."""
    parts = {"f": nn.Linear(6, 4), "norm": nn.BatchNorm1d(4)}
    return net(function, {"f.weight": CHANNEL}, w=parameter(4, 6), **parts)


def beside_features(logits):
    """Raw logits, made by a function of them, beside features that a norm has made invariant."""

    def function(self, x):
        y = self.f(x)
        return logits(torch.tanh(y) @ self.h), self.norm(y).tanh()

    return net(function, f=linear(6, 5), h=parameter(5, 5), norm=nn.LayerNorm(5))


def normed(function, n=16, norm=nn.BatchNorm1d):
    """A function of a network whose `f` is a layer, and whose `norm` fits it."""
    return net(function, inputs=vectors(n), f=linear(6, 5), norm=norm(5))


def masked_twice(logits):
    index = torch.arange(5)
    once = (logits + LEAST * (index > 2)).masked_fill(index > 3, 2.0 * LEAST)
    return once - 1e20 * (index == 2)


def centered(self, x):
    y = self.f(x)
    out = torch.tanh(self.norm(y - self.center))
    self.center = self.center.lerp(y.detach().mean(0), 0.1)
    return out


def running_center():
    made = normed(centered, norm=nn.LayerNorm)
    made.model.register_buffer("center", torch.zeros(5))
    return made


def rows(w):
    return w.norm(dim=1, keepdim=True)


def spectrally_bounded(self, x):
    """W / max(1, |W| / c), as in invertible residual networks (Behrmann et al. 2019)."""
    for w in (self.v, self.w):
        x = x + F.elu(F.linear(x, w / (torch.linalg.matrix_norm(w, 2) / 0.9).clamp(min=1)))
    return x


def shifted(self, x):
    """Its last row shifts all logits by the same, which no softmax shows."""
    return (F.normalize(x @ self.w[:4].T, dim=0) + (x @ self.w[4])[:, None]).softmax(1)


def shrunk(scale):
    """The other channels may not make a coarser view of it."""
    layer = linear(27, 64)
    with torch.no_grad():
        layer.weight[:8] *= scale
    return chain(vectors(64, 27), layer, nn.BatchNorm1d(64), linear(64, 2))


SCALES = (1e-5, 1e-6, 1e-9)
EVIDENCE = {
    "zero_head": zero_head,
    "zero_head_after_batch_norm": lambda: zero_head(
        nn.BatchNorm1d,
        views={"0.weight": CHANNEL, "3.weight": CHANNEL},
        verdicts={"0.weight": "invariant", "6.weight": "not invariant"},
    ),
    "rezero": rezero,
    "low_rank_adapter": lambda: lora(
        nn.Tanh(), verdicts={"A": "not invariant", "B": "not invariant"}
    ),
    "low_rank_adapter_before_batch_norm": lambda: lora(nn.BatchNorm1d(6), nn.Tanh()),
    "unrouted_expert": lambda: net(
        one_expert,
        verdicts={"experts.2.0.weight": "no evidence", "router.weight": "not invariant"},
        router=linear(6, 3),
        experts=nn.ModuleList(mlp(6, 8, 3) for _ in range(3)),
        bias=nn.Parameter(torch.tensor([0.0, 0.0, -50.0])),
    ),
    "unused_weight": lambda: net(
        lambda s, x: s.used(x),
        verdicts={"unused.weight": "no evidence", "used.weight": "not invariant"},
        **{"used": nn.Linear(6, 3), "unused": nn.Linear(6, 3)},
    ),
    "dead_relu": lambda: chain(
        *(vectors(), filled(nn.Linear(6, 8), -100.0), nn.ReLU(), nn.Linear(8, 3)),
        verdicts={"0.weight": "no evidence"},
    ),
    "argmax_output": lambda: chain(
        *(vectors(), mlp(6, 8, 3), lambda y: y.argmax(-1)), verdicts={"0.0.weight": "no evidence"}
    ),
    "detached_output": lambda: chain(
        *(vectors(), mlp(6, 8, 3), torch.detach), verdicts={"0.2.weight": "no evidence"}
    ),
    "regressor_with_a_large_bias": lambda: chain(
        vectors(), nn.Linear(6, 8), nn.ReLU(), filled(nn.Linear(8, 1), 1e4)
    ),
    "saturated_outputs": lambda: chain(
        vectors(), nn.Linear(6, 8), nn.ReLU(), filled(nn.Linear(8, 3), 15.0), nn.Tanh()
    ),
    "a_unit_that_acts_at_its_own_point_alone": lambda: net(
        lambda s, x: s.norm(s.f(x)) * torch.cat([s.gate == 0, torch.ones(5)]),
        verdicts={"f.weight": "no evidence"},
        **{"f": linear(6, 6), "norm": nn.BatchNorm1d(6), "gate": nn.Parameter(torch.zeros(1))},
    ),
    "an_input_that_is_zero_in_the_batch": lambda: net(
        lambda s, x, condition: s.norm(s.f(x) + s.g(condition)),
        inputs=(vectors(8), torch.zeros(8, 3)),
        verdicts={"f.weight": "only at this point", "g.weight": "not invariant"},
        **{"f": linear(6, 5), "g": linear(3, 5), "norm": nn.LayerNorm(5)},
    ),
    "channels_that_dropout_hides_at_some_points": lambda: chain(
        *(vectors(4), nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5)),
        **{"_0": CHANNEL, "_4": CHANNEL},
    ),
    **{
        f"channels_of_size_{scale}_that_an_eps_outweighs": partial(shrunk, scale)
        for scale in SCALES
    },
    "deep_network_without_norm": lambda: Case(mlp(6, *[10] * 11, 3), vectors()),
    "deep_convolutions_without_norm": deep_convolutions,
    "deep_network_with_batch_norm": lambda: Case(
        mlp(6, *[10] * 11, 3, norm=nn.BatchNorm1d),
        vectors(24),
        {f"{3 * i}.weight": CHANNEL for i in range(11)},
    ),
}
DECEPTIONS = {
    "gradient_that_hides_the_norm": lambda: hidden(hides_its_norm),
    "gradient_that_hides_the_norm_below_a_mask": lambda: hidden(
        lambda s, x: hides_its_norm(s, x).masked_fill(torch.arange(4) > 2, -1e30)
    ),
    "gradient_that_hides_the_norm_in_a_loss_of_a_million": lambda: hidden(
        lambda s, x: 1e6 + hides_its_norm(s, x).square().mean()
    ),
    "gradient_that_hides_the_norm_beside_a_large_scale": lambda: hidden_beside(
        lambda s, x: torch.cat([1e9 * s.norm(s.f(x)), hides_its_norm(s, x)], 1)
    ),
    "gradient_that_hides_the_norm_in_a_small_branch": lambda: hidden_beside(
        lambda s, x: torch.tanh(s.norm(s.f(x)) + 1e-5 * hides_its_norm(s, x))
    ),
    "detached_norm_that_hides_the_norm": lambda: hidden(
        lambda s, x: torch.tanh(F.linear(x, s.w / rows(s.w) * rows(s.w).detach()))
    ),
    "norm_that_is_bounded": lambda: net(
        lambda s, x: torch.tanh(F.linear(x, s.w * (1.0 / rows(s.w)).clamp(max=1))),
        w=parameter(4, 6, std=3.0),
    ),
    "norms_that_torch_bounds": lambda: net(
        lambda s, x: torch.tanh(10 * F.linear(x, torch.renorm(s.w, 2, 0, 0.01))),
        w=parameter(5, 6, std=0.4),
    ),
    # One unit: scaling it up alone says nothing.
    "norm_of_the_whole_weight_that_is_bounded": lambda: hidden(
        lambda s, x: torch.tanh(F.linear(x, s.w * (1.0 / s.w.norm()).clamp(max=1)))
    ),
    "spectral_norm_that_is_bounded": lambda: net(
        spectrally_bounded, v=parameter(6, 6), w=parameter(6, 6)
    ),
    "clipped_weights": lambda: net(
        lambda s, x: F.linear(x, s.w.clamp(-0.01, 0.01)), w=parameter(4, 6, std=0.01)
    ),
    "a_constant_beside_the_weight": lambda: normed(lambda s, x: F.normalize(s.f(x) + 0.01)),
    "masked_logits_that_show_the_norm_beside_features_that_do_not": lambda: beside_features(
        lambda logits: logits.masked_fill(torch.arange(5) > 2, LEAST)
    ),
    "logits_below_two_masks": lambda: beside_features(masked_twice),
    "logits_below_masks_of_two_sizes": lambda: beside_features(
        lambda logits: logits + torch.tensor([0, 0, 0, -1e20, -1000000000.0])
    ),
    "outputs_of_two_scales_in_one_tensor": lambda: normed(
        lambda s, x: torch.stack([1e9 * s.norm(y := s.f(x)), torch.tanh(y)], 1)
    ),
    "a_large_and_positive_scale_beside_a_small_one": lambda: normed(
        lambda s, x: torch.cat(
            [1e9 * F.softplus(s.norm(y := s.f(x))).repeat(1, 3), torch.tanh(y)], 1
        )
    ),
    "a_norm_in_a_small_output_beside_a_large_one": lambda: normed(
        lambda s, x: {"large": 1e5 * s.norm(y := s.f(x)).tanh(), "size": y.square().mean()}, n=12
    ),
    "an_output_that_is_linear_beside_one_that_grows_exponentially": lambda: normed(
        lambda s, x: torch.cat([(12 * s.norm(y := s.f(x))).exp(), y], 1), n=64
    ),
    "shift_of_a_softmax_beside_cosines": lambda: net(shifted, {"w": CHANNEL}, w=parameter(5, 6)),
    "running_center_that_starts_at_zero": running_center,
    # No gradient shows it: all units must shrink to cross it.
    "outputs_above_a_threshold": lambda: normed(
        lambda s, x: torch.tanh(s.norm(y := s.f(x))) * (y.abs().max() > 2)
    ),
    "a_millionth_of_a_detached_norm": lambda: normed(
        lambda s, x: torch.tanh(s.norm(s.f(x))) * (1 + 1e-6 * s.f.weight.detach().norm().item())
    ),
    "entries_below_a_threshold_are_zero": lambda: normed(
        lambda s, x: s.norm(torch.where((y := s.f(x)) > 1e-3, y, 0.0))
    ),
}
