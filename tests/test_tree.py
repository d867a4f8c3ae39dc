"""A rule's hooks and states, where another rule holds it."""

from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.record import record


class Distance(sn.Rule):
    """A rule whose `init` alone says which states there are."""

    first: sn.Scalar

    def init(self, weight):
        return {"distance": sn.scalar_state(weight) + self.first}

    def update(self, update, state):
        return replace(update, direction=state["distance"] * update.direction), state


def test_a_tensor_among_the_fields_may_enter_the_state():
    weight = torch.ones(2, dtype=torch.float64)

    def moved(first):
        rule = sn.chain(Distance(first))
        return rule.step(weight, weight, rule.init(weight))[0]

    batch = torch.tensor([0.25, 0.5], dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(moved)(batch), 1 - batch[:, None].expand(2, 2))


def test_an_init_that_reads_values_names_the_states():
    class Scale(Distance):
        def init(self, weight):
            return {"distance": sn.scalar_state(weight) + float(weight.norm())}

    rule = sn.chain(Scale(0.0))
    weight = torch.tensor([3.0, 4.0])
    assert rule.keys(weight) == ("distance",)
    assert rule.step(weight, weight, rule.init(weight))[0].tolist() == [-12.0, -16.0]


def test_the_keys_of_an_init_are_no_part_of_a_recorded_step():
    rule, weight = sn.chain(Distance(0.5), r.StepSize(0.1)), torch.ones(2, 3)
    state = rule.init(weight)
    calls = record(lambda w, g: rule.step(w, g, state)[0], weight, weight).calls
    assert [call.packet for call in calls if call.packet in ("empty", "zeros")] == []


def test_a_rule_is_asked_for_its_keys_once():
    asked = []

    class Asked(Distance):
        def init(self, weight):
            asked.append(weight.device.type)
            return super().init(weight)

    rule, weight = sn.chain(Asked(1.0)), torch.ones(2)
    state = rule.init(weight)
    for _ in range(3):
        weight, state = rule.step(weight, weight, state)
    assert sorted(asked) == ["cpu", "meta"]
    assert Asked(1.0).keys(weight) == ("distance",)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_chain_gives_init_a_weight_in_the_precision_of_its_steps(dtype):
    class Start(sn.Rule):
        def init(self, weight):
            return {"start": weight}

        def update(self, update, state):
            return update, state

    state = sn.chain(sn.chain(Start())).init(torch.ones(3, dtype=dtype))
    assert state["start"].dtype is torch.float32


def test_a_rule_with_another_hook_needs_no_update():
    class Halved(sn.Rule):
        def after(self, before, weight, state):
            return weight / 2, state

    class Idle(sn.Rule):
        pass

    one = torch.ones(2)
    assert sn.chain(Halved(), r.StepSize(0.5)).step(one, one, {})[0].tolist() == [0.25, 0.25]
    with pytest.raises(TypeError, match="Idle does not define update"):
        sn.chain(Idle()).step(one, one, {})


def test_rules_side_by_side_take_the_same_update():
    class Difference(sn.Combination):
        left: sn.Rule
        right: sn.Rule

        def update(self, update, state):
            (left, right), state = self.apply_each(update, state)
            return replace(update, direction=left.direction - right.direction), state

    rule = sn.chain(Difference(r.HeavyBall(0.5), r.HeavyBall(0.25)), r.HeavyBall(0.0))
    weight = torch.zeros(2, dtype=torch.float64)
    state = rule.init(weight)
    assert list(state) == ["momentum", "momentum_2", "momentum_3"]
    for step in range(1, 4):
        weight, state = rule.step(weight, torch.ones_like(weight), state)
        for name, beta in {"momentum": 0.5, "momentum_2": 0.25}.items():
            total = (1 - beta**step) / (1 - beta)
            torch.testing.assert_close(state[name], torch.full_like(weight, total))
        difference = state["momentum"] - state["momentum_2"]
        torch.testing.assert_close(state["momentum_3"], difference)
