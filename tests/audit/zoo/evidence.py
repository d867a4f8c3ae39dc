"""Weights that are invariant at one point only, or of which nothing tells."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.audit.zoo.case import CHANNEL, Case, case, cases, images, vectors
from tests.audit.zoo.parts import Net, linear, mlp, parameter


@case
def zero_head():
    net = mlp(6, 8, 8, 3)
    nn.init.zeros_(net[-1].weight)
    return Case(net, (vectors(),))


@case
def zero_head_after_batch_norm():
    net = mlp(6, 8, 8, 3, norm=nn.BatchNorm1d)
    nn.init.zeros_(net[-1].weight)
    return Case(net, (vectors(),), {"0.weight": CHANNEL, "3.weight": CHANNEL})


@case
def rezero():
    def block(*body):
        net = Net(lambda self, x: x + self.a * self.body(x), a=nn.Parameter(torch.zeros(())))
        net.body = nn.Sequential(*body)
        return net

    plain = block(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    normed = block(nn.Linear(6, 6), nn.BatchNorm1d(6))
    return Case(nn.Sequential(plain, normed), (vectors(),), {"1.body.0.weight": CHANNEL})


def lora(dim, *after):
    def function(self, x):
        return self.after(self.base(x) + x @ self.A @ self.B)

    net = Net(function, base=nn.Linear(dim, dim), A=parameter(dim, 2), B=parameter(2, dim, std=0.0))
    net.base.requires_grad_(False)
    net.after = nn.Sequential(*after)
    return net


@case
def unrouted_expert():
    def function(self, x):
        gate = self.router(x) + self.bias
        chosen = gate.softmax(-1).topk(1, -1)
        parts = torch.stack([expert(x) for expert in self.experts], 1)
        return (
            parts.gather(1, chosen.indices[:, :, None].expand(-1, 1, 3)) * chosen.values[..., None]
        ).sum(1)

    net = Net(
        function,
        router=linear(6, 3),
        experts=nn.ModuleList(mlp(6, 8, 3) for _ in range(3)),
        bias=nn.Parameter(torch.tensor([0.0, 0.0, -50.0])),
    )
    return Case(net, (vectors(),))


@case
def dead_relu():
    net = mlp(6, 8, 3)
    nn.init.constant_(net[0].bias, -100.0)
    return Case(net, (vectors(),))


@case
def regressor_with_a_large_bias():
    net = mlp(6, 8, 1)
    nn.init.constant_(net[-1].bias, 1e4)
    return Case(net, (vectors(),))


@case
def saturated_outputs():
    net = nn.Sequential(mlp(6, 8, 3), nn.Tanh())
    nn.init.constant_(net[0][-1].bias, 15.0)
    return Case(net, (vectors(),))


@case
def deep_convolutions_without_norm():
    layers = [nn.Conv2d(3, 6, 3, padding=1)]
    for _ in range(7):
        layers += [nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)]
    return Case(nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 3)), (images(),))


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


@case
def gradient_that_hides_the_norm_below_a_mask():
    def function(self, x):
        hidden = torch.arange(4) > 2
        return torch.tanh(F.linear(x, Straight.apply(self.w))).masked_fill(hidden, -1e30)

    return Case(Net(function, w=parameter(4, 6)), (vectors(),))


@case
def gradient_that_hides_the_norm_beside_a_large_scale():
    def function(self, x):
        hidden = torch.tanh(F.linear(x, Straight.apply(self.w)))
        return torch.cat([1e9 * self.norm(self.f(x)), hidden], 1)

    net = Net(function, w=parameter(4, 6), f=nn.Linear(6, 4), norm=nn.BatchNorm1d(4))
    return Case(net, (vectors(),), {"f.weight": CHANNEL})


@case
def gradient_that_hides_the_norm_in_a_small_branch():
    def function(self, x):
        return torch.tanh(
            self.norm(self.f(x)) + 1e-5 * torch.tanh(F.linear(x, Straight.apply(self.w)))
        )

    net = Net(function, w=parameter(4, 6), f=nn.Linear(6, 4), norm=nn.BatchNorm1d(4))
    return Case(net, (vectors(),), {"f.weight": CHANNEL})


@case
def gradient_that_hides_the_norm_in_a_loss_of_a_million():
    def function(self, x):
        return 1e6 + torch.tanh(F.linear(x, Straight.apply(self.w))).square().mean()

    return Case(Net(function, w=parameter(4, 6)), (vectors(),))


@case
def masked_logits_that_show_the_norm_beside_features_that_do_not():
    def function(self, x):
        y = self.f(x)
        logits = torch.tanh(y) @ self.h
        hidden = torch.arange(5) > 2
        return logits.masked_fill(hidden, torch.finfo(torch.float32).min), self.norm(y).tanh()

    parts = {"f": linear(6, 5), "h": parameter(5, 5), "norm": nn.LayerNorm(5)}
    return Case(Net(function, **parts), (vectors(),))


def beside_features(logits):
    """Raw logits, made by a function of them, beside features that a norm has made invariant."""

    def function(self, x):
        y = self.f(x)
        return logits(torch.tanh(y) @ self.h), self.norm(y).tanh()

    parts = {"f": linear(6, 5), "h": parameter(5, 5), "norm": nn.LayerNorm(5)}
    return Case(Net(function, **parts), (vectors(),))


@case
def logits_below_two_masks():
    least, index = torch.finfo(torch.float32).min, torch.arange(5)

    def masked_twice(logits):
        return (logits + least * (index > 2)).masked_fill(index > 3, 2.0 * least) - 1e20 * (
            index == 2
        )

    return beside_features(masked_twice)


@case
def outputs_of_two_scales_in_one_tensor():
    def function(self, x):
        y = self.f(x)
        return torch.stack([1e9 * self.norm(y), torch.tanh(y)], 1)

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


@case
def a_large_and_positive_scale_beside_a_small_one():
    def function(self, x):
        y = self.f(x)
        return torch.cat([1e9 * F.softplus(self.norm(y)).repeat(1, 3), torch.tanh(y)], 1)

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


@case
def running_center_that_starts_at_zero():
    def function(self, x):
        y = self.f(x)
        out = torch.tanh(self.norm(y - self.center))
        self.center = self.center.lerp(y.detach().mean(0), 0.1)
        return out

    net = Net(function, f=linear(6, 5), norm=nn.LayerNorm(5))
    net.register_buffer("center", torch.zeros(5))
    return Case(net, (vectors(),))


@case
def detached_norm_that_hides_the_norm():
    def function(self, x):
        norm = self.w.norm(dim=1, keepdim=True)
        return torch.tanh(F.linear(x, self.w / norm * norm.detach()))

    return Case(Net(function, w=parameter(4, 6)), (vectors(),))


@case
def norm_that_is_bounded():
    def function(self, x):
        norm = self.w.norm(dim=1, keepdim=True)
        return torch.tanh(F.linear(x, self.w * (1.0 / norm).clamp(max=1)))

    return Case(Net(function, w=parameter(4, 6, std=3.0)), (vectors(),))


@case
def norm_of_the_whole_weight_that_is_bounded():
    """One unit: scaling it up alone says nothing."""

    def function(self, x):
        return torch.tanh(F.linear(x, self.w * (1.0 / self.w.norm()).clamp(max=1)))

    return Case(Net(function, w=parameter(4, 6)), (vectors(),))


@case
def spectral_norm_that_is_bounded():
    """W / max(1, |W| / c), as in invertible residual networks (Behrmann et al. 2019)."""

    def function(self, x):
        for w in (self.v, self.w):
            x = x + F.elu(F.linear(x, w / (torch.linalg.matrix_norm(w, 2) / 0.9).clamp(min=1)))
        return x

    return Case(Net(function, v=parameter(6, 6), w=parameter(6, 6)), (vectors(),))


@case
def a_norm_in_a_small_output_beside_a_large_one():
    def function(self, x):
        y = self.f(x)
        return {"large": 1e5 * self.norm(y).tanh(), "size": y.square().mean()}

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(12),))


@case
def shift_of_a_softmax_beside_cosines():
    """Its last row shifts all logits by the same, which no softmax shows."""

    def function(self, x):
        classes, shift = self.w[:4], x @ self.w[4]
        return (F.normalize(x @ classes.T, dim=0) + shift[:, None]).softmax(1)

    return Case(Net(function, w=parameter(5, 6)), (vectors(),), {"w": CHANNEL})


@case
def outputs_above_a_threshold():
    """No gradient shows it: all units must shrink to cross it."""

    def function(self, x):
        y = self.f(x)
        return torch.tanh(self.norm(y)) * (y.abs().max() > 2)

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


@case
def a_millionth_of_a_detached_norm():
    def function(self, x):
        return torch.tanh(self.norm(self.f(x))) * (1 + 1e-6 * self.f.weight.detach().norm().item())

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


@case
def entries_below_a_threshold_are_zero():
    def function(self, x):
        y = self.f(x)
        return self.norm(torch.where(y > 1e-3, y, 0.0))

    return Case(Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5)), (vectors(),))


cases(
    low_rank_adapter=lambda: Case(lora(6, nn.Tanh()), (vectors(),)),
    low_rank_adapter_before_batch_norm=lambda: Case(
        lora(6, nn.BatchNorm1d(6), nn.Tanh()), (vectors(),)
    ),
    unused_weight=lambda: Case(
        Net(lambda self, x: self.used(x), used=nn.Linear(6, 3), unused=nn.Linear(6, 3)),
        (vectors(),),
    ),
    argmax_output=lambda: Case(
        nn.Sequential(mlp(6, 8, 3), Net(lambda self, x: x.argmax(-1))), (vectors(),)
    ),
    detached_output=lambda: Case(
        nn.Sequential(mlp(6, 8, 3), Net(lambda self, x: x.detach())), (vectors(),)
    ),
    deep_network_without_norm=lambda: Case(mlp(6, *[10] * 11, 3), (vectors(),)),
    deep_network_with_batch_norm=lambda: Case(
        mlp(6, *[10] * 11, 3, norm=nn.BatchNorm1d),
        (vectors(24),),
        {f"{3 * i}.weight": CHANNEL for i in range(11)},
    ),
    gradient_that_hides_the_norm=lambda: Case(
        Net(lambda self, x: torch.tanh(F.linear(x, Straight.apply(self.w))), w=parameter(4, 6)),
        (vectors(),),
    ),
    logits_below_masks_of_two_sizes=lambda: beside_features(
        lambda logits: logits + torch.tensor([0, 0, 0, -1e20, -1000000000.0])
    ),
    clipped_weights=lambda: Case(
        Net(lambda self, x: F.linear(x, self.w.clamp(-0.01, 0.01)), w=parameter(4, 6, std=0.01)),
        (vectors(),),
    ),
    a_constant_beside_the_weight=lambda: Case(
        Net(lambda self, x: F.normalize(self.f(x) + 0.01), f=linear(6, 5)), (vectors(),)
    ),
)
