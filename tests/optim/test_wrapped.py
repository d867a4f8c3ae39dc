"""Wrapped optimizers: what holds one as `.optimizer` is taken in its place."""

import pytest
import torch

import spherenorm as sn
from spherenorm.optim import unwrap


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an optimizer by its class, which was never made as one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)


def test_a_probe_and_explain_take_an_optimizer_in_any_wrapping():
    weight = torch.nn.Parameter(torch.eye(2))
    optimizer = sn.optim.SGDP([weight], lr=0.1, backend="rule")
    wrapped = Wrapper(Wrapper(optimizer))
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    assert unwrap(wrapped) is unwrap(scheduler) is unwrap(optimizer) is optimizer
    weight.grad = torch.eye(2).flip(0)
    assert str(sn.explain(wrapped)) == str(sn.explain(optimizer))
    with sn.probe(wrapped, every=1) as probe:
        wrapped.step()
    assert [m.step for m in probe.measurements] == [1]


def test_what_holds_no_optimizer_is_refused_with_what_to_pass():
    class Empty:
        optimizer = None

    for function in (sn.probe, sn.explain):
        with pytest.raises(TypeError, match=r"got Empty; .* \(its \.optimizer\)"):
            function(Empty())
    with pytest.raises(TypeError, match="explain takes an optimizer of spherenorm, got Adam"):
        sn.explain(torch.optim.Adam([torch.ones(2)]))
