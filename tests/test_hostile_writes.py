"""Rules that write where they may not, or lose what they write: each is refused, and none is wrong
without a word."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from spherenorm._manifold import Translation


def stepped(rule, weights, grads=None, **options):
    """Weights after one step of an optimizer whose recipe returns `rule`."""

    def recipe(lr=0.1):
        return rule

    parameters = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = sn.torch_optimizer(recipe)(parameters, **options)
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.ones_like(parameter) if grads is None else grads[i]
    optimizer.step()
    return optimizer, parameters


class Undeclared(sn.Rule):
    """Momentum in an entry of the state that it does not declare, as in torch's optimizers."""

    def update(self, update, state):
        if "m" not in state:
            state["m"] = torch.zeros_like(update.weight)
        state["m"] = 0.9 * state["m"] + update.direction
        return replace(update, direction=state["m"]), state


class Filled(sn.Rule):
    """Puts its new state, by `make` of the gradient, into the dict that it is given."""

    make: object = None
    state_names = ("m",)

    def update(self, update, state):
        state["m"] = self.make(update.grad)
        return update, state


def test_a_state_that_is_put_into_the_given_dict_is_checked_as_any_other():
    weight = torch.ones(3)
    with pytest.raises(ValueError, match=r"update returns the state \['m'\], its states are \[\]"):
        sn.chain(Undeclared()).step(weight, weight, {})
    other_shape = sn.chain(Filled(torch.sum))
    with pytest.raises(ValueError, match=r"'m' must have shape \(3,\), got \(\)"):
        other_shape.step(weight, weight, other_shape.init(weight))
    wider = sn.chain(Filled(torch.Tensor.double))
    _, state = wider.step(weight, weight, wider.init(weight))
    assert state["m"].dtype is torch.float32


class AheadByState(sn.Rule):
    state_names = ("e",)

    def evaluate_at(self, update, state):
        state["e"] = update.direction
        return update.weight + state["e"]

    def update(self, update, state):
        return replace(update, direction=update.direction + state["e"]), state


class MeasuresIntoState(sn.Rule):
    state_names = ("e",)

    def measure(self, update, state):
        state["e"] = update.direction
        return {"sum": update.direction.sum()}

    def update(self, update, state):
        return replace(update, direction=state["e"]), state


@pytest.mark.parametrize("wrap", [lambda rule: rule, sn.chain], ids=["alone", "in a chain"])
def test_hooks_without_a_new_state_may_not_change_the_old_one(wrap):
    """In a chain the entry was lost, and the next hook saw the zeros of before."""
    weight = {"w": torch.ones(3)}
    rule = wrap(MeasuresIntoState())
    with pytest.raises(ValueError, match="MeasuresIntoState: measure changes the state"):
        functional.step(rule, weight, weight, functional.init(rule, weight))
    rule = wrap(AheadByState())
    with pytest.raises(ValueError, match="AheadByState: evaluate_at changes the state"):
        functional.evaluation_point(rule, weight, weight, functional.init(rule, weight))


class NotesInPlace(sn.Rule):
    def update(self, update, state):
        update.notes["scale"] = update.grad.norm()
        return update, state


class ReadsNotes(sn.Rule):
    def update(self, update, state):
        scale = update.notes.get("scale", 1.0)
        return replace(update, direction=scale * update.direction), state


def test_a_note_ends_with_its_step():
    weight = torch.ones(2)
    alone, _ = sn.chain(ReadsNotes()).step(weight, weight, {})
    sn.chain(NotesInPlace(), ReadsNotes()).step(weight, 5 * weight, {})
    assert torch.equal(sn.chain(ReadsNotes()).step(weight, weight, {})[0], alone)


class NotesItsState(sn.Rule):
    state_names = ("m",)

    def update(self, update, state):
        total = state["m"] + update.grad
        return update.noting(pair=(total, [total])), {"m": total}


class WritesIntoNotes(sn.Rule):
    def update(self, update, state):
        return replace(update, direction=update.notes["pair"][1][0].mul_(0.5)), state


class TransportsInPlace(sn.Rule):
    state_names = ("m",)

    def update(self, update, state):
        return update, {"m": state["m"] + update.grad}

    def transport(self, state, retraction):
        state["m"].mul_(2)
        return {}


def test_writes_into_nested_notes_and_by_transport_are_found():
    weight = torch.ones(2)
    rule = sn.chain(NotesItsState(), WritesIntoNotes())
    with pytest.raises(ValueError, match=r"WritesIntoNotes.* writes into update.notes\['pair'\]"):
        rule.step(weight, weight, rule.init(weight))
    rule = sn.chain(TransportsInPlace())
    with pytest.raises(ValueError, match=r"TransportsInPlace.*writes into what it is given"):
        rule.step(weight, weight, rule.init(weight))


class Slow(sn.Rule):
    state_names = ("slow",)

    def after(self, before, weight, state):
        return weight, {"slow": weight}


