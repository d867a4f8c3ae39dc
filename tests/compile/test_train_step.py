"""A whole train step under torch.compile."""

import pytest
import torch
from torch import nn

from spherenorm import optim


def trained(backend, compiled):
    """Weights after three steps that torch.compile sees or does not see."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)).double()
    optimizer = optim.AdamP(model.parameters(), lr=0.1, weight_decay=0.01, backend=backend)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    # What Dynamo does with the step is at stake, not the code that Inductor makes.
    step = torch.compile(train_step, backend="eager") if compiled else train_step
    losses = []
    for _ in range(3):
        losses.append(step(torch.randn(5, 8).double(), torch.randn(5, 3).double()))
        schedule.step()
    return [*losses, *(weight.detach() for weight in model.parameters())]


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_it_gives_the_same_numbers(backend):
    for ours, theirs in zip(trained(backend, True), trained(backend, False), strict=True):
        assert torch.equal(ours, theirs)


def test_a_whole_graph_is_refused_with_what_to_do():
    weight = torch.ones(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    optimizer = optim.AdamP([weight], lr=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(lambda: optimizer.step(), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"call backward\(\) and step\(\) out"):
        compiled()
    assert torch.equal(weight.detach(), torch.ones(3, 2))
