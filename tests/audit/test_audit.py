"""The audit: views, figures, arguments, and models that are hard to copy or to repeat."""

import copy
import json
import re
import threading
from functools import partial

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import audit
from spherenorm.audit import Verdict
from tests.audit.zoo.interfaces import refuse
from tests.audit.zoo.parts import Net, linear
from tests.harness.refusals import refuses


def views(model, batch, **kwargs):
    return {finding.name: finding.view for finding in audit(model, batch, **kwargs)}


def normed(*after):
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), *after)


def test_the_views_asked_for_are_tried_in_order():
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))
    x = torch.randn(16, 3, 8, 8)
    assert views(transposed, x) == {"0.weight": "dim=1"}
    assert views(transposed, x, views=("channel", "layer")) == {"0.weight": "layer"}
    assert views(transposed, x, views=("layer", "dim=1")) == {"0.weight": "layer"}
    assert views(transposed, x, views=("dim=-3",)) == {"0.weight": "dim=-3"}
    assert views(transposed, x, views=("channel",)) == {"0.weight": None}


def test_a_view_that_does_not_fit_a_weight_is_left_out_for_it():
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.Flatten(), nn.Linear(288, 10))
    )
    x = torch.randn(4, 3, 8, 8)
    findings = audit(model, x, views=("groups=4", "dim=3"))
    assert [each.view for each in findings] == ["groups=4", None]
    assert findings[1].verdict is Verdict.NO_EVIDENCE
    assert findings[1].reason == "none of the views fits it"


def test_in_eval_mode_batch_statistics_are_constants():
    model, x = normed(), torch.randn(16, 6)
    assert views(model, x) == {"0.weight": "channel"}
    assert not audit(model, x).doubts
    result = audit(model.eval(), x)
    assert [each.view for each in result] == [None]
    assert "eval mode" in result.doubts[0]


def test_two_values_for_batch_statistics_are_doubtful():
    assert "2 values" in audit(normed(), torch.randn(2, 6)).doubts[0]
    assert not audit(normed(), torch.randn(3, 6)).doubts


@pytest.mark.parametrize("seed", range(3))
def test_channels_that_dropout_hides_at_some_points_make_no_view_coarser(seed):
    torch.manual_seed(seed)
    layers = (nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5))
    model = nn.Sequential(*layers, nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5))
    assert set(views(model, torch.randn(4, 6), seed=seed).values()) == {"channel"}


def test_a_unit_that_acts_at_the_own_point_only_is_no_evidence_in_a_coarser_view():
    def function(self, x):
        seen = torch.cat([self.gate == 0, torch.ones(5, dtype=torch.bool)])
        return self.norm(self.f(x)) * seen

    net = Net(function, f=linear(6, 6), norm=nn.BatchNorm1d(6), gate=nn.Parameter(torch.zeros(1)))
    finding = audit(net, torch.randn(16, 6))[0]
    assert finding.verdict is Verdict.NO_EVIDENCE
    assert finding.reason.startswith("1 of 6 units of view channel act at this point only")


def test_an_input_that_is_zero_in_the_batch_is_not_taken_for_zero():
    net = Net(
        lambda self, x, condition: self.norm(self.f(x) + self.g(condition)),
        **{"f": linear(6, 5), "g": linear(3, 5), "norm": nn.LayerNorm(5)},
    )
    findings = audit(net, (torch.randn(8, 6), torch.zeros(8, 3)))
    assert [str(each.verdict) for each in findings] == ["only at this point", "not invariant"]


