"""States from step to step: at a number of 0, of weights that join late, at a rate of 0, and after
the user has written into the weights."""

from __future__ import annotations

import copy
import io
from collections.abc import MutableSequence

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import spherenorm as sn
from spherenorm.global_sums import copy_shared_states_from_furthest
from spherenorm.optim.states import reconcile_shared_states
from tests.harness import ANY_WEIGHTS, ROWS, ZOO, refuses
from tests.harness.tables import mostly_long

pytestmark = ANY_WEIGHTS
EVERY = [*ROWS, *ZOO]
STEPS = 7
OFF_AT = 3


def weights_and_gradients(row, steps=STEPS):
    weights, generator = row.parameters(), torch.Generator().manual_seed(7)
    grads = [
        [torch.randn(w.shape, generator=generator, dtype=w.dtype) for w in weights]
        for _ in range(steps)
    ]
    return weights, grads


def set_grads(weights, grads):
    for weight, grad in zip(weights, grads, strict=True):
        weight.grad = None if grad is None else grad.clone()


# A number that passes through 0


def numbers_of(row):
    """(name, index in a tuple, value) of the hyper-parameters of a row."""
    values = {**sn.bind(row.recipe).defaults, **row.settings}
    for name, value in values.items():
        if type(value) in (int, float):
            yield name, None, value
        elif type(value) is tuple and all(type(x) in (int, float) for x in value):
            yield from ((name, i, x) for i, x in enumerate(value))


def with_number(row, name, index, number):
    if index is None:
        return {name: number}
    parts = [*{**sn.bind(row.recipe).defaults, **row.settings}[name]]
    parts[index] = number
    return {name: tuple(parts)}


def takes(row, name, index, number):
    try:
        row.rule(**with_number(row, name, index, number))
    except (TypeError, ValueError):
        return False
    return True


PASSING = [
    pytest.param(row, name, index, value or 0.1, id=f"{row}-{name}-{index}")
    for row in EVERY
    for name, index, value in numbers_of(row)
    if takes(row, name, index, 0.0)
    and takes(row, name, index, value or 0.1)
    and takes(row, name, index, torch.zeros((), dtype=torch.float64))
]


def passing_through(row, name, index, value, number, reload=False):
    """Weights and states of a run with `number` at one of its steps."""
    weights, grads = weights_and_gradients(row)
    optimizer = row.optimizer(weights, backend="rule", **with_number(row, name, index, value))
    for t in range(STEPS):
        optimizer.param_groups[0].update(
            with_number(row, name, index, number if t == OFF_AT else value)
        )
        set_grads(weights, grads[t])
        optimizer.step()
        if reload and t == OFF_AT:
            saved = copy.deepcopy(optimizer.state_dict())
            weights = [w.detach().clone().requires_grad_() for w in weights]
            optimizer = row.optimizer(weights, backend="rule")
            optimizer.load_state_dict(saved)
    return weights, [optimizer.state[w] for w in weights]


@pytest.mark.parametrize(("row", "name", "index", "value"), mostly_long(PASSING, kept=60))
def test_a_number_that_is_0_for_a_step_drops_no_state(row, name, index, value):
    """It is the number 0 of a tensor, at which no rule leaves anything out."""
    zero = torch.zeros((), dtype=torch.float64)
    expected = passing_through(row, name, index, value, zero)
    for reload in (False, True):
        got = passing_through(row, name, index, value, 0.0, reload)
        close = {"rtol": 1e-12, "atol": 1e-12, "equal_nan": True}  # without eps, 0 / 0 is nan
        torch.testing.assert_close(got, expected, **close)


@pytest.mark.parametrize("backend", ["auto", "rule"])
@pytest.mark.parametrize(
    ("recipe", "name", "settings"),
    [
        ("rotational(adamw)", "memory", {}),
        ("rotational(sgd)", "memory", {"momentum": 0.9}),
        ("normuon", "beta2", {}),
        ("sgd", "momentum", {}),
        ("averaged(sgdw)", "momentum", {}),
    ],
)
def test_a_passage_through_0_is_the_limit_of_small_numbers(recipe, name, settings, backend):
    ends = []
    for number in (0.0, 1e-300):
        generator = torch.Generator().manual_seed(0)
        w = torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
        optimizer = sn.torch_optimizer(recipe)(
            [w], lr=0.02, backend=backend, **{name: 0.9}, **settings
        )
        for t in range(12):
            optimizer.param_groups[0][name] = number if t in (5, 6) else 0.9
            w.grad = torch.randn(6, 4, generator=generator, dtype=torch.float64)
            optimizer.step()
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_a_number_that_begins_at_0_takes_no_memory():
    weight = torch.ones(3, 2, requires_grad=True)
    optimizer = sn.torch_optimizer("rotational(sgd)")([weight], momentum=0.0, memory=0.0)
    weight.grad = torch.randn(3, 2)
    optimizer.step()
    assert optimizer.state[weight].keys() == {"radius"}
    optimizer.param_groups[0]["memory"] = 0.9
    optimizer.step()
    optimizer.param_groups[0]["memory"] = 0.0
    optimizer.step()  # of the two numbers that are 0, one alone has had a state
    assert optimizer.state[weight].keys() == {"radius", "squared_length", "step"}


