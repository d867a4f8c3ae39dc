"""The audit: arguments, figures, refusals, caveats, and that it leaves everything as it was."""

import copy
import json
import random
import re
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import CheckpointFunction, checkpoint_sequential

from spherenorm import audit, param_groups
from spherenorm.audit import Verdict
from tests.audit.zoo.parts import LayerDrop, Net, Plus, filled, linear, refuse
from tests.harness.refusals import refuses


def views(model, batch, **settings):
    return {finding.name: finding.view for finding in audit(model, batch, **settings)}


def normed(*after):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), *after)


def x(count=16):
    return torch.randn(count, 6)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_parts_are_read_as_plain_calls(use_reentrant):
    """Audit, roles and groups are those of the model without checkpoints, which it keeps."""
    parts = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    head, batch = nn.Linear(5, 2), x()

    def checkpointed(self, inputs):
        inputs = inputs.clone().requires_grad_()
        return self.h(checkpoint_sequential(self.f, 2, inputs, use_reentrant=use_reentrant))

    without_embedding = Net(lambda self, inputs: self.h(self.f(inputs)), f=parts, h=head)
    model = Net(checkpointed, f=parts, h=head)
    for recipe in ("adamp", "muon+adamw"):
        assert str(param_groups(model, batch, recipe)) == str(
            param_groups(without_embedding, batch, recipe)
        )
    assert str(audit(model, batch)) == str(audit(without_embedding, batch))
    assert "apply" not in vars(CheckpointFunction)
    model(batch).square().mean().backward()


class OwnCheckpoint(torch.autograd.Function):
    """As libraries have them, beside torch's."""

    @staticmethod
    def forward(ctx, run, inputs):
        ctx.run, ctx.inputs = run, inputs.detach().requires_grad_()
        with torch.no_grad():
            return run(inputs)

    @staticmethod
    def backward(ctx, grad):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("Checkpointing is not compatible with .grad()")
        with torch.enable_grad():
            torch.autograd.backward(ctx.run(ctx.inputs), grad)
        return None, ctx.inputs.grad


def test_a_checkpointing_function_of_another_library_is_refused_with_the_reason():
    def forward(self, inputs):
        return OwnCheckpoint.apply(self.f, self.g(inputs))

    with refuses("checkpointing", "switch"):
        audit(Net(forward, f=normed(nn.Linear(5, 2)), g=nn.Linear(6, 6)), x())


BOTH = {"f.0.weight": "channel", "f.2.weight": None}


def test_the_views_asked_for_are_tried_in_order_where_they_fit():
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))
    for requested, expected in {
        None: "dim=1",
        "layer": "layer",
        ("channel", "layer"): "layer",
        ("layer", "dim=1"): "layer",
        ("dim=-3",): "dim=-3",
        ("channel",): None,
    }.items():
        assert views(transposed, torch.randn(16, 3, 8, 8), views=requested) == {
            "0.weight": expected
        }
    grouped = nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(288, 10)
    result = audit(nn.Sequential(*grouped), torch.randn(4, 3, 8, 8), views=("groups=4", "dim=3"))
    assert [finding.view for finding in result] == ["groups=4", None]
    assert result[1].verdict is Verdict.NO_EVIDENCE


@pytest.mark.parametrize("eps", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("std", [0.01, 0.02, 1.0])
def test_the_statistic_is_the_share_of_eps_in_the_variance(eps, std):
    """d log|y| / d log|w| = eps / (v + eps) for y = w / sqrt(v + eps)."""
    model = nn.Sequential(nn.Embedding(64, 256), nn.LayerNorm(256, eps, elementwise_affine=False))
    nn.init.normal_(model[0].weight, std=std)
    (finding,) = audit(model, torch.arange(64))
    share = eps / (std**2 + eps)
    assert (finding.tested, finding.units, finding.silent) == ("channel", 64, 0)
    assert max(finding.at_tiny_eps, finding.at_jittered_points) < 1e-6
    # The largest of 64 statistics, each of which is the share times a standard normal variable.
    assert 0.5 * share < finding.at_own_point < 5 * share
    assert finding.view == ("channel" if share < 0.3 else None)
    if finding.view:
        assert (
            finding.verdict is Verdict.UP_TO_EPS
            if finding.at_own_point > 1e-3
            else Verdict.INVARIANT
        )


def test_a_loss_may_have_parameters_and_take_targets_and_the_model():
    model, targets = normed(nn.Linear(5, 2)), torch.randn(16, 2)
    criterion = nn.Linear(2, 1)
    result = audit(model, x(), loss=lambda y: criterion(y).mean() + (y - targets).square().sum())
    assert [finding.view for finding in result] == ["channel", None]
    assert not result.caveats

    def penalized(model, output):
        return F.mse_loss(output, targets) + model[0].weight.square().sum()

    view_by_name = views(model, x(), loss=partial(penalized, model))
    assert view_by_name == {"0.weight": None, "2.weight": None}
    with refuses("(5, 6)", "partial"):
        audit(model, x(), loss=lambda output: penalized(model, output))


DynamicCache = type("DynamicCache", (), {})


def with_cache(self, x):
    """Keys and values are no outputs, neither as an object nor as an entry."""
    values, cache = self.f[0](x), DynamicCache()
    cache.layers = [values]
    y = self.f[2](self.f[1](values))
    return {"y": (y, cache), "past_key_values": ((values,),)}


def ordinary(self, x):
    return self.f(x)


def with_hook(model):
    model.f[2].register_forward_hook(lambda _, inputs, y: 3 * F.normalize(y, dim=0))
    return model


HIDE = torch.tensor([torch.nan, 1.0, torch.inf])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("function", "wrap", "head"),
    [
        (with_cache, lambda m: m, None),
        (lambda self, x: (y := self.f(x))[y > 0], lambda m: m, None),  # of a shape of its own
        (lambda self, x: torch.where(HIDE.isfinite(), self.f(x), HIDE), lambda m: m, None),
        (ordinary, with_hook, "channel"),
        (ordinary, partial(torch.compile, backend=refuse), None),
        (ordinary, nn.DataParallel, None),
    ],
)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_outputs_hooks_and_wrappers_of_any_kind(function, wrap, head, context):
    model, batch = wrap(Net(function, f=normed(linear(5, 3)))), x(300)
    with context():
        assert views(model, batch) == {"f.0.weight": "channel", "f.2.weight": head}


