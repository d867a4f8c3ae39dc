"""A rule is read once, and again after anything in it has changed."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

import spherenorm as sn
from spherenorm import _outline
from spherenorm import rules as r
from spherenorm._numerics import LARGE, power, total_share


class Halves(sn.Rule):
    """d / 2, with a state under a name that may change."""

    label = "kept"

    @property
    def state_names(self):
        return (self.label,)

    def update(self, update, state):
        return replace(update, direction=update.direction / 2), state


def stepped(rule, dtype=torch.float64, shape=(3,)):
    weight = torch.ones(shape, dtype=dtype)
    moved, state = rule.step(weight, weight, rule.init(weight))
    return moved.flatten()[0].item(), state


def known(rule):
    """A rule whose outline is kept."""
    assert stepped(rule)[0] == stepped(rule)[0]
    assert id(rule) in _outline._outlines
    return rule


def test_a_hook_that_a_class_gets_and_loses_is_called_while_it_is_there():
    class Idle(sn.Rule):
        def update(self, update, state):
            return update, state

    rule = known(sn.chain(Idle(), r.StepSize(0.5)))
    Idle.after = lambda self, before, weight, state: (weight + 1, state)
    assert stepped(rule)[0] == 1.5
    del Idle.after
    assert stepped(rule)[0] == 0.5
    Idle.measure = lambda self, update, state: {"n": update.grad.sum()}
    Idle.update = lambda self, update, state: (
        replace(update, direction=update.shared["n"] * update.direction),
        state,
    )
    assert stepped(rule)[0] == 1 - 0.5 * 3


def test_a_field_of_a_rule_that_is_set_anew_counts():
    rule = known(sn.chain(r.HeavyBall(0.5), r.StepSize(0.5)))
    object.__setattr__(rule.rules[0], "buffer", "velocity")
    assert list(stepped(rule)[1]) == ["velocity"]
    object.__setattr__(rule, "rules", (Halves(), r.StepSize(1.0)))
    moved, state = stepped(rule)
    assert (moved, list(state)) == (0.5, ["kept"])
    object.__setattr__(rule.rules[0], "name", "mine")
    assert list(stepped(rule)[1]) == ["mine_kept"]


def test_names_that_a_class_attribute_decides_are_read_anew(monkeypatch):
    rule = known(sn.chain(Halves(), r.StepSize(1.0)))
    monkeypatch.setattr(Halves, "label", "other")
    assert list(stepped(rule)[1]) == ["other"]


def test_rules_in_a_list_may_be_others_at_each_step():
    class Listed(sn.Combination):
        rules: list

        def update(self, update, state):
            return self.apply_children(update, state)

    rule = sn.chain(Listed([Halves()]), r.StepSize(1.0))
    assert stepped(rule)[0] == 0.5
    rule.rules[0].rules.append(r.HeavyBall(0.5))
    moved, state = stepped(rule)
    assert (moved, list(state)) == (0.5, ["kept", "momentum"])


def test_each_shape_and_dtype_has_states_of_its_own():
    class ByShape(sn.Rule):
        def init(self, weight):
            return {f"{weight.ndim}d": weight.clone()}

        def update(self, update, state):
            return update, state

    rule = sn.chain(ByShape(), r.StepSize(1.0))
    for shape, key in (((3,), "1d"), ((3, 2), "2d"), ((3,), "1d")):
        for dtype in (torch.float64, torch.bfloat16):
            state = stepped(rule, dtype, shape)[1]
            assert list(state) == [key]
            assert state[key].dtype is (torch.float64 if dtype is torch.float64 else torch.float32)


def test_an_outline_lives_no_longer_than_its_rule():
    rule = known(sn.chain(Halves(), r.StepSize(1.0)))
    place = id(rule)
    del rule
    gc.collect()
    assert place not in _outline._outlines


@pytest.mark.parametrize("change", ["class", "code"])
def test_the_first_write_of_a_rule_that_has_changed_is_undone(change):
    class Turns(sn.Rule):
        def update(self, update, state):
            return update, state

    def writes(self, update, state):
        update.weight.add_(1)
        return update, state

    weight = torch.ones(3, requires_grad=True)
    cls = sn.torch_optimizer(lambda lr=0.5: sn.chain(Turns(), r.StepSize(lr)), "Turning")
    optimizer = cls([weight], backend="rule")
    weight.grad = torch.ones(3)
    optimizer.step()
    if change == "class":
        Turns.update = writes
    else:
        Turns.update.__code__ = writes.__code__
    with pytest.raises(ValueError, match=r"Turns.*: the rule writes into the weight"):
        optimizer.step()
    assert weight.tolist() == [0.5] * 3


def test_an_update_with_another_value_is_as_replaced():
    zero = torch.zeros(2)
    update = sn.Update(zero, zero, zero).noting(seen=1)
    changed = update.changed(direction=zero + 1)
    assert changed == replace(update, direction=changed.direction)
    assert update.direction is zero
    with pytest.raises(TypeError, match="directions"):
        update.changed(directions=zero)


@pytest.mark.parametrize("count", [-1.0, 0.0, 1.0, 7.0, float("nan"), float("inf")])
def test_a_bias_correction_is_the_same_as_number_and_as_tensor(count):
    step = torch.tensor(count, dtype=torch.float64)
    read = torch.as_tensor(total_share(0.9, step), dtype=torch.float64)
    torch.testing.assert_close(read, 1 - power(0.9, step), rtol=1e-15, atol=0, equal_nan=True)
    many = torch.vmap(lambda t: total_share(0.9, t))(step[None])[0]
    torch.testing.assert_close(many, read, rtol=1e-15, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["adamp", "adamw", "rmsprop", "sgdp"])
def test_memory_that_is_used_again_is_a_rules_own(name):
    """A large step has the bits of the same step where derivatives may be taken."""
    rule = sn.bind(name, weight_decay=0.1).rule
    generator = torch.Generator().manual_seed(0)
    weight, grad = (torch.randn(4, LARGE // 4, generator=generator) for _ in range(2))
    state = rule.init(weight)
    for _ in range(2):
        given = {"weight": weight, "grad": grad, **state}
        before = {key: x.clone() for key, x in given.items()}
        expected = rule.step(weight, grad, state)
        with torch.no_grad():
            moved, new = rule.step(weight, grad, state)
        assert all(torch.equal(x, before[key]) for key, x in given.items())
        assert torch.equal(moved, expected[0])
        assert all(torch.equal(x, expected[1][key]) for key, x in new.items())
        weight, state = moved, new