@pytest.mark.parametrize("eps", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("std", [0.01, 0.02, 1.0])
def test_the_statistic_is_the_share_of_eps_in_the_variance(eps, std):
    """d log|y| / d log|w| = eps / (v + eps) for y = w / sqrt(v + eps)."""
    model = nn.Sequential(nn.Embedding(64, 256), nn.LayerNorm(256, eps, elementwise_affine=False))
    nn.init.normal_(model[0].weight, std=std)
    (finding,) = audit(model, torch.arange(64))
    share = eps / (std**2 + eps)
    figures = finding.figures["channel"]
    assert figures.limit < 1e-6
    assert figures.elsewhere < 1e-6
    # The largest of 64 statistics, each of which is the share times a standard normal variable.
    assert 0.5 * share < figures.here < 5 * share
    expected = "channel" if share < 0.3 else None
    assert finding.view == expected
    if expected:
        verdict = Verdict.UP_TO_EPS if figures.here > 1e-3 else Verdict.INVARIANT
        assert finding.verdict is verdict


@pytest.mark.parametrize("scale", [1e-5, 1e-6, 1e-9])
def test_channels_that_an_eps_outweighs_hide_behind_no_coarser_view(scale):
    torch.manual_seed(0)
    first = nn.Linear(27, 64, bias=False)
    with torch.no_grad():
        first.weight[:8] *= scale
    model = nn.Sequential(first, nn.BatchNorm1d(64), nn.Linear(64, 2))
    finding = audit(model, torch.randn(64, 27))[0]
    assert finding.verdict is Verdict.NOT_INVARIANT
    assert "outweighs the variance" in finding.reason
    assert "view channel" in finding.reason


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_outputs_does_not_matter(scale):
    model = normed(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    loss = Net(lambda self, y: scale * y + 1e4)
    found = views(model, torch.randn(16, 6), loss=loss)
    assert found == {"0.weight": "channel", "2.weight": None, "4.weight": None}


def test_a_loss_may_take_targets_and_the_model_as_an_argument():
    model, targets, x = normed(nn.Linear(5, 2)), torch.randn(16, 2), torch.randn(16, 6)
    cross_entropy = nn.CrossEntropyLoss()
    found = views(model, x, loss=lambda output: cross_entropy(output, targets.argmax(1)))
    assert found == {"0.weight": "channel", "2.weight": None}

    def penalized(model, output):
        return nn.functional.mse_loss(output, targets) + model[0].weight.square().sum()

    found = views(model, x, loss=partial(penalized, model))
    assert found == {"0.weight": None, "2.weight": None}
    with refuses("(5, 6)", "partial"):
        audit(model, x, loss=lambda output: penalized(model, output))


@pytest.mark.parametrize("fill", [torch.nan, torch.inf])  # (-inf is in the zoo)
def test_entries_that_are_not_finite_are_left_out(fill):
    hide = torch.tensor([True, False, True])
    net = Net(lambda self, x: self.f(x).masked_fill(hide, fill), f=normed(nn.Linear(5, 3)))
    assert views(net, torch.randn(16, 6)) == {"f.0.weight": "channel", "f.2.weight": None}


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend=refuse), nn.DataParallel])
def test_wrapped_models_are_audited_as_the_model_inside(wrap):
    inner = normed(nn.Linear(5, 2))
    assert views(wrap(inner), torch.randn(16, 6)) == {"0.weight": "channel", "2.weight": None}


def test_skipped_parameters_have_a_reason():
    model = normed(nn.Linear(5, 2))
    model[2].weight.requires_grad_(False)
    model.empty, model.scalar = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.ones(()))
    model.complex = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    skipped = {each.name: each.reason for each in audit(model, torch.randn(16, 6)).skipped}
    assert skipped == {
        **{"empty": "empty", "scalar": "0-d", "complex": "complex", "2.weight": "frozen"},
        **{"0.bias": "1-d", "1.weight": "1-d", "1.bias": "1-d", "2.bias": "1-d"},
    }


def test_the_result_prints_and_is_json():
    result = audit(normed(nn.Linear(5, 2)), 10 * torch.randn(16, 6))  # so that no eps matters
    assert result.share == 30 / 57
    assert re.search(r"0.weight +5 x 6 +invariant +channel", str(result))
    assert "52.6 % of 57 parameters scale-invariant" in str(result)
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["findings"][0]["verdict"] == "invariant"
    assert plain["findings"][0]["figures"]["channel"]["units"] == 5
    assert plain["skipped"][0] == {"name": "0.bias", "shape": [5], "reason": "1-d"}
    assert result[0] is next(iter(result))
    assert len(result[:1]) == 1


