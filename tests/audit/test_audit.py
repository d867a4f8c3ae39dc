"""The audit: views, figures, arguments, and models that are hard to copy or to repeat."""

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

from spherenorm import audit, param_groups
from spherenorm.audit import Verdict
from tests.audit.zoo.parts import LayerDrop, Net, Plus, filled, linear, refuse
from tests.harness.refusals import refuses


def views(model, batch, **settings):
    return {finding.name: finding.view for finding in audit(model, batch, **settings)}


def verdicts(model, batch, **settings):
    return {each.name: str(each.verdict) for each in audit(model, batch, **settings)}


def normed(*after):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), *after)


def x(count=16):
    return torch.randn(count, 6)


BOTH = {"f.0.weight": "channel", "f.2.weight": None}


def test_the_views_asked_for_are_tried_in_order_where_they_fit():
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))
    for asked, found in {
        None: "dim=1",
        ("channel", "layer"): "layer",
        ("layer", "dim=1"): "layer",
        ("dim=-3",): "dim=-3",
        ("channel",): None,
    }.items():
        assert views(transposed, torch.randn(16, 3, 8, 8), views=asked) == {"0.weight": found}
    grouped = nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(288, 10)
    found = audit(nn.Sequential(*grouped), torch.randn(4, 3, 8, 8), views=("groups=4", "dim=3"))
    assert [each.view for each in found] == ["groups=4", None]
    assert found[1].verdict is Verdict.NO_EVIDENCE


def test_what_batch_statistics_hide_is_a_doubt():
    assert not audit(normed(), x(3)).doubts
    assert "2 values" in audit(normed(), x(2)).doubts[0]
    result = audit(normed().eval(), x())
    assert [each.view for each in result] == [None]
    assert "eval mode" in result.doubts[0]


@pytest.mark.parametrize("seed", range(3))
def test_channels_that_dropout_hides_at_some_points_make_no_view_coarser(seed):
    torch.manual_seed(seed)
    layers = (nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5))
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5))
    assert set(views(model, x(4), seed=seed).values()) == {"channel"}


def test_a_unit_that_acts_at_the_own_point_only_is_no_evidence_in_a_coarser_view():
    def function(self, x):
        seen = torch.cat([self.gate == 0, torch.ones(5, dtype=torch.bool)])
        return self.norm(self.f(x)) * seen

    net = Net(function, f=linear(6, 6), norm=nn.BatchNorm1d(6), gate=nn.Parameter(torch.zeros(1)))
    finding = audit(net, x())[0]
    assert finding.verdict is Verdict.NO_EVIDENCE
    assert "1 of 6 units of view channel" in finding.reason


def test_an_input_that_is_zero_in_the_batch_is_not_taken_for_zero():
    net = Net(
        lambda self, x, condition: self.norm(self.f(x) + self.g(condition)),
        **{"f": linear(6, 5), "g": linear(3, 5), "norm": nn.LayerNorm(5)},
    )
    found = verdicts(net, (x(8), torch.zeros(8, 3)))
    assert found == {"f.weight": "only at this point", "g.weight": "not invariant"}


