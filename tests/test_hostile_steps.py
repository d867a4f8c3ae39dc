"""Rules that nobody here would write: right numbers on each path, or a refusal that says why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r


class GrownBySteps(sn.Rule):
    """d (1 + |a|^2), a the sum of its steps so far, |a|^2 over all weights."""

    state_names = ("a",)

    def measure(self, update, state):
        return {"size": (state["a"] ** 2).sum()}

    def update(self, update, state):
        direction = update.direction * (1 + update.shared["size"])
        return replace(update, direction=direction), {"a": state["a"] + direction}


def grown_twice(lr=0.1):
    again = GrownBySteps()
    return sn.chain(again, r.StepSize(0.5), again, r.StepSize(lr))


def test_one_measuring_rule_twice_has_numbers_for_each_place():
    """Each place reads what it has measured of its own state."""
    start = [torch.tensor([1.0, 2.0]).double(), torch.tensor([0.5]).double()]
    given = [w.clone().requires_grad_() for w in start]
    optimizer = sn.torch_optimizer(grown_twice)(given)
    rule, pure = grown_twice(), {str(i): w for i, w in enumerate(start)}
    state = functional.init(rule, pure)
    first, second = ([torch.zeros_like(w) for w in start] for _ in range(2))
    weights = start
    for _ in range(3):
        grads = [0.2 * w for w in weights]
        sizes = [1 + sum((a**2).sum() for a in place) for place in (first, second)]
        steps = [g * sizes[0] for g in grads]
        first = [a + d for a, d in zip(first, steps, strict=True)]
        steps = [0.5 * d * sizes[1] for d in steps]
        second = [a + d for a, d in zip(second, steps, strict=True)]
        weights = [w - 0.1 * d for w, d in zip(weights, steps, strict=True)]
        for w, g in zip(given, grads, strict=True):
            w.grad = g
        optimizer.step()
        slopes = {str(i): g for i, g in enumerate(grads)}
        pure, state = functional.step(rule, pure, slopes, state)
    for ours, functions, oracle in zip(given, pure.values(), weights, strict=True):
        torch.testing.assert_close(ours.detach(), oracle, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(functions, oracle, rtol=1e-13, atol=1e-14)


class ByMatrices(sn.Rule):
    """d |G|^2 of all matrices, which leaves vectors out of the sum."""

    def measure(self, update, state):
        return {"size": (update.grad**2).sum()} if update.grad.ndim == 2 else {}

    def update(self, update, state):
        size = update.shared.get("size", torch.ones(()))
        return replace(update, direction=update.direction * size), {}


def test_a_group_reads_sums_of_which_its_own_weights_have_no_part():
    matrix, vector = (torch.zeros(*s, requires_grad=True) for s in ((2, 2), (2,)))
    cls = sn.torch_optimizer(lambda lr=0.1: sn.chain(ByMatrices(), r.StepSize(lr)), "ByMatrices_")
    for each in (matrix, vector):
        each.grad = torch.ones_like(each)
    cls([{"params": [matrix]}, {"params": [vector]}]).step()
    torch.testing.assert_close(vector.detach(), torch.full((2,), -0.4))
    torch.testing.assert_close(matrix.detach(), torch.full((2, 2), -0.4))


class Writes(sn.Rule):
    """Writes in place, in the hook that is asked for, which returns what it should."""

    where: str
    into: str
    state_names = ("m",)
    needs_step = True

    def write(self, update, weight, state):
        places = {
            "the weight": weight,
            "the gradient": update.grad,
            "the state 'm'": state["m"],
            "update.step": update.count,
            "update.notes['note']": update.notes.get("note"),
            "update.shared['n']": update.shared.get("n"),
        }
        places[self.into].add_(1)

    def measure(self, update, state):
        if self.where == "measure":
            self.write(update, update.weight, state)
        return {"n": update.grad.sum()}

    def evaluate_at(self, update, state):
        if self.where == "evaluate_at":
            self.write(update, update.weight, state)
        return update.weight

    def update(self, update, state):
        if self.where == "update":
            self.write(update, update.weight, state)
        return update, state

    def after(self, before, weight, state):
        if self.where == "after":
            self.write(before, weight, state)
        return weight, state


class Notes(sn.Rule):
    def update(self, update, state):
        return update.noting(note=torch.zeros(3)), {}


@pytest.mark.parametrize("into", ["the weight", "the gradient", "the state 'm'"])
@pytest.mark.parametrize("where", ["measure", "evaluate_at", "after"])
def test_a_hook_that_writes_into_its_arguments_is_refused(where, into):
    rule = sn.chain(Notes(), Writes(where, into), r.StepSize(0.1))
    run = functional.evaluation_point if where == "evaluate_at" else functional.step
    given = {"w": torch.ones(3)}, {"w": torch.ones(3)}, {"w": rule.init(torch.ones(3))}
    with pytest.raises(ValueError, match=f"Writes.* writes into {into}"):
        run(rule, *given)


@pytest.mark.parametrize("into", ["update.step", "update.notes['note']", "update.shared['n']"])
@pytest.mark.parametrize("where", ["update", "after"])
def test_a_rule_that_writes_into_what_others_read_is_refused(where, into):
    rule = sn.chain(Notes(), Writes(where, into), r.StepSize(0.1))
    weight = torch.ones(3)
    with pytest.raises(ValueError, match="writes into update") as raised:
        rule.step(weight, weight.clone(), rule.init(weight))
    assert into in str(raised.value)


class Keeps(sn.Rule):
    """Keeps views of what is the caller's."""

    def init(self, weight):
        return {"start": weight.detach(), "last": weight.view(-1), "behind": weight}

    def update(self, update, state):
        return update, {**state, "last": update.grad.detach()}

    def after(self, before, weight, state):
        return weight, {**state, "behind": before.grad}