@pytest.mark.parametrize("gain", [1, 12])
def test_an_output_far_smaller_than_another_is_seen(gain):
    """A head that is linear in the weight, beside one that grows exponentially."""

    def forward(self, x):
        y = self.stem(x)
        return torch.cat([(gain * self.norm(y)).exp(), y], 1)

    net = Net(forward, stem=linear(6, 5), norm=nn.BatchNorm1d(5))
    assert verdicts(net, torch.randn(64, 6)) == {"stem.weight": "not invariant"}


class WithSlots:
    __slots__ = ("y",)

    def __init__(self, y):
        self.y = y


def alias(net):
    net.kept = {"w": net.f.weight.data}
    return net


def cut(function, **more):
    net = Net(function, f=linear(6, 6), g=linear(6, 6), norm=nn.BatchNorm1d(6))
    for name, value in more.items():
        setattr(net, name, value)
    return net


def one_memory():
    net = cut(lambda self, x: self.g(self.norm(self.f(x))))
    net.g.weight = nn.Parameter(net.f.weight.detach())
    return net


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (one_memory, ["f.weight", "g.weight", "share memory"]),
        (lambda: alias(cut(lambda self, x: x @ self.kept["w"])), ["(6, 6)", ".data"]),
        (lambda: cut(lambda self, x: WithSlots(self.f(x))), ["WithSlots", "loss"]),
        (lambda: cut(lambda self, x: (y for y in [self.f(x)])), ["generator", "loss"]),
        (lambda: cut(lambda self, x: self.f(x), lock=threading.Lock()), ["copied", "lock"]),
        (lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 6))), ["0", "torch.jit"]),
    ],
)
def test_what_cannot_be_copied_apart_or_seen_is_refused(make, named):
    with refuses(*named):
        audit(make(), torch.randn(16, 6))


@pytest.mark.parametrize("name", ["steps", "timesteps", "eps", "norm_epsilon"])
def test_a_buffer_is_an_eps_by_a_word_of_its_name(name):
    """y / (|y| + b) is invariant in the limit of an eps b, and not for any other b."""

    def function(self, x):
        y = self.f(x)
        return y / (y.norm(dim=1, keepdim=True) + getattr(self, name))

    net = Net(function, f=linear(6, 5))
    net.register_buffer(name, torch.tensor(1e-2))
    assert audit(net, torch.randn(16, 6))[0].view == (
        None if name in ("steps", "timesteps") else "layer"
    )


def test_keyword_arguments_of_a_model_are_not_those_of_the_audit():
    net = Net(lambda self, *, seed, views: self.f(seed) * views, f=normed(nn.Linear(5, 2)))
    found = views(net, {"seed": torch.randn(16, 6), "views": torch.ones(2)})
    assert found == {"f.0.weight": "channel", "f.2.weight": None}


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda m, x: audit(lambda x: x, x), TypeError, ["Module", "function"]),
        (lambda m, x: audit(m, x, views=["chanel"]), ValueError, ["view", "chanel"]),
        (lambda m, x: audit(m, x, dtype=torch.float16), TypeError, ["dtype", torch.float16]),
        (lambda m, x: audit(m, x * torch.nan), ValueError, ["finite"]),
        (lambda m, x: audit(m, x, view="layer"), TypeError, ["view"]),
        (lambda m, x: audit(m.append(nn.LazyLinear(3)), x), ValueError, ["2.weight", "shape"]),
        (lambda m, x: audit(m.to("meta"), x), ValueError, ["0.weight", "meta"]),
    ],
)
def test_bad_input_is_refused(call, error, named):
    with refuses(*named, by=error):
        call(normed(), torch.randn(16, 6))


