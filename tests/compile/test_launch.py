"""Memory of a device that launches keep, on a CPU in its place."""

import numpy as np
import pytest
import torch

from spherenorm import optim
from spherenorm.compile.gpu import _launch as launch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_kept():
    launch._plan.cache_clear()
    launch._captured.clear()


def plan(rows):
    """The plan of one weight of so many rows."""
    shape, literals = np.array([[rows, 3]]), np.zeros(1)
    return launch._plan(shape.tobytes(), literals.tobytes(), CPU)


def test_the_plans_of_recent_shapes_are_kept():
    """Sequences of every length make a set of shapes each, and each plan is memory of the GPU."""
    first = plan(1)
    assert plan(1) is first
    for rows in range(1000):
        plan(rows)
    assert launch._plan.cache_info().currsize <= 256
    assert plan(999) is plan(999)


def test_a_plan_that_a_cuda_graph_reads_is_kept(monkeypatch):
    class Kernels:
        text, states, flat, scalars, saved, reductions = "", (), (), 1, 1, 1

    launcher = launch.Launcher(Kernels())
    table, literals = np.array([[0, 5, 3]]), np.zeros((1, 1))
    numbers = torch.zeros(1, dtype=torch.float64)
    monkeypatch.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    launcher(table, literals, numbers)
    assert not launch._captured
    made = launch._plan(table[:, -2:].tobytes(), literals.tobytes(), CPU)
    monkeypatch.setattr(launch, "_is_capturing", lambda device: True)
    for _ in range(2):
        launcher(table, literals, numbers)
    assert list(launch._captured.values()) == [made]


def test_a_step_on_a_cpu_needs_nothing_of_a_gpu(monkeypatch):
    monkeypatch.setattr(launch, "_uploaded", lambda *_: pytest.fail("uploaded"))
    weight = torch.ones(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    optim.SGD([weight], lr=0.1, momentum=0.9).step()
    torch.testing.assert_close(weight.detach(), torch.full((3, 2), 0.9))
