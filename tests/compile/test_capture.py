"""A captured step replays into the memory in which it was recorded, as a CUDA graph does."""

from __future__ import annotations

import pytest
import torch

import spherenorm as sn
from spherenorm.compile import run
from tests.harness.capture import CapturedStep
from tests.harness.recipes import EVERY_RECIPE, draw_gradients, make_optimizer, snapshot
from tests.harness.tables import mostly_long


@pytest.mark.parametrize("path", ["own code", "batched"])
@pytest.mark.parametrize("recipe", mostly_long(EVERY_RECIPE, kept=20))
def test_a_replayed_step_is_a_step(recipe, path, choose, monkeypatch):
    options = {"dtype": torch.float64, "backend": "rule" if path == "own code" else "auto"}
    if path == "batched":
        choose("batched")
        # The mode that records stands for a stream that captures, which no rule sees.
        monkeypatch.setattr(run, "active_modes", list)
    weights, optimizer = make_optimizer(recipe, **options)
    if path == "batched" and not {x.path for x in sn.explain(optimizer)} & {"batched"}:
        pytest.skip("steps by its own code")
    twins, eager = make_optimizer(recipe, **options)

    def draw(step: int) -> None:
        draw_gradients(weights, step)
        draw_gradients(twins, step)

    for step in range(3):
        draw(step)
        eager.step()
        with CapturedStep() as captured:
            optimizer.step()
    assert not captured.waits
    for step in range(3, 8):
        draw(step)
        captured.replay()
        eager.step()
    ours, theirs = snapshot(weights, optimizer), snapshot(twins, eager)
    for name, value in theirs.items():
        # (A recorded step computes bias corrections on tensors, an eager one on numbers.)
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("recipe", EVERY_RECIPE)
def test_states_stay_in_their_memory(recipe):
    weights, optimizer = make_optimizer(recipe, backend="rule")
    draw_gradients(weights, 0)
    optimizer.step()
    states = [(w, name, x) for w in weights for name, x in optimizer.state[w].items()]
    held = optimizer.state_dict()["state"]
    for step in (1, 2):
        draw_gradients(weights, step)
        optimizer.step()
    assert all(optimizer.state[w][name] is x for w, name, x in states)
    for place, weight in enumerate(weights):  # as torch.optim has it
        assert all(held[place][name] is x for name, x in optimizer.state[weight].items())