def test_float32_is_named_where_float64_fails_and_taken_by_groups():
    """As the grouped matrix products of mixtures of experts."""

    def function(self, x):
        if x.dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return self.f(x)

    net, x = Net(function, f=normed(nn.Linear(5, 2))), torch.randn(16, 6)
    for call in (lambda: audit(net, x), lambda: sn.param_groups(net, x, "sgdg")):
        with refuses("no kernel for Double", "dtype=torch.float32"):
            call()
    assert views(net, x, dtype=torch.float32) == {"f.0.weight": "channel", "f.2.weight": None}
    groups = sn.param_groups(net, x, "sgdp", dtype=torch.float32)
    assert groups.assignments[0].treatment == "projected"


def verdicts(model, batch, **settings):
    return {each.name: str(each.verdict) for each in audit(model, batch, **settings)}


def test_a_loss_with_parameters_of_its_own_is_no_doubt():
    criterion = nn.Linear(2, 1)
    found = audit(normed(nn.Linear(5, 2)), torch.randn(16, 6), loss=lambda y: criterion(y).mean())
    assert not found.doubts


class DynamicCache:
    def __init__(self, keys, values):
        self.layers = [keys, values]


@pytest.mark.parametrize(
    "output",
    [
        lambda y, k, v: (y, DynamicCache(k, v)),
        lambda y, k, v: {"logits": y, "past_key_values": ((k, v),)},
    ],
)
def test_a_cache_of_keys_and_values_is_no_output(output):
    norm = nn.LayerNorm(5, elementwise_affine=False)
    net = Net(lambda self, x: output(norm(self.v(x)).tanh(), x, self.v(x)), v=linear(6, 5))
    assert [each.view for each in audit(net, torch.randn(16, 6))] == ["layer"]


def counted(self, x):
    self.calls += 1
    return (1 + self.calls) * self.f(x)


def own_generator(self, x):
    return torch.rand(len(x), 1, generator=self.generator).to(x) * self.f(x)


@pytest.mark.parametrize("function", [counted, own_generator])
def test_passes_that_differ_by_themselves_are_a_doubt(function):
    net = Net(function, f=normed(nn.Linear(5, 2)))
    net.calls, net.generator = 0, torch.Generator().manual_seed(0)
    found = audit(net, torch.randn(16, 6))
    assert [str(each.verdict) for each in found] == ["invariant", "not invariant"]
    assert "passes differ by themselves" in found.doubts[0]


def test_outputs_whose_shapes_depend_on_values():
    def function(self, x):
        y = self.f(x)
        return y[y > 0]

    net = Net(function, f=nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    found = verdicts(net, torch.randn(300, 6))
    assert found == {"f.0.weight": "invariant", "f.2.weight": "not invariant"}


@pytest.mark.parametrize("copied", [lambda self, memo: self, lambda self, memo: copy.copy(self)])
def test_a_part_whose_copy_shares_its_weights_is_refused_and_left_alone(copied):
    part = type("Part", (nn.Linear,), {"__deepcopy__": copied})(5, 2)
    before = part.weight.detach().clone()
    with refuses("f.2.weight", "copy"):
        audit(Net(lambda self, x: self.f(x), f=normed(part)), torch.randn(16, 6))
    assert torch.equal(part.weight, before)


@pytest.mark.parametrize("place", ["gain", "norm"])
def test_a_norm_that_no_gradient_shows_is_seen_where_the_model_runs(place):
    """It refuses to run far from its own gain, or at another norm of the weight."""

    def function(self, x):
        norm = self.f.weight.detach().norm()
        if not (0.9 < self.gain.item() < 1.1 if place == "gain" else float(norm) < 9):
            raise ValueError("out of range")
        return torch.tanh(self.norm(self.f(x))) * (1 + norm if place == "gain" else 1)

    net = Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5), gain=nn.Parameter(torch.ones(())))
    assert verdicts(net, torch.randn(16, 6)) == {"f.weight": "not invariant"}