# A rate of 0

MOMENTUM_OF_STEPS = {"sgdg", "lars", "dadapt_sgd"}
"""Their momentum is of steps, learning rate included: it goes on at a rate of 0."""
AVERAGES = {
    "schedulefree_sgd",
    "schedulefree_adamw",
    "schedulefree_adamc",
    "lookahead_adamw",
    "emanesterov_adamw",
    "gpa_adamw",
}
"""Their averages go on at a rate of 0, as those of the releases do."""


@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "random"])
@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("backend", ["auto", "rule"])
@pytest.mark.parametrize("row", mostly_long(EVERY, kept=16), ids=str)
def test_a_rate_of_0_moves_nothing(row, backend, steps_before, zeros):
    if steps_before and row.recipe in MOMENTUM_OF_STEPS | AVERAGES:
        return
    weights, grads = weights_and_gradients(row)
    optimizer = row.optimizer(weights, backend=backend)
    for t in range(steps_before):
        set_grads(weights, grads[t])
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.0
    before = [w.detach().clone() for w in weights]
    for t in (3, 4):
        set_grads(weights, [g * (not zeros) for g in grads[t]])
        optimizer.step()
    for weight, old in zip(weights, before, strict=True):
        torch.testing.assert_close(weight.detach(), old, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    "recipe", ["ngpt", "muonsphere", "spel", "nero", "hyperspherical", "oblique_sgd"]
)
def test_reading_the_state_of_a_fresh_optimizer_leaves_weights_alone(recipe):
    """torch.distributed.checkpoint steps once for it, at a rate of 0."""
    model = torch.nn.Linear(4, 3, bias=False)
    before = model.weight.detach().clone()
    optimizer = sn.torch_optimizer(recipe)(model.parameters())
    get_optimizer_state_dict(model, optimizer)
    assert torch.equal(model.weight, before)
    (model.weight**3).sum().backward()
    optimizer.step()  # with a rate, it goes to its sphere
    assert (model.weight - before).norm() > 0.05


@pytest.mark.parametrize("recipe", mostly_long(["ngpt", "muonsphere", "nero", "spel"], kept=2))
def test_the_points_of_a_sweep_with_a_rate_of_0_stay(recipe):
    start = {"w": torch.randn(1, 4, 3, dtype=torch.float64)}
    result = sn.functional.sweep(
        recipe, lambda p: (p["w"] ** 3).sum(), start, {"lr": [0.0, 0.1]}, steps=9
    )
    assert torch.equal(result.params["w"][0], start["w"])
    alone = sn.functional.sweep(
        recipe, lambda p: (p["w"] ** 3).sum(), start, {"lr": [0.1]}, steps=9
    )
    torch.testing.assert_close(result.params["w"][1:], alone.params["w"], rtol=1e-12, atol=1e-12)


def test_a_rule_between_the_rate_and_the_sphere_ends_there():
    """A momentum of steps moves at a rate of 0: the weight stays on its sphere."""
    rule = sn.chain(
        sn.rules.StepSize(0.0), sn.rules.HeavyBall(0.9), sn.rules.FixedNorm("layer", 1.0)
    )
    weight = torch.tensor([1.0, 0.0])
    state = {"momentum": torch.tensor([0.0, 0.5])}
    moved, _ = rule.step(weight, torch.zeros(2), state)
    torch.testing.assert_close(moved.norm(), torch.tensor(1.0))


# States that all weights share

SHARING = ("prodigy", "dadapt_sgd", "averaged(prodigy)")
GOAL = 3.0


def quadratic(weights, active):
    for weight in weights:
        weight.grad = weight.detach() - GOAL if any(weight is a for a in active) else None


def distances(optimizer, weights):
    return [optimizer.state[w]["d"].item() for w in weights if w in optimizer.state]