def test_states_do_not_change_when_the_caller_writes_into_weights_and_gradients():
    rule, weight, grad = sn.chain(Keeps(), r.StepSize(0.1)), torch.ones(3), torch.full((3,), 2.0)
    fresh = rule.init(weight)
    _, state = rule.step(weight, grad, fresh)
    weight.zero_()
    grad.zero_()
    assert fresh["start"].tolist() == fresh["behind"].tolist() == [1.0] * 3
    assert state["last"].tolist() == state["behind"].tolist() == [2.0] * 3


class Looks(sn.Rule):
    def init(self, weight):
        return {"slow": weight.clone()}

    def after(self, before, weight, state):
        return 2 * weight, state


class ByHand(sn.Rule):
    """Passes another rule's state by hand, under a name of its own."""

    rule: sn.Rule
    own: str
    state_names = ("kept",)

    def init(self, weight):
        return {"kept": self.rule.init(weight)[self.own]}

    def update(self, update, state):
        update, new = self.rule.update(update, {self.own: state["kept"]})
        return update, {"kept": new[self.own]}


def test_a_hook_that_a_wrapper_hides_is_refused():
    weight = sn.Sphere("channel").normalize(torch.randn(3, 2))
    looks = sn.chain(ByHand(Looks(), "slow"), r.StepSize(0.1))
    with pytest.raises(TypeError, match="ByHand: after of Looks has no effect"):
        looks.step(weight, weight, looks.init(weight))
    momentum = (ByHand(r.HeavyBall(0.5), "momentum"), r.StepSize(0.1))
    flat, round_ = sn.chain(*momentum), sn.chain(*momentum, manifold=sn.Sphere("channel"))
    flat.step(weight, weight, flat.init(weight))  # where nothing is transported
    with pytest.raises(TypeError, match="ByHand: tangent_names of HeavyBall has no effect"):
        round_.step(weight, weight, round_.init(weight))


def test_rules_in_nested_lists_have_their_hooks_called():
    class Pairs(sn.Combination):
        rules: tuple

        def update(self, update, state):
            return self.apply_children(update, state)

    rule = sn.chain(Pairs(((Looks(),), [r.HeavyBall(0.5)])), r.StepSize(0.1))
    weight = torch.ones(3, dtype=torch.float64)
    assert list(rule.init(weight)) == ["slow", "momentum"]
    assert rule.step(weight, weight, rule.init(weight))[0].tolist() == [2 * (1 - 0.1)] * 3


def momenta(lr=0.1, slow=0.9, fast=0.5, named=False):
    name = "slow" if named else None
    first = (r.HeavyBall(slow, name=name),) if slow else ()
    return sn.chain(*first, r.HeavyBall(fast), r.StepSize(lr))


def stepped(optimizer, weight, steps):
    for _ in range(steps):
        weight.grad = torch.tensor([1.0, 2.0], dtype=torch.float64)
        optimizer.step()


def test_a_momentum_does_not_take_over_anothers_buffer():
    """A schedule switches the first of two off: with names it works, without it is refused."""
    cls = sn.torch_optimizer(momenta, "Momenta")
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = cls([weight])
    stepped(optimizer, weight, 2)
    before, optimizer.param_groups[0]["slow"] = weight.detach().clone(), 0.0
    with pytest.raises(ValueError, match="do not tell which rule has come or gone"):
        stepped(optimizer, weight, 1)
    assert torch.equal(weight, before)
    with pytest.raises(ValueError, match="do not tell which rule has come or gone"):
        cls([weight]).load_state_dict(optimizer.state_dict())

    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = cls([weight], named=True)
    stepped(optimizer, weight, 2)
    optimizer.param_groups[0]["slow"] = 0.0
    stepped(optimizer, weight, 2)
    oracle = slow = fast = torch.zeros(2, dtype=torch.float64)
    for step in range(4):
        direction = torch.tensor([1.0, 2.0], dtype=torch.float64)
        if step < 2:
            slow = direction = 0.9 * slow + direction
        fast = 0.5 * fast + direction
        oracle = oracle - 0.1 * fast
    torch.testing.assert_close(weight.detach(), oracle, rtol=1e-14, atol=1e-14)


