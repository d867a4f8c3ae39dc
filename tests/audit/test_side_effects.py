"""An audit leaves everything of the caller's as it was."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from spherenorm import audit
from tests.audit.zoo.parts import LayerDrop, Net, Plus

SEEN = []


class Recorder:
    def __init__(self):
        self.calls = []

    def hook(self, module, inputs, output):
        self.calls.append(output)

    def __call__(self, module, inputs):
        self.calls.append(inputs)


def record_globally(module, inputs, output):
    SEEN.append(output)


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
    model = Net(function, body=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), *blocks))
    model.body.append(LayerDrop(nn.Linear(4, 4)))
    model.calls, model.history = 0, []
    return model


def batch(dtype):
    return torch.randn(8, 4).to(dtype), torch.zeros(3, dtype=torch.long), {"list": [torch.ones(2)]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_of_the_callers_changes(dtype):
    model, inputs = messy_model().to(dtype), batch(dtype)
    recorder, closed = Recorder(), []
    layer = model.body[0]
    layer.register_forward_hook(recorder.hook)
    layer.register_forward_pre_hook(recorder)
    layer.register_forward_hook(lambda module, inputs, output: closed.append(output))
    layer.register_forward_hook(record_globally)
    layer.weight.register_hook(closed.append)
    layer.weight.requires_grad_(False)
    model.body[1].eval()
    layer.bias.grad = torch.ones(4, dtype=dtype)
    before = copy.deepcopy((model.state_dict(), inputs, layer.bias.grad))
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    SEEN.clear()

    audit(model, *inputs)

    after = model.state_dict(), inputs, layer.bias.grad
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert flags == [(m.training, len(m._forward_hooks)) for m in model.modules()]
    assert (model.calls, model.history) == (0, [])
    assert "kept" not in vars(model)
    assert not recorder.calls
    assert not closed
    assert not SEEN
    assert not layer.weight.requires_grad
    assert model.body[2].body[0].weight.grad is None
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])
    assert torch.get_default_dtype() == torch.float32


def test_nothing_changes_after_an_error():
    model = Net(lambda self, x: self.f(x).sum() / 0 * torch.nan, f=nn.Linear(4, 2))
    state, numpy_state = random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(ValueError, match="not finite"):
        audit(model, torch.randn(2, 4))
    model = Net(lambda self, x: self.f(x) @ self.f(x), f=nn.Linear(4, 3))
    with pytest.raises(RuntimeError):
        audit(model, torch.randn(2, 4))
    assert torch.get_default_dtype() == torch.float32
    assert random.getstate() == state
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_a_hook_that_changes_the_output_counts():
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh())
    assert audit(model, torch.randn(8, 6))[0].view is None
    scale = torch.tensor(3.0)
    model[0].register_forward_hook(
        lambda module, inputs, output: scale * nn.functional.normalize(output)
    )
    assert audit(model, torch.randn(8, 6))[0].view == "layer"


def test_tensors_of_the_last_forward_pass_do_not_matter():
    model = messy_model()
    model(*batch(torch.float32))  # which keeps a tensor with a graph
    assert audit(model, *batch(torch.float32))[0].view == "channel"


def test_no_grad_and_inference_mode_do_not_matter():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh()), torch.randn(8, 6)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert audit(model, x)[0].view == "channel"
            assert audit(model, torch.randn(8, 6))[0].view == "channel"


GLOBAL = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
CRITERION = nn.Linear(2, 1)


def penalty():
    return sum(weight.square().sum() for weight in GLOBAL.parameters())


def penalized(output):
    return CRITERION(output).square().mean() + 0.1 * penalty()


def test_a_loss_that_names_the_model_by_a_global_is_of_the_copy():
    """It has a penalty on all weights: none is invariant, and no gradient of the caller's grows."""
    CRITERION.weight.grad = torch.ones(1, 2)
    found = audit(GLOBAL, torch.randn(16, 4), loss=penalized)
    assert [str(each.verdict) for each in found] == ["not invariant"] * 2
    assert all(weight.grad is None for weight in GLOBAL.parameters())
    assert CRITERION.weight.grad.tolist() == [[1.0, 1.0]]
    assert CRITERION.bias.grad is None
    plain = audit(GLOBAL, torch.randn(16, 4), loss=lambda output: CRITERION(output).square().mean())
    assert [each.view for each in plain] == ["channel", None]


def test_functions_that_a_model_keeps_in_a_container_use_the_copy():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
            self.head = nn.Linear(3, 2, bias=False)
            self.ways = {"usual": lambda x: self.body(x) @ self.head.weight.T}

        def forward(self, x):
            return self.ways["usual"](x)

    model = Kept()
    before = copy.deepcopy(model.state_dict())
    found = audit(model, torch.randn(16, 4))
    assert [each.view for each in found] == ["channel", None]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(weight.grad is None for weight in model.parameters())