@pytest.mark.parametrize("recipe", SHARING)
@pytest.mark.parametrize("way", ["frozen", "added", "paused"])
def test_a_weight_that_joins_late_has_the_estimate_of_all(recipe, way):
    first, late = (torch.zeros(4, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    optimizer = sn.torch_optimizer(recipe)([first] if way == "added" else [first, late])
    for t in range(40):
        quadratic([first, late], [first, late] if way == "paused" and t < 2 else [first])
        optimizer.step()
    if way == "added":
        optimizer.add_param_group({"params": [late]})
    assert optimizer.state[first]["d"] > 1e-3
    for t in range(200):
        quadratic([first, late], [first, late])
        optimizer.step()
        if t == 0:
            assert len({*distances(optimizer, [first, late])}) == 1
    assert (late - GOAL).norm() < 0.2 * GOAL * late.numel() ** 0.5


@pytest.mark.parametrize("recipe", SHARING)
def test_a_group_with_a_rate_of_0_stands_still_and_is_not_summed_over(recipe):
    cls = sn.torch_optimizer(recipe)
    first, held, alone = (torch.zeros(4, 3, dtype=torch.float64).requires_grad_() for _ in "abc")
    both = cls([{"params": [held], "lr": 0.0}, {"params": [first]}])
    single = cls([alone])
    for _ in range(30):
        for w, scale in ((first, 1), (held, 100), (alone, 1)):
            w.grad = scale * (w.detach() - GOAL)
        both.step()
        single.step()
    assert torch.equal(first, alone)
    assert not held.any()
    assert len({*distances(both, [first, held])}) == 1


@pytest.mark.parametrize("recipe", SHARING)
def test_a_second_rate_is_refused(recipe):
    first, second = (torch.zeros(4, 3).requires_grad_() for _ in "ab")
    cls = sn.torch_optimizer(recipe)
    with refuses("lr is 1 in one param_group and 0.5 in another"):
        cls([{"params": [first]}, {"params": [second], "lr": 0.5}])
    optimizer = cls([{"params": [first]}, {"params": [second]}])
    quadratic([first, second], [first, second])
    optimizer.step()
    optimizer.param_groups[1]["lr"] = torch.tensor(0.5)
    before, state = first.detach().clone(), copy.deepcopy(optimizer.state_dict())
    with refuses("give all groups the same lr"):
        optimizer.step()
    assert torch.equal(first, before)
    torch.testing.assert_close(optimizer.state_dict()["state"], state["state"], rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["auto", "rule"])
@pytest.mark.parametrize("silent", ["lr", "grad"])
@pytest.mark.parametrize("recipe", SHARING)
def test_a_step_in_which_nothing_is_measured_leaves_the_estimate(recipe, silent, backend):
    """A frozen body, and a head that begins with a step size of 0 or a gradient of 0."""
    body, head = torch.full((400,), 100.0, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    groups = [{"params": [body]}, {"params": [head]}]
    optimizer = sn.torch_optimizer(recipe)(groups, backend=backend)
    for _ in range(30):
        body.grad = 10 * body.sign()
        optimizer.step()
    (before,) = distances(optimizer, [body])
    body.grad = None
    head.grad = torch.zeros_like(head) if silent == "grad" else torch.full_like(head, 0.1)
    for group in optimizer.param_groups if silent == "lr" else ():
        group["lr"] = 0.0
    optimizer.step()
    assert distances(optimizer, [body, head]) == [before] * 2


@pytest.mark.parametrize("recipe", SHARING)
def test_a_checkpoint_whose_copies_lag_is_read_at_the_furthest(recipe):
    """Earlier versions left the copies of weights without a gradient behind."""
    cls, weights = sn.torch_optimizer(recipe), [torch.zeros(4, 3).requires_grad_() for _ in "ab"]
    optimizer = cls(weights)
    for _ in range(30):
        quadratic(weights, weights)
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    furthest = saved["state"][1]["d"].clone()
    saved["state"][0]["d"] = torch.tensor(1e-6)
    optimizer.load_state_dict(saved)
    assert distances(optimizer, weights) == [furthest.item()] * 2


@pytest.mark.parametrize("recipe", SHARING)
def test_a_pure_step_shares_with_a_state_that_is_fresh(recipe):
    f, rule = sn.functional, sn.bind(recipe).rule
    params = {"late": torch.zeros(3), "first": torch.zeros(3)}
    now = {"first": params["first"]}
    state = f.init(rule, now)
    for _ in range(40):
        now, state = f.step(rule, now, {"first": now["first"] - GOAL}, state)
    joined = f.init(rule, {"late": params["late"]}) | state
    now = {"late": params["late"], **now}
    grads = {name: w - GOAL for name, w in now.items()}
    _, joined = f.step(rule, now, grads, joined)
    assert joined["late"]["d"] == joined["first"]["d"] > 1e-3


@pytest.mark.parametrize("late", ["a", "z"])
@pytest.mark.parametrize("recipe", SHARING)
def test_the_order_of_names_does_not_decide_who_has_taken_part(recipe, late):
    """After one step the estimate is still d0, in the late weight too."""
    f, rule = sn.functional, sn.bind(recipe, d0=1e-3).rule
    params = {"m": torch.ones(3)}
    params, state = f.step(rule, params, {"m": 100 * torch.ones(3)}, f.init(rule, params))
    new = {late: torch.ones(2)}
    params, state = dict(sorted((params | new).items())), state | f.init(rule, new)
    before = {key: state["m"][key] for keys in rule.shared_keys.values() for key in keys}
    shared = copy_shared_states_from_furthest(
        dict.fromkeys(params, rule), {name: state[name] for name in params}
    )
    for weight in shared.values():
        assert all(torch.equal(weight[key], value) for key, value in before.items())
    sharing = [(rule, dict(state[name])) for name in params]
    reconcile_shared_states(sharing)
    for _, weight in sharing:
        assert all(torch.equal(weight[key], value) for key, value in before.items())


@pytest.mark.parametrize("recipe", SHARING)
def test_a_weight_that_has_changed_is_named(recipe):
    weight = torch.zeros(4, 3).requires_grad_()
    optimizer = sn.torch_optimizer(recipe)([("head", weight)])
    quadratic([weight], [weight])
    optimizer.step()
    weight.data = torch.zeros(2, 2)
    quadratic([weight], [weight])
    with refuses("parameter 0 (head) of shape (2, 2): its state 'start'"):
        optimizer.step()


# Weights that the user has written into


HOLDING = (sn.rules.FixedNorm, sn.rules.FixedSpectralNorm, sn.rules.Retraction)
"""Rules that hold a norm, or another set of weights, whatever the user writes."""


def holds_a_norm(row):
    rule = row.rule()
    outside = [r for r in rule.walk() if isinstance(r, HOLDING)]
    return bool(outside) and row.recipe != "angularmuown"  # whose rows have a free norm, a gain


@pytest.mark.parametrize("row", EVERY, ids=str)
def test_averages_begin_anew_at_what_the_user_has_written(row):
    if row.recipe in {"sgdg", "lars"}:  # their momentum goes on
        return
    weights, grads = weights_and_gradients(row)
    optimizer = row.optimizer(weights, backend="rule")
    for t in range(3):
        set_grads(weights, grads[t])
        optimizer.step()
    with torch.no_grad():
        for weight in weights:
            weight.mul_(0.5).add_(0.3)
    written = [w.detach().clone() for w in weights]
    optimizer.reset_averages()
    with optimizer.evaluating():
        torch.testing.assert_close([w.detach() for w in weights], written, rtol=1e-15, atol=1e-15)
    optimizer.param_groups[0]["lr"] = 0.0 if holds_a_norm(row) else 1e-12
    for t in (3, 4):
        set_grads(weights, grads[t])
        optimizer.step()
    torch.testing.assert_close([w.detach() for w in weights], written, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [*sorted(AVERAGES), "dadapt_sgd", "muown", "angularmuown"])
def test_without_a_reset_a_step_goes_back(name):
    row = next(row for row in EVERY if row.recipe == name)
    weights, grads = weights_and_gradients(row)
    optimizer = row.optimizer(weights, backend="rule")
    for t in range(3):
        set_grads(weights, grads[t])
        optimizer.step()
    written = [torch.full_like(w, 5.0) for w in weights]
    with torch.no_grad():
        for weight, value in zip(weights, written, strict=True):
            weight.copy_(value)
    optimizer.param_groups[0]["lr"] = 1e-12
    set_grads(weights, grads[3])
    optimizer.step()
    moved = [(w.detach() - old).norm().item() for w, old in zip(weights, written, strict=True)]
    assert min(moved) > 0.1


def test_no_reset_while_evaluating():
    optimizer = sn.optim.ScheduleFreeSGD([torch.ones(2, requires_grad=True)])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.step()
    with optimizer.evaluating(), refuses("reset_averages()", by=RuntimeError):
        optimizer.reset_averages()


# Numbers of configuration tools


class ListConfig(MutableSequence):
    """A sequence that is neither a list nor a tuple, as OmegaConf's."""

    def __init__(self, items):
        self.items = [*items]

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def __len__(self):
        return len(self.items)

    def insert(self, index, value):
        self.items.insert(index, value)


@pytest.mark.parametrize("sequence", [ListConfig, list, np.array, tuple])
def test_param_groups_hold_plain_numbers_in_tuples_or_lists(sequence):
    weights = [torch.randn(3, 2, requires_grad=True) for _ in range(2)]
    optimizer = sn.optim.AdamP(
        [weights[0]],
        lr=np.logspace(-3, -2, 2)[0],
        betas=sequence([0.8, 0.99]),
        views=ListConfig(["channel", "layer"]),
    )
    optimizer.add_param_group(
        {"params": [weights[1]], "lr": np.float32(0.5), "betas": sequence([0.5, 0.75])}
    )
    for group, lr, betas in zip(
        optimizer.param_groups, (0.001, 0.5), ((0.8, 0.99), (0.5, 0.75)), strict=True
    ):
        assert (type(group["lr"]), group["lr"]) == (float, lr)
        assert (type(group["betas"]), tuple(group["betas"])) == (
            list if sequence is list else tuple,
            betas,
        )
        assert {type(x) for x in group["betas"]} == {float}
        assert group["views"] == ("channel", "layer")
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: np.float64(0.5))  # which writes numpy's
    for weight in weights:
        weight.grad = torch.randn(3, 2)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert [group["lr"] for group in loaded["param_groups"]] == [0.0005, 0.25]
    optimizer.load_state_dict(loaded)


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_averages_are_reset_of_a_rule_that_a_number_has_just_switched_on(backend):
    """Momentum leaves 0 before the reset, so that the state has no buffer yet."""
    weight = torch.zeros(3, dtype=torch.float64)
    optimizer = sn.torch_optimizer("averaged(sgd)")([weight], lr=0.5, backend=backend)
    for _ in range(20):
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.9
    weight.clamp_(max=1)
    optimizer.reset_averages()
    with optimizer.evaluating():
        assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize("recipe", ["muown", "angularmuown"])
def test_a_row_of_zeros_has_no_gain_to_restart(recipe):
    weight = torch.randn(4, 3, dtype=torch.float64)
    optimizer = sn.torch_optimizer(recipe)([weight], lr=0.02)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[weight].items()}
    weight[1] = 0
    with refuses("GainAndDirection", "is 0"):
        optimizer.reset_averages()
    torch.testing.assert_close(optimizer.state[weight], before, rtol=0, atol=0)


def test_an_average_of_directions_restarts_at_the_direction_of_the_new_weight():
    """Within a `GainAndDirection` the weight of a child is v = w / g, of norm 1 here."""
    step = sn.rules.StepSize(0.1)
    direction = sn.chain(step, sn.rules.Lookahead(0.5, 3))
    rule = sn.rules.GainAndDirection(direction, step, "channel")
    weight = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    _, state = rule.step(weight, torch.tensor([[1.0, -2.0]]).double(), rule.init(weight))
    written = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    restarted = rule.restart_weight_averages(written, state)
    assert state["slow"].tolist() == [[0.6, 0.8]]
    assert restarted["slow"].tolist() == [[0.0, 1.0]]
    assert restarted["gain"].tolist() == [[2.0]]


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_rule_that_is_switched_on_does_not_take_the_state_of_another(backend):
    """With a name each, both keep their own; without, whose a state is cannot be told."""

    def steps(memory, names):
        def two(lr=0.1, first=0.0, second=0.9):
            units = {"first": first, "second": second}
            rules = [
                sn.rules.NormalizedUpdate("channel", "one", memory, name=name and key)
                for (key, memory), name in zip(units.items(), names, strict=True)
            ]
            return sn.chain(rules[0], sn.rules.HeavyBall(0.5), rules[1], sn.rules.StepSize(lr))

        weight = torch.ones(2, 3, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        optimizer = sn.torch_optimizer(two)([weight], first=memory, backend=backend)
        for step in range(12):
            if step == 6:
                optimizer.param_groups[0]["first"] = 0.5
            weight.grad = torch.randn(2, 3, dtype=torch.float64, generator=generator)
            optimizer.step()
        return optimizer.state[weight]

    with refuses("squared_length", "name="):
        steps(0.0, (None, None))
    named, tiny = steps(0.0, ("a", "b")), steps(1e-300, ("a", "b"))
    assert named.keys() == tiny.keys()