class MadeAnew(sn.Rule):
    """Returns an Update of its own instead of the one that it was given, replaced."""

    def update(self, update, state):
        return sn.Update(update.weight, update.grad, 2 * update.direction), {}


@pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
def test_the_count_goes_on_behind_a_rule_that_makes_an_update_anew(backend):
    def recipe(lr=0.1):
        return sn.chain(r.AdaptiveMoments(0.9, 0.99), MadeAnew(), r.StepSize(lr))

    ours = torch.ones(2, dtype=torch.float64, requires_grad=True)
    theirs = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = sn.torch_optimizer(recipe)([ours], backend=backend)
    oracle = torch.optim.Adam([theirs], lr=0.2, betas=(0.9, 0.99))
    for step in range(3):
        ours.grad = torch.tensor([1.0, -3.0 + step], dtype=torch.float64)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        oracle.step()
    assert optimizer.state[ours]["step"] == 3
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


def test_a_check_does_not_take_a_write_for_a_refusal_of_the_shape():
    class BeginsMatrices(sn.Rule):
        """Changes matrices when it begins, and no other weight."""

        def init(self, weight):
            return {"unit": weight.div_(2) if weight.ndim == 2 else weight.clone()}

        def update(self, update, state):
            return update, state

    def recipe(lr=0.1):
        return sn.chain(BeginsMatrices(), r.StepSize(lr))

    report = sn.testing.check(recipe, only=("shapes", "writes into nothing"))
    assert [each.name for each in report.failed] == ["writes into nothing"]
    assert "BeginsMatrices (rule 1 of the chain): the rule writes into the weight" in str(report)


@pytest.mark.parametrize("derivative", [torch.func.grad, torch.func.jacfwd, torch.func.jacrev])
def test_work_that_is_not_done_has_no_derivative(derivative):
    """sqrt has none at 0: computed and not chosen, it made nan of the derivative 2."""

    def chosen(x):
        return sn.when(x.sum() > 5, lambda: x.sqrt().sum(), 2 * x.sum())

    zero = torch.zeros(3, dtype=torch.float64)
    assert derivative(chosen)(zero).tolist() == [2.0] * 3
    batch = torch.tensor([[0.0, 0.0, 0.0], [4.0, 9.0, 16.0]], dtype=torch.float64)
    assert torch.vmap(chosen)(batch).tolist() == [0.0, 9.0]


@pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
@pytest.mark.parametrize(("before", "behind"), [((3,), (5,)), ((1, 5), (6, 5)), ((6, 5), (5, 6))])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_gradient_of_another_shape_is_refused(before, behind, steps, backend):
    """A kernel would read behind the end of the gradient."""
    changed, other = torch.ones(before, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = sn.optim.SGD([other, changed], lr=0.1, backend=backend)
    other.grad, changed.grad = torch.ones(2), torch.ones(before)
    for _ in range(steps):
        optimizer.step()
    kept, changed.data = other.detach().clone(), torch.ones(behind)
    with pytest.raises(ValueError, match=r"parameter 1 .* grad must be shaped as"):
        optimizer.step()
    assert torch.equal(other, kept)
    assert torch.equal(changed, torch.ones(behind))


@pytest.mark.parametrize("steps", [0, 1])
def test_a_gradient_of_zeros_without_memory(steps):
    weight = torch.ones(6, 5, requires_grad=True)
    optimizer = sn.optim.SGD([weight], lr=0.5, weight_decay=0.5)
    weight.grad = torch.zeros(6, 5)
    for _ in range(steps):
        optimizer.step()
    weight.grad = torch._efficientzerotensor((6, 5))
    optimizer.step()
    assert torch.equal(weight, torch.full((6, 5), 0.75 ** (steps + 1)))


def by_view(lr=0.1, projection=None):
    return sn.chain(projection or r.RadialProjection("channel"), r.StepSize(lr))


@pytest.mark.parametrize("backend", ["auto", "rule", "compiled"])
@pytest.mark.parametrize("owner", ["class", "object"])
def test_a_method_of_a_view_that_is_replaced(backend, owner, monkeypatch):
    weight = torch.eye(3, dtype=torch.float64).requires_grad_()
    projection = r.RadialProjection("channel")
    optimizer = sn.torch_optimizer(by_view)([weight], projection=projection, backend=backend)
    weight.grad = torch.eye(3, dtype=torch.float64)  # radial
    optimizer.step()
    assert torch.equal(weight, torch.eye(3))
    if owner == "class":
        patched, method = type(projection.view), lambda self, w, d: torch.zeros(())
        monkeypatch.setattr(patched, "radial_coefficient", method)
    else:
        object.__setattr__(projection.view, "radial_coefficient", lambda w, d: torch.zeros(()))
    try:
        optimizer.step()
    except sn.compile.BackendError:
        assert backend == "compiled"
        return
    torch.testing.assert_close(weight.detach(), 0.9 * torch.eye(3, dtype=torch.float64))


class Passes(sn.Rule):
    def update(self, update, state):
        return update, state


class FromABox(sn.Combination):
    box: object

    def children(self):
        yield self.box.rule

    def update(self, update, state):
        return self.apply_children(update, state)


@dataclass(frozen=True, slots=True)
class InASlot(sn.Combination):
    rule: sn.Rule

    def update(self, update, state):
        return self.apply_children(update, state)


@pytest.mark.parametrize("kind", ["box", "slot"])
def test_a_rule_that_is_put_into_the_place_of_another(kind):
    """The new one's hooks are called, wherever it lies."""
    box = SimpleNamespace(rule=Passes())
    outer = FromABox(box) if kind == "box" else InASlot(Passes())
    rule, weight = sn.chain(outer, r.StepSize(0.5)), torch.ones(3)
    assert rule.step(weight, weight, {})[0].tolist() == [0.5] * 3
    object.__setattr__(box if kind == "box" else outer, "rule", Looks())
    assert rule.step(weight, weight, rule.init(weight))[0].tolist() == [1.0] * 3


class OneOrTwo(sn.Rule):
    two: bool = False

    def init(self, weight):
        return {name: torch.zeros_like(weight) for name in ("a", "b")[: 1 + self.two]}

    def update(self, update, state):
        direction = update.direction + sum(state.values())
        return update.changed(direction=direction), {k: x + 1 for k, x in state.items()}


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_field_that_decides_on_the_states(backend):
    inner = OneOrTwo()
    rule = sn.chain(inner, r.StepSize(1.0))
    weight = torch.zeros(3, requires_grad=True)
    optimizer = sn.torch_optimizer(lambda lr=1.0: rule)([weight], backend=backend)
    weight.grad = torch.ones(3)
    optimizer.step()
    object.__setattr__(inner, "two", True)
    optimizer.step()
    optimizer.step()
    assert sorted(optimizer.state[weight]) == ["a", "b"]
    assert weight.tolist() == [-(1 + (1 + 1) + (1 + 2 + 1))] * 3


class WritesLater(sn.Rule):
    """Writes into the direction of the rule before at the steps that are given."""

    calls: list
    at: tuple

    def update(self, update, state):
        self.calls.append(len(self.calls))
        if self.calls[-1] in self.at:
            update.direction.add_(1)
        return update, state


@pytest.mark.parametrize(
    ("at", "said"),
    [((1, 2), r"^WritesLater.* writes into the direction"), ((1,), "one of the rules writes into")],
    ids=["again", "once"],
)
def test_a_rule_that_begins_to_write_is_refused(at, said):
    rule = sn.chain(r.HeavyBall(0.9), WritesLater([], at), r.StepSize(0.1))
    weight = torch.ones(3)
    _, state = rule.step(weight, weight.clone(), rule.init(weight))
    with pytest.raises(ValueError, match=said):
        rule.step(weight, weight.clone(), state)


def test_a_write_behind_which_another_rule_fails_is_named():
    class Fails(sn.Rule):
        def update(self, update, state):
            if (update.direction == 2).all():
                raise ArithmeticError("a direction of 2")
            return update, state

    rule = sn.chain(r.HeavyBall(0.9), WritesLater([], range(9)), Fails())
    weight = torch.ones(3)
    with pytest.raises(ValueError, match=r"^WritesLater.* writes into the direction"):
        rule.step(weight, weight.clone(), rule.init(weight))
    with pytest.raises(ArithmeticError):
        sn.chain(Fails()).step(weight, 2 * weight, {})


class Pushes:
    """A manifold that moves the weight itself."""

    def retract(self, weight, direction):
        weight.sub_(direction)
        return sn.Euclidean().retract(weight, 0 * direction)


def test_a_manifold_that_writes_into_the_weight_is_refused_and_undone():
    rule, weight = sn.chain(r.HeavyBall(0.9), manifold=Pushes()), torch.ones(3)
    with pytest.raises(ValueError, match="or the manifold does; return new tensors"):
        rule.step(weight, weight.clone(), rule.init(weight))
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3)
    with pytest.raises(ValueError, match="or the manifold does; return new tensors"):
        sn.torch_optimizer(lambda lr=0.1: rule, "Pushing")([weight]).step()
    assert weight.tolist() == [1, 1, 1]