def test_skipped_parameters_have_a_reason():
    model = normed(nn.Linear(5, 2))
    model[2].weight.requires_grad_(False)
    model.empty, model.scalar = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.ones(()))
    model.complex = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    assert audit(model, x()).skipped == {
        **{"empty": "empty", "scalar": "0-d", "complex": "complex", "2.weight": "frozen"},
        **{"0.bias": "1-d", "1.weight": "1-d", "1.bias": "1-d", "2.bias": "1-d"},
    }


def test_the_result_prints_and_is_json():
    result = audit(normed(nn.Linear(5, 2)), 10 * x())  # so that no eps matters
    assert result.invariant_share == 30 / 57
    assert re.search(r"0.weight +5 x 6 +invariant +channel", str(result))
    assert "52.6 % of 57 parameters scale-invariant" in str(result)
    entries = json.loads(json.dumps(result.to_dict()))
    assert entries["findings"][0]["verdict"] == "invariant"
    assert entries["findings"][0]["units"] == 5
    assert entries["skipped"]["0.bias"] == "1-d"
    assert result[0] is next(iter(result))
    assert len(result[:1]) == 1
    (unseen,) = audit(filled(nn.Linear(6, 2), 0, "weight"), 0 * x()).to_dict()["findings"]
    assert unseen["at_own_point"] is None


def counted(self, x):
    self.calls += 1
    return (1 + self.calls) * self.f(x)


def own_generator(self, x):
    return torch.rand(len(x), 1, generator=self.generator).to(x) * self.f(x)


def make(function, **more):
    more = {"f": normed(nn.Linear(5, 2)), "calls": 0, **more}
    return Net(function, generator=torch.Generator().manual_seed(0), **more)


FOREIGN = nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("model", "count", "doubt", "view"),
    [
        (lambda: make(ordinary), 3, "", "channel"),
        (lambda: make(ordinary), 2, "2 values", None),
        (lambda: make(ordinary).eval(), 16, "eval mode", None),
        (lambda: make(lambda self, x: self.f(x) * FOREIGN), 16, "not among its own", "channel"),
        (lambda: make(counted), 16, "passes differ by themselves", "channel"),
        (lambda: make(own_generator), 16, "passes differ by themselves", "channel"),
    ],
)
def test_what_makes_an_audit_doubtful_is_said(model, count, doubt, view):
    result = audit(model(), x(count))
    assert [doubt in caveat for caveat in result.caveats] == [True] * bool(doubt)
    assert [finding.view for finding in result] == [view, None] or count == 2


def shared():
    net = make(lambda self, x: self.f(x), g=linear(6, 5))
    net.g.weight = nn.Parameter(net.f[0].weight.detach())
    return net


def kept():
    net = make(lambda self, x: F.linear(x, self.kept["w"]))
    net.kept = {"w": net.f[0].weight.data}
    return net


def copied_by(copied):
    return make(ordinary, f=normed(type("Part", (nn.Linear,), {"__deepcopy__": copied})(5, 2)))


def only_float32(self, x):
    """As the grouped matrix products of mixtures of experts."""
    if x.dtype is torch.float64:
        raise RuntimeError("no kernel for Double")
    return self.f(x)


