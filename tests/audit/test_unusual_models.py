"""Models that are hard to copy or to repeat: a verdict, a doubt, or a sentence."""

import collections
import copy
import dataclasses
import functools

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import audit
from tests.audit.test_audit import normed
from tests.audit.zoo.parts import Net, linear


def verdicts(model, *inputs, **settings):
    return {each.name: str(each.verdict) for each in audit(model, *inputs, **settings)}


def test_a_second_copy_of_a_part_is_a_doubt():
    class Holder:
        """Its copies share nothing with the copy of the model."""

        def __init__(self, part):
            self.part = part

        def __deepcopy__(self, memo):
            return Holder(copy.deepcopy(self.part))

    net = Net(lambda self, x: self.holder.part(x), f=normed(nn.Linear(5, 2)))
    net.holder = Holder(net.f)
    found = audit(net, torch.randn(16, 6))
    assert [str(each.verdict) for each in found] == ["no evidence"] * 2
    assert "a parameter of shape (5, 6) that is not among its own" in str(found)
    assert not audit(net.f, torch.randn(16, 6)).doubts


def test_a_loss_with_parameters_of_its_own_is_no_doubt():
    criterion = nn.Linear(2, 1)
    found = audit(normed(nn.Linear(5, 2)), torch.randn(16, 6), loss=lambda y: criterion(y).mean())
    assert not found.doubts


def test_a_part_that_refuses_to_be_copied_is_named():
    class Refuses(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("there is one of me")

    with pytest.raises(ValueError, match="cannot be copied for the audit: there is one of me"):
        audit(nn.Sequential(Refuses(6, 5)), torch.randn(16, 6))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_an_eps_in_scripted_code_is_out_of_reach(kind):
    part, x = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)), torch.randn(16, 6)
    part = torch.jit.script(part) if kind == "scripted" else torch.jit.trace(part, x[:, :5])
    found = audit(normed(part, nn.Linear(5, 2)), x)
    assert [each.view for each in found] == ["channel", None, None]
    assert "which no eps explains" in found[1].reason
    assert next(part.parameters()).dtype == torch.float32


def test_a_model_without_values_is_refused():
    with pytest.raises(ValueError, match=r"0.weight is on the meta device, without values"):
        audit(normed().to("meta"), torch.randn(16, 6))


def test_float32_is_named_where_float64_fails_and_taken_by_groups():
    """As the grouped matrix products of mixtures of experts."""

    def function(self, x):
        if x.dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return self.f(x)

    net, x = Net(function, f=normed(nn.Linear(5, 2))), torch.randn(16, 6)
    for call in (lambda: audit(net, x), lambda: sn.param_groups(net, x, "sgdg")):
        with pytest.raises(
            ValueError, match=r"float64 \(no kernel for Double\).* pass dtype=torch.float32"
        ):
            call()
    groups = sn.param_groups(net, x, "sgdp", dtype=torch.float32)
    assert groups.assignments[0].treatment == "projected"


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


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    "kept",
    [
        lambda size: collections.deque([size]),
        Slotted,
        dataclasses.make_dataclass("Output", ["size"], slots=True),
        lambda size: {"loss_without_cache": size},
        lambda size: size.reshape(1).to_sparse(),
    ],
)
def test_an_output_in_any_container_shows_a_norm(kept):
    norm = nn.BatchNorm1d(5)
    net = Net(lambda self, x: (norm(self.f(x)).tanh(), kept(self.f(x).square().sum())))
    net.f = linear(6, 5)
    assert verdicts(net, torch.randn(16, 6)) == {"f.weight": "not invariant"}


@pytest.mark.parametrize("copied", [lambda self, memo: self, lambda self, memo: copy.copy(self)])
def test_a_part_whose_copy_shares_its_weights_is_refused_and_left_alone(copied):
    part = type("Part", (nn.Linear,), {"__deepcopy__": copied})(5, 2)
    before = part.weight.detach().clone()
    with pytest.raises(ValueError, match=r"f\.2\.weight of the copy is the model's own"):
        audit(Net(lambda self, x: self.f(x), f=normed(part)), torch.randn(16, 6))
    assert torch.equal(part.weight, before)


def raises(allowed, y):
    if not allowed:
        raise ValueError("out of range")
    return y


def is_nan(allowed, y):
    return y if allowed else y * torch.nan


@pytest.mark.parametrize("elsewhere", [raises, is_nan])
def test_the_second_witness_is_heard_where_the_model_gives_outputs(elsewhere):
    """They depend on a norm that no gradient shows."""

    def function(self, x):
        y = torch.tanh(self.norm(self.f(x))) * (1 + self.f.weight.detach().norm())
        return elsewhere(0.9 < self.gain.item() < 1.1, y)

    net = Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5), gain=nn.Parameter(torch.ones(())))
    finding = audit(net, torch.randn(16, 6))[0]
    assert finding.reason.startswith("scaling it changes the outputs")


def test_a_model_that_refuses_another_norm_depends_on_it():
    def function(self, x):
        return raises(float(self.f.weight.detach().norm()) < 9, self.norm(self.f(x)).tanh())

    net = Net(function, f=linear(6, 5), norm=nn.BatchNorm1d(5))
    assert verdicts(net, torch.randn(16, 6)) == {"f.weight": "not invariant"}


def product(weight, x):
    return 1e-3 * x @ weight


@pytest.mark.parametrize(
    ("keep", "view"),
    [
        (lambda w: lambda x: 1e-3 * x @ w.view(6, 6), lambda w: w.data),
        (lambda w: functools.partial(product, w.view(6, 6)), lambda w: w.T),
    ],
)
def test_a_function_that_keeps_a_view_of_a_weight_sees_it_move(keep, view):
    net = Net(lambda self, x: (self.norm(self.f(x)).tanh(), *(raw(x) for raw in self.raw)))
    net.f, net.norm = linear(6, 6), nn.BatchNorm1d(6)
    net.raw = [keep(view(net.f.weight))]
    assert verdicts(net, torch.randn(16, 6)) == {"f.weight": "not invariant"}
