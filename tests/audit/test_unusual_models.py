"""Models that are hard to copy or to repeat: a verdict, a doubt, or a sentence."""

import copy

import pytest
import torch
from torch import nn

from spherenorm import audit
from tests.audit.test_audit import normed
from tests.audit.zoo.parts import Net, linear
from tests.harness.refusals import refuses


def verdicts(model, *inputs, **settings):
    return {each.name: str(each.verdict) for each in audit(model, *inputs, **settings)}


def test_a_loss_with_parameters_of_its_own_is_no_doubt():
    criterion = nn.Linear(2, 1)
    found = audit(normed(nn.Linear(5, 2)), torch.randn(16, 6), loss=lambda y: criterion(y).mean())
    assert not found.doubts


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_an_eps_in_scripted_code_is_out_of_reach(kind):
    part, x = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), torch.randn(16, 6)
    part = torch.jit.script(part) if kind == "scripted" else torch.jit.trace(part, x[:, :5])
    found = audit(normed(part, nn.Linear(5, 2)), x)
    assert [each.view for each in found] == ["channel", None, None]
    assert "which no eps explains" in found[1].reason
    assert next(part.parameters()).dtype == torch.float32


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