WithSlots = type("WithSlots", (), {"__slots__": ("y",)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "settings", "named"),
    [
        (lambda: lambda x: x, {}, ["Module", "function"]),
        (normed, {"views": ["chanel"]}, ["view", "chanel"]),
        (normed, {"dtype": torch.float16}, ["dtype", torch.float16]),
        (lambda: make(lambda self, x: self.f(x) * torch.nan), {}, ["finite"]),
        (lambda: normed(nn.LazyLinear(3)), {}, ["2.weight", "shape"]),
        (lambda: normed().to("meta"), {}, ["0.weight", "meta"]),
        (shared, {}, ["f.0.weight", "g.weight", "share memory"]),
        (kept, {}, ["(5, 6)", ".data"]),
        (lambda: make(lambda self, x: (self.f(x), WithSlots())), {}, ["WithSlots", "loss"]),
        (lambda: make(lambda self, x: (y for y in [self.f(x)])), {}, ["generator", "loss"]),
        (lambda: make(ordinary, lock=threading.Lock()), {}, ["copied", "lock"]),
        (lambda: normed(torch.jit.script(nn.Linear(5, 6))), {}, ["2", "torch.jit"]),
        (lambda: copied_by(lambda self, memo: self), {}, ["f.2.", "copy"]),
        (lambda: copied_by(lambda self, memo: copy.copy(self)), {}, ["f.2.", "copy"]),
        (lambda: make(only_float32), {}, ["float64", "no kernel for Double", torch.float32]),
    ],
)
def test_what_cannot_be_audited_is_refused_and_left_alone(model, settings, named):
    net = model()
    parameters = list(net.parameters()) if isinstance(net, nn.Module) else []
    before = [
        p.detach().clone() for p in parameters if not nn.parameter.is_lazy(p) and not p.is_meta
    ]
    state = global_state()
    with refuses(*named, by=(ValueError, TypeError)):
        audit(net, torch.ones(16, 6), **settings)
    assert all(map(torch.equal, before, parameters))
    assert global_state() == state


def test_float32_is_taken_by_the_audit_and_by_groups():
    net = make(only_float32)
    assert views(net, x(), dtype=torch.float32) == BOTH
    groups = param_groups(net, audit(net, x(), dtype=torch.float32), "sgdp")
    assert groups.assignments[0].treatment == "projected"


@pytest.mark.parametrize("name", ["steps", "timesteps", "eps", "norm_epsilon"])
def test_a_buffer_is_an_eps_by_a_word_of_its_name(name):
    """y / (|y| + b) is invariant in the limit of an eps b, and not for any other b."""

    def function(self, x):
        y = self.f(x)
        return y / (y.norm(dim=1, keepdim=True) + getattr(self, name))

    net = Net(function, f=linear(6, 5))
    net.register_buffer(name, torch.tensor(1e-2))
    assert audit(net, x())[0].view == (None if "steps" in name else "layer")


@pytest.mark.parametrize("place", ["gain", "norm"])
def test_a_norm_that_no_gradient_shows_is_seen_where_the_model_runs(place):
    """It refuses to run far from its own gain, or at another norm of the weight."""

    def function(self, x):
        norm = self.f.weight.detach().norm()
        if not (0.9 < self.gain.item() < 1.1 if place == "gain" else float(norm) < 9):
            raise ValueError("out of range")
        return torch.tanh(self.norm(self.f(x))) * (1 + norm if place == "gain" else 1)

    net = Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5), gain=nn.Parameter(torch.ones(())))
    assert audit(net, x())[0].verdict is Verdict.NOT_INVARIANT


def messy_model():
    """It changes its inputs, its buffers and a counter, draws random numbers, and keeps tensors."""

    def function(self, x, index, nested):
        self.calls += 1
        self.kept = self.body(x.clone())
        x.mul_(2)
        index.add_(0 if index.sum() else 1)
        nested["list"][0].zero_()
        nested["new"] = 1
        self.history.append(random.random() + np.random.rand() + torch.rand(()).item())
        return self.kept

    blocks = (Plus(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)) for _ in range(2))
    body = nn.Linear(4, 4), nn.BatchNorm1d(4), *blocks, LayerDrop(nn.Linear(4, 4))
    return Net(function, body=nn.Sequential(*body), calls=0, history=[])


def batch(dtype):
    return torch.randn(8, 4).to(dtype), torch.zeros(3, dtype=torch.long), {"list": [torch.ones(2)]}


def global_state():
    torch_state = torch.get_rng_state().tolist(), torch.get_default_dtype()
    return random.getstate(), np.random.get_state()[1].tolist(), *torch_state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_of_the_callers_changes(dtype):
    model, inputs = messy_model().to(dtype), batch(dtype)
    model(*batch(dtype))  # which keeps a tensor with a graph
    model.calls, model.history, buffer = 0, [], model.kept
    closed, layer = [], model.body[0]
    layer.weight.register_hook(closed.append)
    layer.weight.requires_grad_(False)
    model.body[1].eval()
    layer.bias.grad = torch.ones(4, dtype=dtype)
    before = copy.deepcopy((model.state_dict(), inputs, layer.bias.grad))
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    state = global_state()

    audit(model, inputs)

    after = model.state_dict(), inputs, layer.bias.grad
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert flags == [(m.training, len(m._forward_hooks)) for m in model.modules()]
    assert (model.calls, model.history, closed) == (0, [], [])
    assert model.kept is buffer
    assert not layer.weight.requires_grad
    assert model.body[2].body[0].weight.grad is None
    assert global_state() == state