@pytest.mark.parametrize("eps", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("std", [0.01, 0.02, 1.0])
def test_the_statistic_is_the_share_of_eps_in_the_variance(eps, std):
    """d log|y| / d log|w| = eps / (v + eps) for y = w / sqrt(v + eps)."""
    model = nn.Sequential(nn.Embedding(64, 256), nn.LayerNorm(256, eps, elementwise_affine=False))
    nn.init.normal_(model[0].weight, std=std)
    (finding,) = audit(model, torch.arange(64))
    share = eps / (std**2 + eps)
    assert (finding.tested, finding.units, finding.silent) == ("channel", 64, 0)
    assert max(finding.limit, finding.elsewhere) < 1e-6
    # The largest of 64 statistics, each of which is the share times a standard normal variable.
    assert 0.5 * share < finding.here < 5 * share
    assert finding.view == ("channel" if share < 0.3 else None)
    if finding.view:
        assert finding.verdict is Verdict.UP_TO_EPS if finding.here > 1e-3 else Verdict.INVARIANT


@pytest.mark.parametrize("scale", [1e-5, 1e-6, 1e-9])
def test_channels_that_an_eps_outweighs_hide_behind_no_coarser_view(scale):
    model = nn.Sequential(linear(27, 64), nn.BatchNorm1d(64), nn.Linear(64, 2))
    with torch.no_grad():
        model[0].weight[:8] *= scale
    finding = audit(model, torch.randn(64, 27))[0]
    assert finding.verdict is Verdict.NOT_INVARIANT
    assert "outweighs the variance" in finding.reason
    assert finding.tested == "channel"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_outputs_does_not_matter(scale):
    model = normed(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    found = views(model, x(), loss=Net(lambda self, y: scale * y + 1e4))
    assert found == {"0.weight": "channel", "2.weight": None, "4.weight": None}


def test_a_loss_may_have_parameters_and_take_targets_and_the_model():
    model, targets = normed(nn.Linear(5, 2)), torch.randn(16, 2)
    criterion = nn.Linear(2, 1)
    found = audit(model, x(), loss=lambda y: criterion(y).mean() + (y - targets).square().sum())
    assert [each.view for each in found] == ["channel", None]
    assert not found.doubts

    def penalized(model, output):
        return nn.functional.mse_loss(output, targets) + model[0].weight.square().sum()

    found = views(model, x(), loss=partial(penalized, model))
    assert found == {"0.weight": None, "2.weight": None}
    with refuses("(5, 6)", "partial"):
        audit(model, x(), loss=lambda output: penalized(model, output))


@pytest.mark.parametrize("fill", [torch.nan, torch.inf])  # (-inf is in the zoo)
def test_entries_that_are_not_finite_are_left_out(fill):
    hide = torch.tensor([True, False, True])
    net = Net(lambda self, x: self.f(x).masked_fill(hide, fill), f=normed(nn.Linear(5, 3)))
    assert views(net, x()) == BOTH


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend=refuse), nn.DataParallel])
def test_wrapped_models_are_audited_as_the_model_inside(wrap):
    assert views(wrap(normed(nn.Linear(5, 2))), x()) == {"0.weight": "channel", "2.weight": None}


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
    assert result.share == 30 / 57
    assert re.search(r"0.weight +5 x 6 +invariant +channel", str(result))
    assert "52.6 % of 57 parameters scale-invariant" in str(result)
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["findings"][0]["verdict"] == "invariant"
    assert plain["findings"][0]["units"] == 5
    assert plain["skipped"]["0.bias"] == "1-d"
    assert result[0] is next(iter(result))
    assert len(result[:1]) == 1
    (unseen,) = audit(filled(nn.Linear(6, 2), 0, "weight"), 0 * x()).to_dict()["findings"]
    assert unseen["here"] is None


def cut(function, **more):
    return Net(function, f=linear(6, 6), g=linear(6, 6), norm=nn.BatchNorm1d(6), **more)


def one_memory():
    net = cut(lambda self, x: self.g(self.norm(self.f(x))))
    net.g.weight = nn.Parameter(net.f.weight.detach())
    return net


def kept():
    net = cut(lambda self, x: x @ self.kept["w"])
    net.kept = {"w": net.f.weight.data}
    return net


WithSlots = type("WithSlots", (), {"__slots__": ("y",)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (one_memory, ["f.weight", "g.weight", "share memory"]),
        (kept, ["(6, 6)", ".data"]),
        (lambda: cut(lambda self, x: (self.f(x), WithSlots())), ["WithSlots", "loss"]),
        (lambda: cut(lambda self, x: (y for y in [self.f(x)])), ["generator", "loss"]),
        (lambda: cut(lambda self, x: self.f(x), lock=threading.Lock()), ["copied", "lock"]),
        (lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 6))), ["0", "torch.jit"]),
    ],
)
def test_what_cannot_be_copied_apart_or_seen_is_refused(make, named):
    with refuses(*named):
        audit(make(), x())


@pytest.mark.parametrize("copied", [lambda self, memo: self, lambda self, memo: copy.copy(self)])
def test_a_part_whose_copy_shares_its_weights_is_refused_and_left_alone(copied):
    part = type("Part", (nn.Linear,), {"__deepcopy__": copied})(5, 2)
    before = part.weight.detach().clone()
    with refuses("f.2.weight", "copy"):
        audit(Net(lambda self, x: self.f(x), f=normed(part)), x())
    assert torch.equal(part.weight, before)


@pytest.mark.parametrize("name", ["steps", "timesteps", "eps", "norm_epsilon"])
def test_a_buffer_is_an_eps_by_a_word_of_its_name(name):
    """y / (|y| + b) is invariant in the limit of an eps b, and not for any other b."""

    def function(self, x):
        y = self.f(x)
        return y / (y.norm(dim=1, keepdim=True) + getattr(self, name))

    net = Net(function, f=linear(6, 5))
    net.register_buffer(name, torch.tensor(1e-2))
    assert audit(net, x())[0].view == (None if "steps" in name else "layer")