def test_a_state_that_is_the_new_weight_has_memory_of_its_own():
    rule, weight = sn.chain(r.StepSize(0.5), Slow()), torch.ones(2)
    moved, state = rule.step(weight, weight, rule.init(weight))
    moved.zero_()
    assert torch.equal(state["slow"], torch.full((2,), 0.5))


@dataclass(frozen=True)
class Doubled(sn.Chain):
    def apply_children(self, update, state):
        update, new = super().apply_children(update, state)
        return replace(update, direction=2 * update.direction), new


def test_a_chain_of_another_kind_applies_its_rules_its_own_way():
    """Alone, as within another one."""
    weight, rule = torch.zeros(2), Doubled((r.StepSize(0.5),))
    assert torch.equal(rule.step(weight, torch.ones(2), {})[0], -torch.ones(2))
    assert torch.equal(sn.chain(rule).step(weight, torch.ones(2), {})[0], -torch.ones(2))


class DoublesAtInit(sn.Rule):
    def init(self, weight):
        return {"start": weight.mul_(2)}

    def update(self, update, state):
        return update, state


def test_a_rule_may_not_write_at_the_beginning():
    weight = torch.ones(2)
    with pytest.raises(ValueError, match="DoublesAtInit: the rule writes into the weight"):
        stepped(DoublesAtInit(), [weight])
    with pytest.raises(ValueError, match="DoublesAtInit: the rule writes into the weight"):
        functional.init(DoublesAtInit(), {"w": weight})
    with pytest.raises(ValueError, match=r"DoublesAtInit \(rule 1 of the chain\): .* the weight"):
        sn.chain(DoublesAtInit()).init(weight)


class Scratch:
    """Flat space that returns each new weight in the same memory."""

    def __init__(self):
        self.memory = {}

    def retract(self, weight, direction):
        place = self.memory.setdefault(weight.shape, torch.empty_like(weight))
        return Translation(torch.sub(weight, direction, out=place))


def test_memory_that_is_returned_for_two_weights_is_refused():
    """All weights of one shape got the values of the last."""
    weights = [torch.zeros(3), torch.ones(3)]
    with pytest.raises(ValueError, match="has returned for another weight"):
        stepped(sn.chain(r.StepSize(0.1), manifold=Scratch()), weights)


class PastCounts(sn.Rule):
    def update(self, update, state):
        update.grad.data.mul_(2)
        return update, state


class InPlace(sn.Rule):
    def update(self, update, state):
        update.grad.mul_(2)
        return update, state


def test_a_write_that_torch_does_not_count_is_found_and_undone():
    grad = torch.tensor([1.0, torch.nan])
    with pytest.raises(ValueError, match="writes into what it is given"):
        stepped(sn.chain(PastCounts()), [torch.zeros(2)], [grad])
    assert torch.equal(grad.nan_to_num(7), torch.tensor([1.0, 7.0]))
    with (
        torch.inference_mode(),
        pytest.raises(ValueError, match="writes into what it is given"),
    ):
        stepped(sn.chain(InPlace()), [torch.zeros(2)])
    stepped(sn.chain(r.StepSize(0.1)), [torch.zeros(2)], [grad], backend="rule")


class WritesIfLarge(sn.Rule):
    """Which a comparison on small weights does not see."""

    def update(self, update, state):
        if update.grad.numel() > 100:
            update.grad.mul_(2)
        return update, state


def test_a_compiled_step_may_not_write_either():
    with pytest.raises(ValueError, match="WritesIfLarge: the rule writes into"):
        stepped(sn.chain(WritesIfLarge()), [torch.zeros(20, 20)], backend="compiled")


class Looked(sn.Rule):
    find: object = None

    def update(self, update, state):
        return replace(update, direction=self.find("lr") * update.direction), state


def test_a_method_of_an_object_is_not_recorded():
    """The compiled step kept the number that the dict held at first."""
    rule = sn.chain(Looked({"lr": 0.1}.get))
    with pytest.raises(sn.BackendError, match=r"Looked.find is .*, which may change inside"):
        stepped(rule, [torch.zeros(2)], backend="compiled")


def halves(count):
    def half(n):
        return 0.5 * half(n - 1) if n else 1.0

    return lambda _: half(count)


class SetLater(sn.Rule):
    found: float = field(init=False, repr=False)

    def update(self, update, state):
        object.__setattr__(self, "found", 0.25)
        return replace(update, direction=self.found * update.direction), state


@pytest.mark.parametrize("rule", [Looked(halves(2)), SetLater()], ids=["recursive", "set later"])
@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_rules_that_hold_what_is_hard_to_read_step_by_their_own_code(rule, backend):
    _, (weight,) = stepped(sn.chain(rule), [torch.zeros(2)], backend=backend)
    assert torch.equal(weight.detach(), torch.full((2,), -0.25))