def test_keyword_arguments_of_a_model_are_not_those_of_the_audit():
    net = Net(lambda self, *, seed, views: self.f(seed) * views, f=normed(nn.Linear(5, 2)))
    assert views(net, {"seed": x(), "views": torch.ones(2)}) == BOTH


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda m, x: audit(lambda x: x, x), TypeError, ["Module", "function"]),
        (lambda m, x: audit(m, x, views=["chanel"]), ValueError, ["view", "chanel"]),
        (lambda m, x: audit(m, x, dtype=torch.float16), TypeError, ["dtype", torch.float16]),
        (lambda m, x: audit(m, x * torch.nan), ValueError, ["finite"]),
        (lambda m, x: audit(m.append(nn.LazyLinear(3)), x), ValueError, ["2.weight", "shape"]),
        (lambda m, x: audit(m.to("meta"), x), ValueError, ["0.weight", "meta"]),
    ],
)
def test_bad_input_is_refused(call, error, named):
    with refuses(*named, by=error):
        call(normed(), x())


def test_float32_is_named_where_float64_fails_and_taken_by_groups():
    """As the grouped matrix products of mixtures of experts."""

    def function(self, x):
        if x.dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return self.f(x)

    net = Net(function, f=normed(nn.Linear(5, 2)))
    with refuses("float64", "no kernel for Double", "dtype=torch.float32"):
        audit(net, x())
    assert views(net, x(), dtype=torch.float32) == BOTH
    groups = param_groups(net, x(), "sgdp", dtype=torch.float32)
    assert groups.assignments[0].treatment == "projected"


DynamicCache = type("DynamicCache", (), {})


@pytest.mark.parametrize("place", ["object", "entry"])
def test_a_cache_of_keys_and_values_is_no_output(place):
    def function(self, x):
        values, cache = self.v(x), DynamicCache()
        cache.layers = [values]
        y = self.norm(values).tanh()
        return (y, cache) if place == "object" else {"y": y, "past_key_values": ((values,),)}

    net = Net(function, v=linear(6, 5), norm=nn.LayerNorm(5, elementwise_affine=False))
    assert views(net, x()) == {"v.weight": "layer"}


def counted(self, x):
    self.calls += 1
    return (1 + self.calls) * self.f(x)


def own_generator(self, x):
    return torch.rand(len(x), 1, generator=self.generator).to(x) * self.f(x)


@pytest.mark.parametrize("function", [counted, own_generator])
def test_passes_that_differ_by_themselves_are_a_doubt(function):
    net = Net(function, f=normed(nn.Linear(5, 2)))
    net.calls, net.generator = 0, torch.Generator().manual_seed(0)
    found = audit(net, x())
    assert [str(each.verdict) for each in found] == ["invariant", "not invariant"]
    assert "passes differ by themselves" in found.doubts[0]


def test_a_parameter_of_another_model_is_a_doubt():
    other = nn.Parameter(torch.ones(2))
    net = Net(lambda self, x: self.f(x) * other, f=nn.Linear(6, 2))
    assert "not among its own" in audit(net, x()).doubts[0]


def test_outputs_whose_shapes_depend_on_values():
    net = Net(lambda self, x: (y := self.f(x))[y > 0], f=normed(nn.Linear(5, 2)))
    assert views(net, x(300)) == BOTH


@pytest.mark.parametrize("place", ["gain", "norm"])
def test_a_norm_that_no_gradient_shows_is_seen_where_the_model_runs(place):
    """It refuses to run far from its own gain, or at another norm of the weight."""

    def function(self, x):
        norm = self.f.weight.detach().norm()
        if not (0.9 < self.gain.item() < 1.1 if place == "gain" else float(norm) < 9):
            raise ValueError("out of range")
        return torch.tanh(self.norm(self.f(x))) * (1 + norm if place == "gain" else 1)

    net = Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5), gain=nn.Parameter(torch.ones(())))
    assert verdicts(net, x()) == {"f.weight": "not invariant"}


def test_a_hook_that_changes_the_output_counts_in_any_mode_of_gradients():
    model, scale = nn.Sequential(linear(6, 5), nn.Tanh()), torch.tensor(3.0)
    assert views(model, x()) == {"0.weight": None}
    model[0].register_forward_hook(lambda _, inputs, y: scale * nn.functional.normalize(y))
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            assert views(model, x()) == {"0.weight": "layer"}


# An audit leaves everything of the caller's as it was.


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
    model.calls, model.history, kept = 0, [], model.kept
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
    assert model.kept is kept
    assert not layer.weight.requires_grad
    assert model.body[2].body[0].weight.grad is None
    assert global_state() == state


@pytest.mark.parametrize(
    "function", [lambda s, x: s.f(x) * torch.nan, lambda s, x: s.f(x) @ s.f(x)]
)
def test_nothing_changes_after_an_error(function):
    state = global_state()
    model = Net(function, f=nn.Linear(4, 3))
    torch.set_rng_state(torch.tensor(state[2], dtype=torch.uint8))
    with pytest.raises((ValueError, RuntimeError)):
        audit(model, torch.ones(2, 4))
    assert global_state() == state
